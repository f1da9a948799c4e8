"""Text to tokens, one at a time: what follows the first mistake in a huge text is never read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from einpage.einsum_front.spec.elsewhere import instead_of_character
from einpage.einsum_front.spec.source import Snippet


class TokenKind(Enum):
    """Sorts of tokens; the value is what a message calls one."""

    NUMBER = "a number"
    WORD = "a name"
    SYMBOL = "a symbol"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number or symbol and its place."""

    kind: TokenKind
    text: str
    start: int
    """Offset in the snippet."""

    @property
    def end(self) -> int:
        """Offset of the character after it."""
        return self.start + len(self.text)

    def shown(self) -> str:
        """For a message: "found …"."""
        return "the end" if self.kind is TokenKind.END else f"`{self.text[:40]}`"


_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol>\*\*|//|<=|>=|==|!=|\+=|[-+*/%<>()\[\],=])"
)
_LONGEST_NUMBER = 64


def tokens(snippet: Snippet) -> Iterator[Token]:
    """The tokens of `snippet`, then an END token. Raises SpecError at a character that is not of the language."""
    text, at = snippet.text, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            cure = instead_of_character(text, at)
            expected = None if cure else "names, numbers, operators"
            snippet.fail(at, at + 1, f"the character `{text[at]}` is not part of the language", expected=expected, cure=cure)
        kind, piece = found.lastgroup, found.group()
        if kind == "number":
            _check_number(snippet, piece, at)
            yield Token(TokenKind.NUMBER, piece, at)
        elif kind == "word":
            yield Token(TokenKind.WORD, piece, at)
        elif kind == "symbol":
            yield Token(TokenKind.SYMBOL, piece, at)
        at = found.end()
    yield Token(TokenKind.END, "", len(text))


def _check_number(snippet: Snippet, piece: str, at: int) -> None:
    end = at + len(piece)
    if len(piece) > _LONGEST_NUMBER:
        snippet.fail(at, at + 1, f"a number of {len(piece)} characters", expected=f"at most {_LONGEST_NUMBER}")
    following = snippet.text[end : end + 1]
    if following.isalnum() or following in ("_", "."):
        rest = snippet.text[end : end + 2].lower()
        snippet.fail(at, end + 1, f"`{piece}{following}` is not a number", cure=_about_number(piece, rest))
    if "__" in piece or piece.endswith("_") or "_." in piece or "._" in piece or "_e" in piece.lower():
        snippet.fail(at, end, f"`{piece}` is not a number", cure="an underscore stands between two digits")


def _about_number(piece: str, rest: str) -> str:
    """What to do about a number that goes on with `rest`."""
    if rest[0] == ".":
        return "a number has one point"
    if rest[0] == "e" and not rest[1:].isalpha():
        return f"an exponent is a whole number, as in `{piece}e-5`"
    if piece == "0" and rest[0] in "xbo":
        return "numbers are decimal"
    return f"write a product as `{piece}*{rest[0]}`"
