"""YAML text to a tree in which every node knows its place. Nothing is constructed: no tags, no anchors, no Python objects.

In: the text of a spec or of a machine profile. Out: a YamlNode of mappings, sequences and scalars. Refused with place and cure: what is
not YAML, tags, anchors, a key given twice, more than one document, nesting, lines and files far beyond any that is meant. The tree is made
from the parser's events, one at a time, so that none of these costs more than the text before it. A date is text; so is a number of
MAX_DIGITS characters or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.spec.source import Snippet, SourceFile

MAX_CHARACTERS = 1 << 20
"""Of a file."""
MAX_LINE = 1 << 14
"""Characters of a line."""
MAX_DEPTH = 32
"""Levels of mappings and lists."""
MAX_DIGITS = 64
_MOST_SEARCHED = 1 << 16
"""Characters of a scalar searched in vain for those that stand there as escapes: beyond, places are those of the escape before."""

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

YamlMark: TypeAlias = "yaml.error.Mark | yaml._yaml.Mark"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """A word, a number, a truth value, or nothing."""

    snippet: Snippet
    """The text, whatever YAML takes it for."""
    value: bool | int | float | str | None
    """What YAML takes it for; `1e-5` is a number here, `yes` and `on` are words."""
    span: Span


@dataclass(frozen=True, slots=True)
class YamlSequence:
    """A list."""

    items: tuple[YamlNode, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class YamlMapping:
    """Values by key, and the spans of the keys."""

    items: dict[str, YamlNode]
    key_spans: dict[str, Span]
    span: Span


YamlNode: TypeAlias = "YamlScalar | YamlSequence | YamlMapping"


def parse_yaml(source: SourceFile, text: str, kind: str = "spec") -> YamlNode | None:
    """The tree of `text`; None for a file that holds nothing. `kind` is what the file should be, for messages. Raises SpecError."""
    _refuse_huge(source, text, kind)
    try:
        return _Composer(source, text).document()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        span = Span(mark.line + 1, mark.column + 1) if mark else Span(1, 1)
        if span.line > len(source.lines):  # the file ended too early: point behind its last character
            span = Span(len(source.lines), len(source.lines[-1]) + 1)
        cure = f"a {'statement' if kind == 'spec' else 'text'} that holds `: ` or ` #`, or starts with a bracket, must stand in quotes"
        raise source.error(span, f"not YAML: {e.problem or e.context}", cure=cure) from None
    except yaml.YAMLError as e:
        raise source.error(Span(1, 1), f"not YAML: {' '.join(str(e).split())[:200]}") from None


def json_value(node: YamlNode) -> JsonValue:
    """The tree as plain data without places, for a JSON Schema."""
    match node:
        case YamlScalar():
            return node.value
        case YamlSequence():
            return [json_value(item) for item in node.items]
        case YamlMapping():
            return {key: json_value(item) for key, item in node.items.items()}


def _refuse_huge(source: SourceFile, text: str, kind: str) -> None:
    """A file is a page or two; what is far longer is a mistake, and is named before anything is spent on it."""
    longest = max(range(len(source.lines)), key=lambda i: len(source.lines[i]), default=0)
    if source.lines and len(source.lines[longest]) > MAX_LINE:
        length = len(source.lines[longest])
        spec = kind == "spec"
        message = f"a line of {length:,} characters{': an expression this long is nested too deeply' if spec else ''}"
        remedy = "cut it into several statements" if spec else "write each key on a line of its own"
        raise source.error(Span(longest + 1, MAX_LINE + 1), message, expected=f"at most {MAX_LINE:,}", cure=remedy)
    if len(text) > MAX_CHARACTERS:
        message = f"a {kind} of {len(text):,} characters"
        cure = "write what repeats as a `repeat`" if kind == "spec" else None
        raise source.error(Span(1, 1), message, expected=f"at most {MAX_CHARACTERS:,}", cure=cure)


class _Composer:
    """The parser's events, read once, into nodes."""

    def __init__(self, source: SourceFile, text: str) -> None:
        self._source = source
        self._text = text
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_Loader))

    def document(self) -> YamlNode | None:
        """The only document of the text; None where it has none. Raises SpecError."""
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), 0)
        next(self._events)  # the document's end
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise self._source.error(_span(following), "a second YAML document", expected="one document a file")
        return root

    def _node(self, event: yaml.Event, depth: int) -> YamlNode:
        span = _span(event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._source.error(span, "anchors (`&name`, `*name`) are not allowed", cure="write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._source.error(span, f"the tag `{shown}` is not allowed", expected="plain YAML: words, numbers, lists and mappings")
        if depth > MAX_DEPTH:
            raise self._source.error(span, "YAML nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            return YamlScalar(self._snippet(event), _value(event), span)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(span, depth)
        items: list[YamlNode] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return YamlSequence(tuple(items), span)

    def _mapping(self, span: Span, depth: int) -> YamlMapping:
        items: dict[str, YamlNode] = {}
        key_spans: dict[str, Span] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, YamlScalar):
                cure = "a statement that starts with a bracket, or holds `: `, must stand in quotes"
                raise self._source.error(key.span, "a key must be a word", cure=cure)
            word = key.snippet.text
            if word in items:
                first = key_spans[word]
                raise self._source.error(
                    key.span, f"`{word}` is given twice, first at {first.line}:{first.column}", cure="keep one of the two"
                )
            items[word] = self._node(next(self._events), depth + 1)
            key_spans[word] = key.span
        return YamlMapping(items, key_spans, span)

    def _snippet(self, event: yaml.ScalarEvent) -> Snippet:
        start, end = _marks(event)
        line, column = start.line + 1, start.column + 1
        raw = self._text[start.index : end.index]
        if raw == event.value:
            return Snippet(event.value, self._source, line, column)
        return Snippet(event.value, self._source, line, column, _align(event.value, raw, line, column))


def _align(value: str, raw: str, line: int, column: int) -> tuple[tuple[int, int], ...]:
    """The place of each character of a scalar that YAML folded or unquoted: both texts are walked, blanks matching loosely."""
    places: list[tuple[int, int]] = []
    at = searched = 0
    for i, c in enumerate(value):
        probe, here, there = at, line, column
        while probe < len(raw) and raw[probe] != c and not (c.isspace() and raw[probe].isspace()):
            here, there = (here + 1, 1) if raw[probe] == "\n" else (here, there + 1)
            probe += 1
        if probe == len(raw):  # an escape such as "\x41": it has no character of its own to point at
            places.append((line, column))
            searched += probe - at
            if searched > _MOST_SEARCHED:
                return (*places, *((line, column) for _ in value[i + 1 :]))
            continue
        places.append((here, there))
        at, line, column = probe + 1, here, there + 1
        if raw[probe] == "\n":
            line, column = here + 1, 1
    return tuple(places)


def _marks(event: yaml.Event) -> tuple[YamlMark, YamlMark]:
    assert event.start_mark is not None and event.end_mark is not None, "the parser marks every event"
    return event.start_mark, event.end_mark


def _span(event: yaml.Event) -> Span:
    start, end = _marks(event)
    length = end.column - start.column if end.line == start.line else 1
    return Span(start.line + 1, start.column + 1, max(1, length))


def _value(event: yaml.ScalarEvent) -> bool | int | float | str | None:
    """A quoted scalar is text; an unquoted one is a number, a truth value or nothing where it looks like one, else text."""
    text: str = event.value
    if event.style:
        return text
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if len(text) < MAX_DIGITS and _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if len(text) < MAX_DIGITS and _FLOAT.fullmatch(text) else text
