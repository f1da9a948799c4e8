"""What a byte of the arena is worth at each slot: Lagrange multipliers of the headroom, found by subgradient steps.

In: Accesses, and the headroom that resident intervals may take at every slot. Out: the share of the iterations in which each interval was
resident. The interval LP without its capacity rows, which are paid for instead, falls apart: an interval is resident while its cost, the
multipliers of its slots, is less than that of a byte moved again: 1, and 1 more for the first eviction of a dirty tensor. The multiplier of
a slot that more would use than there is headroom grows, that of a slot with headroom to spare shrinks, by steps that fall as those before
them sum up (AdaGrad: Duchi, Hazan, Singer 2011). The mean over iterations tends to a solution of the interval LP; no solver is needed.

    w        ●────────────────●           headroom for one of the two: while the multipliers between v's first use and w's next sum up
    v            ●────────────────●       to less than 1 both are resident, then neither; about 1 each is in a share of the iterations
"""

from __future__ import annotations

import numpy as np

from einpage.einsum_front.base.columns import Bools, Floats
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.residency.policies import Headroom

STEP = 0.02
FIRST, LATER = 800, 300
"""Iterations: for the first headroom that is asked about, and for each other from the multipliers of the one before."""
COUNTED = 0.5
"""The share of the iterations, the last ones, whose mean is taken."""


class Relaxation:
    """Of one graph; headrooms are asked about in turn."""

    def __init__(self, a: Accesses) -> None:
        self.a = a
        self.dirty = a.dirty[a.tensor]
        self.multiplier = np.zeros(a.slots)
        """[slot]"""
        self.iterations = FIRST

    def shares(self, headroom: Headroom) -> Floats:
        """[interval] in [0, 1], for a `headroom` in bytes, not negative."""
        iterations, self.iterations = self.iterations, LATER
        a, unit = self.a, max(1.0, float(headroom.max(initial=0)))
        size, bound = a.nbytes[a.tensor] / unit, headroom / unit
        times, squares = np.zeros(len(size)), np.full(a.slots, 1e-12)
        for iteration in range(iterations):
            resident = self._resident()
            if iteration >= iterations * (1 - COUNTED):
                times += resident
            used = size * resident
            change = np.bincount(a.start + 1, used, a.slots + 1) - np.bincount(a.end, used, a.slots + 1)
            excess = change.cumsum()[:-1] - bound
            squares += excess**2
            self.multiplier = np.maximum(0.0, self.multiplier + STEP * excess / np.sqrt(squares))
        shares: Floats = times / max(1.0, np.floor(iterations * COUNTED))
        return shares

    def _resident(self) -> Bools:
        """[interval] what minimises the Lagrangian. A dirty tensor is evicted only if all that this saves is worth its copy to the host."""
        a = self.a
        before = np.concatenate(((0.0,), self.multiplier.cumsum()))
        cost = before[a.end] - before[a.start + 1]
        saved = np.bincount(a.tensor, np.maximum(cost - 1.0, 0.0), len(a.nbytes))
        resident: Bools = (cost < 1.0) | (self.dirty & (saved[a.tensor] <= 1.0))
        return resident
