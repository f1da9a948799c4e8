"""A spec's text to a Document: YAML read, its structure checked, every expression parsed.

In: a file. Out: a Document, or a SpecError with the place of the mistake. What the JSON Schema has proven is asserted here and not
checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from einpage.einsum_front.algebra.expr import Expr, Name
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span, UsageError, did_you_mean, listing
from einpage.einsum_front.spec.document import Axes, BodyItem, Document, InputEntry, OutputEntry, Repeat, SourceName, WeightEntry
from einpage.einsum_front.spec.parse import parse_axes, parse_expression, parse_statement
from einpage.einsum_front.spec.schema import check_schema
from einpage.einsum_front.spec.sizes import Entry, usable_name
from einpage.einsum_front.spec.source import Snippet, SourceFile
from einpage.einsum_front.spec.yamltree import YamlMapping, YamlNode, YamlScalar, YamlSequence, parse_yaml

_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[Tt ].*)?")
"""What YAML takes for a date, and the grammar of expressions for a difference."""


def load_document(path: str | Path) -> Document:
    """The spec in a file. Raises UsageError where it cannot be read, SpecError for a mistake in it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read the spec {path}: {reason}") from None
    return read_document(text, str(path))


def read_document(text: str, path: str) -> Document:
    """The spec in `text`; `path` is for messages. Raises SpecError."""
    source = SourceFile(path, tuple(re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text)))
    root = parse_yaml(source, text)
    if not isinstance(root, YamlMapping):
        found = "nothing" if root is None else "a list" if isinstance(root, YamlSequence) else "text"
        cure = "start with `einpage: 1`, `name:`, `sizes:`; specs/README.md shows a whole one"
        raise source.error(Span(1, 1), f"a spec is a mapping, found {found}", expected="keys and values", cure=cure)
    if "state" in root.items:
        raise source.error(root.key_spans["state"], "`state:` is reserved and not yet implemented", cure="leave it out")
    check_schema(source, root)
    return _Reader(source).document(root)


class _Reader:
    """Builds the Document from a tree that conforms to the schema."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def document(self, root: YamlMapping) -> Document:
        """The document of a spec's root. Raises SpecError."""
        sizes = self._entries(root.items.get("sizes"), whole=True)
        scalars = self._entries(root.items.get("scalars"), whole=False)
        config = self._config(root.items.get("config"), [e.name for e in (*sizes, *scalars)])
        return Document(
            name=_text(root.items["name"]),
            source=self._source,
            sizes=sizes,
            scalars=scalars,
            axes=self._entries(root.items.get("axes"), whole=True),
            config=config,
            assume={key: _snippets(value) for key, value in _items(root.items.get("assume"))},
            inputs=tuple(self._input(root.items["inputs"], key) for key, _ in _items(root.items.get("inputs"))),
            weights=self._weights(root.items.get("weights")),
            body=self._body(root.items["body"]),
            outputs=tuple(self._output(root.items["outputs"], key) for key, _ in _items(root.items["outputs"])),
            ignore=_texts(root.items["ignore"]) if "ignore" in root.items else (),
        )

    def _config(self, node: YamlNode | None, known: list[str]) -> dict[str, tuple[str, ...]]:
        for key, _ in _items(node):
            if key not in known:
                assert isinstance(node, YamlMapping)
                message, cure = f"`{key}` is no size or scalar", did_you_mean(key, known)
                raise self._source.error(node.key_spans[key], message, exists=listing(known), cure=cure)
        return {key: _texts(value) for key, value in _items(node)}

    def _entries(self, node: YamlNode | None, *, whole: bool) -> tuple[Entry, ...]:
        return tuple(self._entry(self._named(node, key), value, whole=whole) for key, value in _items(node))

    def _entry(self, name: str, node: YamlNode, *, whole: bool) -> Entry:
        assert isinstance(node, YamlScalar)
        special = node.snippet.text.lower().lstrip("+-")
        if special in (".nan", ".inf"):
            cure = "write the number that is meant"
            raise self._source.error(node.span, f"`{name}` is `{node.snippet.text}`", expected="a finite number", cure=cure)
        if _DATE.fullmatch(node.snippet.text.strip()):
            cure = "write the number that is meant; a difference has blanks, as `2020 - 1`"
            raise self._source.error(node.span, f"`{name}` is `{node.snippet.text}`, a date", expected="a number", cure=cure)
        return Entry(name, parse_expression(node.snippet), node.span, self._source, whole)

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
        default = self._entry(name, node.items["default"], whole=False) if "default" in node.items else None
        return InputEntry(name, self._axes(node.items["axes"], grouped=False), dtype, default, span)

    def _output(self, parent: YamlNode, key: str) -> OutputEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        return OutputEntry(name, self._axes(node.items["axes"], grouped=False), span)

    def _weights(self, parent: YamlNode | None) -> tuple[WeightEntry, ...]:
        return tuple(self._weight(parent, key) for key, _ in _items(parent) if parent is not None)

    def _weight(self, parent: YamlNode, key: str) -> WeightEntry:
        name, (node, span) = self._named(parent, key), _child(parent, key)
        origin = node.items["from"]
        origins = origin.items if isinstance(origin, YamlSequence) else (origin,)
        fallback = None
        if "or" in node.items:
            other = node.items["or"]
            fallback = Name(_text(other), other.span)
        return WeightEntry(name, self._axes(node.items["axes"], grouped=True), tuple(map(self._source_name, origins)), fallback, span)

    def _source_name(self, node: YamlNode) -> SourceName:
        if isinstance(node, YamlMapping):
            axes = self._axes(node.items["axes"], grouped=True) if "axes" in node.items else None
            node = node.items["name"]
        else:
            axes = None
        assert isinstance(node, YamlScalar)
        return SourceName(tuple(_template(node.snippet)), axes, node.span)

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
        variable = None
        if "as" in node.items:
            variable = _text(node.items["as"])
            if not usable_name(variable):
                raise self._source.error(node.items["as"].span, f"`{variable}` cannot be a name", cure="choose another word")
        return Repeat(
            count=self._entry("repeat", node.items["repeat"], whole=False),
            variable=variable,
            let=self._entries(node.items.get("let"), whole=False),
            weights=self._weights(node.items.get("weights")),
            body=self._body(node.items["body"]),
            span=node.key_spans["repeat"],
        )


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
    nodes = node.items if isinstance(node, YamlSequence) else (node,)
    assert all(isinstance(n, YamlScalar) for n in nodes)
    return tuple(n.snippet for n in nodes if isinstance(n, YamlScalar))
