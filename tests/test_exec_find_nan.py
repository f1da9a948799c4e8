"""NaN and inf: said of weights, outputs and a perplexity, and traced to the task that they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf, isnan, nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import einpage
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.einsum_front.spec.reader import load_document
from einpage.exec.cli import main
from einpage.exec.load.fill import fill
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.exec.run import choose
from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions
from einpage.exec.run.find_nan import FirstTask
from einpage.exec.run.outputs import Perplexity, TextFigures, _exp, output_warnings
from einpage.exec.run.prepared import RunResult, run_model
from einpage.exec.system.finite import merged, number_counts
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.memplan.machine.profile import load_machine
from fake_driver import FakeDriver
from specs_small import SPECS

SIZES = {"vocab": 64, "model": 16, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128}
UP = "model.layers.1.mlp.up_proj.weight"
TOKENS = [[1, 2, 3], [4, 5, 6, 7, 8]]
Change = Callable[[dict[str, torch.Tensor]], None]


def checkpoint(path: Path, change: Change) -> str:
    """A small LLaMA as safetensors, after `change`."""
    program = elaborate(load_document(SPECS / "llama.yaml"), SIZES)
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for weight in program.weights:
        source = weight.sources[0]
        shape = [prod(weight.shape[i] for i in group) for group in source.groups]
        weights[source.name] = torch.randn(shape, generator=generator) * 0.2 + (1 if "norm" in source.name else 0)
    change(weights)
    save_file(weights, path / "model.safetensors")
    return str(path / "model.safetensors")


def planted(name: str, index: tuple[int, ...], value: float) -> Change:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights[name][index] = value

    return change


def llama(path: Path, change: Change, **options: Any) -> RunResult:
    model = einpage.load_spec("llama", set=SIZES, weights=checkpoint(path, change), tokens=TOKENS)
    return einpage.run(model, budget="1MiB", machine="cpu", device="cpu", **options)


def first_of(result: RunResult) -> FirstTask:
    assert result.report.find_nan is not None
    assert result.report.find_nan.first is not None
    return result.report.find_nan.first


def line_of(text: str, path: Path = SPECS / "llama.yaml") -> int:
    (found,) = (n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return found


@pytest.mark.parametrize(("split", "tile"), [({}, "[0:2,0:5,0:128]"), ({"f": 2}, "[0:2,0:5,64:128]")])
def test_a_nan_in_one_weight_is_traced_to_the_task_that_reads_it(split: dict[str, int], tile: str, tmp_path: Path) -> None:
    result = llama(tmp_path, planted(UP, (70, 5), nan), split=split, find_nan=True)
    first = first_of(result)
    assert first.tile == f"y.1{tile}"
    assert (first.kind, first.iteration) == ("contract", (1,))
    assert first.place.endswith(f"llama.yaml:{line_of('silu(gate')}")
    assert first.statement == "y[b,s,f] = silu(gate[b,s,f]) * up[b,s,f]"
    assert first.result.startswith("10 of ")
    assert first.result.endswith("values are NaN, the first at [0, 0, 70]")
    operands = dict(first.operands)
    assert operands["w3@1"].endswith("values is NaN, the first at [70, 5]")
    assert operands["n.1"].startswith("from -")
    assert result.report.dispatch is Dispatch.SERIAL
    said = [w for w in result.report.warnings if "NaN" in w]
    assert said == [
        f"weights of the checkpoint are not finite: {UP}, 1 of 2048 values, the first NaN at [70, 5]",
        "output logits: 128 of 128 values are NaN, the first at [0, 0]",
    ]


def test_without_it_a_nan_is_said_once_and_the_run_is_as_before(tmp_path: Path) -> None:
    result = llama(tmp_path, planted(UP, (70, 5), nan), perplexity=True)
    assert result.report.find_nan is None
    assert result.report.dispatch is Dispatch.DYNAMIC
    assert "find_nan" not in result.facts
    said = [w for w in result.report.warnings if "output" in w or "perplexity" in w]
    assert said == [
        "output logits: 128 of 128 values are NaN, the first at [0, 0]; --find-nan names the task that it comes from",
        "output all_logits: 640 of 640 values are NaN, the first at [0, 0, 0]; --find-nan names the task that it comes from",
        "the perplexity is nan, which says nothing of the model",
    ]


def test_what_is_finite_is_not_warned_of_and_has_the_same_bits(tmp_path: Path) -> None:
    usual = llama(tmp_path, lambda weights: None)
    looked = llama(tmp_path, lambda weights: None, find_nan=True)
    assert torch.equal(usual.outputs["logits"], looked.outputs["logits"])
    found = looked.report.find_nan
    assert found is not None
    assert (found.first, found.not_finite, found.tasks) == (None, 0, looked.report.plan.tasks)
    assert found.text().endswith("every output is finite")
    for result in (usual, looked):
        assert not [w for w in result.report.warnings if "finite" in w or "NaN" in w or "inf" in w]


def test_weights_beyond_the_dtype_of_a_run_are_said(tmp_path: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights[UP][3, 5:7] = torch.tensor([1e30, -7e4])
        weights["model.norm.weight"][2] = -inf
        weights["model.embed_tokens.weight"][63, 15] = 65504.0

    result = llama(tmp_path, change, dtype="fp16")
    said = [w for w in result.report.warnings if w.startswith("weights")]
    assert said == [
        "weights of the checkpoint are not finite: model.norm.weight, 1 of 16 values, the first -inf at [2]",
        "weights beyond fp16, whose largest number is 6.55e+04, are infinite in this run (bf16 and fp32 hold more): "
        f"{UP}, 2 of 2048 values, the first 1e+30 at [3, 5]",
    ]


def test_of_many_weights_that_are_not_finite_a_few_are_named(tmp_path: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for weight in weights.values():
            weight.flatten()[0] = inf
        weights[UP][3, 5] = 1e30  # not beyond bf16

    (said,) = (w for w in llama(tmp_path, change, dtype="bf16").report.warnings if w.startswith("weights"))
    count = len(elaborate(load_document(SPECS / "llama.yaml"), SIZES).weights)
    assert said.count("of ") == 4
    assert said.endswith(f"; and {count - 3} more weights")


@pytest.mark.parametrize(("stored", "run"), [("float16", "fp32"), ("float32", "fp16"), ("float16", "bf16")])
def test_blocks_are_counted_together_in_the_index_of_the_checkpoint(stored: str, run: str, tmp_path: Path) -> None:
    w = torch.ones((3, 1100, 900), dtype=getattr(torch, stored))
    w[2, 7, 9] = w[2, 1099, 899] = nan
    w[1, 0, 3] = -inf
    save_file({"w": w}, tmp_path / "w.safetensors")
    (tmp_path / "s.yaml").write_text(
        "einpage: 1\nname: s\nsizes: {n: 3, m: 1100, k: 900}\naxes: {a: n, b: m, c: k}\n"
        "weights: {w: {axes: a b c, from: w}, u: {axes: a b c, from: w}}\nbody: ['y[a] = max[b,c](w[a,b,c] + u[a,b,c])']\n"
        "outputs: {y: {axes: a}}\n"
    )
    model = open_model(tmp_path / "s.yaml", {}, str(tmp_path / "w.safetensors"))
    assert model.resolved is not None
    graph = build_graph(model.program, PlanRequest(64 << 20, DType(run))).graph
    slots = {t.id: torch.empty(t.shape, dtype=TORCH_DTYPE[t.dtype]) for t in graph.tensors if t.kind is Kind.WEIGHT}
    (found,) = fill(graph, model.resolved, slots)
    assert (found.tensor, found.count, found.beyond, found.first, found.value) == ("w", 3, False, (1, 0, 3), -inf)


OVERFLOW = """\
einpage: 1
name: overflow
sizes: {rows: 3, wide: 8}
axes: {a: rows, b: rows, i: wide, o: wide, j: wide}
inputs: {x: {axes: a i}, n: {axes: a}}
weights:
  w: {axes: o i, from: w}
  v: {axes: j o, from: v}
body:
  - p[a,b] = where(b <= a, x[a,i] * x[b,i], -inf)
  - m[a] = max[b](p[a,b])
  - h[a,o] = x[a,i] * w[o,i]
  - g[a,j] = h[a,o] * v[j,o]
  - y[a,j] = g[a,j] + m[a] + sqrt(n[a])
outputs: {y: {axes: a j}, p: {axes: a b}}
"""


def overflowing(tmp_path: Path, scale: float, *, n: float = 1.0, outputs: tuple[str, ...] = (), **options: Any) -> RunResult:
    spec = tmp_path / "overflow.yaml"
    spec.write_text(OVERFLOW)
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.full((8, 8), scale), "v": torch.full((8, 8), 0.5)}, path)
    model = open_model(spec, {}, str(path))
    inputs = {"x": np.full((3, 8), 2.0, np.float32), "n": np.array([n, 1, 1], np.float32)}
    return einpage.run(model, budget="1MiB", machine="cpu", device="cpu", outputs=outputs, inputs=inputs, find_nan=True, **options)


def test_an_overflow_is_found_where_it_happens_and_masks_are_not_taken_for_it(tmp_path: Path) -> None:
    result = overflowing(tmp_path, 1e4, dtype="fp16")
    first = first_of(result)
    assert first.place.endswith(f"overflow.yaml:{line_of('h[a,o] = x', tmp_path / 'overflow.yaml')}")
    assert dict(first.operands) == {"x": "from 2 to 2", "w": "from 1e+04 to 1e+04"}
    assert first.iteration == ()
    found = result.report.find_nan
    assert found is not None
    assert found.not_finite >= 3, "the masked scores are not finite either, and come first"
    fine = overflowing(tmp_path, 1e4).report
    assert fine.find_nan is not None
    assert (fine.find_nan.first, fine.find_nan.not_finite) == (None, 1)
    assert fine.find_nan.text().endswith("every output is finite; 1 results held NaN or inf that reach none")
    assert not [w for w in fine.warnings if "inf" in w]


def test_what_a_task_makes_of_finite_numbers_is_told_by_its_operands(tmp_path: Path) -> None:
    first = first_of(overflowing(tmp_path, 1.0, n=-1.0))
    assert first.statement.startswith("y[a,j] = ")
    assert dict(first.operands)["n"] == "from -1 to 1"
    assert first.result == "8 of 24 values are NaN, the first at [0, 0]"


def test_an_output_that_is_minus_infinity_is_said_as_what_it_is(tmp_path: Path) -> None:
    result = overflowing(tmp_path, 1.0, outputs=("p",))
    assert "output p: 3 of 9 values are -inf, the first at [0, 1]" in result.report.warnings
    assert first_of(result).statement.startswith("p[a,b] = where")
    assert first_of(overflowing(tmp_path, 1.0, outputs=("p", "y"), n=-1.0)).statement.startswith("y[a,j] = ")


def test_on_streams_the_same_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    model = open_model(SPECS / "llama.yaml", {**SIZES, "seq": "4"}, checkpoint(tmp_path, planted(UP, (70, 5), nan)))
    inputs = {"tokens": np.arange(4, dtype=np.int32)[None], "lengths": np.full(1, 4, np.int32)}
    found = []
    for kind in DeviceKind:
        options = RunOptions(PlanRequest(20_000), device=kind, kernels="torch", find_nan=True)
        found.append(run_model(model, load_machine("cpu", threads=1), options, inputs).report.find_nan)
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].first is not None
    assert found[0].first.statement.startswith("y[b,s,f]")


def strict(text: str) -> Any:
    """JSON, in which NaN is no number."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_command_line_says_it_and_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = checkpoint(tmp_path, planted(UP, (70, 5), nan))
    (tmp_path / "t.json").write_text(json.dumps(TOKENS))
    sizes = [word for name, n in SIZES.items() for word in ("--set", f"{name}={n}")]
    words = ["run", "llama", *sizes, "--weights", weights, "--tokens", str(tmp_path / "t.json"), "--budget", "1MiB", "--machine", "cpu"]
    words += ["--device", "cpu", "--perplexity"]
    assert main([*words, "--json", "--find-nan"]) == 0
    facts = strict(capsys.readouterr().out)
    assert facts["perplexity"] is None
    assert facts["top"][0][0] == [0, None, None]
    assert facts["find_nan"]["first"]["tile"] == "y.1[0:2,0:5,0:128]"
    assert sum("values are NaN" in w for w in facts["warnings"]) == 2
    assert main([*words, "--find-nan"]) == 0
    said = capsys.readouterr()
    assert "the first that is not finite is y.1[0:2,0:5,0:128] (task" in said.out
    assert "warning: output logits: 128 of 128 values are NaN, the first at [0, 0]\n" in said.err
    assert main([*words, "--find-nan", "--dispatch", "static"]) == 2
    assert "--find-nan runs one node after the other, which --dispatch static does not" in capsys.readouterr().err


def test_a_perplexity_beyond_a_float_is_infinite() -> None:
    assert _exp(1.0) == pytest.approx(2.718281828)
    assert _exp(800.0) == inf
    assert isnan(_exp(nan))
    text = TextFigures(perplexity=Perplexity(800.0, inf, 2))
    assert [*output_warnings({}, text, False)] == ["the perplexity is inf, which says nothing of the model"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_counts_of_numbers(dtype: torch.dtype) -> None:
    plain = number_counts(torch.tensor([[1, -2], [3, 0]], dtype=dtype))
    assert (plain.low, plain.high, plain.bad, plain.first, plain.text()) == (-2, 3, 0, None, "from -2 to 3")
    mixed = number_counts(torch.tensor([[1, inf, 2], [nan, -inf, nan]], dtype=dtype))
    assert (mixed.low, mixed.high, mixed.nan, mixed.plus_inf, mixed.minus_inf, mixed.first) == (1, 2, 2, 1, 1, (0, 1))
    assert mixed.text() == "4 of 6 values are not finite (2 NaN, 1 inf, 1 -inf), the first at [0, 1]"
    whole = merged([(plain, (2, 0)), (mixed, (0, 4))])
    assert (whole.count, whole.low, whole.high, whole.bad, whole.first) == (10, -2, 3, 4, (0, 5))
    assert number_counts(torch.tensor(nan, dtype=dtype)).text() == "1 of 1 values is NaN, the first at []"
