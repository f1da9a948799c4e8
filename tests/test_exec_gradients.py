"""Gradients through planner and kernels: fused, cut for a budget, planned, judged and run on the CPU device, against fp64."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.differentiate.gradients import with_gradients
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.graph.opgraph import AttentionOp
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import fused, smallest, split_for
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import plan
from gradient_cases import LOSS, Data, off_by, reachable, tensors_of, with_loss
from real_bytes import direct, run_on_bytes
from single_runs import run_dynamic, run_serial
from specs_small import SMALL, small_program
from strategies import a_machine
from test_front_gradients import SHIPPED, random_case, shipped_data, shipped_program

TOLERANCE = 1e-5
"""Of a gradient's largest element, in fp32."""
ROOMY = 1 << 24


def worst(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
    """By how much, and which."""
    return max((share, name) for name, share in off_by({name: found[name].double() for name in expected}, expected).items())


def check(program: Program, data: Data, attentions: int) -> None:
    """Its gradients at the smallest budget there is, at twice that, and with room for everything."""
    names = reachable(program)
    outputs = tuple(f"d_{name}" for name in names)
    made, values = with_gradients(program, LOSS, names), tensors_of(data)
    expected = evaluate(made, values, values, torch.float64, outputs)
    working_sets = fused(made, PlanRequest(ROOMY, DType.FP32, outputs=outputs))
    assert sum(isinstance(op, AttentionOp) for op in working_sets.opgraph.ops) == attentions
    least = smallest(working_sets, 0).counted.nbytes
    given = {name: x.numpy() for name, x in values.items()}
    for budget in (least, 2 * least, ROOMY):
        graph = split_for(working_sets, made, PlanRequest(budget, DType.FP32, outputs=outputs)).graph
        memgraph = plan(graph, a_machine(), budget)
        assert judge(memgraph) is None
        results = [
            run_on_bytes(memgraph, given, dispatch) for dispatch in ((run_serial, run_dynamic) if budget == least else (run_dynamic,))
        ]
        assert all(torch.equal(results[0][name], results[-1][name]) for name in outputs)
        assert worst(results[0], expected) <= (TOLERANCE, ""), f"at {budget} bytes, split {graph.split}"


ATTENTIONS = {"mlp": 0, "matmul_chain": 0, "attention": 1}
"""Of those that have not one in each of two layers."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_spec(name: str) -> None:
    """Each attention stays one operation, though its gradient needs its scores."""
    program = shipped_program(name)
    check(program, shipped_data(program, 3), ATTENTIONS.get(name, 2))


@pytest.mark.parametrize("name", ["mlp", "attention", "llama"])
def test_a_shipped_spec_in_many_tiles(name: str) -> None:
    assert set(SMALL) >= {name}
    program = with_loss(small_program(name))
    check(program, shipped_data(program, 4), ATTENTIONS.get(name, 2))


def check_random(seed: int) -> None:
    """Whatever is fused and however it is cut."""
    program, data, about = random_case(seed)
    names = reachable(program)
    if not names:
        return
    outputs, pick = [f"d_{name}" for name in names], Random(seed).randint
    made, values = with_gradients(program, LOSS, names), tensors_of(data)
    expected = evaluate(made, values, values, torch.float64, outputs)
    opgraph = fuse(made, outputs, FuseOptions(*(pick(0, 3) < 3 for _ in range(3))))
    grain = (2, 1, 4, 64)[pick(0, 3)]
    with patch.object(tiling, "GRAIN", grain), patch.object(template, "GRAIN", grain):
        most = most_pieces(map(tiling_of, opgraph.ops), made.extents)
        pieces = {letter: n for letter, top in most.items() if (n := pick(1, min(top, 4))) > 1}
        graph = split(opgraph, pieces, DType.FP32)
    found = direct(graph, {name: np.asarray(x) for name, x in values.items()})
    for name in outputs:
        error = float((found[name].double() - expected[name]).abs().max())
        scale = max(1.0, *(float(x.abs().max()) for x in expected.values()))
        assert error <= 10 * TOLERANCE * scale, f"{name} is off by {error}, split {pieces} grain {grain}{about}"


@pytest.mark.parametrize("block", range(3))
def test_random_programs(block: int) -> None:
    for seed in range(5000 + 20 * block, 5020 + 20 * block):
        check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_hundreds_of_random_programs(block: int) -> None:
    for seed in range(6000 + 100 * block, 6100 + 100 * block):
        check_random(seed)
