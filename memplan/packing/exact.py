"""Depth-first search for a packing under a target height, exact if given time.

In: rectangles over cliques (`over_cliques`) and a target. Out: offsets, or none: proven where the search ended by itself, open where it
ran out of nodes or time.

Only canonical packings are tried, in which everything rests on something: an offset is 0, the end of a rectangle alive at the same time
or, where it is pinned, given. Of an open (not yet placed) rectangle two figures are known: the lowest offset it may still get
(`min_offset`), and how high the placed ones beneath it reach (`support`); it can be placed where both are equal. The search branches on
one clique and on the next rectangle at its floor, the lowest `min_offset` in it: one of those that can be placed there, or none of them,
and then each has to rest on one placed later. A clique prunes: rectangles that may not lie below x need x plus their bytes. Open
rectangles that no chain of cliques links are independent problems: the failure of one undoes no other's work.
Canonical packings, section floors and decomposition are ideas of TelaMalloc (Maas et al. 2022) and MiniMalloc (Moffitt 2023); branching
on the clique with the fewest candidates is fail-first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TypeAlias

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.memplan.packing.rectangles import Rectangle

_INFINITY = np.int64(2**62)
FREE = -1
"""In place of a pinned offset: any."""


class Outcome(Enum):
    FOUND = "found"
    NONE = "none"
    """Proven: no packing is as low."""
    OPEN = "open"
    """Out of nodes or of time."""


@dataclass(slots=True)
class _Component:
    """Open rectangles that a chain of common cliques links, and what is known of every rectangle."""

    open: Int64s
    min_offset: Int64s
    support: Int64s
    parent: int
    """The index in the stack of the branch that made this component: wrong where the component has no packing. -1: none."""


@dataclass(slots=True)
class _Branch:
    component: _Component
    floor: int
    candidates: list[int]
    """Best last."""
    raised: Int64s
    """`min_offset` where none of the candidates lies on the floor."""
    after: _Todo | None


_Todo: TypeAlias = tuple[_Component, "_Todo | None"]
"""Components still to solve, as a linked list: going back to an older one costs nothing."""


class ExactSearch:
    """One problem, searched as often as wanted; bytes must sum to less than 2**62."""

    def __init__(self, rectangles: Sequence[Rectangle], pinned: Int64s | None = None) -> None:
        """`pinned` [n]: the offset that a rectangle has to have, or FREE; all are free without it."""
        start, end, nbytes = np.ascontiguousarray(np.array(rectangles, dtype=np.int64).reshape(-1, 3).T)
        steps = np.arange(int(end.max()))
        self.start: Int64s = start
        self.end: Int64s = end
        self.nbytes: Int64s = nbytes
        self._alive: Int64s = np.where((start[:, None] <= steps) & (steps < end[:, None]), nbytes[:, None], 0)  # [n, cliques]
        self._overlaps = (start[:, None] < end) & (start < end[:, None])  # [n, n]
        np.fill_diagonal(self._overlaps, False)
        if pinned is None:
            pinned = np.full(len(rectangles), FREE, dtype=np.int64)
        self._lowest: Int64s = np.maximum(pinned, 0)
        self._highest: Int64s = np.where(pinned == FREE, _INFINITY, pinned)
        self.offsets: Int64s = np.zeros(len(rectangles), dtype=np.int64)
        self.nodes = 0
        """Steps of the last run."""

    def run(self, target: int, rank: Int64s, nodes: int, deadline: float) -> Outcome:
        """Look for a packing no higher than `target` in at most `nodes` steps; of candidates, the highest `rank` [n] comes first.

        With FOUND, `offsets` [n] is the packing.
        """
        stack: list[_Branch] = []
        todo = self._components(np.arange(len(self.nbytes)), self._lowest, self._lowest, -1, None)
        for node in range(nodes):
            self.nodes = node + 1
            if todo is None:
                return Outcome.FOUND
            if node % 32 == 0 and perf_counter() > deadline:
                return Outcome.OPEN
            component, after = todo
            branch = self._branch(component, target, rank, after)
            if branch is not None:
                stack.append(branch)
            elif component.parent < 0:
                return Outcome.NONE
            else:
                del stack[component.parent + 1 :]
            todo = self._next(stack)
        return Outcome.OPEN if todo is not None else Outcome.FOUND

    def _next(self, stack: list[_Branch]) -> _Todo | None:
        """Take the next candidate of the topmost branch; after the last, the branch is replaced by `none of them`."""
        branch = stack[-1]
        parent = branch.component
        if not branch.candidates:
            stack.pop()
            return _Component(parent.open, branch.raised, parent.support, parent.parent), branch.after
        i = branch.candidates.pop()
        self.offsets[i] = branch.floor
        top, overlaps = branch.floor + self.nbytes[i], self._overlaps[i]
        min_offset = np.where(overlaps, np.maximum(parent.min_offset, top), parent.min_offset)
        support = np.where(overlaps, np.maximum(parent.support, top), parent.support)
        return self._components(parent.open[parent.open != i], min_offset, support, len(stack) - 1, branch.after)

    def _components(self, open_: Int64s, min_offset: Int64s, support: Int64s, parent: int, after: _Todo | None) -> _Todo | None:
        if len(open_) == 0:
            return after
        by_start = open_[np.argsort(self.start[open_], kind="stable")]
        ends = np.maximum.accumulate(self.end[by_start])
        gaps = np.flatnonzero(self.start[by_start][1:] >= ends[:-1]) + 1
        for linked in np.split(by_start, gaps) if len(gaps) else (by_start,):
            after = _Component(linked, min_offset, support, parent), after
        return after

    def _branch(self, component: _Component, target: int, rank: Int64s, after: _Todo | None) -> _Branch | None:
        """The next branch of a component; None where some clique proves that there is none."""
        min_offset, open_ = component.min_offset, component.open
        start, end = int(self.start[open_].min()), int(self.end[open_].max())
        while True:
            min_offset = self._past_pinned(open_, min_offset)
            if bool((min_offset[open_] > self._highest[open_]).any()):
                return None
            by_offset = open_[np.argsort(min_offset[open_], kind="stable")]
            offsets = min_offset[by_offset]
            nbytes = self._alive[by_offset, start:end]  # [open, cliques], the lowest first
            # Whatever may not lie below x ends above x + their bytes.
            above = np.cumsum(nbytes[::-1], axis=0)[::-1]
            if int((above + offsets[:, None]).max()) > target:
                return None
            alive = nbytes > 0
            floor = np.where(alive.any(axis=0), offsets[alive.argmax(axis=0)], _INFINITY)
            on_floor = alive & (offsets[:, None] == floor)
            supported = on_floor & (component.support[by_offset] == offsets)[:, None]
            count = supported.sum(axis=0)
            unsupported = (count == 0) & (floor < _INFINITY)
            raised = self._raised(by_offset[(on_floor & unsupported).any(axis=1)], open_, min_offset, 0)
            if np.array_equal(raised, min_offset):
                break
            min_offset = raised
        # No clique at the lowest floor of all is unsupported: whatever rests on an open rectangle is higher.
        lowest = floor == floor.min()
        clique = int(np.where(lowest, count, len(self.nbytes) + 1).argmin())
        candidates = by_offset[supported[:, clique]]
        ordered = candidates[np.argsort(rank[candidates])].tolist()
        none = self._raised(candidates, open_, min_offset, 1)
        return _Branch(_Component(open_, min_offset, component.support, component.parent), int(floor[clique]), ordered, none, after)

    def _past_pinned(self, open_: Int64s, min_offset: Int64s) -> Int64s:
        """`min_offset` where no rectangle would share bytes with one that is pinned and open."""
        pinned = open_[self._highest[open_] < _INFINITY]
        if not len(pinned):
            return min_offset
        at, top = self._highest[pinned][:, None], (self._highest[pinned] + self.nbytes[pinned])[:, None]
        overlaps = self._overlaps[np.ix_(pinned, open_)]
        while True:
            offsets = min_offset[open_]
            passed = np.where(overlaps & (offsets < top) & (offsets + self.nbytes[open_] > at), top, offsets).max(0)
            if np.array_equal(passed, offsets):
                return min_offset
            min_offset = min_offset.copy()
            min_offset[open_] = passed

    def _raised(self, lifted: Int64s, open_: Int64s, min_offset: Int64s, least: int) -> Int64s:
        """`min_offset` where `lifted` rest on none of the placed: on an open one then, no lower than its end, and `least` higher."""
        raised = min_offset.copy()
        ends = min_offset[open_] + self.nbytes[open_]
        for i in lifted:
            under = ends[self._overlaps[i, open_]]
            raised[i] = max(min_offset[i] + least, under.min()) if len(under) else _INFINITY // 2
        return raised
