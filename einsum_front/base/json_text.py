"""JSON texts of strangers: parsed, up to an amount of memory that is known before anything is parsed.

In: the bytes of a file. Out: the value, or why there is none. A list takes two characters in a text and a hundred bytes in memory, so a
limit on a file's length limits little. What a value takes is counted from the characters that make lists, mappings, entries, items and
strings; such characters inside strings count as well, which makes the count too high and never too low.
"""

from __future__ import annotations

import json

from einpage.einsum_front.base.units import format_bytes

MOST_PARSED = 512 << 20
"""Bytes of memory for the value of a text and for the text itself."""
_BYTES_BY_MARK = {b"[": 112, b"{": 208, b":": 136, b",": 48, b'"': 32}
"""Of memory: a list with room for its first items; a mapping with room for its first entries; one more entry, twice, for keys are kept
while they are read; one more item, a number; half a string, without its characters."""
_BYTES_OF_A_CHARACTER = 4
"""Where a text is not ASCII, or its strings are not."""


class JsonError(ValueError):
    """Why a text is no JSON."""


class JsonTooLarge(ValueError):
    """How much memory a text would take, and how much it may."""


def parsed(text: bytes, most: int = MOST_PARSED) -> object:
    """The value of a JSON text. Raises JsonError, or JsonTooLarge where `parsed_size` is more than `most` bytes."""
    size = parsed_size(text)
    if size > most:
        needed, may = format_bytes(size), format_bytes(most)
        raise JsonTooLarge(f"{len(text):,} bytes of JSON that may take {needed} of memory, more than the {may} that are allowed")
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(_reason(error)) from error
    return found


def parsed_size(text: bytes) -> int:
    """Bytes of memory that a JSON text and its value take, at most: its bytes, its characters, those of its strings, and its marks."""
    ascii_alone = text.isascii() and rb"\u" not in text
    characters = len(text) * (1 if ascii_alone else _BYTES_OF_A_CHARACTER)
    return len(text) + 2 * characters + sum(nbytes * text.count(mark) for mark, nbytes in _BYTES_BY_MARK.items())


def _reason(error: ValueError | RecursionError) -> str:
    match error:
        case RecursionError():
            return "nested too deep"
        case json.JSONDecodeError():
            return f"{error.msg[0].lower()}{error.msg[1:]}, in line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}"
        case _:
            return "a whole number of thousands of digits"
