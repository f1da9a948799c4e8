"""Static plans by name: what per-layer streaming does, the head of the model pinned, the same share pinned evenly; and Belady's rule.

In: Slots, a Policy. Out: StaticPlan, in which all that the policy keeps (policies.py) finds a place; or None where it does not: no
other plan takes its place. A policy keeps a reserve free for what comes and goes: of a few, that with the fastest timetable among those
with places for all. `most_bytes` says what it moves at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

import numpy as np

from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import Headroom, ResidentIntervals, nearest, pin_evenly, pin_first, resident_bytes, stream_all
from einpage.memplan.schedule.allocate import settled
from einpage.memplan.schedule.timetable import Timetable, timetable


class Policy(Enum):
    AUTO = "auto"
    """No policy: the horizons, and what `effort` finds beyond them."""
    STREAM_ALL = "stream-all"
    PIN_FIRST = "pin-first"
    PIN_EVENLY = "pin-evenly"
    NEAREST = "nearest"


STATIC = (Policy.STREAM_ALL, Policy.PIN_FIRST, Policy.PIN_EVENLY)
"""What stays is settled before anything runs, tensor by tensor."""
KEEP_BY_POLICY: dict[Policy, Callable[[Accesses, Headroom], ResidentIntervals]] = {
    Policy.STREAM_ALL: stream_all,
    Policy.PIN_FIRST: pin_first,
    Policy.PIN_EVENLY: pin_evenly,
    Policy.NEAREST: nearest,
}
RESERVES = ((0.0, 0.0), (0.03, 0.015), (0.1, 0.05), (0.3, 0.15), (0.5, 0.2), (1.0, 0.2))
"""Shares of the arena that what stays leaves free, and that loads ahead of need leave free of that; with the last nothing stays."""


@dataclass(frozen=True, slots=True)
class StaticPlan:
    memgraph: MemGraph
    reserve_bytes: int
    slack_bytes: int
    resident: ResidentIntervals = field(repr=False)


class _Try(NamedTuple):
    seconds: float
    reserve_bytes: int
    slack_bytes: int
    resident: ResidentIntervals
    table: Timetable


def static_plans(slots: Slots, policies: Sequence[Policy], within_s: float = inf) -> dict[Policy, StaticPlan]:
    """The plans of those `policies` for which all that stays finds a place; some that take longer than `within_s` may be left out."""
    a, capacity = slots.accesses, slots.problem.capacity
    table_by_keep: dict[tuple[bytes, int], Timetable] = {}
    plan_by_keep: dict[tuple[bytes, int], MemGraph | None] = {}
    found = {}
    for policy in policies:
        tries = []
        for reserve, slack in ((int(r * capacity), int(s * capacity)) for r, s in RESERVES):
            resident = KEEP_BY_POLICY[policy](a, np.maximum(capacity - a.footprint - reserve, 0))
            key = resident.tobytes(), slack
            if key not in table_by_keep:
                table_by_keep[key] = timetable(slots, capacity, resident, slack)
            tries.append(_Try(table_by_keep[key].seconds, reserve, slack, resident, table_by_keep[key]))
        for it in sorted(tries, key=lambda t: t[:2]):
            if _least_seconds(slots, it.resident) > within_s:
                continue
            key = it.resident.tobytes(), it.slack_bytes
            if key not in plan_by_keep:
                plan_by_keep[key] = next(settled(slots, it.resident, it.table, it.slack_bytes, ()), None)
            memgraph = plan_by_keep[key]
            if memgraph is not None:
                found[policy] = StaticPlan(memgraph, it.reserve_bytes, it.slack_bytes, it.resident)
                break
    return found


def _least_seconds(slots: Slots, resident: ResidentIntervals) -> float:
    """A lower bound on the makespan of any plan in which just `resident` stays: loads wait for one another, and so do tasks."""
    a, load_s = slots.accesses, np.array(slots.load_s)
    return max(float(load_s[a.loaded].sum() + load_s[a.tensor[~resident]].sum()), float(a.seconds.sum()))


def most_bytes(policy: Policy, a: Accesses, room: Headroom) -> int:
    """Aligned bytes over both links that `policy` moves at most, where what stays may take `room`; no other figure of the plan is asked.

    Everything that could move, but for what surely stays. Let `least` be the least room that all results of tasks would leave if they
    stayed. If it is not negative they stay, and of the host's tensors

        stream-all   nothing stays
        pin-first    all that are used again stay, or else more than `least` less the largest of them
        pin-evenly   the same, less half the largest again: its share is rounded
        nearest      (of everything) all stays, or else more than the least room less the largest

    If it is negative, more of the results than the least room less the largest of them stays, and nothing of the host's is promised.
    """
    bytes_of = a.nbytes[a.tensor]
    clean = a.clean[a.tensor]
    once = int(a.compulsory_load_bytes + a.compulsory_store_bytes)
    of_host, of_results = int(bytes_of[clean].sum()), int(bytes_of[~clean].sum() + a.nbytes[np.unique(a.tensor[a.dirty[a.tensor]])].sum())
    if policy is Policy.NEAREST:
        return once + _less(of_host + of_results, a, np.ones(len(clean), bool), room, 1.0)
    left = room - resident_bytes(a, ~clean)
    if int(left.min(initial=0)) < 0:
        return once + of_host + _less(of_results, a, ~clean, room, 1.0)
    match policy:
        case Policy.PIN_FIRST:
            return once + _less(of_host, a, clean, left, 1.0)
        case Policy.PIN_EVENLY:
            return once + _less(of_host, a, clean, left, 1.5)
        case _:
            return once + of_host


def _less(all_bytes: int, a: Accesses, among: ResidentIntervals, room: Headroom, largest: float) -> int:
    """`all_bytes` of the intervals `among`, less what stays by a policy that leaves out only what does not fit."""
    if bool((resident_bytes(a, among) <= room).all()):
        return 0
    size = int(a.nbytes[a.tensor[among]].max(initial=0))
    return all_bytes - max(0, int(room.min()) - int(largest * size))
