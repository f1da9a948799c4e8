"""Relocation: ranges whose prefetch lead or write-back lag is denied move to other offsets, one at a time, by local search.

In: Slots, LiveRanges, a Placement of them. Out: a Placement in which ranges together lose less of what they have beyond their required
parts. A range moves to where it loses least while the others stay where they are; or it displaces a few, for whom that is no great loss,
and these look for other offsets. Invariant: no two ranges that have their bytes at once share one.

    offset            b may start at 2 and is required at 4: in c's bytes its lead is denied; above a, which
      |  [     ][..b  ]         ends at 1, it is not
      |  [a][b'..b'   ]
      |  [c      ]
      +--0--1--2--3--4--> slot
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from einpage.einsum_front.base.columns import Bools, Floats, Int64s
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.live_ranges import WORKSPACE, LiveRanges, Placement

LEAST = 1e-9
"""Seconds that are not worth a move."""
ROUNDS = 3
"""Times that each range may move, and ..."""
DISPLACEMENTS = 2
"""... times that each may displace others, of a few at once, ..."""
PROBED = 6
"""... at so many offsets, those with the least in the way."""
WORK, WORK_PER_QUERY = 200_000_000, 20_000
"""What may be spent, two seconds or so, and on each query."""


class Aim(NamedTuple):
    """What a second of lead or lag is worth ..."""

    first: float
    """... within the time of its own copy from the required part, ..."""
    second: float
    """... within twice that, ..."""
    rest: float
    """... and beyond."""
    most_displaced: int
    """By one range at once."""


EVENLY = Aim(1.0, 1.0, 1.0, 3)
NEAREST_FIRST = Aim(4.0, 1.0, 0.3, 6)
"""A load that has the time of its own copy ahead of its use is late only where others are before it on the link."""


def relocated(slots: Slots, ranges: LiveRanges, placement: Placement, aim: Aim = EVENLY) -> Placement:
    """`placement` with some ranges elsewhere, so that together they lose less of what `aim` says."""
    search = _LocalSearch(slots, ranges, placement, aim)
    for turn in [search.move] * ROUNDS + [search.displace, search.move] * DISPLACEMENTS:
        for i in search.denied():
            if search.spent < WORK:
                turn(i)
    return Placement(tuple(search.low.tolist()), tuple(search.start.tolist()), tuple(search.end.tolist()))


class Location(NamedTuple):
    lost_s: float
    low: int
    start: int
    end: int


class _LocalSearch:
    """At which offset each range lies (`low`), and from when to when. One from 0 to 0 lies nowhere."""

    def __init__(self, slots: Slots, ranges: LiveRanges, placement: Placement, aim: Aim) -> None:
        self.capacity = slots.problem.capacity
        self.spent = 0
        """Pairs of an offset and a range that were looked at, and a little more for each query."""
        elapsed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
        self.elapsed: Floats = np.append(elapsed.repeat(3), elapsed[-1])[2:]
        """[position] when the first slot starts that does not start before it, if nothing waits."""
        self.full_start, self.full_end, self.nbytes = np.array(ranges.full, np.int64).reshape(-1, 3).T
        self.required_start = np.array([at for _, at in ranges.keys], np.int64)
        self.required_end = np.array(ranges.required_ends, np.int64)
        self.aim = aim
        self.load_s = np.array([0.0 if t == WORKSPACE else slots.load_s[t] for t, _ in ranges.keys])
        self.store_s = np.array([0.0 if tensors[-1] == WORKSPACE else slots.store_s[tensors[-1]] for tensors in ranges.tensors])
        columns = placement.offsets, placement.starts, placement.ends
        self.low, self.start, self.end = (np.array(column, np.int64) for column in columns)

    def denied(self) -> list[int]:
        """The ranges that lose something, those that lose most first."""
        lost_s = self._lost_s(np.arange(len(self.start)), self.start, self.end)
        order = np.argsort(-lost_s, kind="stable")
        denied: list[int] = order[lost_s[order] > LEAST].tolist()
        return denied

    def move(self, i: int) -> None:
        """`i` moves to where it loses least."""
        location = self._best(i)
        assert location is not None, "where it is it may be"
        if location.lost_s < self._lost_s(i, self.start[i], self.end[i]):
            self._set(i, location)

    def displace(self, i: int) -> None:
        """`i` gets all of its full range where those in its way, which look for other offsets, lose less by that than it gains."""
        now = float(self._lost_s(i, self.start[i], self.end[i]))
        if now <= LEAST:
            return
        near, at, there = self._offsets(i)
        required = (self.required_end - self.required_start)[near] * self.nbytes[near].astype(np.float64)
        cost = np.where(there.sum(1) <= self.aim.most_displaced, there @ required, np.inf)
        for k in cost.argsort(kind="stable")[:PROBED].tolist():
            if cost[k] < np.inf and self._displaced(i, int(at[k]), near[there[k]], now):
                return

    def _displaced(self, i: int, at: int, others: Int64s, now: float) -> bool:
        """Whether `i`, which loses `now`, is `at` from now on, and `others` elsewhere."""
        all_ = np.append(others, i)
        before = self.low[all_], self.start[all_], self.end[all_]
        may_lose = now + float(self._lost_s(others, self.start[others], self.end[others]).sum())
        self.start[others] = self.end[others] = 0
        self._set(i, Location(0.0, at, int(self.full_start[i]), int(self.full_end[i])))
        largest_first = np.argsort(-self.nbytes[others] * (self.required_end - self.required_start)[others], kind="stable")
        for j in others[largest_first].tolist():
            location = self._best(j)
            may_lose -= np.inf if location is None else location.lost_s
            if location is None or may_lose < LEAST:
                self.low[all_], self.start[all_], self.end[all_] = before
                return False
            self._set(j, location)
        return True

    def _set(self, i: int, location: Location) -> None:
        _, self.low[i], self.start[i], self.end[i] = location

    def _lost_s(self, i: Int64s | int, start: Int64s, end: Int64s) -> Floats:
        """What the seconds of prefetch lead and write-back lag are worth that are denied to `i`, or to each of `i`."""
        needed, over = self.elapsed[self.required_start[i]], self.elapsed[self.required_end[i]]
        late = self._worth(needed - self.elapsed[self.full_start[i]], self.load_s[i]) - self._worth(
            needed - self.elapsed[start], self.load_s[i]
        )
        early: Floats = self._worth(self.elapsed[self.full_end[i]] - over, self.store_s[i]) - self._worth(
            self.elapsed[end] - over, self.store_s[i]
        )
        return early + late

    def _worth(self, seconds: Floats, copy_s: Floats) -> Floats:
        """Of so many of lead or lag, for a copy that takes `copy_s`."""
        first, second, rest, _ = self.aim
        more = np.maximum(seconds - copy_s, 0.0)
        worth: Floats = first * (seconds - more) + second * np.minimum(more, copy_s) + rest * np.maximum(more - copy_s, 0.0)
        return worth

    def _offsets(self, i: int) -> tuple[Int64s, Int64s, Bools]:
        """The others that are there during the full range of `i`; all offsets beside one of them or an end of the arena; who is in the way
        at each."""
        nbytes = self.nbytes[i]
        near = np.flatnonzero((self.start < self.full_end[i]) & (self.end > self.full_start[i]))
        near = near[near != i]
        low, high = self.low[near], self.low[near] + self.nbytes[near]
        at = np.unique(np.concatenate((high, low - nbytes, (0, self.capacity - nbytes, self.low[i]))))
        at = at[(at >= 0) & (at <= self.capacity - nbytes)]
        self.spent += WORK_PER_QUERY + len(at) * len(near)
        return near, at, (low < at[:, None] + nbytes) & (high > at[:, None])

    def _best(self, i: int) -> Location | None:
        """Where `i` loses least while the others stay where they are."""
        near, at, there = self._offsets(i)
        start, end = self.start[near], self.end[near]
        free = ~(there & (start < self.required_end[i]) & (end > self.required_start[i])).any(1)
        if not free.any():
            return None
        at, there = at[free], there[free]
        full_start, full_end = self.full_start[i], self.full_end[i]
        starts = np.where(there & (end <= self.required_start[i]), end, full_start).max(1, initial=full_start)
        ends = np.where(there & (start >= self.required_end[i]), start, full_end).min(1, initial=full_end)
        lost_s = self._lost_s(i, starts, ends)
        best = int(lost_s.argmin())
        return Location(float(lost_s[best]), int(at[best]), int(starts[best]), int(ends[best]))
