"""One arena as an ordered tiling of segments: live ones, and holes that remember who used their bytes last.

In: requests for bytes. Out: offsets, and the nodes that must have run before those bytes may be written again. Invariant: live
segments and holes tile [0, capacity) without overlap, no two holes touch, and every boundary is a multiple of the alignment.

    offset  0      256     768            1536      2048
            | x 3   | hole: 256..512 after node 7    |
            |       |       512..768 never used      |   -> take(256, 512) answers the pieces (256,512,7) (512,768,-1)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from einpage.memplan.memgraph import ALIGNMENT

VIRGIN = -1
"""Stands for a node where bytes were never used."""

Piece: TypeAlias = tuple[int, int, int]
"""(start, stop, node): free bytes and the node that used them last."""
Segment: TypeAlias = tuple[int, int, int | None]
"""(start, stop, owner); the owner of a hole is None."""
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
    i = bisect_left(holes, (nbytes, -1))
    return holes[i][1] if i < len(holes) else None


def first_fit(holes: Sequence[Hole], nbytes: int) -> int | None:
    return min((start for _, start in holes[bisect_left(holes, (nbytes, -1)) :]), default=None)


def worst_fit(holes: Sequence[Hole], nbytes: int) -> int | None:
    return holes[-1][1] if holes and holes[-1][0] >= nbytes else None


FIT_BY_POLICY: dict[FitPolicy, Fit] = {FitPolicy.BEST: best_fit, FitPolicy.FIRST: first_fit, FitPolicy.WORST: worst_fit}


class Arena:
    """`capacity` bytes, rounded down to `alignment`. All sizes handed in are multiples of it, and positive."""

    __slots__ = ("_hole_by_stop", "_holes", "_live", "_live_by_stop", "_pieces", "capacity", "changed_holes", "free_bytes", "high_water")

    def __init__(self, capacity: int, alignment: int = ALIGNMENT) -> None:
        self.capacity = max(capacity, 0) // alignment * alignment
        self.free_bytes = self.capacity
        self.high_water = 0
        """The largest offset ever in use."""
        self._live: dict[int, tuple[int, int]] = {}
        """start → (stop, owner)"""
        self._live_by_stop: dict[int, int] = {}
        self._pieces: dict[int, list[Piece]] = {}
        """start of a hole → its pieces, by offset"""
        self._hole_by_stop: dict[int, int] = {}
        self._holes: list[Hole] = []
        self.changed_holes: set[int] = set()
        """Starts of holes that are new, or whose neighbours are, or were touched, until somebody clears it; some may be gone again."""
        if self.capacity:
            self._add_hole([(0, self.capacity, VIRGIN)])

    def find(self, nbytes: int, fit: Fit = best_fit) -> int | None:
        """Where a hole of at least `nbytes` starts."""
        return fit(self._holes, nbytes)

    def take(self, start: int, nbytes: int, owner: int) -> list[Piece]:
        """Make the first `nbytes` of the hole at `start` a live segment; answers the pieces it was made of."""
        pieces = self._remove_hole(start)
        stop = start + nbytes
        n = 0
        while n < len(pieces) and pieces[n][1] <= stop:
            n += 1
        taken, rest = pieces[:n], pieces[n:]
        if rest:
            if rest[0][0] < stop:
                a, b, node = rest[0]
                taken.append((a, stop, node))
                rest[0] = (stop, b, node)
            self._add_hole(rest)
        assert taken[-1][1] == stop, f"the hole at {start} has fewer than {nbytes} bytes"
        self._live[start] = (stop, owner)
        self._live_by_stop[stop] = start
        self.free_bytes -= nbytes
        self.high_water = max(self.high_water, stop)
        return taken

    def take_at(self, start: int, nbytes: int, owner: int) -> list[Piece]:
        """As `take`, anywhere inside a hole."""
        hole = self.hole_at(start)
        if hole < start:
            pieces = self._remove_hole(hole)
            self._add_hole([(a, min(b, start), node) for a, b, node in pieces if a < start])
            self._add_hole([(max(a, start), b, node) for a, b, node in pieces if b > start])
        return self.take(start, nbytes, owner)

    def release(self, start: int, node: int) -> None:
        """End the live segment at `start`; whoever takes these bytes next comes after `node`."""
        stop, _ = self._live[start]
        self.give_back([(start, stop, node)])

    def give_back(self, pieces: list[Piece]) -> None:
        """Undo the `take` that answered these pieces: as if its bytes had never been asked for."""
        start, stop = pieces[0][0], pieces[-1][1]
        assert self._live.pop(start)[0] == stop, f"the segment at {start} does not end at {stop}"
        del self._live_by_stop[stop]
        self.free_bytes += stop - start
        left = self._hole_by_stop.get(start)
        if left is not None:
            pieces = self._remove_hole(left) + pieces
        if stop in self._pieces:
            pieces += self._remove_hole(stop)
        self._add_hole(pieces)

    def rename(self, start: int, owner: int) -> None:
        """The live segment at `start` now belongs to `owner`."""
        self._live[start] = (self._live[start][0], owner)

    def hole_at(self, offset: int) -> int:
        """Where the hole starts that contains `offset`."""
        for _, start in self._holes:
            if start <= offset < self._pieces[start][-1][1]:
                return start
        raise AssertionError(f"no hole at {offset}")

    def largest_hole(self) -> int:
        return self._holes[-1][0] if self._holes else 0

    def is_hole(self, start: int) -> bool:
        """Whether a hole starts there."""
        return start in self._pieces

    def owners_beside(self, hole: int) -> list[int]:
        """Of the live segments to the left and right of the hole at `hole`."""
        owners = []
        if (left := self._live_by_stop.get(hole)) is not None:
            owners.append(self._live[left][1])
        if (right := self._live.get(self._pieces[hole][-1][1])) is not None:
            owners.append(right[1])
        return owners

    def touch(self, start: int) -> None:
        """Something about the live segment at `start` has changed that matters to the holes beside it."""
        if start in self._hole_by_stop:
            self.changed_holes.add(self._hole_by_stop[start])
        if self._live[start][0] in self._pieces:
            self.changed_holes.add(self._live[start][0])

    def segments(self, start: int = 0) -> Iterator[Segment]:
        """All from the one that starts at `start`, by offset."""
        while start < self.capacity:
            live = self._live.get(start)
            if live is not None:
                stop, owner = live
                yield start, stop, owner
            else:
                stop = self._pieces[start][-1][1]
                yield start, stop, None
            start = stop

    def segments_before(self, stop: int) -> Iterator[Segment]:
        """All up to the one that stops at `stop`, from there down."""
        while stop > 0:
            start = self._live_by_stop.get(stop)
            if start is not None:
                yield start, stop, self._live[start][1]
            else:
                start = self._hole_by_stop[stop]
                yield start, stop, None
            stop = start

    def __len__(self) -> int:
        """How many segments there are."""
        return len(self._live) + len(self._holes)

    def _add_hole(self, pieces: list[Piece]) -> None:
        start, stop = pieces[0][0], pieces[-1][1]
        self._pieces[start] = pieces
        self._hole_by_stop[stop] = start
        insort(self._holes, (stop - start, start))
        self.changed_holes.add(start)

    def _remove_hole(self, start: int) -> list[Piece]:
        pieces = self._pieces.pop(start)
        stop = pieces[-1][1]
        del self._hole_by_stop[stop]
        del self._holes[bisect_left(self._holes, (stop - start, start))]
        return pieces
