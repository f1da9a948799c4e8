"""Place buffers with known lives under a capacity, or as low as time allows.

In: Buffers, a capacity, seconds and a seed. Out: a Packed: the lowest packing met, already judged, and the lower bound beside it. First
come quick orders, then exact searches under the capacity, restarted with other preferences under limits that grow; where the capacity is
out of reach, the rest of the time goes to targets between what is ruled out and what is known. The same seed makes the same steps: only
where time runs out can the result depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf
from random import Random
from time import perf_counter

import numpy as np

from einpage.einsum_front.base.units import Nbytes
from einpage.memplan.graph.memgraph import Offset
from einpage.memplan.packing.exact import Ints, Outcome, Search
from einpage.memplan.packing.greedy import Span, height_of, pack_by_order
from einpage.memplan.packing.rectangles import Buffer, Packing, judge_packing, lower_bound

_CELLS = 1 << 19
"""Buffers × cliques, and buffers squared, up to which the exact search pays: a node reads all of the first, the start all of the second."""
_ROUNDS = 40
"""Orders tried before the exact search."""
_SHARE = 0.85
"""Of the time, what the capacity gets before lower ambitions do."""


@dataclass(frozen=True, slots=True)
class Packed:
    packing: Packing
    """The lowest met."""
    capacity: Nbytes
    lower_bound: Nbytes
    """The largest sum of sizes alive at once."""
    proven_bound: Nbytes
    """No packing is lower: `lower_bound`, or more where searches ended without one."""
    seconds: float
    """Wall time of the search, the judge left out."""

    @property
    def fits(self) -> bool:
        return self.packing.height <= self.capacity


def pack(buffers: Sequence[Buffer], capacity: int, seconds: float = 60.0, seed: int = 0) -> Packed:
    """Stops at the first packing within `capacity`, or after `seconds`."""
    began = perf_counter()
    bound = lower_bound(buffers)
    sized = [i for i, b in enumerate(buffers) if b.size > 0]
    unit = gcd(*(buffers[i].size for i in sized)) or 1
    spans = cliques([(buffers[i].lower, buffers[i].upper, buffers[i].size // unit) for i in sized])
    offsets, proven = _solved(spans, bound // unit, capacity // unit, began + seconds, seed) if spans else ([], bound // unit)
    offset_by_buffer = dict(zip(sized, offsets, strict=True))
    packing = Packing(tuple(buffers), tuple(Offset(offset_by_buffer.get(i, 0) * unit) for i in range(len(buffers))))
    took = perf_counter() - began
    fault = judge_packing(packing, packing.height)
    assert fault is None, fault
    return Packed(packing, Nbytes(capacity), bound, Nbytes(proven * unit), took)


def cliques(spans: Sequence[Span]) -> list[Span]:
    """The same overlaps over fewer steps: only an instant before which something begins and after which something ends is kept."""
    begins = {first for first, _, _ in spans}
    ends = {stop for _, stop, _ in spans}
    step_by_time: dict[int, int] = {}
    step, fresh = 0, False
    for time in sorted(begins | ends):
        if time in ends and fresh:
            step, fresh = step + 1, False
        step_by_time[time] = step
        fresh = fresh or time in begins
    return [(step_by_time[first], step_by_time[stop], size) for first, stop, size in spans]


def _solved(spans: Sequence[Span], bound: int, capacity: int, deadline: float, seed: int) -> tuple[list[int], int]:
    """(offsets, proven bound). All heights in units of the sizes' common divisor."""
    now = perf_counter()
    target = max(capacity, bound)
    large = len(spans) * max(len(spans), *(stop for _, stop, _ in spans)) > _CELLS
    best = pack_by_order(spans, target, 10**9 if large else _ROUNDS, seed, deadline)
    if large or height_of(spans, best) <= target:
        return best, bound
    search = Restarts(Search(spans), seed)
    given_up = proven = bound
    share = now + _SHARE * (deadline - now)
    while given_up < height_of(spans, best) and perf_counter() < deadline and height_of(spans, best) > capacity:
        outcome, offsets = search.until(target, share)
        if outcome is Outcome.FOUND:
            best = offsets
        else:
            given_up = target + 1
            proven = max(proven, given_up) if outcome is Outcome.NONE else proven
        target = (given_up + height_of(spans, best) - 1) // 2
        share = perf_counter() + (deadline - perf_counter()) / 4
    return best, proven


class Restarts:
    """Searches of one problem that differ in what they try first."""

    def __init__(self, search: Search, seed: int) -> None:
        self._search = search
        self._rnd = Random(seed)

    def until(self, target: int, deadline: float) -> tuple[Outcome, list[int]]:
        """Restart under limits that follow Luby's sequence, 1 1 2 1 1 2 4 … times a few dives, until that is settled or `deadline` past."""
        turn = 0
        while True:
            turn += 1
            outcome, offsets = self.once(target, 3 * len(self._search.size) * _luby(turn), deadline)
            if outcome is not Outcome.OPEN or perf_counter() > deadline:
                return outcome, offsets

    def once(self, target: int, nodes: int, deadline: float = inf) -> tuple[Outcome, list[int]]:
        """One more start, of at most so many `nodes`."""
        outcome = self._search.run(target, self._rank(), nodes, deadline)
        return outcome, [] if outcome is Outcome.OPEN else self._search.offsets.tolist()

    @property
    def nodes(self) -> int:
        """Steps of the last start."""
        return self._search.nodes

    def _rank(self) -> Ints:
        """Large buffers first, long ones more or less so, with noise."""
        by_size, by_life, noise = self._rnd.uniform(0.2, 1.2), self._rnd.uniform(-0.2, 0.6), self._rnd.choice((0.05, 0.1, 0.3, 1.0))
        shaken = np.array([self._rnd.uniform(0, noise) for _ in self._search.size])
        key = by_size * np.log(self._search.size) + by_life * np.log(self._search.stop - self._search.first) + shaken
        return np.argsort(np.argsort(key, kind="stable"), kind="stable")


def _luby(turn: int) -> int:
    """Luby, Sinclair, Zuckerman 1993: the `turn`-th limit, from 1, of the best restarts where nothing is known."""
    while True:
        bits = turn.bit_length()
        if turn == 2**bits - 1:
            return 1 << (bits - 1)
        turn -= 2 ** (bits - 1) - 1
