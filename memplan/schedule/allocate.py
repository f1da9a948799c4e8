"""From a timetable to plans: offsets for its live ranges, split where there are none, relocated, and the nodes; and a plan's loads anew.

In: Slots, the resident intervals, the timetable under them. Out: MemGraphs; none where no splitting finds offsets for all, or the host is
full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, queue_numbers, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import ENGINES, Queue
from einpage.memplan.packing.place import place
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.pace import Pace, SearchOver
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.schedule.emit import by_due_date, emit
from einpage.memplan.schedule.live_ranges import Key, LiveRanges, RangeLimits, limited, live_ranges, placement_at
from einpage.memplan.schedule.relocate import EVENLY, NEAREST_FIRST, relocated
from einpage.memplan.schedule.split_ranges import coalesced, split_ranges
from einpage.memplan.schedule.timetable import Timetable, timetable

LIMITS = (RangeLimits(4.0, 1.0), RangeLimits(2.0, 0.0), RangeLimits(1.0, 0.0))
"""Ever shorter ranges, until nothing has to be split."""
LESS_EFFORT = 0.3
"""What goes into offsets for full ranges, where shorter ones are tried after them."""

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


def allocated(
    slots: Slots,
    resident: ResidentIntervals,
    table: Timetable,
    prefetch_headroom: int,
    limits: Sequence[RangeLimits] = LIMITS,
    pace: Pace | None = None,
) -> Iterator[MemGraph]:
    """The plan in which just `resident` is, where all full ranges find offsets; else one for each of `limits` with which offsets are
    found, by splitting ranges that have none, until with one of them nothing has to be split. Limits that come to the same are tried once.

    `prefetch_headroom` is what `table` leaves free. Raises SearchOver where `pace` ends it.
    """
    ranges = live_ranges(slots, table)
    whole = at_full_ranges(slots, table, ranges, LESS_EFFORT if limits else 1.0, pace)
    if whole is not None:
        yield whole
    if whole is not None or not limits:
        return
    tried: list[tuple[Rectangle, ...]] = []
    for limit in limits:
        shorter = limited(slots, ranges, limit)
        if shorter.full in tried:
            continue
        tried.append(shorter.full)
        found, unsplit = at_limited_ranges(slots, resident, table, prefetch_headroom, ranges, limit, pace=pace)
        if found is not None:
            yield found
        if unsplit:
            return


def at_full_ranges(slots: Slots, table: Timetable, ranges: LiveRanges, effort: float, pace: Pace | None = None) -> MemGraph | None:
    """The plan of `table` to the letter; None where its live `ranges` find no offsets with so much `effort`. Raises SearchOver."""
    offsets = place(ranges.full, slots.problem.capacity, effort, pace=pace)
    if None in offsets:
        return None
    return _emitted(slots, table, ranges, ranges, {key: at for key, at in zip(ranges.keys, offsets, strict=True) if at is not None})


def at_limited_ranges(
    slots: Slots, resident: ResidentIntervals, table: Timetable, prefetch_headroom: int,
    ranges: LiveRanges, limits: RangeLimits, exact: bool = False, pace: Pace | None = None,
) -> tuple[MemGraph | None, bool]:  # fmt: skip
    """A plan with offsets for the `ranges` of `table` within `limits`, split where they find none: None where no splitting helps, or the
    host is full; and whether nothing was split. `exact` looks longer for offsets. Raises SearchOver."""
    shorter = limited(slots, ranges, limits)
    offsets = place(shorter.full, slots.problem.capacity, exact=exact, pace=pace)
    found = split_ranges(slots, shorter, offsets, resident, evicts=True, pace=pace) or split_ranges(
        slots, shorter, offsets, resident, pace=pace
    )
    if found is None:
        return None, False
    unsplit, found = np.array_equal(found.resident, resident), coalesced(slots, found)
    if not np.array_equal(found.resident, resident):
        table = timetable(slots, found.resident, prefetch_headroom)
        ranges = live_ranges(slots, table)
        shorter = limited(slots, ranges, limits)
    return _emitted(slots, table, ranges, shorter, found.offset_by_key), unsplit


def _emitted(slots: Slots, table: Timetable, ranges: LiveRanges, shorter: LiveRanges, offset_by_key: Mapping[Key, int]) -> MemGraph | None:
    """The plan, or None where the host is full. Of two relocations the faster, and with loads as they are timed, or by due date."""
    placement, machine = placement_at(ranges, offset_by_key, shorter), slots.problem.machine
    relocations = dict.fromkeys(relocated(slots, ranges, placement, aim) for aim in (EVENLY, NEAREST_FIRST))
    try:
        found = [(emit(slots, table, ranges, there), there) for there in relocations]
        memgraph, there = min(found, key=lambda it: simulate(it[0], machine).makespan_s)
        actions, places = by_due_date(slots, table, ranges, there)
        return min(memgraph, emit(slots, actions, ranges, places), key=lambda it: simulate(it, machine).makespan_s)
    except DoesNotFit:
        return None


def reissued(slots: Slots, best: SearchResult, pace: Pace) -> SearchResult:
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
    with suppress(SearchOver):
        for found in allocated(slow, decision.resident, table, decision.prefetch_headroom, pace=pace):
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
