"""The real model inside budgets it does not fit: the same bits whatever the budget, dispatcher and order; the reference's logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.expr import Letter
from einpage.einsum_front.reference import evaluate
from einpage.exec.answers import mean_nll
from einpage.exec.build import Model, build_graph, make_plan, open_model
from einpage.exec.cpu import CpuDevice
from einpage.exec.dynamic import run_dynamic
from einpage.exec.fill import fill, read_weights
from einpage.exec.host import HostArena, masters, outputs
from einpage.exec.inputs import bind_inputs, encode_prompts
from einpage.exec.run import fill_inputs
from einpage.exec.serial import random_order, run_serial
from einpage.exec.static import run_static
from einpage.exec.tokenizer import load_tokenizer
from einpage.memplan.machine import load_machine
from smollm2 import smollm2_path

MIB = 1 << 20
TEXT = (Path(__file__).parent / "data" / "perplexity.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model() -> Model:
    path = str(smollm2_path())
    tokenizer = load_tokenizer(path)
    spec = Path(__file__).parents[1] / "specs" / "llama.yaml"
    return open_model(spec, {}, path, encode_prompts(tokenizer, [TEXT]), tokenizer)


def all_logits(
    model: Model, budget: int, pieces: Mapping[Letter, int] | None, *, every_way: bool = False
) -> tuple[dict[Letter, int], list[torch.Tensor]]:
    """The split used, and `all_logits` from a dynamic run; with `every_way` from all dispatchers and ten random orders too."""
    built = build_graph(model.program, DType.FP32, budget, ["all_logits"], pieces)
    memgraph = make_plan(built, load_machine("cpu"), budget).memgraph
    host = HostArena(memgraph.host_bytes)
    slots = masters(memgraph, host)
    assert model.resolved is not None
    fill(built.graph, model.resolved, slots)
    fill_inputs(built, bind_inputs(model.program, model.tokens, {}), slots)
    device = CpuDevice(memgraph, host, threads=1, poison=True)
    assert device.arena_bytes == budget
    found = []
    for runner in (run_dynamic, run_serial, run_static)[: 3 if every_way else 1]:
        runner(memgraph, device)
        found.append(outputs(memgraph, host)["all_logits"])
    for seed in range(10 if every_way else 0):
        run_serial(memgraph, device, order=random_order(memgraph, seed))
        found.append(outputs(memgraph, host)["all_logits"])
    return built.choice.by_letter, found


@pytest.fixture(scope="module")
def at_48(model: Model) -> tuple[dict[Letter, int], list[torch.Tensor]]:
    return all_logits(model, 48 * MIB, None, every_way=True)


def test_every_dispatcher_and_order_gives_the_same_bits(at_48: tuple[dict[Letter, int], list[torch.Tensor]]) -> None:
    _, found = at_48
    assert len(found) == 13
    for other in found[1:]:
        assert torch.equal(found[0], other)


@pytest.mark.parametrize("budget", [64 * MIB, 256 * MIB, 1024 * MIB])
def test_every_budget_gives_the_same_bits(model: Model, at_48: tuple[dict[Letter, int], list[torch.Tensor]], budget: int) -> None:
    pieces, found = at_48
    assert torch.equal(all_logits(model, budget, pieces)[1][0], found[0])


def test_every_split_gives_the_references_logits(model: Model, at_48: tuple[dict[Letter, int], list[torch.Tensor]]) -> None:
    assert model.resolved is not None
    inputs = {name: torch.from_numpy(a) for name, a in bind_inputs(model.program, model.tokens, {}).items()}
    weights = read_weights(model.resolved, model.program)
    expected = evaluate(model.program, inputs, weights, torch.float64, ["all_logits"])["all_logits"]
    others = [all_logits(model, budget, None) for budget in (24 * MIB, 1024 * MIB)]
    assert len({tuple(sorted(pieces.items())) for pieces, _ in (at_48, *others)}) == 3, "the splits are not different"
    for pieces, found in (at_48, *others):
        deviation = float((found[0] - expected).abs().max() / expected.abs().max())
        assert deviation <= 1e-5, f"all_logits under {pieces}: {deviation:.2e}"


def test_perplexity(model: Model, at_48: tuple[dict[Letter, int], list[torch.Tensor]]) -> None:
    assert model.tokens is not None
    (tokens,) = model.tokens.lists
    assert len(tokens) == 93
    assert float(torch.tensor(mean_nll(at_48[1][0][0], tokens)).exp()) == pytest.approx(29.956, abs=0.01)
