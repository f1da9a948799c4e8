"""The real model inside budgets it does not fit: the same bits whatever the budget, dispatcher and order; the reference's logits."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from einpage.exec.dispatch.serial import random_order
from einpage.exec.planning.model import Model
from einpage.exec.run.outputs import mean_nll
from single_runs import run_dynamic, run_serial, run_static
from smollm2_run import MIB, Dispatch, arena, distance, open_smollm2, planned, reference, run_outputs, text_ids

Pieces = tuple[tuple[str, int], ...]


@pytest.fixture(scope="module")
def model() -> Model:
    return open_smollm2([text_ids()])


@pytest.fixture(scope="module")
def at_48(model: Model) -> tuple[Pieces, list[torch.Tensor]]:
    """The split under 48 MiB, and `all_logits` from all dispatchers and from ten random orders."""
    plan = planned(model, 48 * MIB, ["all_logits"])
    device = arena().device(model, plan.memgraph)
    orders = [partial(run_serial, order=random_order(plan.memgraph, seed)) for seed in range(10)]
    dispatchers: list[Dispatch] = [run_dynamic, run_serial, run_static, *orders]
    return plan.graph.split, [arena().run(plan.memgraph, device, dispatch)[1]["all_logits"] for dispatch in dispatchers]


def test_every_dispatcher_and_order_gives_the_same_bits(at_48: tuple[Pieces, list[torch.Tensor]]) -> None:
    _, found = at_48
    assert len(found) == 13
    for other in found[1:]:
        assert torch.equal(found[0], other)


@pytest.mark.parametrize("budget", [64 * MIB, 256 * MIB, 1024 * MIB])
def test_every_budget_gives_the_same_bits(model: Model, at_48: tuple[Pieces, list[torch.Tensor]], budget: int) -> None:
    pieces, found = at_48
    assert torch.equal(run_outputs(model, planned(model, budget, ["all_logits"], dict(pieces)))["all_logits"], found[0])


@pytest.mark.slow
def test_every_split_gives_the_references_logits(model: Model, at_48: tuple[Pieces, list[torch.Tensor]]) -> None:
    expected = reference(model, "all_logits")
    plans = [planned(model, budget, ["all_logits"]) for budget in (24 * MIB, 1024 * MIB)]
    found = {plan.graph.split: run_outputs(model, plan)["all_logits"] for plan in plans}
    found[at_48[0]] = at_48[1][0]
    assert len(found) == 3, "the splits are not different"
    for pieces, logits in found.items():
        deviation = distance(logits, expected)
        assert deviation <= 1e-5, f"all_logits under {pieces}: {deviation:.2e}"


def test_perplexity(at_48: tuple[Pieces, list[torch.Tensor]]) -> None:
    assert len(text_ids()) == 93
    assert float(torch.tensor(mean_nll(at_48[1][0][0], text_ids())).exp()) == pytest.approx(29.956, abs=0.01)
