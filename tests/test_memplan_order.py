"""Orders: each is a valid one, and a free order is never slower than the written one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import moved_bytes, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine, links_only
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.order import ORDER_BY_POLICY, OrderPolicy, by_depth, random_topological
from einpage.memplan.problem.pace import Pace
from einpage.memplan.report import in_written_order, tasks_in_order
from strategies import machines, random_graph, task_graphs

LAYERS, CHUNKS, WEIGHT, HIDDEN = 6, 4, 1000, 10


@given(task_graphs(joined=True), st.sampled_from(OrderPolicy), st.integers(0, 9))
def test_each_task_is_there_once_and_after_what_it_reads(graph: TaskGraph, policy: OrderPolicy, seed: int) -> None:
    order = ORDER_BY_POLICY[policy](graph, seed)
    assert sorted(order) == list(range(len(graph.tasks)))
    place = {task: i for i, task in enumerate(order)}
    writer = {t: task.id for task in graph.tasks for t in task.results}
    assert all(place[writer[t]] < place[task.id] for task in graph.tasks for t in task.reads() if t in writer)


def test_random_orders_differ_and_repeat() -> None:
    graph = random_graph(5, most_ops=8)
    orders = {random_topological(graph, seed) for seed in range(20)}
    assert len(orders) > 1
    assert random_topological(graph, 1) == random_topological(graph, 1)


@settings(max_examples=25)
@given(task_graphs(most_ops=5, joined=True), machines(), st.integers(0, 8192), st.sampled_from([1, 1000]))
def test_a_free_order_is_never_slower(graph: TaskGraph, machine: Machine, extra: int, steps: int) -> None:
    budget = largest_footprint(graph)[1] + extra
    written, free = (plan(graph, machine, budget, PlanOptions(free_order=free)) for free in (False, True))
    assert judge(free) is None
    assert simulate(free, machine).makespan_s <= simulate(written, machine).makespan_s
    more = plan(graph, machine, budget, PlanOptions(free_order=True), Pace(steps))
    assert judge(more) is None
    assert simulate(more, machine).makespan_s <= simulate(free, machine).makespan_s


@pytest.fixture
def chunk_by_chunk(tmp_path: Path) -> TaskGraph:
    """Every chunk goes through all layers before the next one starts."""
    tensors: list[list[object]] = [[WEIGHT, 1, 0, "weight"] for _ in range(LAYERS)] + [[HIDDEN, 1, 0, "input"] for _ in range(CHUNKS)]
    ops: list[list[object]] = []
    for chunk in range(CHUNKS):
        hidden = LAYERS + chunk
        for layer in range(LAYERS):
            tensors.append([HIDDEN, 0, int(layer == LAYERS - 1), "hidden"])
            ops.append([f"c{chunk} l{layer}", [layer, hidden], [len(tensors) - 1], 1.0])
            hidden = len(tensors) - 1
    (tmp_path / "chunks.json").write_text(json.dumps({"tensors": tensors, "ops": ops}), encoding="utf-8")
    return read_trace(tmp_path / "chunks.json")


def test_a_weight_serves_every_chunk_while_it_is_resident(chunk_by_chunk: TaskGraph) -> None:
    machine, budget = links_only("1GB/s", None, 1 << 30), 2 * WEIGHT + 3 * CHUNKS * HIDDEN

    def h2d(memgraph: MemGraph) -> int:
        return moved_bytes(memgraph, Queue.H2D)

    written, free = (plan(chunk_by_chunk, machine, budget, PlanOptions(alignment=1, free_order=free)) for free in (False, True))
    assert h2d(free) == LAYERS * WEIGHT + CHUNKS * HIDDEN, "each byte once"
    assert h2d(written) > 2 * h2d(free)
    assert tasks_in_order(free) == by_depth(chunk_by_chunk)
    assert in_written_order(written) and not in_written_order(free)
