"""Plans that start with weights on the device: right, within the bytes, never a load of what is there; and which weights those are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.bounds.bounds import Effort, bounds
from einpage.memplan.bounds.compulsory import compulsory_load_bytes
from einpage.memplan.graph.memgraph import MemGraph, Move
from einpage.memplan.graph.simulate import moved_bytes, simulate
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, HOST, Queue
from einpage.memplan.plan import HARDLY_SLOWER, PlanOptions, plan
from einpage.memplan.problem.footprint import footprint, largest_footprint, last_use_by_tensor
from einpage.memplan.problem.order import OrderPolicy
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.report import tasks_in_order
from einpage.memplan.residency.resident_sets import LoopSets, Others, Residents, Start, warm_sets
from hand_plan import hand_graph, hand_plan
from strategies import a_machine, alignments, budgets, machines, random_graph, task_graphs

WARM = PlanOptions(start=Start.WARM)


def on_device(plan: MemGraph, listed: tuple[int, ...]) -> dict[TensorId, int]:
    """Offset by tensor."""
    found = [plan.residencies[r] for r in listed]
    return {r.tensor: r.extents[0].offset for r in found if r.place == DEVICE}


@settings(max_examples=100, deadline=None)
@given(st.data(), task_graphs(joined=True), machines(), alignments)
def test_warm_plans_are_right(data: st.DataObject, graph: TaskGraph, machine: Machine, alignment: int) -> None:
    order = data.draw(st.sampled_from(OrderPolicy))
    found = plan(graph, machine, data.draw(budgets(graph, alignment)), replace(WARM, alignment=alignment, order=order))
    assert judge(found) is None
    assert {r.place for r in (found.residencies[i] for i in found.end)} <= {HOST}
    assert all(graph.tensors[t].kind is Kind.WEIGHT for t in found.resident)
    b = bounds(graph, machine, found.budget_bytes, tasks_in_order(found), Effort.LP, resident=found.resident)
    assert simulate(found, machine).makespan_s >= b.bound_order_s * (1 - 1e-9)
    assert moved_bytes(found, Queue.H2D) >= b.compulsory(Queue.H2D) == compulsory_load_bytes(graph, found.resident)


def answered(sets: LoopSets, random: Random) -> list[Residents]:
    """What is planned with, whatever plans take."""
    search = sets.search()
    found = [next(search)]
    with suppress(StopIteration):
        while True:
            found.append(search.send(random.random()))
    return found


@settings(max_examples=100, deadline=None)
@given(st.data(), task_graphs(joined=True), st.sampled_from((Start.WARM, Start.LOOP)))
def test_residents_leave_every_task_what_it_needs(data: st.DataObject, graph: TaskGraph, start: Start) -> None:
    """Counted again, step by step."""
    budget, last_use = data.draw(budgets(graph)), last_use_by_tensor(graph)
    problem = problem_of(graph, a_machine(), budget)
    if start is Start.LOOP:
        sets = answered(LoopSets(problem, data.draw(st.none() | st.integers(0, 2 * budget))), data.draw(st.randoms(use_true_random=False)))
    else:
        sets = [*warm_sets(problem)]
    assert len(set(sets)) == len(sets) > 0
    for found in sets:
        for task in graph.tasks:
            there = {t for t in found.tensors if start is Start.LOOP or last_use[t] >= task.id}
            unread = sum(aligned(graph.tensors[t].nbytes) for t in there - set(() if task.gathers else task.reads()))
            assert footprint(graph, task, last_use) + unread <= budget
        if start is Start.WARM:
            assert sorted(found.tensors, key=lambda t: (-last_use[t], t)) == list(found.tensors), "the last to be freed topmost"


def test_where_everything_fits_no_weight_moves() -> None:
    graph = hand_graph()
    found = plan(graph, a_machine(), 1 << 20, WARM)
    assert on_device(found, found.start) == {2: (1 << 20) - 256}
    assert moved_bytes(found, Queue.H2D) == 512, "the gathered rows"
    assert bounds(graph, a_machine(), resident=found.resident).compulsory(Queue.H2D) == 512


def test_warm_moves_no_more_than_cold() -> None:
    for seed in range(60):
        graph = random_graph(seed)
        budget = 2 * largest_footprint(graph)[1]
        cold, warm = plan(graph, a_machine(), budget), plan(graph, a_machine(), budget, WARM)
        loads = {warm.residencies[n.target].tensor for n in warm.nodes if isinstance(n, Move) and warm.residencies[n.source].place == HOST}
        assert not loads & warm.resident, "a weight is resident until its last use"
        assert simulate(warm, a_machine()).makespan_s <= simulate(cold, a_machine()).makespan_s * (1 + 1e-9), seed


def test_of_loops_about_as_fast_the_one_with_fewest_resident_bytes_may_be_asked_for() -> None:
    fewer = 0
    for seed in range(60):
        graph = random_graph(seed)
        budget = 2 * largest_footprint(graph)[1]
        fastest, fewest = (
            plan(graph, a_machine(), budget, PlanOptions(start=Start.LOOP, others=others)) for others in (Others.FASTEST, Others.FEWEST)
        )
        assert resident_bytes(fewest) <= resident_bytes(fastest), seed
        assert simulate(fewest, a_machine()).makespan_s <= HARDLY_SLOWER * simulate(fastest, a_machine()).makespan_s, seed
        fewer += resident_bytes(fewest) < resident_bytes(fastest)
    assert fewer, "of no graph two sets are about as fast"


def resident_bytes(found: MemGraph) -> int:
    return sum(aligned(found.graph.tensors[t].nbytes) for t in found.resident)


def test_a_warm_start_is_not_searched_for() -> None:
    with pytest.raises(UsageError, match="a plan is searched for from an empty device, and a warm start is not empty"):
        plan(hand_graph(), a_machine(), 4096, WARM, Pace())


def test_what_is_on_the_device_at_the_start_has_a_host_copy() -> None:
    found = plan(hand_graph(), a_machine(), 1 << 20, WARM)
    table, rows, w, resident = found.start
    assert judge(replace(found, start=(table, rows, w, resident))) is None
    violation = judge(replace(found, start=(table, rows, resident)))
    assert violation is not None
    assert violation.reason is Reason.WRONG_START


def test_bounds_of_a_warm_start() -> None:
    machine, plain = a_machine(), hand_plan()
    order = tasks_in_order(plain)
    w = TensorId(2)
    for effort in (Effort.FAST, Effort.LP):
        cold = bounds(plain.graph, machine, 2048, order, effort)
        warm = bounds(plain.graph, machine, 2048, order, effort, resident={w})
        assert cold.compulsory(Queue.H2D) - warm.compulsory(Queue.H2D) == 256
        assert cold.bytes_bound_order - warm.bytes_bound_order == 256
        assert np.isclose(cold.busy(Queue.H2D) - warm.busy(Queue.H2D), 256 / machine.link(Queue.H2D).bytes_per_s)
        assert warm.bound_order_s < cold.bound_order_s, "w is resident before the first task"
