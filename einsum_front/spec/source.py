"""Places of text in a file: what every error message needs.

A SourceFile is a path and its lines. A Snippet is a piece of text taken from it (a YAML scalar, a `--set` argument)
that knows the place in the file of each of its characters, also where YAML folded or quoted it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from einpage.einsum_front.base.errors import Span, SpecError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file's path and its lines."""

    path: str
    """As the user wrote it."""
    lines: tuple[str, ...]

    def text(self, span: Span) -> str:
        """What stands at `span`, as far as the end of its line."""
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return line[span.column - 1 : span.column - 1 + span.length]

    def error(
        self, span: Span, message: str, *, expected: str | None = None, exists: str | None = None, cure: str | None = None
    ) -> SpecError:
        """The error for a mistake at `span`, to be raised by the caller."""
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return SpecError(message, self.path, span, line, expected, exists, cure)


@dataclass(frozen=True, slots=True)
class Snippet:
    """Text whose characters have places. Offsets are 0-based characters of `text`."""

    text: str
    source: SourceFile
    line: int
    column: int
    """Of the first character."""
    places: tuple[tuple[int, int], ...] = ()
    """(line, column) per character; empty where the text is on one line of the file, character by character."""

    @staticmethod
    def alone(text: str, path: str = "expression") -> Snippet:
        """A snippet that is its own file, for text that came from no file."""
        return Snippet(text, SourceFile(path, (text,)), 1, 1)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at `offset` (one past the last is allowed)."""
        if not self.places:
            return self.line, self.column + offset
        if offset < len(self.places):
            return self.places[offset]
        line, column = self.places[-1]
        return line, column + 1

    def span(self, start: int, end: int) -> Span:
        """The span of text[start:end], as far as the end of the line it starts on."""
        line, column = self.place(start)
        last_line, last_column = self.place(max(start, end - 1))
        length = last_column - column + 1 if last_line == line else len(self.source.lines[line - 1]) - column + 1
        return Span(line, column, max(1, length))

    def part(self, start: int, end: int) -> Snippet:
        """text[start:end], as a snippet."""
        line, column = self.place(start)
        return Snippet(self.text[start:end], self.source, line, column, self.places[start:end])

    def whole(self) -> Span:
        """The span of all of it."""
        return self.span(0, len(self.text))

    def fail(self, start: int, end: int, message: str, *, expected: str | None = None, cure: str | None = None) -> NoReturn:
        """Raise SpecError at text[start:end]."""
        raise self.source.error(self.span(start, end), message, expected=expected, cure=cure)
