"""One arena as an ordered tiling of segments: live ones, and holes that remember the last users of their bytes.

In: requests for bytes. Out: offsets, and the nodes that must have run before those bytes may be written again. Invariant: live
segments and holes tile [0, capacity) without overlap, no two holes touch, and every boundary is a multiple of the alignment.

    offset  0      256     768            1536      2048
            | x 3   | hole: 256..512 after node 7    |
            |       |       512..768 never used      |   -> allocate(256, 512) answers the pieces (256,512,7) (512,768,-1)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from einpage.einsum_front.base.units import ALIGNMENT

NEVER_USED = -1
"""Stands for the last user of bytes that had none."""
MOST_BYTES = (1 << 63) - 1
"""No arena is larger: an offset is an int64."""
HOLE = -2
"""Stands for the owner of a hole; owners are larger."""

Piece: TypeAlias = tuple[int, int, int]
"""(start, end, node): free bytes and the node that used them last."""
Segment: TypeAlias = tuple[int, int, int | None]
"""(start, end, owner); the owner of a hole is None."""
Hole: TypeAlias = tuple[int, int]
"""(nbytes, start): holes sort by size, then by offset."""
Fit: TypeAlias = Callable[[Sequence[Hole], int], int | None]
"""fit(holes sorted, nbytes) answers the start of the hole to use, None where none is large enough."""


class FitPolicy(Enum):
    BEST = "best"
    """The smallest hole that is large enough."""
    FIRST = "first"
    """The hole at the lowest offset."""
    WORST = "worst"
    """The largest hole."""


def best_fit(holes: Sequence[Hole], nbytes: int) -> int | None:
    """The start of the smallest hole of at least `nbytes`; of equal ones, that at the lowest offset. None where there is none."""
    i = bisect_left(holes, (nbytes, -1))
    return holes[i][1] if i < len(holes) else None


def first_fit(holes: Sequence[Hole], nbytes: int) -> int | None:
    """The start of the hole of at least `nbytes` at the lowest offset. None where there is none."""
    return min((start for _, start in holes[bisect_left(holes, (nbytes, -1)) :]), default=None)


def worst_fit(holes: Sequence[Hole], nbytes: int) -> int | None:
    """The start of the largest hole; of equal ones, that at the highest offset. None where it has fewer than `nbytes`."""
    return holes[-1][1] if holes and holes[-1][0] >= nbytes else None


FIT_BY_POLICY: dict[FitPolicy, Fit] = {FitPolicy.BEST: best_fit, FitPolicy.FIRST: first_fit, FitPolicy.WORST: worst_fit}


class Arena:
    """`capacity` bytes, or MOST_BYTES, rounded down to `alignment`. All sizes given are multiples of it, and positive."""

    __slots__ = ("_holes", "_pieces", "bounds", "capacity", "free_bytes", "high_water", "owners")

    def __init__(self, capacity: int, alignment: int = ALIGNMENT) -> None:
        self.capacity = min(max(capacity, 0), MOST_BYTES) // alignment * alignment
        self.free_bytes = self.capacity
        self.high_water = 0
        """The largest offset ever in use."""
        self.bounds = array("q", [0, self.capacity] if self.capacity else [0])
        """[segment] where it starts, by offset; then the capacity."""
        self.owners = array("q", [HOLE] if self.capacity else [])
        """[segment] a tensor, or HOLE."""
        self._pieces: dict[int, list[Piece]] = {}
        """start of a hole → its pieces, by offset"""
        self._holes: list[Hole] = []
        if self.capacity:
            self._add_hole([(0, self.capacity, NEVER_USED)])

    def find(self, nbytes: int, fit: Fit = best_fit) -> int | None:
        """Where a hole of at least `nbytes` starts."""
        return fit(self._holes, nbytes)

    def allocate(self, start: int, nbytes: int, owner: int) -> list[Piece]:
        """Make the first `nbytes` of the hole at `start` a live segment; answers the pieces it was made of."""
        pieces = self._remove_hole(start)
        end = start + nbytes
        n = 0
        while n < len(pieces) and pieces[n][1] <= end:
            n += 1
        allocated, rest = pieces[:n], pieces[n:]
        i = self._index(start)
        if rest:
            if rest[0][0] < end:
                a, b, node = rest[0]
                allocated.append((a, end, node))
                rest[0] = (end, b, node)
            self._add_hole(rest)
            self._split(i, end)
        assert allocated[-1][1] == end, f"the hole at {start} has fewer than {nbytes} bytes"
        self.owners[i] = owner
        self.free_bytes -= nbytes
        self.high_water = max(self.high_water, end)
        return allocated

    def allocate_at(self, start: int, nbytes: int, owner: int) -> list[Piece]:
        """As `allocate`, anywhere inside a hole."""
        hole = self.hole_at(start)
        if hole < start:
            pieces = self._remove_hole(hole)
            self._add_hole([(a, min(b, start), node) for a, b, node in pieces if a < start])
            self._add_hole([(max(a, start), b, node) for a, b, node in pieces if b > start])
            self._split(self._index(hole), start)
        return self.allocate(start, nbytes, owner)

    def release(self, start: int, node: int) -> None:
        """End the live segment at `start`; whoever is allocated these bytes next comes after `node`."""
        self.undo([(start, self.bounds[self._index(start) + 1], node)])

    def undo(self, pieces: list[Piece]) -> None:
        """Undo the `allocate` that answered these pieces: as if its bytes had never been asked for."""
        start, end = pieces[0][0], pieces[-1][1]
        i = self._index(start)
        assert self.bounds[i + 1] == end and self.owners[i] != HOLE, f"no segment from {start} to {end}"
        self.owners[i] = HOLE
        self.free_bytes += end - start
        if end in self._pieces:
            pieces = pieces + self._remove_hole(end)
            self._join(i + 1)
        if i and self.owners[i - 1] == HOLE:
            pieces = self._remove_hole(self.bounds[i - 1]) + pieces
            self._join(i)
        self._add_hole(pieces)

    def rename(self, start: int, owner: int) -> None:
        """The live segment at `start` now belongs to `owner`."""
        self.owners[self._index(start)] = owner

    def hole_at(self, offset: int) -> int:
        """Where the hole starts that contains `offset`."""
        i = bisect_right(self.bounds, offset) - 1
        assert i < len(self.owners) and self.owners[i] == HOLE, f"no hole at {offset}"
        return self.bounds[i]

    def largest_hole(self) -> int:
        """Bytes of the largest hole; 0 where there is none."""
        return self._holes[-1][0] if self._holes else 0

    def segments(self) -> Iterator[Segment]:
        """All, by offset."""
        for i, owner in enumerate(self.owners):
            yield self.bounds[i], self.bounds[i + 1], None if owner == HOLE else owner

    def _index(self, start: int) -> int:
        """Of the segment that starts there."""
        i = bisect_left(self.bounds, start)
        assert self.bounds[i] == start, f"no segment starts at {start}"
        return i

    def _split(self, i: int, offset: int) -> None:
        """What is right of `offset` becomes a segment of its own, a hole."""
        self.bounds.insert(i + 1, offset)
        self.owners.insert(i + 1, HOLE)

    def _join(self, i: int) -> None:
        """Segment i becomes part of the one before it."""
        del self.bounds[i], self.owners[i]

    def _add_hole(self, pieces: list[Piece]) -> None:
        start = pieces[0][0]
        self._pieces[start] = pieces
        insort(self._holes, (pieces[-1][1] - start, start))

    def _remove_hole(self, start: int) -> list[Piece]:
        pieces = self._pieces.pop(start)
        del self._holes[bisect_left(self._holes, (pieces[-1][1] - start, start))]
        return pieces
