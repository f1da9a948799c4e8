"""Depth-first search for a packing under a target height, exact if given time.

In: spans over cliques (steps that matter: each holds a set of buffers alive at once, none a part of another) and a target. Out: offsets,
or nothing: proven where the search ended by itself, open where it ran out of nodes or time.

Only packings in which everything rests on something are tried: an offset is 0, the end of a buffer alive at the same time or, of a
buffer that is pinned, given. Of an open buffer is known the lowest offset it may still get (`low`) and how high what lies below it
reaches (`rest`); it can be placed where both are equal. A choice is one clique and what comes next on its floor, the lowest `low` in
it: one of the buffers that can lie there, or none of them, and then each must rest on something yet to come. Pruned is what a clique
rules out: buffers that may not lie below x need x plus their sizes. Buffers that no chain of open ones links are separate problems:
the failure of one undoes no other's work.
Canonical packings, sections and decomposition are ideas of TelaMalloc (ASPLOS 2023) and MiniMalloc (ASPLOS 2023); the choice by
fewest candidates is fail-first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.packing.greedy import Span

Ints: TypeAlias = NDArray[np.int64]

_NEVER = np.int64(2**62)
FREE = -1
"""Stands for an offset."""


class Outcome(Enum):
    FOUND = "found"
    NONE = "none"
    """Proven: no packing is as low."""
    OPEN = "open"
    """Out of nodes or of time."""


@dataclass(slots=True)
class _Part:
    """Open buffers that a chain of common cliques links, and what is known of every buffer."""

    buffers: Ints
    low: Ints
    rest: Ints
    parent: int
    """The choice that made this part, by its place on the stack: it is wrong where the part has no packing. -1: none."""


@dataclass(slots=True)
class _Choice:
    part: _Part
    floor: int
    candidates: list[int]
    """Best last."""
    raised: Ints
    """`low` where none of the candidates lies on the floor."""
    after: _Todo | None


_Todo: TypeAlias = tuple[_Part, "_Todo | None"]
"""Parts still to solve, as a linked list: going back to an older one costs nothing."""


class Search:
    """One problem, searched as often as wanted; sizes must sum to less than 2**62."""

    def __init__(self, spans: Sequence[Span], pinned: Ints | None = None) -> None:
        """`pinned` [n]: the offset that a buffer has to have, or FREE; all are free without it."""
        first, stop, size = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
        cliques = int(stop.max())
        steps = np.arange(cliques)
        self.first: Ints = first
        self.stop: Ints = stop
        self.size: Ints = size
        self._alive: Ints = np.where((first[:, None] <= steps) & (steps < stop[:, None]), size[:, None], 0)  # [n, cliques]
        self._meets = (first[:, None] < stop) & (first < stop[:, None])  # [n, n]
        np.fill_diagonal(self._meets, False)
        if pinned is None:
            pinned = np.full(len(spans), FREE, dtype=np.int64)
        self._least: Ints = np.maximum(pinned, 0)
        self._most: Ints = np.where(pinned == FREE, _NEVER, pinned)
        self.offsets: Ints = np.zeros(len(spans), dtype=np.int64)
        self.nodes = 0
        """Steps of the last run."""

    def run(self, target: int, rank: Ints, nodes: int, deadline: float) -> Outcome:
        """Look for a packing no higher than `target` in at most `nodes` steps; of candidates, the highest `rank` [n] comes first.

        With FOUND, `offsets` [n] is the packing.
        """
        stack: list[_Choice] = []
        todo = self._parts(np.arange(len(self.size)), self._least, self._least, -1, None)
        for node in range(nodes):
            self.nodes = node + 1
            if todo is None:
                return Outcome.FOUND
            if node % 32 == 0 and perf_counter() > deadline:
                return Outcome.OPEN
            part, after = todo
            choice = self._choice(part, target, rank, after)
            if choice is not None:
                stack.append(choice)
            elif part.parent < 0:
                return Outcome.NONE
            else:
                del stack[part.parent + 1 :]
            todo = self._next(stack)
        return Outcome.OPEN if todo is not None else Outcome.FOUND

    def _next(self, stack: list[_Choice]) -> _Todo | None:
        """Take the next candidate of the youngest choice; after the last, the choice is replaced by `none of them`."""
        choice = stack[-1]
        part = choice.part
        if not choice.candidates:
            stack.pop()
            return _Part(part.buffers, choice.raised, part.rest, part.parent), choice.after
        b = choice.candidates.pop()
        self.offsets[b] = choice.floor
        top, meets = choice.floor + self.size[b], self._meets[b]
        low = np.where(meets, np.maximum(part.low, top), part.low)
        rest = np.where(meets, np.maximum(part.rest, top), part.rest)
        return self._parts(part.buffers[part.buffers != b], low, rest, len(stack) - 1, choice.after)

    def _parts(self, buffers: Ints, low: Ints, rest: Ints, parent: int, after: _Todo | None) -> _Todo | None:
        if len(buffers) == 0:
            return after
        by_time = buffers[np.argsort(self.first[buffers], kind="stable")]
        ends = np.maximum.accumulate(self.stop[by_time])
        cuts = np.flatnonzero(self.first[by_time][1:] >= ends[:-1]) + 1
        for piece in np.split(by_time, cuts) if len(cuts) else (by_time,):
            after = _Part(piece, low, rest, parent), after
        return after

    def _choice(self, part: _Part, target: int, rank: Ints, after: _Todo | None) -> _Choice | None:
        """The next choice of a part; None where some clique proves that there is none."""
        low, buffers = part.low, part.buffers
        start, stop = int(self.first[buffers].min()), int(self.stop[buffers].max())
        while True:
            low = self._past_pinned(buffers, low)
            if bool((low[buffers] > self._most[buffers]).any()):
                return None
            by_low = buffers[np.argsort(low[buffers], kind="stable")]
            lows = low[by_low]
            sizes = self._alive[by_low, start:stop]  # [open, cliques], the lowest first
            # Whatever may not lie below x ends above x + their sizes.
            above = np.cumsum(sizes[::-1], axis=0)[::-1]
            if int((above + lows[:, None]).max()) > target:
                return None
            alive = sizes > 0
            floor = np.where(alive.any(axis=0), lows[alive.argmax(axis=0)], _NEVER)
            on_floor = alive & (lows[:, None] == floor)
            ready = on_floor & (part.rest[by_low] == lows)[:, None]
            count = ready.sum(axis=0)
            hanging = (count == 0) & (floor < _NEVER)
            raised = self._raised(by_low[(on_floor & hanging).any(axis=1)], buffers, low, 0)
            if np.array_equal(raised, low):
                break
            low = raised
        # Nothing hangs on the lowest floor of all: whatever an open buffer carries is higher.
        lowest = floor == floor.min()
        clique = int(np.where(lowest, count, len(self.size) + 1).argmin())
        candidates = by_low[ready[:, clique]]
        at = int(floor[clique])
        ordered = candidates[np.argsort(rank[candidates])].tolist()
        none = self._raised(candidates, buffers, low, 1)
        return _Choice(_Part(buffers, low, part.rest, part.parent), at, ordered, none, after)

    def _past_pinned(self, buffers: Ints, low: Ints) -> Ints:
        """`low` where no buffer would share bytes with one that is pinned and open."""
        pinned = buffers[self._most[buffers] < _NEVER]
        if not len(pinned):
            return low
        at, top = self._most[pinned][:, None], (self._most[pinned] + self.size[pinned])[:, None]
        meets = self._meets[np.ix_(pinned, buffers)]
        while True:
            lows = low[buffers]
            passed = np.where(meets & (lows < top) & (lows + self.size[buffers] > at), top, lows).max(0)
            if np.array_equal(passed, lows):
                return low
            low = low.copy()
            low[buffers] = passed

    def _raised(self, lifted: Ints, buffers: Ints, low: Ints, least: int) -> Ints:
        """`low` where `lifted` rest on none of the placed buffers: on an open one then, no lower than its end, and `least` higher."""
        raised = low.copy()
        ends = low[buffers] + self.size[buffers]
        for b in lifted:
            under = ends[self._meets[b, buffers]]
            raised[b] = max(low[b] + least, under.min()) if len(under) else _NEVER // 2
        return raised
