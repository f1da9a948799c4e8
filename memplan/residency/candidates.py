"""The resident intervals that an offline search tries: every policy under every reserve, and shares of relaxations, rounded.

In: Slots and an effort. Out: one Candidate after the other. What a candidate is worth is not asked here: a timetable says that.

    effort 1    policies, and shares by Lagrange multipliers: no solver
    effort 2    and shares from the slot LP, where scipy is there and the graph is small enough
    effort 3    and more of both
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from einpage.memplan.bounds import lp
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals, and_nearest, evened, nearest, pin_evenly, pin_first, rounded, stream_all
from einpage.memplan.residency.shadow_prices import shares

RESERVES = {
    1: (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08),
    2: (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15),
    3: (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2),
}
"""By effort: shares of the arena that resident intervals leave free: for loads, and because in a full arena some may find no offset."""
MOST_LP_SLOTS = {2: 4_000, 3: 15_000}
"""By effort: slots of the largest graph whose slot LP is solved."""
BYTE_WEIGHTS = {2: (0.02,), 3: (0.02, 0.1, 0.3)}
"""By effort: what a byte that moves costs the slot LP, in parts of its time on the link."""


@dataclass(frozen=True, slots=True)
class Candidate:
    reserve: float
    """The share of the arena that it leaves free."""
    resident: ResidentIntervals = field(repr=False)


def candidates(slots: Slots, effort: int) -> Iterator[Candidate]:
    """Some may be equal but for their reserve."""
    a, machine, capacity = slots.accesses, slots.problem.machine, slots.problem.capacity
    headroom = capacity - a.footprint
    headrooms = [np.maximum(headroom - int(reserve * capacity), 0) for reserve in RESERVES[effort]]
    for reserve, left, share in zip(RESERVES[effort], headrooms, shares(a, headrooms), strict=True):
        yield Candidate(reserve, nearest(a, left))
        for rounding in (rounded, evened):
            yield Candidate(reserve, and_nearest(a, left, rounding(a, left, share)))
        for policy in (pin_evenly, pin_first):
            pinned = policy(a, left)
            yield Candidate(reserve, pinned)
            yield Candidate(reserve, and_nearest(a, left, pinned))
    yield Candidate(1.0, stream_all(a, headroom))
    if effort >= 2 and a.slots <= MOST_LP_SLOTS[effort] and len(a.tensor) and lp.has_solver():
        for weight in BYTE_WEIGHTS[effort]:
            try:
                found = time_bound(a, capacity, machine.links, byte_weight=weight)
            except lp.Unsolved:
                continue
            for reserve, left in zip(RESERVES[effort], headrooms, strict=True):
                yield Candidate(reserve, rounded(a, left, found.resident))
