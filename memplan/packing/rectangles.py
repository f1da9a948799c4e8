"""Rectangles of time × bytes, an offset for each, and the judge of such a packing.

In: Rectangles, each of so many bytes over a half-open interval of time that is given. Out: a Packing, which is right where no two
rectangles that overlap in time share a byte: strip packing with one coordinate fixed, also called dynamic storage allocation. The judge
compares every pair, and shares no code with what finds packings.

    offset 3 |  b b b        a: [0, 2) 3 bytes
           2 |  a a c c      b: [0, 3) 1 byte
           1 |  a a c c      c: [2, 4) 2 bytes
           0 |  a a . .      height 4, lower bound 4; c may as well be at 0
    time        0 1 2 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einpage.einsum_front.base.units import Nbytes
from einpage.memplan.graph.memgraph import Offset


class Rectangle(NamedTuple):
    """Loops over many of them unpack it, or read them as an array [n, 3] of these columns."""

    start: int
    """The first instant at which it is alive."""
    end: int
    """The first instant after `start` at which it is not."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Packing:
    rectangles: tuple[Rectangle, ...]
    offsets: tuple[Offset, ...]
    """One per rectangle, in their order."""

    @property
    def height(self) -> Nbytes:
        """The end of the highest rectangle: the smallest capacity that this packing fits."""
        return Nbytes(max((at + r.nbytes for r, at in zip(self.rectangles, self.offsets, strict=True)), default=0))


def lower_bound(rectangles: Sequence[Rectangle]) -> Nbytes:
    """The most bytes alive at once: no packing is lower."""
    # At one instant ends come before starts: intervals are half-open.
    changes = sorted([(r.start, r.nbytes) for r in rectangles] + [(r.end, -r.nbytes) for r in rectangles])
    alive = most = 0
    for _, nbytes in changes:
        alive += nbytes
        most = max(most, alive)
    return Nbytes(most)


def over_cliques(rectangles: Sequence[Rectangle]) -> list[Rectangle]:
    """The same overlaps over fewer steps of time, one for each maximal clique: a set of rectangles alive at once, no part of another.

    Only an instant before which something starts and after which something ends is kept.
    """
    starts = {r.start for r in rectangles}
    ends = {r.end for r in rectangles}
    step_by_time: dict[int, int] = {}
    step, fresh = 0, False
    for time in sorted(starts | ends):
        if time in ends and fresh:
            step, fresh = step + 1, False
        step_by_time[time] = step
        fresh = fresh or time in starts
    return [Rectangle(step_by_time[start], step_by_time[end], nbytes) for start, end, nbytes in rectangles]


def judge_packing(packing: Packing, capacity: int) -> str | None:
    """What is wrong with a packing under `capacity` bytes; None where nothing is. Compares every pair: n² steps."""
    placed = list(zip(packing.rectangles, packing.offsets, strict=False))
    if len(packing.rectangles) != len(packing.offsets):
        return f"{len(packing.rectangles)} rectangles have {len(packing.offsets)} offsets"
    for i, (r, at) in enumerate(placed):
        if at < 0 or at + r.nbytes > capacity:
            return f"rectangle {i} at [{at}, {at + r.nbytes}) is not inside [0, {capacity})"
        for j, (s, to) in enumerate(placed[:i]):
            if r.start < s.end and s.start < r.end and at < to + s.nbytes and to < at + r.nbytes:
                return f"rectangles {j} at [{to}, {to + s.nbytes}) and {i} at [{at}, {at + r.nbytes}) are alive at the same time"
    return None
