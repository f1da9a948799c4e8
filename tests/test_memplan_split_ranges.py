"""Live ranges split where they find no offset, and joined where there is a hole: what comes of it is a right plan; of splitting one in
which nothing is resident that was not, of joining one that moves no more."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.packing.place import place
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import nearest
from einpage.memplan.schedule.emit import by_due_date, emit
from einpage.memplan.schedule.live_ranges import live_ranges, placement_at
from einpage.memplan.schedule.relocate import relocated
from einpage.memplan.schedule.split_ranges import SplitRanges, coalesced, split_ranges
from einpage.memplan.schedule.timetable import timetable
from plan_problems import POLICIES, IntervalPolicy, headroom_of, random_slots, slots_for
from strategies import machines, task_graphs


@given(
    task_graphs(joined=True),
    machines(),
    st.integers(0, 20_000),
    st.sampled_from(POLICIES),
    st.sampled_from([1, 256]),
    st.booleans(),
    st.booleans(),
)
def test_every_split_becomes_a_right_plan(
    graph: TaskGraph, machine: Machine, extra: int, policy: IntervalPolicy, alignment: int, placed: bool, evicts: bool
) -> None:
    """From the offsets that `place` finds or from none at all."""
    slots = slots_for(graph, machine, extra, alignment)
    resident = policy(slots.accesses, headroom_of(slots))
    ranges = live_ranges(slots, timetable(slots, resident))
    offsets = place(ranges.full, slots.problem.capacity, effort=0.02) if placed else (None,) * len(ranges.full)
    found = split_ranges(slots, ranges, offsets, resident, evicts)
    if found is None:
        assert placed is False or None in offsets
        return
    assert not (found.resident & ~resident).any()
    before = moved_bytes(slots, found)
    joined = coalesced(slots, found)
    assert not (found.resident & ~joined.resident).any()
    assert moved_bytes(slots, joined) <= before


def plans_of(slots: Slots, found: SplitRanges) -> list[MemGraph]:
    """With loads as they are timed, and by due date; both are right."""
    table = timetable(slots, found.resident)
    ranges = live_ranges(slots, table)
    placement = relocated(slots, ranges, placement_at(ranges, found.offset_by_key, ranges))
    plans = [emit(slots, it, ranges, places) for it, places in ((table, placement), by_due_date(slots, table, ranges, placement))]
    for memgraph in plans:
        assert judge(memgraph) is None
        assert all_moved_bytes(memgraph) == table.moved_bytes
    return plans


def moved_bytes(slots: Slots, found: SplitRanges) -> int:
    return all_moved_bytes(plans_of(slots, found)[0])


def test_a_tensor_stays_where_there_is_a_hole_for_it() -> None:
    """Of what nothing is resident of, all is in an arena with room for all; in a tight one some, and none of it moves twice."""
    some = 0
    for extra in (10**6, 512):
        for slots in random_slots(30, most_ops=12, extra=extra):
            nothing = np.zeros(len(slots.accesses.tensor), bool)
            ranges = live_ranges(slots, timetable(slots, nothing))
            found = split_ranges(slots, ranges, [None] * len(ranges.full), nothing)
            if found is None:
                continue
            before = moved_bytes(slots, found)
            joined = coalesced(slots, found)
            assert joined.resident.all() or extra == 512
            some += joined.resident.any() and moved_bytes(slots, joined) < before
    assert some >= 20, some


def test_loads_by_due_date_are_in_sooner() -> None:
    """Where the first in the timetable's order waits for bytes, the next are on the link meanwhile; over many plans that is faster."""
    seconds = []
    for slots in random_slots(120, most_ops=40, extra=1024):
        resident = nearest(slots.accesses, headroom_of(slots))
        ranges = live_ranges(slots, timetable(slots, resident))
        found = split_ranges(slots, ranges, place(ranges.full, slots.problem.capacity, effort=0.02), resident)
        if found is not None:
            seconds.append([simulate(memgraph, slots.problem.machine).makespan_s for memgraph in plans_of(slots, found)])
    as_timed, by_need = np.array(seconds).T
    faster, slower = int((by_need < as_timed * (1 - 1e-9)).sum()), int((by_need > as_timed * (1 + 1e-9)).sum())
    assert faster >= 5 * max(1, slower), (len(seconds), faster, slower)
