"""Plans in which tasks run twice, replayed: the same bits as without any paging, by all dispatchers."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.differentiate.gradients import with_gradients
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TaskId
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import fused, smallest, split_for
from einpage.memplan.graph.simulate import second_runs
from einpage.memplan.horizons.recompute import Recompute, of_one_graph
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.second_runs import Dropped, with_second_runs
from gradient_cases import LOSS, reachable, tensors_of
from real_bytes import Data, direct, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, changed
from test_front_gradients import shipped_data, shipped_program

DISPATCHERS = (run_serial, run_dynamic, run_static)


def backward_of(name: str, seed: int) -> tuple[TaskGraph, Data, int]:
    """The gradients of a shipped spec as a graph for the smallest budget there is, what it reads, and that budget."""
    program = shipped_program(name)
    data = shipped_data(program, seed)
    names = reachable(program)
    outputs = tuple(f"d_{x}" for x in names)
    made = with_gradients(program, LOSS, names)
    working_sets = fused(made, PlanRequest(1 << 24, DType.FP32, outputs=outputs))
    budget = smallest(working_sets, 0).counted.nbytes
    graph = split_for(working_sets, made, PlanRequest(budget, DType.FP32, outputs=outputs)).graph
    return graph, {k: x.numpy() for k, x in tensors_of(data).items()}, budget


@pytest.mark.parametrize("name", ["mlp", "attention", "llama"])
def test_any_tensors_may_be_dropped(name: str) -> None:
    """Results written in place among them: a second run finds what the first has overwritten made again, or loaded."""
    graph, data, budget = backward_of(name, 5)
    made, rng = {task.result: task.id for task in graph.tasks if not task.gathers}, Random(7)
    may = [t.id for t in graph.tensors if t.kind is Kind.ACTIVATION and t.id in made]
    dropped = {Dropped(t, TaskId(rng.randrange(made[t], len(graph.tasks)))) for t in may if rng.random() < 0.5}
    runs = with_second_runs(graph, dropped)
    memgraph = of_one_graph(plan(runs.graph, a_machine(), budget), graph, runs)
    assert judge(memgraph) is None
    assert second_runs(memgraph) > 0
    expected = direct(graph, data)
    for dispatch in DISPATCHERS:
        found = run_on_bytes(memgraph, data, dispatch)
        assert all(torch.equal(found[key], x) and not np.isnan(x.numpy()).any() for key, x in expected.items()), dispatch


def test_the_fastest_plan_has_the_same_bits() -> None:
    graph, data, budget = backward_of("llama", 6)
    machine = changed(a_machine(), h2d_bytes_per_s=1e6, d2h_bytes_per_s=1e6)
    memgraph = plan(graph, machine, budget, PlanOptions(recompute=Recompute.FASTEST))
    assert judge(memgraph) is None
    assert second_runs(memgraph) > 0
    expected = direct(graph, data)
    for dispatch in DISPATCHERS:
        found = run_on_bytes(memgraph, data, dispatch)
        assert all(torch.equal(found[key], x) for key, x in expected.items())
