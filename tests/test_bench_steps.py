"""Runs of training steps as traces: what is in them, and that no plan of one is faster than the bound between its steps says."""

from __future__ import annotations

import numpy as np
import pytest

from bench.step_trace import Kernel, Shape, Step, run_of, step_of_shape
from bench.steps import Case, by_layer, layer_of, row
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.memplan.problem.accesses import from_lists

STEP = Step(
    {"W0": 400, "W1": 400, "x0": 200, "a1": 300, "g1": 300, "G0": 400, "G1": 400},
    frozenset(("W0", "W1")),
    (
        Kernel(1.0, (), ("x0",)),
        Kernel(2.0, ("x0", "W0"), ("a1",)),
        Kernel(2.0, ("a1", "W1"), ("g1", "G1")),
        Kernel(3.0, ("g1", "x0", "W0"), ("G0",)),
        Kernel(1.0, ("G0", "W0"), ("W0",)),
        Kernel(1.0, ("G1", "W1"), ("W1",)),
    ),
)


def test_a_step_with_room_for_everything() -> None:
    assert STEP.ideal_s == 10.0
    assert STEP.peak_bytes == 800 + 200 + 300 + 800, "the fourth kernel: states, x0, g1, both gradients"
    assert STEP.slower(2.0).ideal_s == 20.0


def test_a_run_has_every_piece_once_and_its_kernels_seconds() -> None:
    run = run_of(STEP, 2, 150)
    graph = run.graph
    assert sum(t.seconds or 0.0 for t in graph.tasks) == pytest.approx(20.0)
    assert sum(t.nbytes for t in graph.tensors if t.kind is Kind.WEIGHT) == 800
    assert max(t.nbytes for t in graph.tensors) <= 150
    assert len(run.ends) == 2 and run.ends[1] == len(graph.tasks) - 1
    update = next(t for t in graph.tasks if t.name == "0.4.W0.1")
    assert [run.layer[t] for t in update.inplace] == ["W0"], "an update writes over what it reads"
    assert all(run.layer[t] == "W0" for t in update.reads() if t not in graph.tasks[update.id].inplace and run.layer[t] != "G0")


def test_shares_are_below_their_bound_and_ideal_where_all_fits() -> None:
    case = Case("small", Step({k: 1000 * v for k, v in STEP.nbytes.items()}, STEP.states, STEP.kernels), 2, 50_000, (1e-4,))
    for capacity in (0.85, 0.75):
        tight = row(case, capacity, 1e-4, 0.5)
        shares = [tight[name] for name in ("layers", "teraio", "g10", "ours") if tight[name] is not None]
        assert max(shares) == tight["ours"] <= tight["lp"] * 1.000001 < 1.0
    assert row(case, 1.0, 1e-4, 0.5)["ours"] == pytest.approx(1.0)


def test_layers_are_resident_all_or_none() -> None:
    """Two layers of two tensors each, visited 0, 1, 1, 0: the last has no interval between visits, and the first has both or neither."""
    a = from_lists(
        reads=[(0, 1), (2, 3), (2, 3), (0, 1)], writes=[(), (), (), ()], seconds=[1.0] * 4, extra_bytes=[0] * 4,
        nbytes=[5, 7, 3, 4], clean=[True] * 4, output=[False] * 4,
    )  # fmt: skip
    for headroom, kept in ((11, 0), (12, 2)):
        assert int(by_layer([0, 0, 1, 1], [0, 1, 1, 0], a, np.full(4, headroom)).sum()) == kept


def test_the_layer_is_the_first_number_of_a_name() -> None:
    assert [layer_of(name) for name in ("W3", "a12.1", "gL", "M.mlp7")] == [3, 12, -1, 7]


def test_a_shape_has_what_is_known_of_it() -> None:
    """LLaMA-8B without embeddings: 6.98 G weights, of which each has 2 + 12 bytes; 6 operations a weight and token, and attention's."""
    shape = Shape(layers=32, width=4096, kv_width=1024, ffn=14336, tokens=1024, context=1024)
    step = step_of_shape(shape, 1e12, 1e15)
    weights = sum(step.nbytes[name] for name in step.states) / 14
    assert weights == pytest.approx(6.98e9, rel=1e-3)
    assert step.ideal_s == pytest.approx((6 * weights + 6 * 1024 * 4096 * 32 + 2 * 3 * 4096 * 14336) * 1024 / 1e12, rel=1e-2)
