"""A spec's text to a Document: YAML read, its structure checked, every expression parsed.

In: a file. Out: a Document, or a SpecError with the place of the mistake. What the JSON Schema has proven is asserted here and not
checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path

from einpage.einsum_front.algebra.expr import Expr, Letter, Name
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span, did_you_mean, listing
from einpage.einsum_front.base.files import read_text
from einpage.einsum_front.spec.document import (
    RANDOM,
    UNSCALED,
    Axes,
    BodyItem,
    ConfigKey,
    Document,
    InputEntry,
    OutputEntry,
    Repeat,
    SourceName,
    StateEntry,
    TrainEntry,
    WeightEntry,
)
from einpage.einsum_front.spec.parse import parse_axes, parse_expression, parse_statement
from einpage.einsum_front.spec.schema import check_schema
from einpage.einsum_front.spec.sizes import Entry, ListEntry, usable_name
from einpage.einsum_front.spec.source import Snippet, SourceFile
from einpage.einsum_front.spec.yamltree import MAX_CHARACTERS, YamlMapping, YamlNode, YamlScalar, YamlSequence, parse_yaml

_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[Tt ].*)?")
"""What YAML takes for a date, and the grammar of expressions for a difference."""


def load_document(path: str | Path) -> Document:
    """The spec in a file. Raises UsageError where it cannot be read, SpecError for a mistake in it."""
    return read_document(read_text(Path(path), f"the spec {path}", MAX_CHARACTERS), str(path))


@lru_cache(maxsize=4)  # the phases of a generation open one spec at many sizes
def read_document(text: str, path: str) -> Document:
    """The spec in `text`; `path` is for messages. Raises SpecError."""
    source = SourceFile(path, tuple(re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text)))
    root = parse_yaml(source, text)
    if not isinstance(root, YamlMapping):
        found = "nothing" if root is None else "a list" if isinstance(root, YamlSequence) else "text"
        cure = "start with `einpage: 1`, `name:`, `sizes:`; specs/README.md shows a whole one"
        raise source.error(Span(1, 1), f"a spec is a mapping, found {found}", expected="keys and values", cure=cure)
    check_schema(source, root)
    return _Reader(source).document(root)


class _Reader:
    """Builds the Document from a tree that conforms to the schema."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def document(self, root: YamlMapping) -> Document:
        """The document of a spec's root. Raises SpecError."""
        sizes = self._entries(root.items.get("sizes"), least=0)
        scalars = self._entries(root.items.get("scalars"), least=None)
        axes = self._entries(root.items.get("axes"), least=1)
        lists = tuple(self._list(root.items["lists"], key) for key, _ in _items(root.items.get("lists")))
        self._refuse_twice({"a size": sizes, "a scalar": scalars, "an axis": axes, "a list": lists})
        config = self._config(root.items.get("config"), [*(e.name for e in (*sizes, *scalars)), *(e.name for e in lists)])
        return Document(
            name=_text(root.items["name"]),
            source=self._source,
            sizes=sizes,
            scalars=scalars,
            axes=axes,
            lists=lists,
            config=config,
            assume={key: _snippets(value) for key, value in _items(root.items.get("assume"))},
            inputs=tuple(self._input(root.items["inputs"], key) for key, _ in _items(root.items.get("inputs"))),
            weights=self._weights(root.items.get("weights")),
            states=self._states(root.items.get("state")),
            body=self._body(root.items["body"]),
            outputs=tuple(self._output(root.items["outputs"], key) for key, _ in _items(root.items["outputs"])),
            ignore=_texts(root.items["ignore"]) if "ignore" in root.items else (),
            train=self._train(root) if "train" in root.items else None,
        )

    def _train(self, root: YamlMapping) -> TrainEntry:
        node, span = _child(root, "train")
        loss, inputs, update, scale = node.items["loss"], *map(node.items.get, ("inputs", "update", "scale"))
        return TrainEntry(
            loss=Name(_text(loss), loss.span),
            inputs=tuple(self._input(inputs, key) for key, _ in _items(inputs) if inputs is not None),
            body=self._body(node.items["body"]) if "body" in node.items else (),
            weights=_snippets(node.items["weights"]) if "weights" in node.items else (),
            optimiser=_snippets(node.items["optimiser"])[0] if "optimiser" in node.items else None,
            numbers=self._entries(node.items.get("numbers"), least=None),
            states=_snippets(node.items["state"]) if "state" in node.items else (),
            update=tuple(map(parse_statement, _snippets(update))) if update is not None else (),
            span=span,
            scaled=self._is_scaled(scale),
            scale=self._entries(scale, least=None) if isinstance(scale, YamlMapping) else (),
        )

    def _is_scaled(self, node: YamlNode | None) -> bool | None:
        """By `scale:`, numbers or the word `none`. Raises SpecError for another word."""
        if isinstance(node, YamlScalar) and node.snippet.text != UNSCALED:
            raise self._source.error(node.span, f"`{node.snippet.text[:40]}`", expected=f"`{UNSCALED}`, or numbers")
        return None if node is None else isinstance(node, YamlMapping)

    def _refuse_twice(self, entries_by_kind: Mapping[str, Sequence[Entry | ListEntry]]) -> None:
        """Raises SpecError for a name that two entries have, of whatever kinds: before one of their numbers is taken for the other's."""
        first: dict[str, tuple[str, Span]] = {}
        for kind, entries in entries_by_kind.items():
            for entry in entries:
                if entry.name in first:
                    earlier, span = first[entry.name]
                    message = f"`{entry.name}` already names {earlier}, in line {span.line}"
                    raise self._source.error(entry.span, message, cure="choose another name")
                first[entry.name] = kind, entry.span

    def _list(self, parent: YamlNode, key: str) -> ListEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        over, default = self._entry(name, node.items["over"], least=None), self._entry(name, node.items["default"], least=None)
        return ListEntry(name, over, self._variable(node), default, span, self._source)

    def _config(self, node: YamlNode | None, known: list[str]) -> dict[str, tuple[ConfigKey, ...]]:
        for key, _ in _items(node):
            if key not in known:
                assert isinstance(node, YamlMapping)
                message, cure = f"`{key}` is no size, scalar or list", did_you_mean(key, known)
                raise self._source.error(node.key_spans[key], message, exists=listing(known), cure=cure)
        return {key: tuple(map(self._config_key, _listed(value))) for key, value in _items(node)}

    def _config_key(self, node: YamlNode) -> ConfigKey:
        if isinstance(node, YamlScalar):
            return ConfigKey(node.snippet.text, (), node.span)
        assert isinstance(node, YamlMapping)
        values = tuple((word, self._finite(value)) for word, value in _items(node.items["values"]))
        return ConfigKey(_text(node.items["key"]), values, node.items["key"].span)

    def _finite(self, node: YamlNode) -> float:
        """A number that an fp32 holds. Raises SpecError."""
        assert isinstance(node, YamlScalar) and isinstance(node.value, int | float)
        if not isfinite(node.value) or DType.FP32.is_exceeded_by(node.value):
            raise self._source.error(node.span, f"`{node.snippet.text[:40]}` is beyond fp32", expected="a finite number")
        return node.value

    def _variable(self, node: YamlMapping) -> str | None:
        """The word under `as:`. Raises SpecError where it cannot name a number."""
        if "as" not in node.items:
            return None
        variable = _text(node.items["as"])
        if not usable_name(variable):
            raise self._source.error(node.items["as"].span, f"`{variable}` cannot be a name", cure="choose another word")
        return variable

    def _entries(self, node: YamlNode | None, *, least: int | None) -> tuple[Entry, ...]:
        return tuple(self._entry(self._named(node, key), value, least=least) for key, value in _items(node))

    def _entry(self, name: str, node: YamlNode, *, least: int | None) -> Entry:
        assert isinstance(node, YamlScalar)
        special = node.snippet.text.lower().lstrip("+-")
        if special in (".nan", ".inf"):
            cure = "write the number that is meant"
            raise self._source.error(node.span, f"`{name}` is `{node.snippet.text}`", expected="a finite number", cure=cure)
        if _DATE.fullmatch(node.snippet.text.strip()):
            cure = "write the number that is meant; a difference has blanks, as `2020 - 1`"
            raise self._source.error(node.span, f"`{name}` is `{node.snippet.text}`, a date", expected="a number", cure=cure)
        return Entry(name, parse_expression(node.snippet), node.span, self._source, least)

    def _named(self, node: YamlNode | None, key: str) -> str:
        """`key`, a key of `node`, where it may name something."""
        assert isinstance(node, YamlMapping)
        if not usable_name(key):
            cure = "choose another name" if key.isidentifier() else "letters, digits and `_`, not starting with a digit"
            raise self._source.error(node.key_spans[key], f"`{key}` cannot be a name", cure=cure)
        return key

    def _input(self, parent: YamlNode, key: str) -> InputEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        dtype = DType(_text(node.items["dtype"])) if "dtype" in node.items else None
        default = self._entry(name, node.items["default"], least=None) if "default" in node.items else None
        limits = self._range(name, node.items["range"]) if "range" in node.items else None
        return InputEntry(name, self._axes(node.items["axes"], grouped=False), dtype, default, limits, span)

    def _range(self, name: str, node: YamlNode) -> tuple[Entry, Entry]:
        """The two ends of `LOW .. HIGH`. Raises SpecError for another form."""
        assert isinstance(node, YamlScalar)
        snippet = node.snippet
        dots = snippet.text.find("..")
        if dots < 0:
            message, cure = f"the range of `{name}` is `{snippet.text[:40]}`", "both ends are allowed values, as in `range: 1 .. seq`"
            raise self._source.error(node.span, message, expected="LOW .. HIGH", cure=cure)
        low, high = (_stripped(s) for s in (snippet.part(0, dots), snippet.part(dots + 2, len(snippet.text))))
        if ".." in high.text:
            message = f"the range of `{name}` has more than two ends, or more than two points between them"
            raise self._source.error(node.span, message, expected="LOW .. HIGH", cure="write one pair of points, as in `range: 1 .. seq`")
        for end, word in ((low, "LOW"), (high, "HIGH")):
            if not end.text:
                raise self._source.error(node.span, f"the range of `{name}` lacks its {word}", expected="LOW .. HIGH")
        return self._end(name, low), self._end(name, high)

    def _end(self, name: str, snippet: Snippet) -> Entry:
        return Entry(name, parse_expression(snippet), snippet.whole(), self._source, least=None)

    def _output(self, parent: YamlNode, key: str) -> OutputEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        return OutputEntry(name, self._axes(node.items["axes"], grouped=False), span)

    def _weights(self, parent: YamlNode | None) -> tuple[WeightEntry, ...]:
        return tuple(self._weight(parent, key) for key, _ in _items(parent) if parent is not None)

    def _weight(self, parent: YamlNode, key: str) -> WeightEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        origin = node.items["from"]
        fallback = None
        if "or" in node.items:
            other = node.items["or"]
            fallback = Name(_text(other), other.span)
        axes, sources = self._axes(node.items["axes"], grouped=True), tuple(map(self._source_name, _listed(origin)))
        return WeightEntry(name, axes, sources, fallback, span, self._start(node.items["start"]) if "start" in node.items else None)

    def _start(self, node: YamlNode) -> float | str:
        """A number, or the word `random`. Raises SpecError."""
        assert isinstance(node, YamlScalar)
        return RANDOM if node.value == RANDOM else self._finite(node)

    def _states(self, parent: YamlNode | None) -> tuple[StateEntry, ...]:
        return tuple(self._state(parent, key) for key, _ in _items(parent) if parent is not None)

    def _state(self, parent: YamlNode, key: str) -> StateEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        along = (Letter(_text(node.items["along"])), node.items["along"].span) if "along" in node.items else None
        return StateEntry(name, self._axes(node.items["axes"], grouped=False), along, span)

    def _source_name(self, node: YamlNode) -> SourceName:
        axes, plus = None, 0.0
        if isinstance(node, YamlMapping):
            axes = self._axes(node.items["axes"], grouped=True) if "axes" in node.items else None
            plus = self._finite(node.items["plus"]) if "plus" in node.items else 0.0
            node = node.items["name"]
        assert isinstance(node, YamlScalar)
        return SourceName(tuple(_template(node.snippet)), axes, plus, node.span)

    def _axes(self, node: YamlNode, *, grouped: bool) -> Axes:
        assert isinstance(node, YamlScalar)
        groups = parse_axes(node.snippet)
        if not grouped and any(len(g.letters) != 1 for g in groups):
            raise self._source.error(node.span, "brackets in axes that no checkpoint holds", expected="letters parted by blanks")
        return Axes(groups, node.span)

    def _body(self, node: YamlNode) -> tuple[BodyItem, ...]:
        assert isinstance(node, YamlSequence)
        return tuple(self._item(item) for item in node.items)

    def _item(self, node: YamlNode) -> BodyItem:
        if isinstance(node, YamlScalar):
            return parse_statement(node.snippet)
        assert isinstance(node, YamlMapping)
        return Repeat(
            count=self._entry("repeat", node.items["repeat"], least=None),
            variable=self._variable(node),
            let=self._entries(node.items.get("let"), least=None),
            weights=self._weights(node.items.get("weights")),
            states=self._states(node.items.get("state")),
            body=self._body(node.items["body"]),
            span=node.key_spans["repeat"],
        )


def _stripped(snippet: Snippet) -> Snippet:
    """`snippet` without the blanks around it."""
    start = len(snippet.text) - len(snippet.text.lstrip())
    return snippet.part(start, max(start, len(snippet.text.rstrip())))


def _template(snippet: Snippet) -> Iterator[str | Expr]:
    """`blk.{l}.attn_q` into text and expressions. Raises SpecError for braces that do not close."""
    at = 0
    while (opened := snippet.text.find("{", at)) >= 0:
        closed = snippet.text.find("}", opened)
        if closed < 0:
            snippet.fail(opened, opened + 1, "`{` is not closed", expected="`{l}`, l being a repeat variable")
        if opened > at:
            yield snippet.text[at:opened]
        yield parse_expression(snippet.part(opened + 1, closed))
        at = closed + 1
    if at < len(snippet.text):
        yield snippet.text[at:]


def _items(node: YamlNode | None) -> Iterator[tuple[str, YamlNode]]:
    if node is not None:
        assert isinstance(node, YamlMapping)
        yield from node.items.items()


def _child(parent: YamlNode, key: str) -> tuple[YamlMapping, Span]:
    assert isinstance(parent, YamlMapping)
    child = parent.items[key]
    assert isinstance(child, YamlMapping)
    return child, parent.key_spans[key]


def _text(node: YamlNode) -> str:
    assert isinstance(node, YamlScalar)
    return node.snippet.text


def _texts(node: YamlNode) -> tuple[str, ...]:
    return tuple(snippet.text for snippet in _snippets(node))


def _snippets(node: YamlNode) -> tuple[Snippet, ...]:
    """A word, or each word of a list."""
    assert all(isinstance(n, YamlScalar) for n in _listed(node))
    return tuple(n.snippet for n in _listed(node) if isinstance(n, YamlScalar))


def _listed(node: YamlNode) -> tuple[YamlNode, ...]:
    """A node, or each of a list."""
    return node.items if isinstance(node, YamlSequence) else (node,)
