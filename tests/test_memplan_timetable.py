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
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.policies import nearest, stream_all
from einpage.memplan.schedule.emit import emit
from einpage.memplan.schedule.live_ranges import live_ranges
from einpage.memplan.schedule.timetable import timetable
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


def test_a_load_takes_the_time_in_which_the_link_waits_for_bytes(tmp_path: Path) -> None:
    """The second of three weights does not fit beside the first; the small third is needed last, and comes while the link waits."""
    path = tmp_path / "trace.json"
    weights, results = [[nbytes, 1, 0, "w"] for nbytes in (60, 60, 20)], [[1, 0, 0, "a"], [1, 0, 0, "a"], [1, 0, 1, "a"]]
    ops = [["first", [0], [3], 1e6], ["second", [1, 3], [4], 1e5], ["third", [2, 4], [5], 1e6]]
    fields = {
        "tensor_fields": ["bytes", "host_copy_at_start", "must_end_on_host", "kind"],
        "op_fields": ["name", "inputs", "outputs", "duration_us"],
    }
    path.write_text(json.dumps({"name": "gap", "tensors": weights + results, "ops": ops, **fields}), encoding="ascii")
    graph = read_trace(path)
    slots = slots_of(Problem(graph, links_only(60.0, 60.0, 100), tuple(t.id for t in graph.tasks), Nbytes(100), 1))
    assert slots is not None
    table = timetable(slots, np.ones(0, bool))
    assert [[load.tensor for load in actions.loads] for actions in table.actions] == [[0, 2], [1], []]
    assert table.seconds == pytest.approx(1 + 1 + 1 + 0.1 + 1 + 1 / 60), "not a third of a second more"
