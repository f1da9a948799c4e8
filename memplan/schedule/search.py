"""Plans from decisions: many ways to say what stays are tried as timetables, the best are placed, and the simulator judges.

In: a graph, a machine, a budget, an order, the plan to beat. Out: a plan whose makespan is never longer than that one's, nor than a static
plan's; the same plan for the same input. A timetable costs a hundredth of a plan, so tables choose who is placed, and placed plans
choose the answer.

    effort 1    policies without a solver; the best but the fullest one ruin_and_recreate and placed by exact search where places cost much
    effort 2    and shares from the slot LP, rounded, where scipy is there and the graph is small enough
    effort 3    and more of both, and more placed
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
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
from einpage.memplan.schedule.allocate import WISHES, Wish, settled
from einpage.memplan.schedule.static_plans import STATIC, static_plans
from einpage.memplan.schedule.timetable import Timetable, timetable

MOST_SLOTS = 20_000
"""Slots of the largest graph that is searched at all."""
SLACKS = (0.02, 0.05)
"""Shares of the arena that loads ahead of need leave free, tried beside 0: a fuller arena grants fewer wishes."""
SLACKENED = 6
"""How many of the ways that score best are tried with these."""
ROOMS = (0.005, 0.02, 0.04, 0.06, 0.1, 0.15)
"""Shares of the arena that reserve and slack leave together: of all between two of these, the best few are placed. A timetable does not
tell how many places it will find."""
PLACED = {1: 2, 2: 4, 3: 8}
"""By effort: how many."""
ENOUGH = {1: 6, 2: 12, 3: 40}
"""By effort: with so many that became plans, no more are placed; nor with so many that became none."""
BYTES_COUNT = 1.0
"""What moving a byte counts beside time, in parts of its time on the link: a plan that moves much less may take a little longer, though
never longer than the plans to beat."""
LOOSE = 0.005
"""The share of the arena that is free everywhere in the candidate that ruin and recreate improves and
exact search places, which finds places
too seldom in a fuller one."""
MOST_TRADED = 2_500
"""Slots of the largest graph on which that is spent."""
MODEST = (Wish(1.0, 0.0),)
"""What its blocks wish."""
WORTH = 0.99
"""A timetable is placed if it scores this share of the best plan's score, or less: places cost about the rest."""
GOOD_ENOUGH = 1.002
"""A plan this near its bounds, of time and of bytes, is not improved."""
SLOWER = 1.25
"""What tasks or copies may take longer than told; of plans that are equal otherwise, the one that minds less."""


@dataclass(frozen=True, slots=True)
class Timed:
    reserve: float
    slack: float
    """Shares of the arena."""
    resident: ResidentIntervals = field(repr=False)
    table: Timetable = field(repr=False)
    score: float


@dataclass(frozen=True, slots=True)
class Way:
    """How a plan was found."""

    slack_bytes: int
    unplaced_bytes: int
    """Over both links in its timetable, whose blocks had no places yet."""
    resident: ResidentIntervals = field(repr=False)
    exact: bool = False
    """Its blocks wished little, and places for them were searched for exactly."""


@dataclass(frozen=True, slots=True)
class Decided:
    memgraph: MemGraph
    way: Way | None = None
    """None for the plan to beat."""


def better_plan(slots: Slots, effort: int, start: MemGraph, bound_s: float) -> Decided:
    """`start`, or a plan that takes no longer, nor longer than any static plan, and scores better.

    `bound_s` is some lower bound on the makespan.
    """
    return steadied(slots, _searched(slots, effort, start, bound_s))


def _searched(slots: Slots, effort: int, start: MemGraph, bound_s: float) -> Decided:
    machine, least_bytes = slots.problem.machine, _least_bytes(slots)
    best, best_s = Decided(start), simulate(start, machine).makespan_s
    if (best_s <= bound_s and all_moved_bytes(start) <= least_bytes) or slots.accesses.slots > MOST_SLOTS:
        return best
    for static in static_plans(slots, STATIC, best_s).values():
        seconds = simulate(static.memgraph, machine).makespan_s
        if seconds < best_s:
            best, best_s = Decided(static.memgraph, Way(static.slack_bytes, all_moved_bytes(static.memgraph), static.resident)), seconds
    if best_s <= GOOD_ENOUGH * bound_s and all_moved_bytes(best.memgraph) <= GOOD_ENOUGH * least_bytes:
        return best
    capacity = slots.problem.capacity
    limit_s, best_score = best_s, _score(best_s, all_moved_bytes(best.memgraph), machine)
    planned = failed = 0

    def settle(way: Way, table: Timetable, wishes: Sequence[Wish]) -> bool:
        """Place what `way` decides, keep the best; whether there was a plan at all."""
        nonlocal best, best_score
        plans = list(settled(slots, way.resident, table, way.slack_bytes, wishes, exact=way.exact))
        for found in plans:
            seconds = simulate(found, machine).makespan_s
            score = _score(seconds, all_moved_bytes(found), machine)
            if score < best_score and seconds <= limit_s:
                best, best_score = Decided(found, way), score
        return bool(plans)

    timed = _timed(slots, capacity, effort)
    for candidate in _shortlist(timed, PLACED[effort]):
        if candidate.score >= WORTH * best_score or ENOUGH[effort] in (planned, failed):
            break
        way = Way(int(candidate.slack * capacity), candidate.table.moved_bytes, candidate.resident)
        became = settle(way, candidate.table, WISHES)
        planned, failed = planned + became, failed + (not became)
    loose = [c for c in timed if c.reserve >= LOOSE and not c.slack]
    if loose and slots.accesses.slots <= MOST_TRADED:
        candidate = _traded(slots, capacity, min(loose, key=lambda c: c.score))
        if candidate.score < WORTH * best_score:
            settle(Way(0, candidate.table.moved_bytes, candidate.resident, exact=True), candidate.table, MODEST)
    return best


def steadied(slots: Slots, best: Decided) -> Decided:
    """`best`, or what comes of its way when loads are issued as if tasks took SLOWER: where that takes no longer, moves no more, and
    loses less when tasks or copies are slow.

    Which of two loads the link takes first often makes no difference until a task is late. Places that exact search found are kept: a
    slow clock issues loads sooner, and so full an arena has no places for them.
    """
    if best.way is None or best.way.exact:
        return best
    machine, way = slots.problem.machine, best.way
    capacity = slots.problem.capacity
    slow = replace(slots, accesses=replace(slots.accesses, seconds=SLOWER * slots.accesses.seconds))
    table = timetable(slow, capacity, way.resident, way.slack_bytes)
    best_s, best_late_s = simulate(best.memgraph, machine).makespan_s, _late_s(best.memgraph, machine)
    most_bytes = all_moved_bytes(best.memgraph)
    for found in settled(slow, way.resident, table, way.slack_bytes):
        if (
            simulate(found, machine).makespan_s <= best_s
            and all_moved_bytes(found) <= most_bytes
            and (late_s := _late_s(found, machine)) < best_late_s
        ):
            best, best_late_s = Decided(found, replace(way, unplaced_bytes=table.moved_bytes)), late_s
    return best


def _late_s(memgraph: MemGraph, machine: Machine) -> float:
    """The makespan with all tasks SLOWER, and that with all copies."""
    computes = queue_numbers(memgraph) == ENGINES.index(Queue.COMPUTE)
    return sum(simulate(memgraph, machine, np.where(late, SLOWER, 1.0)).makespan_s for late in (computes, ~computes))


def _score(seconds: float, moved_bytes: int, machine: Machine) -> float:
    return seconds + BYTES_COUNT * moved_bytes / machine.link(Queue.H2D).bytes_per_s


def _least_bytes(slots: Slots) -> int:
    """Over both links, in any plan: each load once, and each sink."""
    a = slots.accesses
    return sum(slots.nbytes[t] for t in (*a.loaded.tolist(), *np.flatnonzero(a.output).tolist()))


def _traded(slots: Slots, capacity: int, candidate: Timed) -> Timed:
    """`candidate` after all trades that move fewer bytes and make its score no worse."""

    def accepts(resident: ResidentIntervals) -> bool:
        nonlocal candidate
        table = timetable(slots, capacity, resident)
        score = _score(table.seconds, table.moved_bytes, slots.problem.machine)
        if score > candidate.score:
            return False
        candidate = replace(candidate, resident=resident.copy(), table=table, score=score)
        return True

    room = np.maximum(capacity - slots.accesses.footprint - int(candidate.reserve * capacity), 0)
    ruin_and_recreate(slots.accesses, room, candidate.resident, accepts)
    return candidate


def _shortlist(candidates: list[Timed], each: int) -> list[Timed]:
    """The best `each` of those that leave about the same room, the best of all first."""
    left = [each] * (len(ROOMS) + 1)
    chosen = []
    for c in sorted(candidates, key=lambda c: c.score):
        room = bisect(ROOMS, c.reserve + c.slack)
        if left[room]:
            left[room] -= 1
            chosen.append(c)
    return chosen


def _timed(slots: Slots, capacity: int, effort: int) -> list[Timed]:
    """Timetables of all ways tried, each way once; the best with slack as well, where it makes a difference."""
    ways = {c.resident.tobytes(): (c.reserve, c.resident) for c in candidates(slots, effort)}

    def candidate(reserve: float, slack: float, resident: ResidentIntervals) -> Timed:
        table = timetable(slots, capacity, resident, int(slack * capacity))
        return Timed(reserve, slack, resident, table, _score(table.seconds, table.moved_bytes, slots.problem.machine))

    found = sorted((candidate(reserve, 0.0, resident) for reserve, resident in ways.values()), key=lambda c: c.score)
    slackened: list[Timed] = []
    for c in found[:SLACKENED]:
        different = [c]
        for slack in SLACKS:
            other = candidate(c.reserve, slack, c.resident)
            if all(other.table.steps != it.table.steps for it in different):
                different.append(other)
        slackened += different[1:]
    return found + slackened
