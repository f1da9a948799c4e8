"""A MemGraph on real bytes: what the judge passes gives the reference's result in any order that respects the edges.

Two arenas of plain bytes start as NaN; a Free writes NaN over what it frees; a workspace is filled with NaN by its task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.memplan.graph.memgraph import Compute, Edges, Free, HostGather, MemGraph, Move, NodeId, ResidencyId
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import PlaceKind
from einpage.memplan.plan import PlanOptions
from einpage.memplan.plan import plan as make_plan
from einpage.memplan.problem.footprint import largest_footprint
from numpy_jobs import evaluate, run_task
from plain_plan import plain_plan, random_order
from strategies import a_machine, alignments, budgets, data, random_graph, task_graphs

NAN_BYTE = 0xFF


def run_in(order: list[NodeId], plan: MemGraph, given_data: dict[str, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """Every output tensor, after running the nodes of `plan` in this order on two arenas of bytes."""
    graph = plan.graph
    arenas = {
        PlaceKind.DEVICE: np.full(plan.budget_bytes, NAN_BYTE, np.uint8),
        PlaceKind.HOST: np.full(plan.host_bytes, NAN_BYTE, np.uint8),
    }

    def raw(r: ResidencyId) -> NDArray[np.uint8]:
        extent = plan.residencies[r].extents[0]
        return arenas[plan.residencies[r].place.kind][extent.offset : extent.end]

    def tile(r: ResidencyId) -> NDArray[Any]:
        tensor = graph.tensors[plan.residencies[r].tensor]
        return raw(r).view(np.int32 if tensor.dtype is DType.INT32 else np.float32).reshape(tensor.shape)

    for r in plan.start:
        tensor = graph.tensors[plan.residencies[r].tensor]
        tile(r)[...] = given_data[tensor.value][tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))]
    for n in order:
        match plan.nodes[n]:
            case Compute() | HostGather() as node:
                results = run_task(graph.tasks[node.task], [[tile(r).copy() for r in operand] for operand in node.operands])
                if isinstance(node, Compute) and node.workspace is not None:
                    arenas[PlaceKind.DEVICE][node.workspace.offset : node.workspace.end] = NAN_BYTE
                for r, result in zip((node.creates, *(node.others if isinstance(node, Compute) else ())), results, strict=True):
                    tile(r)[...] = result
            case Move() as move:
                for source, target in move.copies:
                    raw(target)[...] = raw(source)
            case Free(r):
                raw(r)[...] = NAN_BYTE
    ends = {plan.residencies[r].tensor: r for r in plan.end if plan.residencies[r].place.kind is PlaceKind.HOST}
    return {t.id: tile(ends[t.id]).copy() for t in graph.tensors if t.kind is Kind.OUTPUT}


def right_in(order: list[NodeId], plan: MemGraph, given_data: dict[str, NDArray[Any]]) -> bool:
    expected = evaluate(plan.graph, given_data)
    return all(np.array_equal(got, expected[t]) for t, got in run_in(order, plan, given_data).items())  # type: ignore[index]


@pytest.mark.parametrize("planner", ["plain", "horizons"])
@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_any_order_that_respects_the_edges_is_right(planner: str, draw: st.DataObject) -> None:
    graph = draw.draw(task_graphs(most_ops=5, dtypes=(DType.FP32,), joined=True))
    alignment = ALIGNMENT if planner == "plain" else draw.draw(alignments)
    budget = draw.draw(budgets(graph, alignment))
    plan = plain_plan(graph, budget) if planner == "plain" else make_plan(graph, a_machine(), budget, PlanOptions(alignment=alignment))
    assert judge(plan) is None
    given_data = data(graph)
    assert right_in([NodeId(n) for n in range(len(plan.nodes))], plan, given_data)
    for seed in range(3):
        assert right_in(random_order(plan, seed), plan, given_data)


@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_what_the_judge_passes_with_edges_missing_is_right_too(draw: st.DataObject) -> None:
    graph = draw.draw(task_graphs(most_ops=3, dtypes=(DType.FP32,), joined=True))
    alignment = draw.draw(alignments)
    plan = make_plan(graph, a_machine(), draw.draw(budgets(graph, alignment)), PlanOptions(alignment=alignment))
    dropped = draw.draw(st.lists(st.integers(0, max(0, len(plan.edges) - 1)), max_size=2, unique=True))
    keep = np.setdiff1d(np.arange(len(plan.edges)), dropped)
    fewer = replace(plan, edges=Edges(plan.edges.source[keep], plan.edges.target[keep], plan.edges.kind[keep]))
    if judge(fewer) is None:
        for seed in range(3):
            assert right_in(random_order(fewer, seed), fewer, data(graph))


def test_poison_finds_a_race() -> None:
    """The check itself: without memory edges the judge refuses, and some order gives a wrong result."""
    graph = random_graph(3, most_ops=8)
    plan = plain_plan(graph, 2 * largest_footprint(graph)[1])
    keep = plan.edges.kind == 0
    racy = replace(plan, edges=Edges(plan.edges.source[keep], plan.edges.target[keep], plan.edges.kind[keep]))
    assert judge(racy) is not None
    assert not all(right_in(random_order(racy, seed), racy, data(graph)) for seed in range(20))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_plans() -> None:
    """10,000 random plans pass the judge; every tenth runs in a random order."""
    for seed in range(10_000):
        graph = random_graph(seed, most_ops=5)
        least = largest_footprint(graph)[1]
        plan = make_plan(graph, a_machine(), least + 256 * (seed % 7))
        violation = judge(plan)
        assert violation is None, f"seed {seed}: {violation}"
        if seed % 10 == 0:
            assert right_in(random_order(plan, seed), plan, data(graph)), f"seed {seed}"
