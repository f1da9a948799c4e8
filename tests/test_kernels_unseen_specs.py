"""Specs that nobody prepared: each compiles for GPUs that are not here, and its Triton kernels, interpreted, compute what the eager
reference computes, whole and split into tiles, every tensor poisoned first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import AttentionJob
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from einpage.kernels.prepare import Backend
from kernels_naive import TOLERANCE, relative_error
from real_bytes import direct
from spec_strategies import random_data, random_spec

pytest.importorskip("triton")

from einpage.kernels.launch.usage import resources
from einpage.kernels.tiles.target import CAPABILITIES, Target

HEAD = """
einpage: 1
name: made
"""
ATTENDING = """
sizes: {batch: 2, seq: 41, heads: 2, group: 2, head: 24, window: 9}
axes: {b: batch, s: seq, t: seq, k: heads, g: group, d: head}
inputs:
  q: {axes: b s k g d}
  p: {axes: b t k d}
  v: {axes: b t k d}
"""
ATTENDED = "  - y[b,s,k,g,d] = a[b,k,g,s,t] * v[b,t,k,d]\noutputs: {y: {axes: b s k g d}}\n"


def attending(scores: str, more: str = "", body: str = "") -> str:
    return f"{HEAD}{ATTENDING}{more}body:\n{body}  - a[b,k,g,s,t] = softmax[t]({scores})\n{ATTENDED}"


DOT = "q[b,s,k,g,d] * p[b,t,k,d]"
SPECS = {
    "squared relu": f"""{HEAD}
sizes: {{rows: 40, model: 33, ffn: 50}}
axes: {{r: rows, m: model, n: model, f: ffn}}
inputs: {{x: {{axes: r m}}}}
weights: {{up: {{axes: f m, from: up}}, down: {{axes: n f, from: down}}}}
body:
  - h[r,f] = relu(x[r,m] * up[f,m]) ** 2
  - y[r,n] = x[r,n] + h[r,f] * down[n,f]
outputs: {{y: {{axes: r n}}}}
""",
    "gate": f"""{HEAD}
sizes: {{rows: 40, model: 33, ffn: 50}}
axes: {{r: rows, m: model, f: ffn}}
inputs: {{x: {{axes: r m}}}}
weights: {{gate: {{axes: f m, from: g}}, up: {{axes: m f, from: u}}, offset: {{axes: f, from: o}}}}
body:
  - a[r,f] = x[r,m] * gate[f,m]
  - b[r,f] = x[r,m] * up[m,f]
  - y[r,f] = sigmoid(a[r,f] - offset[f]) * b[r,f] + tanh(offset[f])
outputs: {{y: {{axes: r f}}}}
""",
    "norm over two axes": f"""{HEAD}
sizes: {{rows: 40, heads: 3, head: 21}}
axes: {{r: rows, h: heads, d: head}}
inputs: {{x: {{axes: r h d}}}}
weights: {{w: {{axes: h d, from: w}}, c: {{axes: d, from: c}}}}
body:
  - u[r,h,d] = x[r,h,d] - mean[h,d](x[r,h,d])
  - y[r,h,d] = u[r,h,d] * rsqrt(mean[h,d](u[r,h,d]**2) + 1e-5) * w[h,d] + c[d]
outputs: {{y: {{axes: r h d}}}}
""",
    "norms along both sides": f"""{HEAD}
sizes: {{rows: 40, cols: 50}}
axes: {{r: rows, c: cols}}
inputs: {{x: {{axes: r c}}}}
body:
  - y[r,c] = x[r,c] / sqrt(mean[c](x[r,c]**2) * sum[r](x[r,c]**2)) + max[r,c](x[r,c])
outputs: {{y: {{axes: r c}}}}
""",
    "reduction within a reduction": f"""{HEAD}
sizes: {{rows: 20, cols: 33, deep: 5}}
axes: {{r: rows, c: cols, e: deep}}
inputs: {{x: {{axes: r c e}}}}
body:
  - y[r] = min[c](sum[e](x[r,c,e]) * max[e](abs(x[r,c,e]))) + mean[c,e](softmax[e](x[r,c,e]) * c)
outputs: {{y: {{axes: r}}}}
""",
    "soft cap": attending(f"where(t <= s, tanh({DOT} / sqrt(head) / 30) * 30, -inf)"),
    "sliding window": attending(f"where(t <= s and s - t < window, {DOT} / sqrt(head), -inf)"),
    "linear bias": attending(f"where(t <= s, {DOT} / sqrt(head) - 2 ** (-8 * (k * group + g + 1) / (heads * group)) * (s - t), -inf)"),
    "bias and lengths": attending(
        f"where(t <= s and t < lengths_42[b], {DOT} * 0.25 + slope[k,g] * bias[s,t], -inf)",
        "  lengths_42: {axes: b, dtype: int32}\nweights: {slope: {axes: k g, from: s}, bias: {axes: s t, from: b}}\n",
    ),
    "blocks of a document": attending(f"where(s // 16 == t // 16 or t == 0, {DOT}, -inf)"),
    "scores of normed heads": attending(
        "where(t <= s, qn[b,s,k,g,d] * pn[b,t,k,d] / head, -inf)",
        body="  - qn[b,s,k,g,d] = q[b,s,k,g,d] * rsqrt(mean[d](q[b,s,k,g,d]**2) + 1e-6)\n"
        "  - pn[b,t,k,d] = p[b,t,k,d] * rsqrt(mean[d](p[b,t,k,d]**2) + 1e-6)\n",
    ),
}


MOST_TILES = 100


def graph_of(name: str, halved: bool, dtype: DType) -> tuple[Program, TaskGraph]:
    program = elaborate(read_document(SPECS[name], "unseen.yaml"))
    return program, tiled(program, lambda top: min(top, 2 if halved else 1), dtype)


def tiled(program: Program, pieces: Callable[[int], int], dtype: DType) -> TaskGraph:
    """Every letter that can be split into at most `top` pieces, in `pieces(top)`."""
    opgraph = fuse(program, [o.name for o in program.outputs])
    with patch.object(tiling, "GRAIN", 2), patch.object(template, "GRAIN", 2):
        most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
        return split(opgraph, {letter: n for letter, top in most.items() if (n := pieces(top)) > 1}, dtype)


def check(program: Program, graph: TaskGraph, dtype: DType, least: float = 0.0) -> None:
    """Outputs against the reference, relative to their largest value, or to `least` where that is larger."""
    data = random_data(program, 0)
    rounded = {n: torch.from_numpy(a).to(torch.bfloat16).float().numpy() if a.dtype == np.float32 else a for n, a in data.items()}
    data = data if dtype is DType.FP32 else rounded
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    got = direct(graph, data, Backend.TRITON)
    for name, want in evaluate(program, tensors, tensors, torch.float64).items():
        largest = float(want.abs().max())
        error = relative_error(got[name], want.numpy()) * min(1.0, largest / least if least else 1.0)
        assert error <= TOLERANCE[dtype], f"output {name} is off by {error:.1e} of its largest value"


@pytest.mark.interpreter
@pytest.mark.parametrize("name", SPECS)
def test_a_new_spec_computes_the_reference(name: str) -> None:
    """Split: a whole graph is the simpler case."""
    check(*graph_of(name, True, DType.FP32), DType.FP32)


BACKWARDS = f"""{HEAD}
sizes: {{from: 16000, deep: 4}}
axes: {{r: from, f: from, e: deep}}
inputs: {{x: {{axes: f e}}, w: {{axes: e}}}}
body:
  - z[f] = x[f,e] * w[e]
  - y[r] = tanh(z[from-1-r]) - z[r]
outputs: {{y: {{axes: r}}}}
"""


@pytest.mark.interpreter
@pytest.mark.parametrize("tiles", [2, 33, 250])
def test_a_load_may_read_many_tiles(tiles: int) -> None:
    program = elaborate(read_document(BACKWARDS, "unseen.yaml"))
    graph = split(fuse(program), {Letter("f"): tiles}, DType.FP32)
    assert max(len(operand) for task in graph.tasks for operand in task.operands) == tiles
    check(program, graph, DType.FP32)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16])
@pytest.mark.parametrize("halved", [False, True], ids=["whole", "halved"])
@pytest.mark.parametrize("name", SPECS)
def test_a_new_spec_computes_the_reference_in_any_precision(name: str, halved: bool, dtype: DType) -> None:
    check(*graph_of(name, halved, dtype), dtype)


def test_new_specs_compile() -> None:
    compile_all(["norm over two axes", "soft cap", "reduction within a reduction"], [False], DType.BF16, 90)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_new_spec_compiles(capability: int, dtype: DType) -> None:
    compile_all(SPECS, [False, True], dtype, capability)


def compile_all(names: Iterable[str], splits: Sequence[bool], dtype: DType, capability: int) -> None:
    jobs = [task.job for name in names for halved in splits for task in graph_of(name, halved, dtype)[1].tasks if task.job is not None]
    for r in resources(jobs, Target(capability)):
        assert r.fits, f"{r.launch.text}\n{r.error or r.shared_bytes}"
        assert not (isinstance(r.job, AttentionJob) and r.spills and dtype is not DType.FP32), (
            f"{r.spills} spills in {r.registers} registers\n{r.launch.text}"
        )


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(8))
def test_random_specs_compute_the_reference(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        program, graph = randomly_tiled(seed)
        check(program, graph, DType.FP32, least=1.0)


def randomly_tiled(seed: int) -> tuple[Program, TaskGraph]:
    """Never makes: a task that reads MOST_TILES and more, of whose kernel the interpreter makes minutes."""
    random = Random(seed)
    for statements, most in product((6, 4, 2), (4, 2, 1)):
        program = elaborate(read_document(random_spec(seed, most_statements=statements), "unseen.yaml"))
        graph = tiled(program, partial(some, random, most), DType.FP32)
        if max((sum(map(len, task.operands)) for task in graph.tasks), default=0) < MOST_TILES:
            return program, graph
    raise AssertionError(f"seed {seed}: two statements read few tiles")


def some(random: Random, most: int, top: int) -> int:
    return random.randint(1, min(top, most))
