"""Timetables: every one becomes a right plan, tells the time where offsets do not matter, and writes first what is evicted first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine, links_only
from einpage.memplan.problem.problem import Problem
from einpage.memplan.problem.slots import Slots, slots_of
from einpage.memplan.residency.policies import nearest, stream_all
from einpage.memplan.schedule.allocate import at_full_ranges
from einpage.memplan.schedule.emit import emit
from einpage.memplan.schedule.live_ranges import live_ranges
from einpage.memplan.schedule.timetable import soonest_s, timetable
from plan_problems import POLICIES, IntervalPolicy, apart, headroom_of, in_arena, random_slots, slots_for
from strategies import a_machine, changed, machines, task_graphs


@given(
    task_graphs(joined=True), machines(), st.integers(0, 20_000), st.sampled_from(POLICIES), st.sampled_from([1, 256]), st.integers(0, 4096)
)
def test_every_timetable_becomes_a_right_plan(
    graph: TaskGraph, machine: Machine, extra: int, policy: IntervalPolicy, alignment: int, prefetch_headroom: int
) -> None:
    """In an arena with offsets for all; its bytes are the timetable's, and at no position are more than the capacity alive."""
    slots = slots_for(graph, machine, extra, alignment)
    table = timetable(slots, policy(slots.accesses, headroom_of(slots)), prefetch_headroom)
    ranges = live_ranges(slots, table)
    memgraph = emit(in_arena(slots, sum(r.nbytes for r in ranges.full)), table, ranges, apart(ranges))
    assert judge(memgraph) is None
    assert all_moved_bytes(memgraph) == table.moved_bytes
    busiest = max((sum(r.nbytes for r in ranges.full if r.start <= p < r.end) for p in range(3 * len(slots.tasks))), default=0)
    assert busiest <= slots.problem.capacity


def test_a_timetable_tells_the_time() -> None:
    """Where offsets do not matter, the simulator's makespan is the timetable's; both are seen to differ between policies."""
    told = []
    for slots in random_slots(120, most_ops=8, extra=2048):
        for policy in (nearest, stream_all):
            table = timetable(slots, policy(slots.accesses, headroom_of(slots)))
            ranges = live_ranges(slots, table)
            memgraph = emit(in_arena(slots, sum(r.nbytes for r in ranges.full)), table, ranges, apart(ranges))
            seconds = simulate(memgraph, a_machine()).makespan_s
            assert seconds <= table.seconds * (1 + 1e-9), "without memory edges nothing can be slower"
            assert seconds >= soonest_s(slots, table) * (1 - 1e-9)
            told.append(seconds / table.seconds)
    assert np.median(told) > 0.9


def test_what_is_evicted_first_is_written_first() -> None:
    """Over a slow link no copy to the host is issued before that of a tensor that is there by then and is evicted sooner, nor after its
    own eviction; some are issued before those of tensors that were there sooner."""
    overtaken = 0
    for slots in random_slots(60, most_ops=12, extra=0, machine=changed(a_machine(), d2h_bytes_per_s=1e6)):
        a = slots.accesses
        resident = nearest(a, headroom_of(slots))
        evicted_after = a.last_at.tolist()
        for j in reversed(np.flatnonzero(~resident).tolist()):
            evicted_after[a.tensor[j]] = int(a.start[j])
        there = np.maximum(a.made_at, 0).tolist()
        issued = [(k, t) for k, actions in enumerate(timetable(slots, resident).actions) for t in actions.stores]
        for i, (k, t) in enumerate(issued):
            later = [u for _, u in issued[i + 1 :] if there[u] <= k]
            assert there[t] <= k <= evicted_after[t]
            assert not [u for u in later if evicted_after[u] < evicted_after[t]]
            overtaken += any(there[u] < there[t] for u in later)
    assert overtaken >= 5, overtaken


def test_a_plan_with_all_live_ranges_keeps_its_timetable() -> None:
    """However slow copies to the host are: what has its bytes only when one has ended is not told to start before."""
    kept, waited = 0, 0
    for d2h in (1e6, 1e7, 1e9):
        machine = changed(a_machine(), d2h_bytes_per_s=d2h)
        for slots in random_slots(60, most_ops=12, extra=512, machine=machine):
            for policy in (nearest, stream_all):
                table = timetable(slots, policy(slots.accesses, headroom_of(slots)))
                memgraph = at_full_ranges(slots, table, live_ranges(slots, table), 1.0)
                if memgraph is not None:
                    assert simulate(memgraph, machine).makespan_s <= table.seconds * (1 + 1e-9)
                    kept += 1
                    waited += all_moved_bytes(memgraph) > slots.accesses.compulsory_load_bytes
    assert kept >= 150 and waited >= 50, (kept, waited)


@pytest.mark.parametrize("wanted_for", ["load", "result"])
def test_a_buffer_is_not_there_before_its_copy_has_ended(tmp_path: Path, wanted_for: str) -> None:
    """A result that fills most of the arena is copied to the host for two seconds, and what comes next needs its bytes."""
    reads, nbytes = {"load": (1, 1), "result": (0, 60)}[wanted_for]
    tensors = [[10, 1, 0, "w"], [60, 1, 0, "w"], [60, 0, 1, "a"], [nbytes, 0, 1, "a"]]
    ops = [["first", [0], [2], 1e6], ["second", [reads], [3], 1e6]]
    slots = slots_of_trace(tmp_path, tensors, ops, links_only(60.0, 30.0, 100))
    table = timetable(slots, np.zeros(len(slots.accesses.tensor), bool))
    memgraph = at_full_ranges(slots, table, live_ranges(slots, table), 1.0)
    assert memgraph is not None
    load_s, first_s, store_s = 10 / 60, 1.0, 60 / 30
    rest_s = {"load": 60 / 60 + 1.0 + 1 / 30, "result": 1.0 + 60 / 30}[wanted_for]
    assert table.seconds == pytest.approx(load_s + first_s + store_s + rest_s)
    assert simulate(memgraph, slots.problem.machine).makespan_s == pytest.approx(table.seconds)


def test_a_load_takes_the_time_in_which_the_link_waits_for_bytes(tmp_path: Path) -> None:
    """The second of three weights does not fit beside the first; the small third is needed last, and comes while the link waits."""
    weights, results = [[nbytes, 1, 0, "w"] for nbytes in (60, 60, 20)], [[1, 0, 0, "a"], [1, 0, 0, "a"], [1, 0, 1, "a"]]
    ops = [["first", [0], [3], 1e6], ["second", [1, 3], [4], 1e5], ["third", [2, 4], [5], 1e6]]
    slots = slots_of_trace(tmp_path, weights + results, ops, links_only(60.0, 60.0, 100))
    table = timetable(slots, np.ones(0, bool))
    assert [[load.tensor for load in actions.loads] for actions in table.actions] == [[0, 2], [1], []]
    assert table.seconds == pytest.approx(1 + 1 + 1 + 0.1 + 1 + 1 / 60), "not a third of a second more"


def slots_of_trace(folder: Path, tensors: list[list[object]], ops: list[list[object]], machine: Machine) -> Slots:
    """In 100 bytes, not aligned."""
    path = folder / "trace.json"
    fields = {
        "tensor_fields": ["bytes", "host_copy_at_start", "must_end_on_host", "kind"],
        "op_fields": ["name", "inputs", "outputs", "duration_us"],
    }
    path.write_text(json.dumps({"name": "small", "tensors": tensors, "ops": ops, **fields}), encoding="ascii")
    graph = read_trace(path)
    slots = slots_of(Problem(graph, machine, tuple(t.id for t in graph.tasks), Nbytes(100), 1))
    assert slots is not None
    return slots
