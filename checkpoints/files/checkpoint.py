"""What a checkpoint is to the rest: named tensors whose rows can be read, and its own metadata.

In: one of gguf, safetensors, random. Out: plain numpy rows. A *row* is one run of the last
dimension; the dimensions before it are flattened, so `[out, in]` has `out` rows of `in` and a vector is a single row.
Readers read the file at each call and map no page of it: what is resident is what the caller holds. Nothing here
imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.files import not_regular
from einpage.einsum_front.base.units import shown

StoredBytes: TypeAlias = "NDArray[np.uint8]"
"""[rows, bytes of a row], as stored."""
WeightRows: TypeAlias = "NDArray[Any]"
"""[rows, columns], float32, or float16 where the file holds that."""


_LONGEST_NAME = 500
MOST_TENSORS = 300_000
"""Of a checkpoint, in all its files; one with an expert in three parts for each of 60 layers times 384 has 207,000."""


class WeightError(EinpageError):
    """A checkpoint that cannot be read, or does not hold what a spec asks for. The message lists every fault found."""


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where a tensor's rows lie, one after the other, in a file."""

    path: Path
    offset: int
    """Of the first, bytes."""
    type: DType | BlockFormat
    """Of its elements, as they are stored."""


class Checkpoint(Protocol):
    @property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Name → shape, outermost dimension first, in the order in which they lie in the file."""

    @property
    def damage(self) -> tuple[str, ...]:
        """What is wrong with the files themselves, in words: cut off, a shard missing. Empty for sound files."""

    def config(self) -> Mapping[str, object]:
        """The checkpoint's own metadata under dotted keys; long arrays are left out, long tables are one value."""

    def fault(self, name: str) -> str | None:
        """Why the rows of this tensor cannot be read (its element type, in words), or None."""

    def block_format(self, name: str) -> BlockFormat | None:
        """In which blocks the rows of this tensor are stored; None where in others than those we know, or as fp32."""

    def file_of(self, name: str) -> Path | None:
        """The file that this tensor is in; None where it is in none."""

    def stored_at(self, name: str) -> StoredAt | None:
        """Where in a file this tensor lies; None where it is in none, or of an element type that we only convert."""

    def read_stored(self, name: str, start: int, end: int) -> StoredBytes:
        """As read_rows, the bytes as they are stored: [end - start, bytes of a row]. Only where there is a block format."""

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        """Rows [start, end) of a tensor, read anew: [end - start, columns]. Raises WeightError where the file fails."""


def is_name(name: str) -> bool:
    """Whether `name` can be a tensor's or a metadata key's: messages show it on one line."""
    return name.isprintable() and len(name) <= _LONGEST_NAME


def refuse_many(path: Path, count: int) -> None:
    """Raises WeightError for more tensors than any checkpoint has."""
    if count > MOST_TENSORS:
        raise WeightError(f"{path}: {shown(count)} tensors, more than any checkpoint has: at most {MOST_TENSORS:,} are read")


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """How a shape is split into rows: `[2, 3, 4]` is 6 rows of 4, `[4]` one row of 4, `[]` one row of 1."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def read_bytes(path: Path, offset: int, nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes of a file from `offset` on, into fresh memory: nothing is mapped."""
    out = np.empty(nbytes, np.uint8)
    view = out.data
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while done < nbytes:
                got = file.readinto(view[done:])
                if not got:
                    raise WeightError(f"{path}: the file ended at byte {offset + done} while bytes up to {offset + nbytes} were being read")
                done += got
    except OSError as error:
        raise unreadable(path, error) from error
    return out


def file_size(path: Path) -> int:
    """Bytes of a file that exists and is a file. Raises WeightError otherwise."""
    try:
        if not path.is_file():
            raise WeightError(f"{path}: {not_regular(path)}")
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> WeightError:
    """The error to raise for a file that the system refuses to read."""
    return WeightError(f"{path}: cannot be read: {error.strerror or error}")


def cut_off(path: Path, size: int, end_by_name: Mapping[str, int]) -> tuple[str, ...]:
    """A damage report for a file of `size` bytes whose tensors end where given: one line, or none when all lie inside."""
    needed = max(end_by_name.values(), default=0)
    lost = [name for name, end in end_by_name.items() if end > size]
    if not lost:
        return ()
    which = ", ".join(folded(lost))
    return (f"{path}: truncated: {size} bytes on disk, {needed} needed; cut off: {which}",)


_NUMBER = re.compile(r"(?:(?<=[.@])|^)(?:0|[1-9]\d{0,8})(?=[.:,\s]|$)")
"""A number that is a part of a tensor's name, or of a weight's (`wq@3`)."""
_KIND = re.compile(r"[a-z-]+: ")
_MOST_TOLD = 18
"""Lines of faults in a message."""
_MOST_FOLDED = 10_000
"""Lines; more of them help nobody."""
_MOST_NUMBERS = 16
"""Of a line: later ones are taken for text."""


def folded(lines: Iterable[str]) -> list[str]:
    """`lines` with those folded into one that differ in the numbers of names alone, in the order of their first: `layers.{0…47}.norm`.

    A folded line stands for exactly the lines that it was made of; the same number in several places counts once.
    Of more than _MOST_FOLDED lines, the rest are counted.
    """
    lines = list(lines)
    rest = len(lines) - _MOST_FOLDED
    rows_by_pieces: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for line in lines[:_MOST_FOLDED]:
        rows_by_pieces.setdefault(tuple(_NUMBER.split(line, _MOST_NUMBERS)), []).append(
            tuple(map(int, _NUMBER.findall(line)[:_MOST_NUMBERS]))
        )
    found = [line for pieces, rows in rows_by_pieces.items() for line in _folded(pieces, rows)]
    return [*found, f"… and {rest:,} more"] if rest > 0 else found


def some_of_each(lines: Sequence[str]) -> list[str]:
    """At most _MOST_TOLD of `lines`, of each kind (the word before a colon) some and in their order, and what is left out, counted."""
    by_kind: dict[str, list[str]] = {}
    for line in lines:
        by_kind.setdefault(line.partition(":")[0] if _KIND.match(line) else "", []).append(line)
    told: set[str] = set()
    for i, alike in enumerate(sorted(by_kind.values(), key=len)):
        told.update(alike[: (_MOST_TOLD - len(told)) // (len(by_kind) - i)])
    kept = [line for line in lines if line in told]
    return [*kept, f"… and {len(lines) - len(kept):,} more lines"] if len(kept) < len(lines) else kept


def _folded(pieces: Sequence[str], rows: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """The lines that have these pieces of text between their numbers; `rows` has the numbers of each line."""
    columns = [*zip(*rows, strict=True)]
    distinct = list(dict.fromkeys(columns))
    for sets in _products([*zip(*distinct, strict=True)] if distinct else [()]):
        text_by_column = {column: _ranges(numbers) for column, numbers in zip(distinct, sets, strict=True)}
        yield "".join(piece + text for piece, text in zip(pieces, [*(text_by_column[c] for c in columns), ""], strict=True))


def _products(rows: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """`rows` as products of sets, one set a column: no row is left out, none is added."""
    if not rows[0]:
        yield ()
        return
    rest_by_first: dict[int, list[tuple[int, ...]]] = {}
    for first, *rest in rows:
        rest_by_first.setdefault(first, []).append(tuple(rest))
    firsts_by_rest: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, following in rest_by_first.items():
        firsts_by_rest.setdefault(tuple(sorted(set(following))), []).append(first)
    for following_rows, firsts in firsts_by_rest.items():
        for sets in _products(following_rows):
            yield (tuple(sorted(firsts)), *sets)


def _ranges(numbers: Sequence[int]) -> str:
    """`{0…3, 5}` for sorted numbers, `5` for one."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs)
    return text if len(numbers) == 1 else f"{{{text}}}"
