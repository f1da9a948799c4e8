"""Places for all, by cutting stays: what finds no place stays shorter, or what lies in its way moves, comes later or stays shorter.

In: the blocks of a timetable, places for most of them, what stays. Out: resident intervals without those cut, and a place for every
stay that is left. Each core without a place takes the offset that costs least in bytes that move again or come late; what it drives
away looks for another hole, and costs more to drive away the next time. `within` says when each stay begins and ends at these places.

    offset            w, used at 1, 5 and 9, finds no hole from 1 to 9; cut after 5 its second half does
      |  [b   ][w      ]
      |  [w     ][ c    ]
      +--1----5-----9--> slot
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.schedule.emit import Blocks, Stays

Ints = NDArray[np.int64]
MOVING = 8
"""Parts of its bytes that it counts to move a core to another hole: nothing moves, but the hole is gone."""
DRIVING = 3.0
"""Times its bytes that it counts to drive a core away that has no other hole; a core in whose way that much is rather stays shorter.
It grows ..."""
DEARER = 2.0
"""... by this factor each time."""
NEVER = 1e30
"""The price of what is not done."""
PROBED = 48
"""Offsets of which it is found out what it would really cost to stand there."""
TURNS, TURNS_PER_CORE = 200, 8
"""Cores that may be given a place before it is given up: at least, and for each without one at first."""
LEAD = 2.0
"""A load that a cut makes wishes to be issued this many times its own length ahead of need."""
Key = tuple[int, int]
"""A tensor and the position where it must be there."""


@dataclass(frozen=True, slots=True)
class Core:
    key: Key
    lower: int
    """The position from which it has its bytes, at the latest key[1]: sooner where it is loaded ahead of need."""
    upper: int
    """Half-open, at least `last`: later where a copy to the host has still to end."""
    last: int
    """The position when its last task has run."""
    nbytes: int
    gaps: tuple[int, ...]
    """Kept intervals inside it, ascending: over each it only waits."""


@dataclass(frozen=True, slots=True)
class Cut:
    resident: ResidentIntervals
    offset_by_key: dict[Key, int]


def cut(
    slots: Slots, blocks: Blocks, offsets: Sequence[int | None], resident: ResidentIntervals, capacity: int, drives: bool = False
) -> Cut | None:  # fmt: skip
    """Places for all; None where none were found. `drives`: what has no other hole may be driven away too, and look for a place in turn,
    which finds good places among many small cores and none among few large ones.
    """
    ground = _Ground(slots, capacity, DRIVING if drives else NEVER)
    homeless = []
    for core, at in zip(_cores(slots.accesses, blocks, resident), offsets, strict=True):
        if at is None:
            homeless.append(core)
        else:
            ground.stand(core, at)
    homeless.sort(key=lambda c: (c.nbytes, c.key))
    turns = TURNS + TURNS_PER_CORE * len(homeless)
    while homeless and turns:
        core = homeless.pop()
        turns -= 1
        at = ground.hole(core)
        if at is not None:
            ground.stand(core, at)
            continue
        driven = ground.make_room(core)
        if driven is None:
            return None
        homeless += driven
    if homeless:
        return None
    kept = resident.copy()
    kept[ground.cut] = False
    return Cut(kept, dict(ground.places()))


def within(blocks: Blocks, offset_by_key: dict[Key, int]) -> Stays:
    """Where every block lies, and when: as it wishes, but for bytes that another's core still uses or uses again by then."""
    lower, upper = np.array([position for _, position in blocks.keys], np.int64), np.array(blocks.uppers, np.int64)
    start = np.array([offset_by_key[key] for key in blocks.keys], np.int64)
    birth, death, size = np.array(blocks.blocks, np.int64).reshape(-1, 3).T
    stop = start + size
    births, deaths = birth.copy(), death.copy()
    for i in np.flatnonzero(death > upper).tolist():
        after = lower[(lower >= upper[i]) & (lower < death[i]) & (start < stop[i]) & (stop > start[i])]
        deaths[i] = after.min(initial=death[i])
    for i in np.flatnonzero(birth < lower).tolist():
        before = deaths[(deaths > birth[i]) & (deaths <= lower[i]) & (start < stop[i]) & (stop > start[i])]
        births[i] = before.max(initial=birth[i])
    return Stays(tuple(start.tolist()), tuple(births.tolist()), tuple(deaths.tolist()))


def _cores(a: Accesses, blocks: Blocks, resident: ResidentIntervals) -> list[Core]:
    kept = np.flatnonzero(resident)
    by_tensor: dict[int, list[int]] = {}
    for j, t in zip(kept.tolist(), a.tensor[kept].tolist(), strict=True):
        by_tensor.setdefault(t, []).append(j)
    cores = []
    for block, stays, key, upper in zip(blocks.blocks, blocks.stays, blocks.keys, blocks.uppers, strict=True):
        inside = [j for t in stays for j in by_tensor.get(t, ()) if key[1] <= 3 * a.start[j] + 1 and 3 * a.end[j] < upper]
        cores.append(Core(key, block.start, block.end, upper, block.nbytes, tuple(inside)))
    return cores


class Way(NamedTuple):
    """How a core in the way of another yields."""

    price: float
    """In bytes that move again, about."""
    gap: int | None = None
    """It is cut there."""
    late: bool = False
    """It comes later."""


class Blocker(NamedTuple):
    number: int
    start: int
    way: Way
    inside: int | None
    """The gap, of the core in whose way it is, that it lies in."""


def _price_by_gap(blockers: list[Blocker]) -> dict[int, float]:
    """What it costs to drive away those that lie in one gap, for each gap."""
    by_gap: dict[int, float] = {}
    for b in blockers:
        if b.inside is not None:
            by_gap[b.inside] = by_gap.get(b.inside, 0.0) + b.way.price
    return by_gap


class _Ground:
    """Cores that stand. No two that live at once share a byte."""

    def __init__(self, slots: Slots, capacity: int, driving: float) -> None:
        a = slots.accesses
        self.a, self.capacity, self.driving = a, capacity, driving
        self.cores: list[Core] = []
        self.cut: list[int] = []
        """The intervals that no longer stay."""
        self.driven: dict[Key, int] = {}
        """How often each has been driven away."""
        self.lower, self.upper, self.offset, self.stop = (np.zeros(64, np.int64) for _ in range(4))
        self.free: list[int] = []
        """Rows of these whose core has left; they live from 0 to 0."""
        self.leaves: list[int] = (3 * a.start + 2).tolist()
        """[interval] the position from which its bytes are free if it is cut, ..."""
        self.returns: list[int] = (3 * a.end).tolist()
        """[interval] ... and until when."""
        self.tensor: list[int] = a.tensor.tolist()
        self.price: list[int] = (a.nbytes[a.tensor] * np.where(a.is_first & a.dirty[a.tensor], 2, 1)).tolist()
        """[interval] bytes that cutting it moves."""
        self.passed: list[float] = np.concatenate(([0.0], np.cumsum(a.seconds))).tolist()
        self.load_s, self.store_s = slots.load_s, slots.store_s
        self.writes: list[bool] = (a.is_first & ~a.clean[a.tensor]).tolist()
        """[interval] whether cutting it is what sends the tensor to the host, or a sink's copy may still be under way."""

    def places(self) -> Iterator[tuple[Key, int]]:
        gone = set(self.free)
        for i, core in enumerate(self.cores):
            if i not in gone:
                yield core.key, int(self.offset[i])

    def stand(self, core: Core, at: int) -> None:
        if self.free:
            i = self.free.pop()
            self.cores[i] = core
        else:
            i = len(self.cores)
            self.cores.append(core)
            if i == len(self.lower):
                self.lower, self.upper, self.offset, self.stop = (
                    np.concatenate((column, np.zeros_like(column))) for column in (self.lower, self.upper, self.offset, self.stop)
                )
        self.lower[i], self.upper[i], self.offset[i], self.stop[i] = core.lower, core.upper, at, at + core.nbytes

    def leave(self, i: int) -> None:
        self.lower[i] = self.upper[i] = 0
        self.free.append(i)

    def halves(self, core: Core, gap: int) -> tuple[Core, Core]:
        """What is left of `core` if it does not stay over `gap`."""
        i, tensor, leaves, returns = core.gaps.index(gap), self.tensor[gap], self.leaves[gap], self.returns[gap]
        written = self._after(leaves // 3 + 1, LEAD * self.store_s[tensor]) if self.writes[gap] else leaves
        issued = self._before(returns // 3, LEAD * self.load_s[tensor])
        before = replace(core, upper=min(written, returns), last=leaves, gaps=core.gaps[:i])
        after = replace(core, key=(tensor, returns), lower=max(issued, before.upper), gaps=core.gaps[i + 1 :])
        self.cut.append(gap)
        return before, after

    def _before(self, slot: int, seconds: float) -> int:
        """The position of the last slot that begins `seconds` of tasks before `slot` does."""
        return 3 * max(0, bisect_right(self.passed, self.passed[slot] - seconds) - 1)

    def _after(self, slot: int, seconds: float) -> int:
        """The position of the first slot that begins `seconds` of tasks after `slot` does."""
        return 3 * min(bisect_left(self.passed, self.passed[slot] + seconds), len(self.passed) - 1)

    def hole(self, core: Core) -> int | None:
        """The offset of the tightest hole for the whole of it."""
        near = self._near(core)
        ends = [0, *np.maximum.accumulate(self.stop[near]).tolist()]
        starts = [*self.offset[near].tolist(), self.capacity]
        holes = [(start - end, end) for end, start in zip(ends, starts, strict=True) if start - end >= core.nbytes]
        return min(holes)[1] if holes else None

    def make_room(self, core: Core) -> list[Core] | None:
        """Let `core` stand where it costs least, of the PROBED offsets that may cost least, and answer those that have no place then;
        None where there is no way."""
        near = self._near(core)
        numbers, start, stop = near.tolist(), self.offset[near], self.stop[near]
        inside = [self._gap_around(core, self.cores[i]) for i in numbers]
        least = np.where([gap is None for gap in inside], (stop - start) / MOVING, 0.0)
        ways: dict[int, Way] = {}

        def blockers(at: int) -> list[Blocker]:
            found = []
            for k in np.flatnonzero((start < at + core.nbytes) & (stop > at)).tolist():
                if k not in ways:
                    ways[k] = self._way(numbers[k], core)
                found.append(Blocker(numbers[k], int(start[k]), ways[k], inside[k]))
            return found

        cost, at = min(((self._cost(blockers(at)), at) for at in self._cheapest(start, stop, least, core.nbytes)), default=(NEVER, 0))
        if core.gaps and cost > DRIVING * core.nbytes:
            return list(self.halves(core, max(core.gaps, key=lambda j: (self.returns[j] - self.leaves[j], j))))
        if cost >= NEVER:
            return None
        return self._settle(core, at, blockers(at))

    def _cheapest(self, start: Ints, stop: Ints, least: NDArray[np.float64], nbytes: int) -> list[int]:
        """The PROBED offsets whose blockers' sums of `least` are smallest. `start` ascends."""
        at = np.unique(np.concatenate((stop, start - nbytes, (0, self.capacity - nbytes))))
        at = at[(at >= 0) & (at <= self.capacity - nbytes)]
        by_stop = stop.argsort(kind="stable")
        begun, ended = (np.concatenate(((0.0,), least[order].cumsum())) for order in (slice(None), by_stop))
        total = begun[start.searchsorted(at + nbytes)] - ended[stop[by_stop].searchsorted(at, "right")]
        chosen: list[int] = at[total.argsort(kind="stable")[:PROBED]].tolist()
        return chosen

    def _cost(self, blockers: list[Blocker]) -> float:
        """Of driving these away; of each gap around some of them the cheaper of cutting it and letting them go."""
        outside = sum(b.way.price for b in blockers if b.inside is None)
        return outside + sum(min(price, self.price[gap]) for gap, price in _price_by_gap(blockers).items())

    def _settle(self, core: Core, at: int, blockers: list[Blocker]) -> list[Core]:
        """Let `core` stand at `at`, cut where that is cheaper than what lies in a gap; answer the `blockers` that have no place then."""
        own = [gap for gap, price in sorted(_price_by_gap(blockers).items()) if price >= self.price[gap]]
        yielding = [(b, self.cores[b.number]) for b in blockers if b.inside not in own]
        for b, _ in yielding:
            self.leave(b.number)
        rest = core
        for gap in own:
            before, rest = self.halves(rest, gap)
            self.stand(self._fitted(before, at), at)
        self.stand(self._fitted(rest, at), at)
        homeless: list[Core] = []
        for b, other in yielding:
            if b.way.gap is not None:
                for half in self.halves(other, b.way.gap):
                    self.stand(self._fitted(half, b.start), b.start)
            elif b.way.late:
                self.stand(self._fitted(other, b.start), b.start)
            else:
                homeless.append(other)
                self.driven[other.key] = self.driven.get(other.key, 0) + 1
        return sorted(homeless, key=lambda c: (c.nbytes, c.key))

    def _fitted(self, core: Core, at: int) -> Core:
        """`core`, coming later and leaving sooner where others stand there; its place is free while it must be there."""
        n = len(self.cores)
        there = (self.offset[:n] < at + core.nbytes) & (self.stop[:n] > at) & (self.lower[:n] < core.upper) & (self.upper[:n] > core.lower)
        lower, upper = self.lower[:n][there], self.upper[:n][there]
        return replace(
            core,
            lower=int(upper[upper <= core.key[1]].max(initial=core.lower)),
            upper=int(lower[lower >= core.last].min(initial=core.upper)),
        )

    def _way(self, i: int, core: Core) -> Way:
        """The cheapest way to have core `i` out of `core`'s."""
        other = self.cores[i]
        if self.hole(other) is not None:
            return Way(other.nbytes / MOVING)
        ways = [Way(other.nbytes * self.driving * DEARER ** self.driven.get(other.key, 0))]
        lower, upper = max(core.lower, other.lower), min(core.upper, other.upper)
        ways += [Way(self.price[j], gap=j) for j in other.gaps if self.leaves[j] <= lower and self.returns[j] >= upper]
        if upper <= other.key[1]:
            ways.append(Way(other.nbytes * self._lateness(other, upper), late=True))
        return min(ways, key=lambda w: w.price)

    def _lateness(self, core: Core, lower: int) -> float:
        """The share of its load that is not done when it must be there, if it begins at `lower` on an idle link."""
        ahead = self.passed[core.key[1] // 3] - self.passed[-(-lower // 3)]
        return max(0.0, 1.0 - ahead / max(self.load_s[core.key[0]], 1e-12))

    def _gap_around(self, core: Core, other: Core) -> int | None:
        """The gap of `core` that `other` lies in."""
        return next((j for j in core.gaps if self.leaves[j] <= other.lower and other.upper <= self.returns[j]), None)

    def _near(self, core: Core) -> Ints:
        """Those that live while `core` does, by offset."""
        n = len(self.cores)
        found = np.flatnonzero((self.lower[:n] < core.upper) & (self.upper[:n] > core.lower) & (self.stop[:n] > self.offset[:n]))
        by_offset: Ints = found[np.argsort(self.offset[found], kind="stable")]
        return by_offset
