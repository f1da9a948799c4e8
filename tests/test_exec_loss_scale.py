"""Loss scaling and training in fp16 and bf16: what is skipped is as it was, bit for bit; the scale is torch's; nothing is read twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import einpage
from einpage.einsum_front.algebra.expr import Load
from einpage.einsum_front.base.dtype import Checked, DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.differentiate.optimiser import LossScale
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.job import OverflowJob, Part
from einpage.einsum_front.graph.program import Definition, Input, Output, Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.cli import main
from einpage.exec.load.fill import read_weights
from einpage.exec.load.inputs import token_lists
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.train_step import TrainStep, open_step
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.train.planned_step import graphs_of
from einpage.exec.train.run import TrainResult, train_model
from einpage.exec.train.saved import TrainOptions
from einpage.exec.train.setup import TrainRequest, set_up
from einpage.memplan.machine.profile import load_machine

SIZES = {"vocab": 90, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48}
SEQUENCES = [[1, 5, 9, 2, 7, 7, 3, 8], [4, 4, 61], [80, 2, 9, 13, 22], [6, 5, 4, 3, 2, 1, 0], [17, 89]]


def trained(steps: int = 5, **more: Any) -> TrainResult:
    given = {"budget": "64KiB", "tokens": SEQUENCES, "lr": 3e-3, "weight_decay": 0.1, **more}
    return einpage.train("llama", "random:3", set=SIZES, machine="cpu", device="cpu", steps=steps, **given)


def step_of(dtype: DType, scale: str | None = None, **sizes: int) -> TrainStep:
    return open_step("llama", {**SIZES, "seq": 8, **sizes}, "random:3", dtype=dtype, loss_scale=scale)


def same(one: TrainResult, other: TrainResult) -> bool:
    assert one.states.keys() == other.states.keys() and one.states
    return all(torch.equal(x, other.states[name]) for name, x in one.states.items())


def test_a_skipped_step_leaves_every_state_as_it_was() -> None:
    """Weights, their copies, moments and the number of the step have the bits they began with; the scale is halved each time."""
    found = trained(3, dtype="fp16", loss_scale="start=2 ** 90")
    assert found.skipped == (1, 2, 3) and found.loss_scale == 2.0**87
    assert [step.loss_scale for step in found.done] == [2.0**90, 2.0**89, 2.0**88]
    step = step_of(DType.FP16)
    assert step.model.resolved is not None
    began = read_weights(step.model.resolved, step.program)
    for name, x in found.states.items():
        if name in began:
            assert torch.equal(x, began[name].to(x.dtype)), name
        elif name != "loss_scale":
            assert not x.any(), name


def test_scaling_by_powers_of_two_changes_no_bit_in_fp32() -> None:
    plain, scaled = trained(), trained(loss_scale="start=1024,interval=2")
    assert plain.losses == scaled.losses and scaled.skipped == ()
    assert all(torch.equal(x, scaled.states[name]) for name, x in plain.states.items())
    assert [s.loss_scale for s in scaled.done] == [1024, 1024, 2048, 2048, 4096] and scaled.loss_scale == 4096


def test_steps_after_a_skipped_one_are_those_of_a_run_without_it() -> None:
    """The first step overflows at the scale it begins with; from then on everything is as of a run that begins with half of it, one step
    later, on the same data."""
    late = trained(4, dtype="fp16", loss_scale="start=2 ** 16", tokens=[SEQUENCES[0]])
    assert late.skipped is not None and late.skipped == (1,)
    soon = trained(3, dtype="fp16", loss_scale="start=2 ** 15", tokens=[SEQUENCES[0]])
    assert soon.skipped == () and late.losses[1:] == soon.losses and same(late, soon)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_numbers_beside_the_weights_are_fp32(dtype: str) -> None:
    """Weights are rounded copies of what is kept in fp32, and losses near those of fp32."""
    found, exact = trained(8, dtype=dtype, loss_scale="start=64"), trained(8)
    narrow = torch.bfloat16 if dtype == "bf16" else torch.float16
    copies = {name.removeprefix("master_"): x for name, x in found.states.items() if name.startswith("master_")}
    assert len(copies) == found.trained[0]
    for name, x in copies.items():
        assert x.dtype is torch.float32 and found.states[name].dtype is narrow and torch.equal(x.to(narrow), found.states[name])
        assert found.states[f"m_{name}"].dtype is torch.float32
        assert not torch.equal(x, x.to(narrow).float())
    assert found.skipped == () and np.allclose(found.losses, exact.losses, atol=0.05 if dtype == "bf16" else 0.01)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("budget", [40 << 10, 96 << 10, 4 << 20])
def test_in_every_budget_and_dispatch_the_same_bits_on_poisoned_memory(budget: int, dtype: DType) -> None:
    """The first step of fp16 is skipped."""
    asked = TrainRequest(
        "llama", "random:3", TrainOptions(3), {**SIZES}, tokens=token_lists(SEQUENCES, "these"), budget=budget, rate=3e-3,
        loss_scale="dynamic",
    )  # fmt: skip
    poisoned = RunOptions(PlanRequest(1, dtype=dtype), dispatch=Dispatch.SERIAL, poison=True)
    small = train_model(set_up(asked, poisoned), load_machine("cpu"), asked.how, "random:3")
    assert small.skipped == ((1, 3) if dtype is DType.FP16 else ())
    for dispatch in (Dispatch.DYNAMIC, Dispatch.STATIC):
        pieces = PlanRequest(1, dtype=dtype, pieces=dict(small.planned.graph.split))
        roomy = set_up(TrainRequest(**{**_fields(asked), "budget": 1 << 30}), RunOptions(pieces, dispatch=dispatch))
        large = train_model(roomy, load_machine("cpu"), asked.how, "random:3")
        assert small.losses == large.losses and small.skipped == large.skipped and same(small, large)


def _fields(request: TrainRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in TrainRequest.__dataclass_fields__}


MLP = """\
einpage: 1
name: small
sizes: {batch: 4, inner: 6, outer: 5}
axes: {b: batch, i: inner, o: outer}
inputs: {x: {axes: b i}}
weights: {w: {axes: o i, from: w}, c: {axes: o, from: c}}
body: ["y[b,o] = x[b,i] * w[o,i] + c[o]"]
outputs: {y: {axes: b o}}
train:
  inputs: {target: {axes: b o}}
  body: ["loss = mean[b,o]((y[b,o] - target[b,o]) ** 2)"]
  loss: loss
  optimiser: adamw
  scale: {start: 8, interval: 2}
"""


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize("at", [0, 10, 19])
def test_data_that_are_not_finite_are_skipped(at: int, bad: float, dtype: str, tmp_path: Path) -> None:
    """At the first, a middle and the last element of a target: the second of three steps changes nothing, and the third goes on."""
    spec = tmp_path / "small.yaml"
    spec.write_text(MLP)
    x, target = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32), np.zeros((3, 4, 5), np.float32)
    target[1].reshape(-1)[at] = bad
    given: dict[str, Any] = {"machine": "cpu", "device": "cpu", "budget": "64KiB", "dtype": dtype}
    found = einpage.train(spec, "random:1", steps=3, inputs={"x": x, "target": target}, **given)
    assert found.skipped == (2,) and found.loss_scale == 4 and float(found.states["step"]) == 2
    without = einpage.train(spec, "random:1", steps=2, inputs={"x": x[::2], "target": target[::2]}, **given)
    own = [name for name in found.states if name not in ("loss_scale", "good_steps")]
    assert all(torch.equal(found.states[name], without.states[name]) for name in own) and without.loss_scale == 16


@given(
    st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 4), st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.5, 0.25, 1.0])
)
@example([True] * 4, 1, 2.0, 0.5)
@settings(max_examples=60, deadline=None)
def test_the_scale_is_torchs(finite: list[bool], interval: int, growth: float, backoff: float) -> None:
    """`LossScale.next_values` step by step beside what GradScaler.update calls."""
    made = LossScale(2.0**126, growth, backoff, interval)
    inputs = tuple(Input(name, (), (), DType.FP32, None, Span(1, 1)) for name in ("loss_scale", "good_steps", "bad"))
    found = dict(zip(("scale", "steps"), made.next_values(Load("bad", ())), strict=True))
    definitions = tuple(Definition(name, name, (), (Part((), e),), (), Span(1, 1)) for name, e in found.items())
    outputs = tuple(Output(name, name, (), ()) for name in found)
    program = Program("scale", "scale", {}, {}, {}, inputs, (), definitions, outputs, ())
    theirs, good = torch.full((), made.start), torch.zeros((), dtype=torch.int32)
    scale, steps = torch.full((), made.start), torch.zeros(())
    for is_finite in finite:
        bad = torch.tensor(float(not is_finite))
        torch._amp_update_scale_(theirs, good, bad, growth, backoff, interval)
        next_ = evaluate(program, {"loss_scale": scale, "good_steps": steps, "bad": bad}, {}, torch.float32)
        scale, steps = next_["scale"], next_["steps"]
        assert float(scale) == float(theirs) and int(steps) == int(good)


def tasks_and_bytes(graph: TaskGraph) -> tuple[int, int]:
    return len(graph.tasks), sum(task.bytes_touched for task in graph.tasks)


@pytest.mark.parametrize("pieces", [{}, {"f": 2, "v": 3, "m": 2}])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_the_check_touches_next_to_nothing(dtype: DType, pieces: dict[Any, int]) -> None:
    """Four bytes a tile are written and read; every gradient is made once, checked, and its numbers are read by its update alone."""
    sizes = {"model": 256, "ffn": 512, "vocab": 640, "seq": 64}
    graphs = {}
    for scale in ("dynamic", "none"):
        step = step_of(dtype, scale, **sizes)
        graphs[scale] = graphs_of(step, PlanRequest(1 << 40, dtype=dtype, pieces=pieces, outputs=step.outputs))(1 << 40).graph
    checked = [t for t in graphs["dynamic"].tensors if isinstance(t.element_type, Checked)]
    assert not [t for t in graphs["none"].tensors if isinstance(t.element_type, Checked)]
    assert len({t.value for t in checked}) == len(step.trained)
    joined = {t for task in graphs["dynamic"].tasks if isinstance(task.job, OverflowJob) for t in task.operands[0]}
    assert joined == {t.id for t in checked}
    with_check, without = tasks_and_bytes(graphs["dynamic"])[1], tasks_and_bytes(graphs["none"])[1]
    assert without < with_check <= 1.02 * without
    assert with_check - without <= 40 * len(checked) + 16 * len(graphs["dynamic"].tasks)


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scale, the count of finite steps and which steps were skipped are in the checkpoint."""
    sequences = tmp_path / "sequences.json"
    sequences.write_text(json.dumps(SEQUENCES))
    words = ["train", "llama", "--machine", "cpu", "--device", "cpu", "--weights", "random:3", "--budget", "64KiB", "--dtype", "fp16"]
    words += [w for n, x in SIZES.items() for w in ("--set", f"{n}={x}")] + ["--tokens", str(sequences), "--json", "--lr", "3e-3"]
    words += ["--loss-scale", "interval=2"]
    facts = []
    for folder, steps in (("whole", ["6"]), ("parts", ["3", "6"])):
        for n in steps:
            assert main([*words, "--steps", n, "--out", str(tmp_path / folder), *(["--resume"] if n != steps[0] else [])]) == 0
            facts.append(json.loads(capsys.readouterr().out))
    whole, _, resumed = facts
    assert whole["skipped_steps"] == resumed["skipped_steps"] and whole["skipped_steps"][0] == 1
    assert whole["losses"] == resumed["losses"] and whole["loss_scale"] == resumed["loss_scale"]
    assert whole["loss_scales"][3:] == resumed["loss_scales"]
    for name in ("checkpoint.safetensors", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    refused = {
        "is of a run in fp16; say --dtype fp16": ["--dtype", "bf16"],
        "is of a run with a loss scale; say --loss-scale dynamic, or its numbers": ["--loss-scale", "none"],
    }
    for message, more in refused.items():
        assert main([*words, *more, "--steps", "8", "--out", str(tmp_path / "whole"), "--resume"]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


def test_a_person_is_told_of_a_skipped_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SEQUENCES))
    words = ["train", "llama", "--machine", "cpu", "--device", "cpu", "--weights", "random:3", "--budget", "64KiB", "--dtype", "fp16"]
    words += [w for n, x in SIZES.items() for w in ("--set", f"{n}={x}")] + ["--tokens", str(tmp_path / "s.json"), "--steps", "2"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "skipped: a gradient is not finite at loss scale 65536" in said
    assert "loss scale  32768 in the last step; 1 of 2 steps skipped" in said
