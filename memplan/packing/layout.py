"""Blocks on the plane of time and bytes: which of them stand where, and what is free beside them.

In: blocks with half-open lives, the arena's bytes. Invariant: no two blocks that stand and live at once share a byte. Offsets are sums of
sizes counted from either end of the arena, whose length is rounded down to a multiple of what all sizes are multiples of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOWHERE = -1
"""The offset of a block that has none."""
REMEMBERED = 1 << 24
"""Neighbours that are kept in memory, over all blocks."""
STRIDE = 256
"""Births from one census of the living to the next."""


class Snapshot(NamedTuple):
    loss: int
    """Weight of the blocks that stand nowhere; 0 only where there are none."""
    offsets: list[int]


class Choice(NamedTuple):
    offset: int
    evicted: Ints
    """The blocks that stand there."""


class Field:
    def __init__(self, table: Ints, capacity: int, weight: Ints) -> None:
        """`table` [block, 3]: birth, death, bytes. `weight` [block], positive."""
        self.birth, self.death, self.nbytes = (np.ascontiguousarray(column) for column in table.T)
        self.weight = weight
        unit = int(np.gcd.reduce(self.nbytes)) if len(table) else 0
        self.capacity = capacity // unit * unit if unit else capacity
        self.offset: Ints = np.full(len(table), NOWHERE, dtype=np.int64)
        self.spent = 0
        """Blocks looked at so far, and a little more for each time of looking: about the microseconds spent."""
        self._neighbours: dict[int, Ints] = {}
        self._room = REMEMBERED
        self._by_birth, self._births, self._census = self._count()

    def part(self, numbers: Sequence[int], capacity: int) -> Field:
        """A field of these blocks alone, in another arena."""
        some = np.array(numbers, dtype=np.int64)
        return Field(np.stack((self.birth, self.death, self.nbytes), axis=1)[some], capacity, self.weight[some])

    def snapshot(self) -> Snapshot:
        return Snapshot(int(self.weight[self.offset == NOWHERE].sum()), self.offset.tolist())

    def restore(self, snapshot: Snapshot) -> None:
        self.offset[:] = snapshot.offsets

    def clear(self) -> None:
        """Take all blocks away, but those without bytes or life, which are in nobody's way."""
        self.offset[:] = np.where((self.nbytes == 0) | (self.birth >= self.death), 0, NOWHERE)
        self.offset[self.nbytes > self.capacity] = NOWHERE

    def height(self) -> int:
        """The highest byte ever in use."""
        stands = self.offset != NOWHERE
        return int((self.offset + self.nbytes)[stands].max(initial=0))

    def put(self, i: int, tight: bool) -> bool:
        """Stand block `i` in the lowest hole that is free for its whole life, or in the tightest; False where there is none."""
        if self.offset[i] != NOWHERE:
            return True
        _, start, stop = self._standing(i)
        after = np.concatenate(((0,), np.maximum.accumulate(stop)))
        free = np.append(start, self.capacity) - after
        wide = np.flatnonzero(free >= self.nbytes[i])
        if not len(wide):
            return False
        self.offset[i] = after[wide[free[wide].argmin()] if tight else wide[0]]
        return True

    def cheapest(self, i: int, price: Floats, noise: np.random.Generator, spread: float) -> Choice:
        """Where block `i`, not larger than the arena, would evict the least `price` ([block]), each sum scaled at random by up to 1 +
        `spread`. Only places that touch another block or an end of the arena are looked at."""
        nbytes, last = int(self.nbytes[i]), self.capacity - int(self.nbytes[i])
        numbers, start, stop = self._standing(i)
        at = np.concatenate((stop, start - nbytes, (0, last)))
        at = at[(at >= 0) & (at <= last)]
        by_stop = stop.argsort()
        begun = np.concatenate(((0.0,), price[numbers].cumsum()))
        ended = np.concatenate(((0.0,), price[numbers[by_stop]].cumsum()))
        total = begun[start.searchsorted(at + nbytes)] - ended[stop[by_stop].searchsorted(at, "right")]
        offset = int(at[(total * (1 + spread * noise.random(len(total)))).argmin()])
        return Choice(offset, numbers[(start < offset + nbytes) & (stop > offset)])

    def _standing(self, i: int) -> tuple[Ints, Ints, Ints]:
        """Blocks that stand and live while `i` lives, with their first and last bytes, by first byte."""
        near = self._near(i)
        self.spent += 50 + len(near) // 6
        start = self.offset[near]
        stands = start != NOWHERE
        near, start = near[stands], start[stands]
        by_start = start.argsort(kind="stable")
        near, start = near[by_start], start[by_start]
        return near, start, start + self.nbytes[near]

    def _near(self, i: int) -> Ints:
        """Blocks with bytes, other than `i`, that live while it does."""
        found = self._neighbours.get(i)
        if found is None:
            first, last = self._births.searchsorted((self.birth[i], self.death[i]))
            census = first // STRIDE
            found = np.concatenate((self._census[census], self._by_birth[census * STRIDE : last]))
            found = found[(self.death[found] > self.birth[i]) & (self.birth[found] < self.death[i]) & (found != i)]
            if len(found) <= self._room:
                self._room -= len(found)
                self._neighbours[i] = found
        return found

    def _count(self) -> tuple[Ints, Ints, list[Ints]]:
        """Blocks with bytes and a life by birth; their births; at every STRIDE-th of them, those born before that are still alive."""
        solid = np.flatnonzero((self.nbytes > 0) & (self.birth < self.death))
        by_birth = solid[self.birth[solid].argsort(kind="stable")]
        births = self.birth[by_birth]
        census = [by_birth[:0]]
        for k in range(STRIDE, len(by_birth) + STRIDE, STRIDE):
            alive = np.concatenate((census[-1], by_birth[k - STRIDE : k]))
            census.append(alive[self.death[alive] > births[k]] if k < len(by_birth) else alive)
        return by_birth, births, census
