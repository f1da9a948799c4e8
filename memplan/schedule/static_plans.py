"""Static plans by name: what per-layer streaming does, the head of the model pinned, the same share pinned evenly; and Belady's rule.

In: Slots, a Policy. Out: StaticPlan, in which all that is resident by the policy (residency/policies.py) has an offset; or None where it
has not: no other plan is made instead. Resident intervals leave a reserve free for other tensors: of a few, that with the fastest timetable
among those with offsets for all. `most_bytes` says what a policy moves at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import (
    Headroom,
    ResidentIntervals,
    by_lifetime,
    by_pressure,
    nearest,
    pin_evenly,
    pin_first,
    resident_bytes,
    stream_all,
)
from einpage.memplan.schedule.allocate import allocated
from einpage.memplan.schedule.timetable import Timetable, soonest_s, timetable


class Policy(Enum):
    AUTO = "auto"
    """No policy: the horizons, and what `effort` finds beyond them."""
    STREAM_ALL = "stream-all"
    PIN_FIRST = "pin-first"
    PIN_EVENLY = "pin-evenly"
    NEAREST = "nearest"
    TERAIO = "teraio"
    G10 = "g10"


STATIC = (Policy.STREAM_ALL, Policy.PIN_FIRST, Policy.PIN_EVENLY)
"""Those that fix before anything runs, tensor by tensor, what is resident."""
Rule: TypeAlias = Callable[[Accesses, Headroom], ResidentIntervals]
"""Which intervals are resident; they fit the headroom."""
RESIDENT_BY_POLICY: dict[Policy, Rule] = {
    Policy.STREAM_ALL: stream_all,
    Policy.PIN_FIRST: pin_first,
    Policy.PIN_EVENLY: pin_evenly,
    Policy.NEAREST: nearest,
    Policy.TERAIO: by_lifetime,
    Policy.G10: by_pressure,
}
RESERVES = ((0.0, 0.0), (0.03, 0.015), (0.1, 0.05), (0.3, 0.15), (0.5, 0.2), (1.0, 0.2))
"""Shares of the arena that resident intervals leave free, and that loads ahead of need leave free of that; with the last nothing is
resident."""


@dataclass(frozen=True, slots=True)
class StaticPlan:
    memgraph: MemGraph
    reserve_bytes: int
    prefetch_headroom: int
    """Bytes that loads ahead of need left free."""
    resident: ResidentIntervals = field(repr=False)


class _Attempt(NamedTuple):
    seconds: float
    reserve_bytes: int
    prefetch_headroom: int
    resident: ResidentIntervals
    table: Timetable


def static_plans(slots: Slots, policies: Sequence[Policy]) -> dict[Policy, StaticPlan]:
    """The plans of those `policies` for which all that is resident has an offset."""
    rules = StaticRules(slots)
    found = ((policy, rules.plan(RESIDENT_BY_POLICY[policy])) for policy in policies)
    return {policy: static for policy, static in found if static is not None}


class StaticRules:
    """Static plans by rules, of one problem: what rules have in common is made once."""

    def __init__(self, slots: Slots, within_s: Callable[[], float] = lambda: inf, pace: Pace | None = None) -> None:
        """What surely takes longer than `within_s` says at the time is left out."""
        self._slots, self._within_s, self._pace = slots, within_s, pace
        self._table_by_key: dict[tuple[bytes, int], Timetable] = {}
        self._plan_by_key: dict[tuple[bytes, int], MemGraph | None] = {}

    def plan(self, rule: Rule) -> StaticPlan | None:
        """The plan of `rule`; None where what is resident has no offsets."""
        return next((static for static in self.attempts(rule) if static is not None), None)

    def attempts(self, rule: Rule) -> Iterator[StaticPlan | None]:
        """Each attempt to find offsets for all that is resident by `rule`, with more left free each time, until one succeeds.

        Raises SearchOver where the pace ends it.
        """
        a, capacity = self._slots.accesses, self._slots.problem.capacity
        attempts = []
        for reserve, headroom in ((int(r * capacity), int(h * capacity)) for r, h in RESERVES):
            resident = rule(a, np.maximum(capacity - a.footprint - reserve, 0))
            key = resident.tobytes(), headroom
            if key not in self._table_by_key:
                self._table_by_key[key] = timetable(self._slots, resident, headroom)
            attempts.append(_Attempt(self._table_by_key[key].seconds, reserve, headroom, resident, self._table_by_key[key]))
        for it in sorted(attempts, key=lambda t: t[:2]):
            key = it.resident.tobytes(), it.prefetch_headroom
            if key not in self._plan_by_key:
                if it.seconds > self._within_s() and soonest_s(self._slots, it.table) > self._within_s():
                    continue
                plans = allocated(self._slots, it.resident, it.table, it.prefetch_headroom, (), self._pace)
                self._plan_by_key[key] = next(plans, None)
            memgraph = self._plan_by_key[key]
            if memgraph is None:
                yield None
            else:
                yield StaticPlan(memgraph, it.reserve_bytes, it.prefetch_headroom, it.resident)
                return


def most_bytes(policy: Policy, a: Accesses, headroom: Headroom) -> int:
    """Aligned bytes over both links that `policy` moves at most, where resident intervals may take `headroom`; no other figure of the plan
    is asked.

    Everything that could move, but for what is surely resident. Let `least` be the least headroom that all results of tasks would leave if
    they were resident. If it is not negative they are, and of the host's tensors

        stream-all   nothing is resident
        pin-first    all that are used again are, or else more than `least` less the largest of them
        pin-evenly   the same, less half the largest again: its share is rounded
        nearest      (of everything) all is resident, or else more than the least headroom less the largest
        teraio, g10  (of everything) nothing is resident: what they evict is chosen by seconds

    If it is negative, more of the results than the least headroom less the largest of them is resident, and of the host's maybe nothing.
    """
    bytes_of = a.nbytes[a.tensor]
    clean = a.clean[a.tensor]
    once = int(a.compulsory_load_bytes + a.compulsory_store_bytes)
    of_host, of_results = int(bytes_of[clean].sum()), int(bytes_of[~clean].sum() + a.nbytes[np.unique(a.tensor[a.dirty[a.tensor]])].sum())
    if policy in (Policy.TERAIO, Policy.G10):
        return once + of_host + of_results
    if policy is Policy.NEAREST:
        return once + _less(of_host + of_results, a, np.ones(len(clean), bool), headroom, 1.0)
    left = headroom - resident_bytes(a, ~clean)
    if int(left.min(initial=0)) < 0:
        return once + of_host + _less(of_results, a, ~clean, headroom, 1.0)
    match policy:
        case Policy.PIN_FIRST:
            return once + _less(of_host, a, clean, left, 1.0)
        case Policy.PIN_EVENLY:
            return once + _less(of_host, a, clean, left, 1.5)
        case _:
            return once + of_host


def _less(all_bytes: int, a: Accesses, among: ResidentIntervals, headroom: Headroom, largest: float) -> int:
    """`all_bytes` of the intervals `among`, less what is resident by a policy that leaves out only what does not fit."""
    if bool((resident_bytes(a, among) <= headroom).all()):
        return 0
    size = int(a.nbytes[a.tensor[among]].max(initial=0))
    return all_bytes - max(0, int(headroom.min()) - int(largest * size))
