"""Sequences whose entries are made when they are read: a tuple of frozen values to its readers, a few flat arrays in memory.

As objects a node takes 150 bytes and more, scattered among the planner's temporaries, so that whole pages stay allocated for a few
objects; as columns it takes 20, in a few blocks. Loops over all of a large graph may read the arrays themselves.

    entry  0 1 2 3 4                      row     0   2     5 6      entries of a ragged column: those from row[i] to row[i + 1]
    kind   m m c f m      one a entry     reads   4 7 3 3 1 8
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
UInt8s: TypeAlias = NDArray[np.uint8]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]

CHUNK_ENTRIES = 4096
"""Entries decoded at a time, so that iterating over a hundred thousand builds no list of them."""


class Columns(Sequence[T]):
    """Immutable; equal to another Columns, or to a tuple, with equal entries."""

    __slots__ = ()

    @abstractmethod
    def entries(self, start: int, end: int) -> Iterator[T]:
        """Those at start ≤ i < end, where 0 ≤ start ≤ end ≤ len(self)."""

    def entry(self, i: int) -> T:
        """That at 0 ≤ i < len(self)."""
        return next(self.entries(i, i + 1))

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            return tuple(self.entries(start, max(start, end))) if step == 1 else tuple(self[i] for i in range(start, end, step))
        i = at + len(self) if at < 0 else at
        if not 0 <= i < len(self):
            raise IndexError(f"entry {at} of {len(self)}")
        return self.entry(i)

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), CHUNK_ENTRIES):
            yield from self.entries(start, min(start + CHUNK_ENTRIES, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))


def ragged(row: Int32s, flat: NDArray[Any], start: int, end: int) -> list[tuple[Any, ...]]:
    """Entries start ≤ i < end of a ragged column, as tuples."""
    rows: list[int] = row[start : end + 1].tolist()
    found = flat[rows[0] : rows[-1]].tolist()
    return [tuple(found[a - rows[0] : b - rows[0]]) for a, b in pairwise(rows)]


def frozen(column: array[Any]) -> NDArray[Any]:
    """A read-only copy of exactly its length."""
    found = np.array(column)
    found.flags.writeable = False
    return found
