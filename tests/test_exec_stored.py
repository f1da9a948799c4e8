"""Runs whose weights wait and travel as their checkpoint stores them: the results of dequantised weights to the bit, for fewer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import einpage
from command_line import facts, ran
from einpage.checkpoints.match.resolve import open_weights
from einpage.einsum_front.base.dtype import BlockFormat, Stored
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.libraries import ALWAYS, Libraries
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.load.fill import read_weights
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import load_machine
from stored_blocks import dequantised, gguf_type, random_blocks

B = BlockFormat
SIZES = {"vocab": 96, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96}
HEADS = {"head_count": 4, "head_count_kv": 2, "key_length": 16}
K_SIZES = {"vocab": 96, "embedding_length": 256, "block_count": 1, "feed_forward_length": 512}
K_HEADS = {"head_count": 4, "head_count_kv": 2, "key_length": 64}
MIXES: dict[str, dict[str, BlockFormat]] = {
    "q8_0": dict.fromkeys(("token_embd", "attn", "ffn"), B.Q8_0),
    "q4": {"token_embd": B.Q8_0, "attn": B.Q4_0, "ffn": B.Q4_1},
    "k": {"token_embd": B.Q6_K, "attn": B.Q4_K, "ffn": B.Q6_K},
    "half": {"token_embd": B.FP16, "attn": B.BF16, "ffn": B.FP16},
}


def written_llama(path: Path, mix: Mapping[str, BlockFormat], spoiled: str = "") -> Path:
    """A LLaMA of random blocks, as GGUF; its norms are fp32. The scale of the first block of the tensor `spoiled` is NaN."""
    has_k = any(format.elements == 256 for format in mix.values())
    sizes, heads = (K_SIZES, K_HEADS) if has_k else (SIZES, HEADS)
    model, ffn, head = sizes["embedding_length"], sizes["feed_forward_length"], heads["key_length"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.vocab_size", sizes["vocab"])
    for key in ("embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", sizes[key])
    for key, value in heads.items():
        writer.add_uint32(f"llama.attention.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 1e4)
    matrices = {"attn_q": (heads["head_count"] * head, model), "attn_output": (model, heads["head_count"] * head)}
    matrices |= dict.fromkeys(("attn_k", "attn_v"), (heads["head_count_kv"] * head, model))
    matrices |= {"ffn_gate": (ffn, model), "ffn_up": (ffn, model), "ffn_down": (model, ffn)}
    named = {"token_embd": (sizes["vocab"], model)}
    named |= {f"blk.{n}.{name}": shape for n in range(sizes["block_count"]) for name, shape in matrices.items()}
    for seed, (name, shape) in enumerate(named.items()):
        format = next(format for word, format in mix.items() if word in name)
        raw = random_blocks(format, prod(shape) // format.elements, seed)
        if name == spoiled:
            raw[0, :2] = (0x00, 0x7E)
        of_rows = raw.reshape(shape[0], -1)
        writer.add_tensor(f"{name}.weight", of_rows if format.is_quantised else of_rows.view(np.uint8), raw_dtype=gguf_type(format))
    norms = ["output_norm", *(f"blk.{n}.{norm}" for n in range(sizes["block_count"]) for norm in ("attn_norm", "ffn_norm"))]
    for seed, name in enumerate(norms):
        writer.add_tensor(f"{name}.weight", np.random.default_rng(seed).uniform(0.5, 1.5, model).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("llamas")
    return {name: written_llama(folder / f"{name}.gguf", mix) for name, mix in MIXES.items()}


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Whose few rows our own kernels multiply, stored or not."""
    return replace(load_machine("cpu"), libraries=Libraries(compiled=ALWAYS), threads=1)


def tokens(count: int, batch: int = 1) -> list[list[int]]:
    return np.random.default_rng(count).integers(0, 96, (batch, count)).tolist()  # type: ignore[no-any-return]


def stored_bytes(checkpoint: Path) -> int:
    """Of all tensors of a checkpoint: each is used, the table by the logits too."""
    found = open_weights(str(checkpoint))
    total = 0
    for name, shape in found.tensors.items():
        format = found.block_format(name)
        total += 4 * prod(shape) if format is None else prod(shape) // format.elements * format.nbytes
    return total


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize(("count", "dispatch", "budget"), [(1, "static", "1MiB"), (7, "dynamic", "256KiB"), (40, "serial", "512KiB")])
def test_results_are_those_of_dequantised_weights_to_the_bit(
    llamas: dict[str, Path], machine: Machine, name: str, count: int, dispatch: str, budget: str
) -> None:
    budget = "1MiB" if name == "k" else budget
    model = einpage.load_spec("llama", weights=llamas[name], tokens=tokens(count))
    given: dict[str, Any] = {"machine": machine, "device": "cpu", "outputs": ["all_logits"], "dispatch": dispatch}
    stored = einpage.run(model, budget=budget, weights_as="stored", **given)
    kept = {v.name.partition("@")[0]: v.element_type for v in stored.planned.graph.values if v.kind is Kind.WEIGHT}
    assert all(isinstance(type, Stored) is ("norm" not in name) for name, type in kept.items()), kept
    split = dict(stored.planned.graph.split)
    run = einpage.run(model, budget="8MiB", weights_as="run", split={str(letter): n for letter, n in split.items()}, **given)
    assert torch.equal(stored.outputs["all_logits"], run.outputs["all_logits"])
    assert model.resolved is not None
    inputs = {"tokens": torch.tensor(tokens(count), dtype=torch.int32)}
    weights = read_weights(model.resolved, model.program)
    exact, single = (
        evaluate(model.program, inputs, weights, dtype, ["all_logits"])["all_logits"] for dtype in (torch.float64, torch.float32)
    )
    scale = exact.abs().max()
    error, usual = ((found.double() - exact).abs().max() / scale for found in (stored.outputs["all_logits"], single))
    assert error < max(1e-5, 4 * usual), "further off than fp32 is"
    gathered = 4 * count * model.program.sizes["model"]
    assert stored.report.plan.h2d_bytes <= 1.02 * stored_bytes(llamas[name]) + gathered + 1024 < run.report.plan.h2d_bytes


@pytest.mark.parametrize("name", ["q4", "half"])
def test_a_run_in_bf16_rounds_the_numbers(llamas: dict[str, Path], machine: Machine, name: str) -> None:
    model = einpage.load_spec("llama", weights=llamas[name], tokens=tokens(5))
    both = [
        einpage.run(model, budget="4MiB", dtype="bf16", weights_as=form, machine=machine, device="cpu", split={}).outputs["logits"]
        for form in ("stored", "run")
    ]
    assert torch.allclose(both[0].float(), both[1].float(), rtol=2e-2, atol=2e-2 * both[1].float().abs().max().item())


def test_what_is_quantised_is_kept_unasked_and_halves_are_not(llamas: dict[str, Path], machine: Machine, tmp_path: Path) -> None:
    def kept(path: Path, **options: Any) -> set[str]:
        planned = einpage.plan(einpage.load_spec("llama", weights=path, tokens=tokens(3)), budget="4MiB", **options)
        return {v.element_type.format.value for v in planned.graph.values if isinstance(v.element_type, Stored)}

    assert kept(llamas["q4"]) == {"q8_0", "q4_0", "q4_1"}
    assert kept(llamas["half"]) == set() == kept(llamas["q4"], weights_as="run") == kept(llamas["q4"], machine="h100")
    assert kept(llamas["half"], weights_as="stored") == {"fp16", "bf16"}
    assert kept(llamas["half"], weights_as="stored", dtype="bf16") == {"fp16"}
    with pytest.raises(UsageError, match="Triton's kernels read numbers"):
        kept(llamas["q4"], weights_as="stored", machine="h100")
    with pytest.raises(UsageError, match="weights_as 'packed': expected stored or run"):
        kept(llamas["q4"], weights_as="packed")


def test_a_weight_that_something_else_reads_too_is_numbers(tmp_path: Path) -> None:
    """`w` is multiplied and added: both read numbers. `v` is only multiplied; `u` has rows that are not its last dimension, `p` is stored
    less 1, `t` is added to a product."""
    spec = tmp_path / "m.yaml"
    spec.write_text(
        "einpage: 1\nname: m\nsizes: {n: 4, i: 64}\naxes: {a: n, j: i, k: i, d: i}\ninputs:\n  x: {axes: a j}\nweights:\n"
        "  w: {axes: k j, from: w}\n  v: {axes: k j, from: v}\n  u: {axes: k j, from: {name: u, axes: j k}}\n"
        "  p: {axes: k j, from: {name: p, axes: k j, plus: 1}}\n  t: {axes: k j, from: t}\n"
        "body:\n  - y[a,k] = x[a,j] * w[k,j]\n  - z[a,k] = sum[j](y[a,j] * v[k,j])\n  - o[a,k] = sum[j](z[a,j] * u[k,j])"
        " + sum[j](z[a,j] * p[k,j])\n  - q[k,j] = w[k,j] + 1\n  - r[k,d] = sum[j](v[k,j] * v[d,j]) + t[k,d]\n"
        "outputs:\n  o: {axes: a k}\n  r: {axes: k d}\n  q: {axes: k j}\n",
        encoding="utf-8",
    )
    save_file({name: torch.randn(64, 64).to(torch.bfloat16) for name in "wvupt"}, tmp_path / "m.safetensors")
    model = einpage.load_spec(spec, weights=tmp_path / "m.safetensors")
    planned = einpage.plan(model, budget="1MiB", weights_as="stored", outputs=["o", "q", "r"])
    assert {v.name for v in planned.graph.values if isinstance(v.element_type, Stored)} == {"v"}
    both = [
        einpage.run(
            model, budget="1MiB", weights_as=form, outputs=["r"], device="cpu", machine="cpu", inputs={"x": torch.ones(4, 64)}
        ).outputs["r"]
        for form in ("stored", "run")
    ]
    assert torch.allclose(*both, rtol=1e-5, atol=1e-4)


def test_a_scale_that_is_no_number_is_told(tmp_path: Path, machine: Machine) -> None:
    path = written_llama(tmp_path / "m.gguf", MIXES["q4"], spoiled="blk.1.ffn_up")
    result = einpage.run(einpage.load_spec("llama", weights=path, tokens=tokens(3)), budget="1MiB", machine=machine, device="cpu")
    assert any("blk.1.ffn_up.weight" in warning and "NaN" in warning for warning in result.report.warnings)
    model = einpage.load_spec("llama", weights=path, tokens=tokens(3))
    found = einpage.run(model, budget="1MiB", machine=machine, device="cpu", find_nan=True).report.find_nan
    assert found is not None and found.first is not None
    read = dict(found.first.operands)
    assert {name for name, held in read.items() if "NaN" in held} == {"w3@1"}, read


def test_plans_are_saved_and_verified_with_the_checkpoint(
    llamas: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, weights = str(tmp_path / "p.json"), str(llamas["q4"])
    told = facts(capsys, "plan", "llama", "--budget", "256KiB", "--weights", weights, "--set", "seq=5", "--out", out, "--json")
    run = facts(capsys, "plan", "llama", "--budget", "4MiB", "--weights", weights, "--set", "seq=5", "--weights-as", "run", "--json")
    assert told["h2d_bytes"] * 3 < run["h2d_bytes"]
    assert "verified" in ran(capsys, "verify", out, "--spec", "llama", "--weights", weights)[0]
    assert "verified" in ran(capsys, "verify", out)[0]
    _, error = ran(capsys, "verify", out, "--spec", "llama", status=2)
    assert "give that too, as --weights PATH" in error
    said, error = ran(capsys, "verify", out, "--spec", "llama", "--weights", str(llamas["q8_0"]), status=2)
    assert "element_type is q4_0 rows 1 fp32, and should be q8_0 rows 1 fp32" in said + error
    text = Path(out).read_text(encoding="utf-8")
    for wrong in ("q4_0 rows 0 fp32", "q4_0 rows 9 fp32", f"q4_0 rows {'9' * 30} fp32", "q4_0 rows 1 int32", "q6_k rows 1 fp32"):
        Path(out).write_text(text.replace("q4_0 rows 1 fp32", wrong), encoding="utf-8")
        assert "damaged plan file" in ran(capsys, "verify", out, status=2)[1], wrong
    for wrong in ('"foo"', "[1]", "null"):
        Path(out).write_text(
            text.replace('"weights_as":"auto"', f'"weights_as":{wrong}').replace('"weights_as": "auto"', f'"weights_as": {wrong}'),
            encoding="utf-8",
        )
        assert "its recipe has no 'weights_as'" in ran(capsys, "verify", out, "--spec", "llama", "--weights", weights, status=2)[1], wrong


def test_what_has_no_effect_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "llama", "--budget", "4MiB", "--weights-as", "stored", "--set", "layers=1", "--set", "seq=5", "--set", "model=64")
    words += ("--set", "heads=4", "--set", "ffn=96", "--set", "vocab=96")
    for weights in ((), ("--weights", "random:0")):
        assert "--weights-as stored has no effect" in ran(capsys, *words, *weights)[1]
    assert "no effect" not in ran(capsys, *words[:4], *words[6:])[1]


def test_blocks_are_cut_between_them(llamas: dict[str, Path]) -> None:
    """ffn in three pieces ends at 64 and at 96: both between blocks of 32; in K-quants of 256, nowhere within a row of 512 but at 256."""
    model = einpage.load_spec("llama", weights=llamas["k"], tokens=tokens(3))
    graph = einpage.plan(model, budget="8MiB", weights_as="stored", split={"f": 4}).graph
    w2 = {t.box for t in graph.tensors if t.value.startswith("w2")}
    assert {(box.start[1], box.end[1]) for box in w2} == {(0, 256), (256, 512)}
    w1 = {t.box for t in graph.tensors if t.value.startswith("w1")}
    assert {(box.start[0], box.end[0]) for box in w1} == {(0, 128), (128, 256), (256, 384), (384, 512)}
    for t in graph.tensors:
        if isinstance(type := t.element_type, Stored):
            assert t.nbytes * type.format.elements == t.box.size * type.format.nbytes


def test_rows_that_are_looked_up_cross_the_link_as_numbers(llamas: dict[str, Path], tmp_path: Path, machine: Machine) -> None:
    spec = tmp_path / "m.yaml"
    spec.write_text(
        "einpage: 1\nname: m\nsizes: {n: 3, vocab: 96, i: 64}\naxes: {a: n, v: vocab, j: i}\ninputs:\n  tokens: {axes: a, dtype: int32}\n"
        "weights:\n  table: {axes: v j, from: token_embd.weight}\nignore: ['*']\n"
        "assume: {llama.attention.head_count: 4, llama.attention.layer_norm_rms_epsilon: 1.0e-5, llama.rope.freq_base: 10000}\n"
        "body:\n  - x[a,j] = table[tokens[a], j] * 2\n"
        "outputs:\n  x: {axes: a j}\n",
        encoding="utf-8",
    )
    model, given = einpage.load_spec(spec, weights=llamas["q4"]), np.array([3, 3, 95])
    result = einpage.run(model, budget="64KiB", machine=machine, device="cpu", inputs={"tokens": given})
    table = dequantised(B.Q8_0, open_weights(str(llamas["q4"])).read_stored("token_embd.weight", 0, 96)).reshape(96, 64)
    assert np.array_equal(result.outputs["x"].numpy(), table[given] * 2)
    assert result.report.plan.h2d_bytes == 3 * 64 * 4
    assert result.report.plan.host_bytes < 96 * 68 + 4096
