"""A layout: rectangles in an arena, some of them placed, and what the placed ones leave free.

In: rectangles, the arena's bytes. Invariant: no two rectangles that are placed and alive at once share a byte. Offsets are sums of sizes
counted from either end of the arena, whose length is rounded down to a multiple of what all sizes are multiples of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from einpage.einsum_front.base.columns import Floats, Int64s
from einpage.memplan.problem.pace import Pace

UNPLACED = -1
"""The offset of a rectangle that has none."""
REMEMBERED = 1 << 24
"""Neighbours that are cached, over all rectangles."""
STRIDE = 256
"""Starts from one list of all that is alive to the next."""


class Snapshot(NamedTuple):
    loss: int
    """Weight of the rectangles that are not placed; 0 only where all are."""
    offsets: list[int]


class Ejection(NamedTuple):
    offset: int
    evicted: Int64s
    """The rectangles placed there."""


class Layout:
    def __init__(self, rectangles: Int64s, capacity: int, weight: Int64s, pace: Pace) -> None:
        """`rectangles` [n, 3]: start, end, bytes. `weight` [n], positive. `pace` counts the queries."""
        self.pace = pace
        self.start, self.end, self.nbytes = (np.ascontiguousarray(column) for column in rectangles.T)
        self.weight = weight
        unit = int(np.gcd.reduce(self.nbytes)) if len(rectangles) else 0
        self.capacity = capacity // unit * unit if unit else capacity
        self.offset: Int64s = np.full(len(rectangles), UNPLACED, dtype=np.int64)
        self.spent = 0
        """Rectangles looked at so far, and a little more for each query: about the microseconds spent."""
        self._neighbours: dict[int, Int64s] = {}
        self._cacheable = REMEMBERED
        self._by_start, self._starts, self._alive = self._indexed()

    def subset(self, numbers: Sequence[int], capacity: int) -> Layout:
        """A layout of these rectangles alone, in another arena."""
        some = np.array(numbers, dtype=np.int64)
        return Layout(np.stack((self.start, self.end, self.nbytes), axis=1)[some], capacity, self.weight[some], self.pace)

    def snapshot(self) -> Snapshot:
        """The offsets as they are now, and the weight of what is not placed."""
        return Snapshot(int(self.weight[self.offset == UNPLACED].sum()), self.offset.tolist())

    def restore(self, snapshot: Snapshot) -> None:
        """Place everything as it was at `snapshot`, which is of this layout."""
        self.offset[:] = snapshot.offsets

    def clear(self) -> None:
        """Take all rectangles out but the empty ones, which are in nobody's way."""
        self.offset[:] = np.where((self.nbytes == 0) | (self.start >= self.end), 0, UNPLACED)
        self.offset[self.nbytes > self.capacity] = UNPLACED

    def height(self) -> int:
        """The highest byte ever in use."""
        placed = self.offset != UNPLACED
        return int((self.offset + self.nbytes)[placed].max(initial=0))

    def place(self, i: int, tight: bool) -> bool:
        """Place rectangle `i` in the lowest hole that is free for as long as it is alive (first fit), or in the tightest (best fit); False
        where there is none."""
        if self.offset[i] != UNPLACED:
            return True
        _, low, high = self._placed_neighbours(i)
        after = np.concatenate(((0,), np.maximum.accumulate(high)))
        free = np.append(low, self.capacity) - after
        wide = np.flatnonzero(free >= self.nbytes[i])
        if not len(wide):
            return False
        self.offset[i] = after[wide[free[wide].argmin()] if tight else wide[0]]
        return True

    def cheapest_ejection(self, i: int, cost: Floats, noise: np.random.Generator, spread: float) -> Ejection:
        """Where rectangle `i`, not larger than the arena, would evict the least `cost` ([n]), each sum scaled at random by up to 1 +
        `spread`. Only offsets next to another rectangle or to an end of the arena are looked at."""
        nbytes, last = int(self.nbytes[i]), self.capacity - int(self.nbytes[i])
        numbers, low, high = self._placed_neighbours(i)
        at = np.concatenate((high, low - nbytes, (0, last)))
        at = at[(at >= 0) & (at <= last)]
        by_high = high.argsort()
        below_top = np.concatenate(((0.0,), cost[numbers].cumsum()))
        below_bottom = np.concatenate(((0.0,), cost[numbers[by_high]].cumsum()))
        total = below_top[low.searchsorted(at + nbytes)] - below_bottom[high[by_high].searchsorted(at, "right")]
        offset = int(at[(total * (1 + spread * noise.random(len(total)))).argmin()])
        return Ejection(offset, numbers[(low < offset + nbytes) & (high > offset)])

    def _placed_neighbours(self, i: int) -> tuple[Int64s, Int64s, Int64s]:
        """Placed rectangles that are alive while `i` is, with their first bytes and the ends of their last, by first byte."""
        self.pace.step()
        near = self._neighbours_of(i)
        self.spent += 50 + len(near) // 6
        low = self.offset[near]
        placed = low != UNPLACED
        near, low = near[placed], low[placed]
        by_low = low.argsort(kind="stable")
        near, low = near[by_low], low[by_low]
        return near, low, low + self.nbytes[near]

    def _neighbours_of(self, i: int) -> Int64s:
        """Rectangles that are not empty, other than `i`, that are alive while it is."""
        found = self._neighbours.get(i)
        if found is None:
            start, end = self._starts.searchsorted((self.start[i], self.end[i]))
            stride = start // STRIDE
            found = np.concatenate((self._alive[stride], self._by_start[stride * STRIDE : end]))
            found = found[(self.end[found] > self.start[i]) & (self.start[found] < self.end[i]) & (found != i)]
            if len(found) <= self._cacheable:
                self._cacheable -= len(found)
                self._neighbours[i] = found
        return found

    def _indexed(self) -> tuple[Int64s, Int64s, list[Int64s]]:
        """Rectangles that are not empty by start; their starts; at every STRIDE-th of them, those of earlier start that are still alive."""
        solid = np.flatnonzero((self.nbytes > 0) & (self.start < self.end))
        by_start = solid[self.start[solid].argsort(kind="stable")]
        starts = self.start[by_start]
        alive_by_stride = [by_start[:0]]
        for k in range(STRIDE, len(by_start) + STRIDE, STRIDE):
            alive = np.concatenate((alive_by_stride[-1], by_start[k - STRIDE : k]))
            alive_by_stride.append(alive[self.end[alive] > starts[k]] if k < len(by_start) else alive)
        return by_start, starts, alive_by_stride
