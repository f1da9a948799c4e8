"""The resident intervals that an offline search tries: every policy under a reserve, and shares of relaxations, rounded;
of small graphs also the best by branch and bound.

In: Slots, and which of RESERVES is left free. Out: resident intervals, each within its headroom. What they are worth is not asked here: a
timetable says that. Shares come from Lagrange multipliers, and once the slot LP is solved from that too. Where tensors are few and large
any rounding may be far from the best, but branch and bound ends soon.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.memplan.bounds import lp
from einpage.memplan.bounds.slot_lp import time_bound, whole_intervals
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import (
    Headroom,
    ResidentIntervals,
    and_nearest,
    by_lifetime,
    by_pressure,
    evened,
    nearest,
    pin_evenly,
    pin_first,
    rounded,
    stream_all,
)
from einpage.memplan.residency.shadow_prices import Relaxation

RESERVES = (0.0, 0.01, 0.05, 0.002, 0.02, 0.005, 0.03, 0.08, 0.15, 1.0)
"""Shares of the arena that resident intervals leave free: for loads, and because in a full arena some may find no offset; those that differ
most first. With the last, nothing of which the host has a copy is resident."""
MOST_LP_SLOTS = 4_000
"""Slots of the largest graph whose slot LP is solved."""
MOST_WHOLE, MOST_NODES, WHOLE_GAP = 1_500, 20, 2e-3
"""Intervals of the largest graph of which those that are resident are found by branch and bound; its nodes, and how near its bound it ends:
such programmes are mostly solved at the root, in a second or so."""
BYTE_WEIGHT = 0.02
"""What a byte that moves costs the slot LP, in parts of its time on the link."""


class Candidates:
    """Of one graph in one arena."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._relaxation = Relaxation(slots.accesses)
        self._lp_shares: Floats | None = None

    def headroom(self, reserve: float) -> Headroom:
        """[slot] bytes that resident intervals may take where `reserve`, a share of the arena, is left free."""
        capacity = self._slots.problem.capacity
        headroom: Headroom = np.maximum(capacity - self._slots.accesses.footprint - int(reserve * capacity), 0)
        return headroom

    def under(self, reserve: float) -> Iterator[ResidentIntervals]:
        """The most promising first; some may be equal."""
        a, left = self._slots.accesses, self.headroom(reserve)
        if reserve == RESERVES[-1]:
            yield stream_all(a, self.headroom(0.0))
            return
        share = self._relaxation.shares(left)
        for rounding in (evened, rounded):
            yield and_nearest(a, left, rounding(a, left, share))
        yield nearest(a, left)
        for policy in (pin_evenly, pin_first):
            pinned = policy(a, left)
            yield pinned
            yield and_nearest(a, left, pinned)
        if reserve == RESERVES[0] and len(a.tensor) <= MOST_WHOLE and not a.clean[a.tensor].all():
            for policy in (by_lifetime, by_pressure):
                yield policy(a, left)
        yield from self.by_lp(reserve)

    def by_lp(self, reserve: float) -> Iterator[ResidentIntervals]:
        """From the shares of the slot LP; none before it is solved."""
        if self._lp_shares is not None and reserve != RESERVES[-1]:
            for rounding in (rounded, evened):
                yield rounding(self._slots.accesses, self.headroom(reserve), self._lp_shares)

    def solve_lp(self, pace: Pace) -> bool:
        """Solve the slot LP: whether there are its shares then. Not for graphs of more than MOST_LP_SLOTS, nor without scipy.

        Raises SearchOver where `pace` ends it.
        """
        a, problem = self._slots.accesses, self._slots.problem
        if a.slots > MOST_LP_SLOTS or not len(a.tensor) or not lp.has_solver():
            return False
        pace.step()
        try:
            found = time_bound(a, problem.capacity, problem.machine.links, pace.seconds_left, BYTE_WEIGHT)
        except lp.Unsolved:
            pace.step()
            return False
        self._lp_shares = found.resident
        return True

    def by_branch_and_bound(self, reserve: float, pace: Pace) -> Iterator[ResidentIntervals]:
        """The best whole intervals by the slot LP; none for graphs of more than MOST_WHOLE, nor without scipy.

        Raises SearchOver where `pace` ends it.
        """
        a, problem = self._slots.accesses, self._slots.problem
        capacity = problem.capacity - int(reserve * problem.capacity)
        if not 0 < len(a.tensor) <= MOST_WHOLE or not lp.has_solver() or capacity < int(a.footprint.max()):
            return
        pace.step()
        try:
            yield whole_intervals(a, capacity, problem.machine.links, BYTE_WEIGHT, MOST_NODES, WHOLE_GAP, pace.seconds_left)
        except lp.Unsolved:
            pace.step()
