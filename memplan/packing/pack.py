"""Pack rectangles under a capacity, or as low as time allows.

In: Rectangles, a capacity, seconds and a seed. Out: a Packed: the lowest packing met, already judged, and the lower bound beside it. First
fit in a few orders comes first, then exact searches under the capacity, restarted with other preferences under limits that grow; where the
capacity is out of reach, the rest of the time goes to a binary search between the height that is ruled out and the one that is known. The
same seed makes the same steps: only where time runs out can the result depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf
from random import Random
from time import perf_counter

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.einsum_front.base.units import Nbytes
from einpage.memplan.graph.memgraph import Offset
from einpage.memplan.packing.exact import ExactSearch, Outcome
from einpage.memplan.packing.greedy import height_of, pack_by_order
from einpage.memplan.packing.rectangles import Packing, Rectangle, judge_packing, lower_bound, over_cliques

_CELLS = 1 << 19
"""Rectangles × cliques, and rectangles squared, up to which exact search pays: a node reads all of the former, its start the latter."""
_ROUNDS = 40
"""Orders tried before the exact search."""
_SHARE = 0.85
"""Of the time, what the capacity gets before lower targets do."""


@dataclass(frozen=True, slots=True)
class Packed:
    packing: Packing
    """The lowest met."""
    capacity: Nbytes
    lower_bound: Nbytes
    """The most bytes alive at once."""
    proven_bound: Nbytes
    """No packing is lower: `lower_bound`, or more where searches ended without one."""
    seconds: float
    """Wall time of the search, without the judge's."""

    @property
    def fits(self) -> bool:
        """Whether the packing's height is within the capacity."""
        return self.packing.height <= self.capacity


def pack(rectangles: Sequence[Rectangle], capacity: int, seconds: float = 60.0, seed: int = 0) -> Packed:
    """Stops at the first packing within `capacity`, or after `seconds`."""
    began = perf_counter()
    bound = lower_bound(rectangles)
    solid = [i for i, r in enumerate(rectangles) if r.nbytes > 0]
    unit = gcd(*(rectangles[i].nbytes for i in solid)) or 1
    in_units = over_cliques([rectangles[i]._replace(nbytes=rectangles[i].nbytes // unit) for i in solid])
    offsets, proven = _solved(in_units, bound // unit, capacity // unit, began + seconds, seed) if solid else ([], bound // unit)
    offset_by_number = dict(zip(solid, offsets, strict=True))
    packing = Packing(tuple(rectangles), tuple(Offset(offset_by_number.get(i, 0) * unit) for i in range(len(rectangles))))
    took = perf_counter() - began
    violation = judge_packing(packing, packing.height)
    assert violation is None, violation
    return Packed(packing, Nbytes(capacity), bound, Nbytes(proven * unit), took)


def _solved(rectangles: Sequence[Rectangle], bound: int, capacity: int, deadline: float, seed: int) -> tuple[list[int], int]:
    """(offsets, proven bound). All heights in units of the bytes' common divisor."""
    now = perf_counter()
    target = max(capacity, bound)
    large = len(rectangles) * max(len(rectangles), *(r.end for r in rectangles)) > _CELLS
    best = pack_by_order(rectangles, target, 10**9 if large else _ROUNDS, seed, deadline)
    if large or height_of(rectangles, best) <= target:
        return best, bound
    search = Restarts(ExactSearch(rectangles), seed)
    given_up = proven = bound
    share = now + _SHARE * (deadline - now)
    while given_up < height_of(rectangles, best) and perf_counter() < deadline and height_of(rectangles, best) > capacity:
        outcome, offsets = search.until(target, share)
        if outcome is Outcome.FOUND:
            best = offsets
        else:
            given_up = target + 1
            proven = max(proven, given_up) if outcome is Outcome.NONE else proven
        target = (given_up + height_of(rectangles, best) - 1) // 2
        share = perf_counter() + (deadline - perf_counter()) / 4
    return best, proven


class Restarts:
    """Randomised restarts of one exact search, which differ in what they try first."""

    def __init__(self, search: ExactSearch, seed: int) -> None:
        self._search = search
        self._rng = Random(seed)

    def until(self, target: int, deadline: float) -> tuple[Outcome, list[int]]:
        """Restart under limits that follow Luby's sequence, 1 1 2 1 1 2 4 … times a few nodes a rectangle, until the search is not OPEN or
        `deadline` has passed."""
        turn = 0
        while True:
            turn += 1
            outcome, offsets = self.once(target, 3 * len(self._search.nbytes) * _luby(turn), deadline)
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

    def _rank(self) -> Int64s:
        """Large rectangles first, long ones more or less so, with noise."""
        search, rng = self._search, self._rng
        by_size, by_duration, noise = rng.uniform(0.2, 1.2), rng.uniform(-0.2, 0.6), rng.choice((0.05, 0.1, 0.3, 1.0))
        shaken = np.array([rng.uniform(0, noise) for _ in search.nbytes])
        key = by_size * np.log(search.nbytes) + by_duration * np.log(search.end - search.start) + shaken
        return np.argsort(np.argsort(key, kind="stable"), kind="stable")


def _luby(turn: int) -> int:
    """Luby, Sinclair, Zuckerman 1993: the `turn`-th limit, from 1, of the best restarts where nothing is known."""
    while True:
        bits = turn.bit_length()
        if turn == 2**bits - 1:
            return 1 << (bits - 1)
        turn -= 2 ** (bits - 1) - 1
