"""Live ranges split where they find no offset: what comes of it is a right plan, in which nothing is resident that was not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.graph.simulate import all_moved_bytes
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.packing.place import place
from einpage.memplan.schedule.emit import emit
from einpage.memplan.schedule.live_ranges import live_ranges, placement_at
from einpage.memplan.schedule.relocate import relocated
from einpage.memplan.schedule.split_ranges import split_ranges
from einpage.memplan.schedule.timetable import timetable
from plan_problems import POLICIES, IntervalPolicy, headroom_of, slots_for
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
    table = timetable(slots, found.resident)
    ranges = live_ranges(slots, table)
    memgraph = emit(slots, table, ranges, relocated(slots, ranges, placement_at(ranges, found.offset_by_key)))
    assert judge(memgraph) is None
    assert all_moved_bytes(memgraph) == table.moved_bytes
