"""Resident intervals improved by ruin and recreate (Schrimpf et al. 2000), around one interval at a time.

In: Accesses, the headroom that resident intervals may take at every slot, ResidentIntervals within it, a judge of new ones. Out: resident
intervals within the headroom that move no more bytes. An interval is made resident; those in its way are evicted (ruin), and evicted ones
that fit then are made resident (recreate); the result is taken if it moves fewer bytes and the judge accepts it. Policies choose by one
figure an interval; this sees what an interval costs all others. Deterministic.

    w        ●────────────────●           headroom for one: w is resident by its share, but if it is evicted, u and v fit, which
    u, v     ●───────●  ●─────────●       together move more bytes than w
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.pace import Pace
from einpage.memplan.residency.policies import Headroom, ResidentIntervals, resident_bytes

MOST_ITERATIONS, MOST_SCANNED = 1_600, 7_000_000
"""Iterations at most, and intervals scanned over all of them."""
MOST_WEIGHED = 1_500_000
"""Intervals that were weighed, to evict or to make resident, over all iterations: with the above ten seconds at most, as a rule two."""
MOST_JUDGED = 100
"""Results that are put before the judge."""
GIVEN_UP_LOSS = 3
"""An iteration is given up once it has cost this many times the interval that it began with."""


def ruin_and_recreate(
    a: Accesses, headroom: Headroom, resident: ResidentIntervals, accepts: Callable[[ResidentIntervals], bool], seed: int, pace: Pace
) -> ResidentIntervals:
    """`resident` after all iterations that moved fewer bytes each and that `accepts` took, in turn.

    Raises SearchOver where `pace` ends it.
    """
    if not len(resident):
        return resident
    assignment, rng, judged = _Assignment(a, headroom, resident), Random(seed), 0
    for _ in range(min(MOST_ITERATIONS, MOST_SCANNED // len(resident))):
        evicted = np.flatnonzero(~assignment.resident)
        if not len(evicted) or judged == MOST_JUDGED or assignment.weighed > MOST_WEIGHED:
            break
        pace.step()
        saved = assignment.iterate(int(evicted[rng.randrange(len(evicted))]), rng)
        judged += saved > 0
        if saved <= 0 or not accepts(assignment.resident):
            assignment.undo()
    return assignment.resident


class _Assignment:
    def __init__(self, a: Accesses, headroom: Headroom, resident: ResidentIntervals) -> None:
        self.resident = resident.copy()
        self.left = headroom - resident_bytes(a, resident)
        """[slot]"""
        self.start, self.end = a.start + 1, a.end
        """[interval] the slots that it takes bytes of, half-open."""
        self.size = a.nbytes[a.tensor]
        self.nbytes: list[int] = self.size.tolist()
        self.tensor: list[int] = a.tensor.tolist()
        self.dirty: list[bool] = a.dirty.tolist()
        self.evictions: list[int] = np.bincount(a.tensor[~resident], minlength=len(a.nbytes)).tolist()
        """[tensor] its intervals that are not resident: the first of a dirty tensor costs a copy to the host."""
        self.changed: list[int] = []
        self.weighed = 0

    def iterate(self, j: int, rng: Random) -> int:
        """Make `j` resident; answers the bytes that this saves. Where that is 0 or less, `undo` is due."""
        self.changed = []
        start, end = int(self.start[j]), int(self.end[j])
        saved = self._flip(j)
        least = -GIVEN_UP_LOSS * self.nbytes[j]
        near = np.flatnonzero(self.resident & (self.size > 0) & (self.start < end) & (self.end > start))
        while (left := self.left[start:end]).min() < 0:
            fullest = start + int(left.argmin())
            over = near[self.resident[near] & (self.start[near] <= fullest) & (fullest < self.end[near]) & (near != j)]
            if not len(over) or saved < least:
                return 0
            self.weighed += len(over)
            saved += self._flip(min(over.tolist(), key=lambda i: self._cost(i, start, end) * (1 + rng.random())))
        start, end = int(self.start[self.changed].min()), int(self.end[self.changed].max())
        out = np.flatnonzero(~self.resident & (self.start < end) & (self.end > start))
        self.weighed += len(out)
        slots = (self.end - self.start).tolist()
        for i in sorted(out.tolist(), key=lambda i: -self._bytes(i, 1) / slots[i] ** 0.5 * (0.5 + rng.random())):
            if self.left[self.start[i] : self.end[i]].min() >= self.nbytes[i]:
                saved += self._flip(i)
        return saved

    def undo(self) -> None:
        for i in self.changed[::-1]:
            self._flip(i)
        self.changed = []

    def _bytes(self, i: int, evictions: int) -> int:
        """What `i` moves, where so many of its tensor's intervals are not resident, itself among them."""
        t = self.tensor[i]
        return self.nbytes[i] * (2 if self.dirty[t] and evictions == 1 else 1)

    def _cost(self, i: int, start: int, end: int) -> float:
        """Of evicting `i`, for each byte that it relieves."""
        left = self.left[max(start, self.start[i]) : min(end, self.end[i])]
        relieved = int(np.clip(-left, 0, self.nbytes[i]).sum())
        return self._bytes(i, self.evictions[self.tensor[i]] + 1) / relieved

    def _flip(self, i: int) -> int:
        """Evict `i` or make it resident; answers the bytes that this saves."""
        t, size = self.tensor[i], self.nbytes[i]
        enters = not self.resident[i]
        if not enters:
            self.evictions[t] += 1
        saved = self._bytes(i, self.evictions[t])
        if enters:
            self.evictions[t] -= 1
        self.resident[i] = enters
        self.left[self.start[i] : self.end[i]] += -size if enters else size
        self.changed.append(i)
        return saved if enters else -saved
