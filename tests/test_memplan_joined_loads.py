"""Loads that go together: plans stay right, move the same bytes, are never slower, and give the direct result on real bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.device.stream_judge import unenforced
from einpage.exec.dispatch.serial import random_order
from einpage.exec.planning.judged_plan import judged
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.graph.memgraph import Edges, MemGraph, Move, NodeId
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.graph.simulate import all_moved_bytes, durations, moved_bytes_by_queue, simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.report import tasks_in_order
from einpage.memplan.residency.joined_loads import with_joined_loads
from einpage.memplan.residency.loading import loading
from einpage.memplan.residency.resident_sets import Start
from fake_driver import FakeDriver
from real_bytes import differences, direct, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, alignments, budgets, data, machines, random_graph, task_graphs
from test_exec_streams import run

SLOW_COPIES = a_machine(copy_latency_s=1e-3)


def joined_moves(memgraph: MemGraph) -> list[NodeId]:
    return [NodeId(n) for n, node in enumerate(memgraph.nodes) if isinstance(node, Move) and node.others]


def loads(memgraph: MemGraph) -> list[tuple[int, int, int]]:
    """What crosses to the device in order: tensor, and its two offsets."""
    moves = [node for n, node in enumerate(memgraph.nodes) if isinstance(node, Move) and memgraph.queue(NodeId(n)) == Queue.H2D]
    pairs = [(memgraph.residencies[a], memgraph.residencies[b]) for move in moves for a, b in move.copies]
    return [(a.tensor, a.extents[0].offset, b.extents[0].offset) for a, b in pairs]


@settings(max_examples=100, deadline=None)
@given(st.data(), task_graphs(joined=True), machines(), alignments, st.sampled_from((Start.COLD, Start.WARM, Start.LOOP)))
def test_what_is_joined_is_right_and_never_slower(
    drawn: st.DataObject, graph: TaskGraph, machine: Machine, alignment: int, start: Start
) -> None:
    before = plan(graph, machine, drawn.draw(budgets(graph, alignment)), PlanOptions(alignment=alignment, start=start))
    after, seconds = with_joined_loads(before, machine)
    assert seconds == simulate(after, machine).makespan_s
    assert judge(after) is None
    assert loads(after) == loads(before)
    assert moved_bytes_by_queue(after) == moved_bytes_by_queue(before)
    assert (after.residencies, after.start, after.end) == (before.residencies, before.start, before.end)
    assert simulate(after, machine).makespan_s <= simulate(before, machine).makespan_s


@pytest.mark.parametrize("start", [Start.COLD, Start.LOOP])
@pytest.mark.parametrize("seed", range(20))
def test_on_real_bytes_they_give_the_direct_result(seed: int, start: Start) -> None:
    """In every dispatch mode, in random orders, and on streams that take any order."""
    graph = random_graph(seed, most_ops=10)
    values = data(graph, seed)
    expected = direct(graph, values)
    before = plan(graph, SLOW_COPIES, largest_footprint(graph)[1] + 2048, PlanOptions(start=start))
    memgraph, _ = with_joined_loads(before, SLOW_COPIES, 1 << 20)
    for name, dispatch in (("serial", run_serial), ("dynamic", run_dynamic), ("static", run_static)):
        assert differences(run_on_bytes(memgraph, values, dispatch), expected) == [], name
    for draw in range(3):
        shuffled = partial(run_serial, order=random_order(memgraph, draw))
        assert differences(run_on_bytes(memgraph, values, shuffled), expected) == [], f"random order {draw}"
        for dispatch_name in ("static", "dynamic"):
            found, device, measured = run(memgraph, values, dispatch_name, FakeDriver(seed=draw, steps=draw))
            assert differences(found, expected) == [], dispatch_name
            assert unenforced(memgraph, device.actions) == []
            assert measured.moved_bytes == moved_bytes_by_queue(memgraph)


def some_joined() -> list[MemGraph]:
    plans = (plan(random_graph(seed, most_ops=10), SLOW_COPIES, 1 << 14, PlanOptions(start=Start.LOOP)) for seed in range(30))
    return [found for found in plans if joined_moves(found)]


def test_loops_have_them() -> None:
    assert len(some_joined()) >= 10


def test_one_latency_for_all_that_goes_together() -> None:
    link = SLOW_COPIES.link(Queue.H2D)
    for found in some_joined():
        seconds = durations(found, SLOW_COPIES)
        for n in joined_moves(found):
            assert seconds[n] == pytest.approx(link.latency_s + found.moved_bytes(n) / link.bytes_per_s)
        move = found.nodes[joined_moves(found)[0]]
        assert isinstance(move, Move)
        sizes = [found.graph.tensors[found.residencies[target].tensor].nbytes for _, target in move.copies]
        assert found.moved_bytes(joined_moves(found)[0]) == sum(sizes)


def test_every_edge_of_what_goes_together_is_wanted_by_the_judge() -> None:
    """Without an edge to or from a joined load either another way leads there, or the judge finds that it does not."""
    refused = 0
    for found in some_joined()[:6]:
        for n in joined_moves(found):
            for at in [i for i, pair in enumerate(zip(found.edges.source, found.edges.target, strict=True)) if n in pair]:
                columns = (found.edges.source, found.edges.target, found.edges.kind)
                kept = [i for i in range(len(found.edges)) if i != at]
                wrong = judge(replace(found, edges=Edges(*(column[kept] for column in columns))))
                assert wrong is None or wrong.reason in (Reason.RACE, Reason.READ_BEFORE_CREATED, Reason.FREED_BEFORE_CREATED)
                refused += wrong is not None
    assert refused > 10


def test_nothing_is_joined_where_copies_have_no_latency() -> None:
    machine = a_machine(copy_latency_s=0.0)
    found = plan(random_graph(3, most_ops=10), machine, 1 << 14, PlanOptions(start=Start.LOOP))
    assert with_joined_loads(found, machine)[0] is found and not joined_moves(found)


def test_no_more_bytes_go_together_than_the_largest_load() -> None:
    for found in some_joined():
        sizes = [found.graph.tensors[tensor].nbytes for tensor, _, _ in loads(found)]
        assert all(found.moved_bytes(n) <= max(sizes) for n in joined_moves(found))


def test_a_load_joins_none_that_would_wait_for_it() -> None:
    """In the plan's own times: what a part of a joined load waits for is done when its first part starts."""
    joined = 0
    for seed in range(40):
        graph = random_graph(seed, most_ops=10)
        budget = largest_footprint(graph)[1] + 256 * (seed % 8)
        before = plan_by_horizons(problem_of(graph, SLOW_COPIES, budget), HorizonOptions())
        timeline = simulate(before, SLOW_COPIES)
        loads_before = loads_of(before)
        after, _ = with_joined_loads(before, SLOW_COPIES, 1 << 20)
        joined += len(joined_moves(after))
        for n in joined_moves(after):
            move = after.nodes[n]
            assert isinstance(move, Move)
            first, *others = [loads_before[target] for _, target in move.copies]
            for other in others:
                waits_for = before.edges.source[before.edges.target == other]
                assert timeline.finish_s[waits_for].max(initial=0.0) <= timeline.start_s[first] + 1e-9
    assert joined > 10


def loads_of(memgraph: MemGraph) -> dict[int, int]:
    """By residency, the move that makes it."""
    return {node.target: n for n, node in enumerate(memgraph.nodes) if isinstance(node, Move)}


def test_a_first_pass_is_no_faster_than_its_bound() -> None:
    """Whose copies have no latency: for each of its tensors there is none."""
    for found in some_joined():
        first = judged(loading(found), SLOW_COPIES, 0.0)
        assert first.timeline.makespan_s >= first.bounds.bound_order_s * (1 - 1e-9)
    assert any(
        simulate(loading(found), SLOW_COPIES).makespan_s
        < bounds(found.graph, SLOW_COPIES, found.budget_bytes, tasks_in_order(found)).bound_order_s
        for found in some_joined()
    ), "with latencies it is faster than that"


def test_a_plan_file_has_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    for n, found in enumerate(some_joined()[:3]):
        path = tmp_path_factory.mktemp("plans") / f"{n}.json"
        save_plan(path, found, {})
        read = load_plan(path).memgraph
        assert read.nodes == found.nodes and judge(read) is None
        assert all_moved_bytes(read) == all_moved_bytes(found)
