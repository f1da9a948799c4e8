"""The clock, against figures worked out by hand and against its own definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.exec.dispatch.serial import random_order
from einpage.memplan.graph import simulate as simulating
from einpage.memplan.graph.memgraph import Edges, MemGraph, Move, NodeId
from einpage.memplan.graph.packed import MOVE, Nodes
from einpage.memplan.graph.simulate import NO_QUEUE, durations, queue_numbers, queues_of, simulate
from einpage.memplan.machine.kernel_times import AtDistance
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import ENGINES, Queue
from hand_plan import edges_of, hand_plan
from kernel_time_figures import nothing_usual
from plain_plan import plain_plan
from strategies import a_machine, budgets, machines, random_graph, task_graphs

SECONDS = a_machine(
    flops_per_s=((DType.FP32, 128.0),), device_bytes_per_s=1e12, h2d_bytes_per_s=256.0, d2h_bytes_per_s=128.0,
    copy_latency_s=0.5, launch_latency_s=2.0,
)  # fmt: skip
"""A task of the hand-made plan takes 3 s, a gather or a load of 512 bytes 2.5 s, of 256 bytes 1.5 s, a store of 512 bytes 4.5 s."""


def test_the_hand_made_plan_by_hand() -> None:
    """Gather and load of w follow each other on H2D; a runs at 4, while e is spilled; b waits for it; and so on."""
    line = simulate(hand_plan(), SECONDS)
    start = [0.0, 2.5, 4.0, 2.5, 7.0, 7.0, 10.0, 10.0, 7.0, 9.5, 14.5, 17.5, 17.5, 22.0]
    finish = [2.5, 4.0, 7.0, 7.0, 7.0, 10.0, 10.0, 14.5, 9.5, 9.5, 17.5, 22.0, 17.5, 22.0]
    assert line.start_s.tolist() == start
    assert line.finish_s.tolist() == finish
    assert line.makespan_s == 22.0
    assert dict(line.busy_s) == {Queue.COMPUTE: 9.0, Queue.H2D: 6.5, Queue.D2H: 13.5}
    assert line.busy(Queue.D2H) == 13.5


def test_a_bandwidth_bound_task_and_another_dtype() -> None:
    slow = replace(SECONDS, device_bytes_per_s=128.0)
    assert durations(hand_plan(), slow)[2] == 12.0
    plan = hand_plan()
    half = replace(plan, graph=replace(plan.graph, dtype=DType.FP16))
    assert durations(half, replace(SECONDS, flops_per_s=((DType.FP16, 64.0),)))[2] == 4.0


def test_noise_multiplies_durations() -> None:
    plan = hand_plan()
    line = simulate(plan, SECONDS, noise=np.full(len(plan.nodes), 2.0))
    assert line.makespan_s == 44.0
    with pytest.raises(AssertionError, match="noise"):
        simulate(plan, SECONDS, noise=np.ones(3))


def test_an_empty_plan_takes_no_time() -> None:
    plan = hand_plan()
    nothing = replace(plan, nodes=(), edges=edges_of(()))
    assert simulate(nothing, SECONDS).makespan_s == 0.0


@settings(max_examples=40, deadline=None)
@given(st.data(), machines())
def test_first_in_first_out_and_after_predecessors(data: st.DataObject, machine: Machine) -> None:
    """Each start is exactly the latest of: the node before on its queue, and its predecessors."""
    graph = data.draw(task_graphs(most_ops=4))
    plan = plain_plan(graph, data.draw(budgets(graph)))
    line = simulate(plan, machine)
    latest = [0.0] * len(plan.nodes)
    for source, target in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True):
        latest[target] = max(latest[target], float(line.finish_s[source]))
    numbers = queue_numbers(plan)
    free_at = dict.fromkeys((*queues_of(plan), None), 0.0)
    for n in range(len(plan.nodes)):
        queue = plan.queue(NodeId(n))
        assert queue == (None if numbers[n] == NO_QUEUE else queues_of(plan)[numbers[n]])
        assert line.start_s[n] == max(latest[n], 0.0 if queue is None else free_at[queue])
        free_at[queue] = float(line.finish_s[n])
    assert np.allclose(line.finish_s - line.start_s, durations(plan, machine), rtol=1e-9, atol=1e-9)
    assert line.makespan_s == max(line.finish_s)
    assert all(busy <= line.makespan_s * (1 + 1e-9) for _, busy in line.busy_s)


def in_another_order(plan: MemGraph, seed: int) -> MemGraph:
    """The same nodes in some order that their edges allow."""
    order = random_order(plan, seed)
    number = {old: new for new, old in enumerate(order)}
    sources, targets = (np.array([number[n] for n in column.tolist()]) for column in (plan.edges.source, plan.edges.target))
    by = np.lexsort((sources, targets))
    edges = Edges(sources[by].astype(np.int32), targets[by].astype(np.int32), plan.edges.kind[by])
    return replace(plan, nodes=tuple(plan.nodes[n] for n in order), edges=edges)


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_ends_when_all_of_it_has(seed: int) -> None:
    """Whichever node is listed last."""
    for plan in (hand_plan(), plain_plan(random_graph(seed))):
        for draw in range(4):
            line = simulate(in_another_order(plan, draw), SECONDS if plan.graph.dtype is DType.FP32 else a_machine())
            assert line.makespan_s == line.finish_s.max()
            assert line.makespan_s >= max(busy for _, busy in line.busy_s)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_takes_longer_the_more_was_copied_since_its_place_was_written(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the bytes of the arena, one by one, where parts are bytes."""
    plan = plain_plan(random_graph(seed))
    monkeypatch.setattr(simulating, "ARENA_PARTS", plan.budget_bytes + 1)
    moves = np.flatnonzero(queue_numbers(plan) == ENGINES.index(Queue.H2D))
    moves = moves[Nodes.of(plan.nodes).kind[moves] == MOVE]
    copied, written, distances = 0, np.full(plan.budget_bytes, -simulating.MOST_DISTANCE), []
    for node in (plan.nodes[n] for n in moves.tolist()):
        assert isinstance(node, Move)
        extents = [e for _, target in node.copies for e in plan.residencies[target].extents]
        copied += sum(e.nbytes for e in extents)
        ages = [copied - int(written[e.offset : e.offset + e.nbytes].mean()) for e in extents]
        distances.append(min(simulating.MOST_DISTANCE, max([*ages, sum(e.nbytes for e in extents)])))
        for e in extents:
            written[e.offset : e.offset + e.nbytes] = copied
    assert simulating._distances(plan, moves).tolist() == distances
    times = nothing_usual()
    half = float(np.median(distances))
    far = (AtDistance(max(1, int(half)), 1.0), AtDistance(int(half) + 1, 3.0))
    usual = replace(SECONDS, kernel_times=replace(times, copies=replace(times.copies, at_distances=far)))
    usual_s, near_s = (durations(plan, m)[moves] for m in (usual, replace(usual, kernel_times=times)))
    longer = np.where(np.array(distances) > half, 3.0, 1.0)
    assert usual_s == pytest.approx(0.5 + longer * (near_s - 0.5))
