"""Errors a person can act on. Every mistake of a user ends in one of these; a bug of ours asserts instead.

A SpecError shows file, line and column, the line itself above a caret, what was expected, what exists, and the nearest
name that would have been right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: 1-based line and column, and length in characters."""

    line: int
    column: int
    length: int = 1


_LISTED = 12
"""So many of the existing names does a message list."""
_WIDTH = 120
"""So many characters of a source line, or of one word, does a message show."""
_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What ends a line, steers a terminal, or cannot be printed."""
_LONGEST = 800
"""So many characters of what was expected, of what exists, …"""


class EinpageError(Exception):
    """Base of all errors that are not our bug. `exit_status` is what the command line returns."""

    exit_status = 2


class UsageError(EinpageError):
    """A wrong argument, file or combination of them."""


class SpecError(EinpageError):
    """A mistake in a spec (or in a `--set`), with its place. `line` and `column` count from 1."""

    def __init__(
        self,
        message: str,
        path: str,
        span: Span,
        source_line: str,
        expected: str | None = None,
        exists: str | None = None,
        cure: str | None = None,
    ) -> None:
        self.message = message = _shortened(message)
        self.path = path
        self.line = span.line
        self.column = span.column
        self.source_line = source_line
        self.expected, self.exists, self.cure = (None if text is None else _shortened(text) for text in (expected, exists, cure))
        rows = [f"{path}:{span.line}:{span.column}: {message}", *_under_caret(source_line, span)]
        labelled = (("expected", self.expected), ("exists", self.exists), ("cure", self.cure))
        rows.extend(f"  {label}: {text}" for label, text in labelled if text is not None)
        super().__init__("\n".join(rows))


def one_line(text: str, most: int = _WIDTH) -> str:
    """`text` with what would break its line escaped, and the middle of words of more than `most` characters left out."""
    text = _BREAKS.sub(lambda c: ascii(c[0])[1:-1], text)
    return re.sub(rf"\S{{{most + 1},}}", lambda word: f"{word[0][: most // 2]}…{word[0][-most // 4 :]}", text)


def _shortened(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _under_caret(source_line: str, span: Span) -> list[str]:
    """The line and a caret below it; of a long line, the part around the caret."""
    at = min(max(span.column - 1, 0), len(source_line))
    start = max(0, at - _WIDTH // 2) if len(source_line) > _WIDTH else 0
    shown = source_line[start : start + _WIDTH]
    lead, trail = ("…" if start else ""), ("…" if start + _WIDTH < len(source_line) else "")
    # A tab before the caret is kept, so that the caret is under its character on any terminal.
    indent = "".join("\t" if c == "\t" else " " for c in lead + shown[: at - start])
    carets = "^" * max(1, min(span.length, len(shown) - (at - start)))
    gutter = " " * len(str(span.line))
    return [f"  {span.line} | {lead}{shown}{trail}", f"  {gutter} | {indent}{carets}"]


def closest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word most like `word`, or in another case the same; None where nothing is near. `likeness` of 1 is equality."""
    words = sorted(known)
    found = [w for w in words if w.lower() == word.lower()] or get_close_matches(word, words, n=1, cutoff=likeness)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """`did you mean `x`?`, or None where nothing is near."""
    near = closest(word, known, likeness)
    return None if near is None else f"did you mean `{near}`?"


def listing(words: Iterable[str]) -> str:
    """`a, b, c` for a message; a long list is cut and counted."""
    names = list(dict.fromkeys(words))
    shown = ", ".join(names[:_LISTED])
    if not names:
        return "none"
    return shown if len(names) <= _LISTED else f"{shown} … ({len(names)} in all)"
