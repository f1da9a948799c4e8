"""Buffers in CSV, the format of minimalloc's benchmark: a header `id,lower,upper,size`, then one buffer a line.

In: a file; its columns may be in any order, and a column `offset` (a packing written before) is ignored. Out: Buffers, named rectangles in
the order of their lines, or UsageError with the file and the line. Back: the same four columns and `offset`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from einpage.einsum_front.base.errors import UsageError, listing
from einpage.einsum_front.base.files import read_text
from einpage.memplan.packing.rectangles import Packing, Rectangle

COLUMNS = ("id", "lower", "upper", "size")
_OFFSET = "offset"
MOST_CHARACTERS = 1 << 26
"""Of a file: two million buffers."""
_MOST = 2**48
"""Larger numbers are refused: sums of sizes stay well inside 64 bits, and no arena is as large."""


@dataclass(frozen=True, slots=True)
class Buffers:
    names: tuple[str, ...]
    rectangles: tuple[Rectangle, ...]


def read_buffers(path: Path) -> Buffers:
    """Raises UsageError: not readable, a column missing or unknown, not a whole number, size < 0, upper <= lower, an id given twice."""
    text = read_text(path, str(path), MOST_CHARACTERS)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    line_by_name: dict[str, int] = {}
    rectangles: list[Rectangle] = []
    columns: list[str] | None = None
    try:
        for row in rows:
            place = f"{path}:{rows.line_num}"
            words = [word.strip() for word in row]
            if not any(words):
                continue
            if columns is None:
                columns = _header(words, place)
                continue
            name, rectangle = _buffer(words, columns, place)
            if name in line_by_name:
                raise UsageError(f"{place}: id {name!r} is given twice, first on line {line_by_name[name]}")
            line_by_name[name] = rows.line_num
            rectangles.append(rectangle)
    except csv.Error as error:
        raise UsageError(f"{path}:{rows.line_num}: not CSV: {error}") from error
    if columns is None:
        raise UsageError(f"{path}:1: the file is empty; expected a header {','.join(COLUMNS)}")
    return Buffers(tuple(line_by_name), tuple(rectangles))


def packing_text(names: Sequence[str], packing: Packing) -> str:
    """The CSV of a packing: a line a buffer, in their order."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow((*COLUMNS, _OFFSET))
    for name, rectangle, offset in zip(names, packing.rectangles, packing.offsets, strict=True):
        rows.writerow((name, *rectangle, offset))
    return out.getvalue()


def _header(words: list[str], place: str) -> list[str]:
    for column in COLUMNS:
        if column not in words:
            raise UsageError(f"{place}: column {column!r} is missing; expected {','.join(COLUMNS)}, found {listing(words)}")
    for i, word in enumerate(words):
        if word in words[:i]:
            raise UsageError(f"{place}: column {word!r} is given twice")
        if word not in (*COLUMNS, _OFFSET):
            raise UsageError(f"{place}: column {word!r} is not known; the columns are {','.join(COLUMNS)}")
    return words


def _buffer(words: list[str], columns: list[str], place: str) -> tuple[str, Rectangle]:
    if len(words) != len(columns):
        raise UsageError(f"{place}: {len(words)} fields, but the header has {len(columns)}")
    word_by_column = dict(zip(columns, words, strict=True))
    name = word_by_column["id"]
    if not name:
        raise UsageError(f"{place}: the id is empty")
    rectangle = Rectangle(*(_number(word_by_column[column], column, place) for column in COLUMNS[1:]))
    if rectangle.nbytes < 0:
        raise UsageError(f"{place}: size {rectangle.nbytes} is negative")
    if rectangle.end <= rectangle.start:
        raise UsageError(f"{place}: upper {rectangle.end} is not above lower {rectangle.start}: a buffer is alive over [lower, upper)")
    return name, rectangle


def _number(word: str, column: str, place: str) -> int:
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(f"{place}: {column} {word!r} is not a whole number")
    if len(digits) > len(str(_MOST)) or abs(int(word)) > _MOST:
        raise UsageError(f"{place}: {column} {word} is too large; at most {_MOST}")
    return int(word)
