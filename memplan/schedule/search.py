"""The offline search: many resident intervals are timed, the best are allocated, and the simulator chooses.

In: Slots, an effort, the plan to beat. Out: a plan whose makespan is never longer than that one's, nor than a static plan's; the same plan
for the same input. A timetable costs a hundredth of a plan, so timetables choose what is allocated, and plans choose the answer.

    candidates ──► timetables ──► the best few allocated ──► the best of all timetables by ruin and recreate, allocated by exact search
    (residency)                                              ──► the best plan re-issued for robustness

`effort` says how many candidates there are (residency/candidates.py) and how many are allocated.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, queue_numbers, simulate
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.places import ENGINES, Queue
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.candidates import candidates
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.residency.ruin_recreate import ruin_and_recreate
from einpage.memplan.schedule.allocate import allocated
from einpage.memplan.schedule.live_ranges import RangeLimits
from einpage.memplan.schedule.static_plans import STATIC, static_plans
from einpage.memplan.schedule.timetable import Timetable, timetable

MOST_SLOTS = 20_000
"""Slots of the largest graph that is searched at all."""
BYTES_COUNT = 1.0
"""What moving a byte counts beside time, in parts of its time on the link: a plan that moves much less may take a little longer, though
never longer than the plans to beat."""
PREFETCH_HEADROOMS = (0.02, 0.05)
"""Shares of the arena that loads ahead of need leave free, tried beside 0: in a fuller arena more prefetch leads are denied."""
WITH_HEADROOM = 6
"""How many of the candidates that score best are tried with these."""
FREE_SHARES = (0.005, 0.02, 0.04, 0.06, 0.1, 0.15)
"""Shares of the arena that reserve and prefetch headroom leave free together: of all between two of these, the best few are allocated. A
timetable does not tell how many ranges will find offsets."""
ALLOCATED = {1: 2, 2: 4, 3: 8}
"""By effort: how many."""
ENOUGH = {1: 6, 2: 12, 3: 40}
"""By effort: with so many that became plans, no more are allocated; nor with so many that became none."""
WORTH = 0.99
"""A timetable is allocated if it scores this share of the best plan's score, or less: offsets cost about the rest."""
GOOD_ENOUGH = 1.002
"""A plan this near its bounds, of time and of bytes, is not improved."""
EXACT_RESERVE = 0.005
"""The share of the arena that the candidate for exact search leaves free: in a fuller one it finds offsets too seldom."""
MOST_EXACT_SLOTS = 2_500
"""Slots of the largest graph on which exact search is spent."""
EXACT_LIMITS = (RangeLimits(prefetch_lead=1.0, write_back_lag=0.0),)
"""Of its live ranges."""
SLOWER = 1.25
"""What tasks or copies may take longer than told; of plans that are equal otherwise, the one that loses less by it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a plan was made from."""

    resident: ResidentIntervals = field(repr=False)
    prefetch_headroom: int
    unplaced_bytes: int
    """Over both links in its timetable, whose live ranges had no offsets yet."""
    exact: bool = False
    """Offsets for short live ranges were found by exact search."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    memgraph: MemGraph
    decision: Decision | None = None
    """None for the plan to beat."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate with its timetable."""

    reserve: float
    prefetch_headroom: float
    """Shares of the arena."""
    resident: ResidentIntervals = field(repr=False)
    table: Timetable = field(repr=False)
    score: float


def better_plan(slots: Slots, effort: int, start: MemGraph, bound_s: float) -> SearchResult:
    """`start`, or a plan that takes no longer, nor longer than any static plan, and scores better.

    `bound_s` is some lower bound on the makespan.
    """
    return reissued(slots, _searched(slots, effort, start, bound_s))


def _searched(slots: Slots, effort: int, start: MemGraph, bound_s: float) -> SearchResult:
    machine, least_bytes = slots.problem.machine, _least_bytes(slots)
    best, best_s = SearchResult(start), simulate(start, machine).makespan_s
    if (best_s <= bound_s and all_moved_bytes(start) <= least_bytes) or slots.accesses.slots > MOST_SLOTS:
        return best
    for static in static_plans(slots, STATIC, best_s).values():
        seconds = simulate(static.memgraph, machine).makespan_s
        if seconds < best_s:
            best, best_s = (
                SearchResult(static.memgraph, Decision(static.resident, static.prefetch_headroom, all_moved_bytes(static.memgraph))),
                seconds,
            )
    if best_s <= GOOD_ENOUGH * bound_s and all_moved_bytes(best.memgraph) <= GOOD_ENOUGH * least_bytes:
        return best
    incumbent = _Incumbent(best, best_s, machine)
    timed = _timed(slots, effort)
    succeeded = failed = 0
    for it in _shortlist(timed, ALLOCATED[effort]):
        if it.score >= WORTH * incumbent.score or ENOUGH[effort] in (succeeded, failed):
            break
        decision = Decision(it.resident, int(it.prefetch_headroom * slots.problem.capacity), it.table.moved_bytes)
        if incumbent.challenged_by(allocated(slots, it.resident, it.table, decision.prefetch_headroom), decision):
            succeeded += 1
        else:
            failed += 1
    eligible = [it for it in timed if it.reserve >= EXACT_RESERVE and not it.prefetch_headroom]
    if eligible and slots.accesses.slots <= MOST_EXACT_SLOTS:
        it = _by_ruin_and_recreate(slots, min(eligible, key=lambda it: it.score))
        if it.score < WORTH * incumbent.score:
            decision = Decision(it.resident, 0, it.table.moved_bytes, exact=True)
            incumbent.challenged_by(allocated(slots, it.resident, it.table, 0, EXACT_LIMITS, exact=True), decision)
    return incumbent.found


class _Incumbent:
    """The best plan so far: no slower than that which it began with."""

    def __init__(self, found: SearchResult, limit_s: float, machine: Machine) -> None:
        self.found, self.limit_s, self.machine = found, limit_s, machine
        self.score = _score(limit_s, all_moved_bytes(found.memgraph), machine)

    def challenged_by(self, plans: Iterable[MemGraph], decision: Decision) -> bool:
        """Take the best of `plans` if it is better; whether there was a plan at all."""
        any_plan = False
        for memgraph in plans:
            any_plan = True
            seconds = simulate(memgraph, self.machine).makespan_s
            score = _score(seconds, all_moved_bytes(memgraph), self.machine)
            if score < self.score and seconds <= self.limit_s:
                self.found, self.score = SearchResult(memgraph, decision), score
        return any_plan


def _timed(slots: Slots, effort: int) -> list[Timed]:
    """All candidates, each once, with their timetables; the best with prefetch headroom as well, where it makes a difference."""
    capacity, machine = slots.problem.capacity, slots.problem.machine
    by_resident = {c.resident.tobytes(): c for c in candidates(slots, effort)}

    def timed(reserve: float, headroom: float, resident: ResidentIntervals) -> Timed:
        table = timetable(slots, resident, int(headroom * capacity))
        return Timed(reserve, headroom, resident, table, _score(table.seconds, table.moved_bytes, machine))

    found = sorted((timed(c.reserve, 0.0, c.resident) for c in by_resident.values()), key=lambda it: it.score)
    with_headroom: list[Timed] = []
    for it in found[:WITH_HEADROOM]:
        different = [it]
        for headroom in PREFETCH_HEADROOMS:
            other = timed(it.reserve, headroom, it.resident)
            if all(other.table.actions != one.table.actions for one in different):
                different.append(other)
        with_headroom += different[1:]
    return found + with_headroom


def _shortlist(timed: list[Timed], each: int) -> list[Timed]:
    """The best `each` of those that leave about as much free, the best of all first."""
    left = [each] * (len(FREE_SHARES) + 1)
    chosen = []
    for it in sorted(timed, key=lambda it: it.score):
        share = bisect(FREE_SHARES, it.reserve + it.prefetch_headroom)
        if left[share]:
            left[share] -= 1
            chosen.append(it)
    return chosen


def _by_ruin_and_recreate(slots: Slots, it: Timed) -> Timed:
    """`it` after all exchanges of intervals that move fewer bytes and make its score no worse."""
    capacity, machine = slots.problem.capacity, slots.problem.machine

    def accepts(resident: ResidentIntervals) -> bool:
        nonlocal it
        table = timetable(slots, resident)
        score = _score(table.seconds, table.moved_bytes, machine)
        if score > it.score:
            return False
        it = replace(it, resident=resident.copy(), table=table, score=score)
        return True

    headroom = np.maximum(capacity - slots.accesses.footprint - int(it.reserve * capacity), 0)
    ruin_and_recreate(slots.accesses, headroom, it.resident, accepts)
    return it


def reissued(slots: Slots, best: SearchResult) -> SearchResult:
    """`best`, or the plan of its decision with loads issued as if tasks took SLOWER: where that takes no longer, moves no more, and loses
    less when tasks or copies are slow.

    Which of two loads the link takes first often makes no difference until a task is late. Offsets that exact search found are not changed:
    a slow clock issues loads sooner, and so full an arena has no offsets for them.
    """
    if best.decision is None or best.decision.exact:
        return best
    machine, decision = slots.problem.machine, best.decision
    slow = replace(slots, accesses=replace(slots.accesses, seconds=SLOWER * slots.accesses.seconds))
    table = timetable(slow, decision.resident, decision.prefetch_headroom)
    best_s, best_late_s = simulate(best.memgraph, machine).makespan_s, _late_s(best.memgraph, machine)
    most_bytes = all_moved_bytes(best.memgraph)
    for found in allocated(slow, decision.resident, table, decision.prefetch_headroom):
        if (
            simulate(found, machine).makespan_s <= best_s
            and all_moved_bytes(found) <= most_bytes
            and (late_s := _late_s(found, machine)) < best_late_s
        ):
            best, best_late_s = SearchResult(found, replace(decision, unplaced_bytes=table.moved_bytes)), late_s
    return best


def _late_s(memgraph: MemGraph, machine: Machine) -> float:
    """The makespan with all tasks SLOWER, and that with all copies."""
    computes = queue_numbers(memgraph) == ENGINES.index(Queue.COMPUTE)
    return sum(simulate(memgraph, machine, np.where(late, SLOWER, 1.0)).makespan_s for late in (computes, ~computes))


def _score(seconds: float, moved_bytes: int, machine: Machine) -> float:
    return seconds + BYTES_COUNT * moved_bytes / machine.link(Queue.H2D).bytes_per_s


def _least_bytes(slots: Slots) -> int:
    """Over both links, in any plan: each first load once, and each output."""
    a = slots.accesses
    return sum(slots.nbytes[t] for t in (*a.loaded.tolist(), *np.flatnonzero(a.output).tolist()))
