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


class Snapshot(NamedTuple):
    loss: int
    """Weight of the blocks that stand nowhere; 0 only where there are none."""
    offsets: list[int]


class Choice(NamedTuple):
    offset: int
    evicted: Ints
    """The blocks that stand there."""


class Field:
    def __init__(self, blocks: Sequence[tuple[int, int, int]], capacity: int, weights: Sequence[int] | None = None) -> None:
        """`blocks`: (birth, death, bytes)."""
        table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
        self.birth, self.death, self.nbytes = (np.ascontiguousarray(column) for column in table.T)
        self.weight: Ints = np.maximum(1, self.nbytes if weights is None else np.array(weights, dtype=np.int64))
        unit = int(np.gcd.reduce(self.nbytes)) if len(table) else 0
        self.capacity = capacity // unit * unit if unit else capacity
        self.offset: Ints = np.full(len(table), NOWHERE, dtype=np.int64)
        self._neighbours: dict[int, Ints] = {}
        self._room = REMEMBERED

    def snapshot(self) -> Snapshot:
        return Snapshot(int(self.weight[self.offset == NOWHERE].sum()), self.offset.tolist())

    def restore(self, snapshot: Snapshot) -> None:
        self.offset[:] = snapshot.offsets

    def clear(self) -> None:
        """Take all blocks away, but those without bytes or life, which are in nobody's way."""
        self.offset[:] = np.where((self.nbytes == 0) | (self.birth >= self.death), 0, NOWHERE)
        self.offset[self.nbytes > self.capacity] = NOWHERE

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

    def cheapest(self, i: int, price: Floats, noise: np.random.Generator, spread: float) -> Choice | None:
        """Where block `i` would evict the least `price` ([block]), each sum scaled at random by 1 … 1 + `spread`; None if it is larger than
        the arena. Only places that touch another block or an end of the arena are looked at."""
        nbytes, last = int(self.nbytes[i]), self.capacity - int(self.nbytes[i])
        if last < 0:
            return None
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
        start = self.offset[near]
        stands = start != NOWHERE
        near, start = near[stands], start[stands]
        by_start = start.argsort(kind="stable")
        near, start = near[by_start], start[by_start]
        return near, start, start + self.nbytes[near]

    def _near(self, i: int) -> Ints:
        found = self._neighbours.get(i)
        if found is None:
            alive = (self.birth < self.death[i]) & (self.death > self.birth[i]) & (self.nbytes > 0)
            alive[i] = False
            found = np.flatnonzero(alive)
            if len(found) <= self._room:
                self._room -= len(found)
                self._neighbours[i] = found
        return found
