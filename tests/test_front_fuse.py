"""Each fusion rule alone, on a small spec: which ops remain, and that they compute the reference, whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Binary, Reduce, children, loads, size, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse import inline
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.fuse.inline import MOST_NODES, KnownContents
from einpage.einsum_front.graph.opgraph import KIND_WORD, OpGraph, expressions
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from front_text import over_letters
from front_text import program as small_program
from real_bytes import direct

TOLERANCE = 1e-5

HEAD = """\
einpage: 1
name: small
sizes: {batch: 2, seq: 13, model: 10, heads: 3, head: 4, ffn: 11}
scalars: {eps: 1.0e-5}
axes: {b: batch, s: seq, t: seq, u: seq, m: model, n: model, h: heads, d: head, dv: head, f: ffn, parts: 2}
inputs:
  x: {axes: b s m}
  r: {axes: b s m}
  q: {axes: b s h d}
  k: {axes: b t h d}
  v: {axes: b t h d}
  cell: {axes: b s h m}
  one: {axes: s d}
  ids: {axes: b s, dtype: int32}
  lengths: {axes: b, dtype: int32}
weights:
  w: {axes: f m, from: w}
  w2: {axes: f m, from: w2}
  back: {axes: m f, from: back}
  bias: {axes: f, from: bias}
  g: {axes: m, from: g}
  c: {axes: m, from: c}
  slope: {axes: h, from: slope}
  wo: {axes: m h d, from: wo}
  cube: {axes: m n h, from: cube}
  table: {axes: f m, from: table}
body:
"""


@dataclass(frozen=True, slots=True)
class Case:
    body: str
    """Statements, one a line."""
    outputs: str
    """`y b s m; also b`: names with their axes."""
    ops: str
    """`kind name; ...` of what fusion leaves."""
    takes_in: Mapping[str, str] | None = None
    """Some of the values that vanished, by the op that took them in."""
    unfused: str = ""
    """Part of the reason that is given; empty: no reason is given."""


SCORES = "softmax[t](where(t <= s, q[b,s,h,d] * k[b,t,h,d] / 2, -inf))"
MIX = "y[b,s,h,d] = a[b,h,s,t] * v[b,t,h,d]"
ROW = "y b s m"
HEADS = "y b s h d"
READ_TWICE = (
    "first[b,s,h,d] = a[b,h,s,t] * k[b,t,h,d]\nsecond[b,s,h,d] = a[b,h,s,t] * v[b,t,h,d]\ny[b,s,h,d] = first[b,s,h,d] + second[b,s,h,d]"
)
ONE_ATTENTION = "attention y"


def attention(scores: str) -> Case:
    """Attention over the softmax of `scores`, in two statements: one op whatever they contain."""
    return Case(f"a[b,h,s,t] = softmax[t]({scores})\n{MIX}", HEADS, ONE_ATTENTION, {"y": "a"})


CASES: dict[str, Case] = {
    "bias": Case("y[b,s,f] = x[b,s,m] * w[f,m] + bias[f]", "y b s f", "contract y"),
    "bias in a statement of its own": Case(
        "a[b,s,f] = x[b,s,m] * w[f,m]\ny[b,s,f] = gelu(a[b,s,f] + bias[f])", "y b s f", "contract y", {"y": "a"}
    ),
    "residual": Case(
        "y[b,s,f] = x[b,s,m] * w[f,m]\nalso[b,s,m] = x[b,s,m] + y[b,s,f] * back[m,f]", "also b s m", "contract y; contract also"
    ),
    "scaled on both sides": Case("y[b,s,f] = 2 * x[b,s,m] * w[f,m] / sqrt(model)", "y b s f", "contract y"),
    "gate and up": Case(
        "gate[b,s,f] = x[b,s,m] * w[f,m]\nup[b,s,f] = x[b,s,m] * w2[f,m]\ny[b,s,f] = silu(gate[b,s,f]) * up[b,s,f]",
        "y b s f",
        "contract y",
        {"y": "gate up"},
    ),
    "gate and up in one statement": Case(
        "y[b,s,f] = silu(sum[m](x[b,s,m] * w[f,m])) * sum[m](x[b,s,m] * w2[f,m])", "y b s f", "contract y"
    ),
    "gate and up, one the other way round": Case(
        "gate[b,s,f] = x[b,s,m] * w[f,m]\nup[b,s,f] = w2[f,m] * x[b,s,m]\ny[b,s,f] = silu(gate[b,s,f]) * up[b,s,f]",
        "y b s f",
        "contract y",
        {"y": "gate up"},
    ),
    "gate and up of two rows": Case(
        "gate[b,s,f] = x[b,s,m] * w[f,m]\nup[b,s,f] = r[b,s,m] * w2[f,m]\ny[b,s,f] = silu(gate[b,s,f]) * up[b,s,f]",
        "y b s f",
        "contract gate; contract y",
        {"y": "up"},
    ),
    "twins over one weight turned around": Case(
        "a[b,s,n] = cell[b,s,h,m] * cube[m,n,h]\nj[b,s,n] = cell[b,s,h,m] * cube[n,m,h]\ny[b,s,n] = a[b,s,n] * sigmoid(j[b,s,n])",
        "y b s n",
        "contract y",
        {"y": "a j"},
    ),
    "rows added where an index says": Case("y[f,m] = sum[b,s](where(ids[b,s] == f, 1, 0) * x[b,s,m])", "y f m", "pairs y"),
    "rows added, the other way round": Case("y[m,f] = sum[b,s](x[b,s,m] * where(f == ids[b,s], 1, 0)) / 2", "y m f", "pairs y~1; map y"),
    "rows up to an index": Case("y[f,m] = sum[b,s](where(ids[b,s] <= f, 1, 0) * x[b,s,m])", "y f m", "map y~0; contract y"),
    "rows that an index without their letter counts more often": Case(
        "y[f,m] = sum[b,s](where(lengths[b] == f, 1, 0) * x[b,s,m])", "y f m", "map y~1; pairs y"
    ),
    "RMSNorm": Case("y[b,s,m] = x[b,s,m] * rsqrt(mean[m](x[b,s,m]**2) + eps) * g[m]", ROW, "map y"),
    "RMSNorm in three statements": Case(
        "a[b,s] = mean[m](x[b,s,m]**2)\ni[b,s] = rsqrt(a[b,s] + eps)\ny[b,s,m] = x[b,s,m] * i[b,s] * g[m]", ROW, "map y", {"y": "a i"}
    ),
    "LayerNorm": Case(
        "y[b,s,m] = (x[b,s,m] - mean[m](x[b,s,m])) * rsqrt(mean[m]((x[b,s,m] - mean[m](x[b,s,m]))**2) + eps) * g[m] + c[m]", ROW, "map y"
    ),
    "LayerNorm in four statements": Case(
        "a[b,s] = mean[m](x[b,s,m])\ni[b,s,m] = x[b,s,m] - a[b,s]\nj[b,s] = mean[m](i[b,s,m]**2)\n"
        "y[b,s,m] = i[b,s,m] * rsqrt(j[b,s] + eps) * g[m] + c[m]",
        ROW,
        "map y",
        {"y": "a i j"},
    ),
    "two reductions of one row": Case("y[b,s,m] = (x[b,s,m] - min[m](x[b,s,m])) / (max[m](x[b,s,m]) - min[m](x[b,s,m]) + 1)", ROW, "map y"),
    "a reduction that many rows read": Case("a[b,s] = mean[m](x[b,s,m])\ny[b,s,f] = a[b,s] * bias[f]", "y b s f", "map a; map y"),
    "norm before a contraction": Case(
        "a[b,s,m] = x[b,s,m] * rsqrt(mean[m](x[b,s,m]**2) + eps)\ny[b,s,f] = a[b,s,m] * w[f,m]", "y b s f", "map a; contract y"
    ),
    "residual before a norm": Case(
        "a[b,s,m] = x[b,s,m] + r[b,s,m]\ny[b,s,m] = a[b,s,m] * rsqrt(mean[m](a[b,s,m]**2) + eps)", ROW, "map y", {"y": "a"}
    ),
    "norm after a contraction": Case(
        "a[b,s,f] = x[b,s,m] * w[f,m] + bias[f]\ny[b,s,f] = a[b,s,f] * rsqrt(mean[f](a[b,s,f]**2) + eps)", "y b s f", "contract a; map y"
    ),
    "attention in one statement": Case(f"y[b,s,h,dv] = {SCORES} * v[b,t,h,dv]", "y b s h dv", ONE_ATTENTION),
    "attention in two": attention("where(t <= s, q[b,s,h,d] * k[b,t,h,d] / 2, -inf)"),
    "attention in five": Case(
        "p[b,h,s,t] = q[b,s,h,d] * k[b,t,h,d]\ni[b,h,s,t] = p[b,h,s,t] / sqrt(head)\n"
        f"j[b,h,s,t] = where(t <= s, i[b,h,s,t], -inf)\na[b,h,s,t] = softmax[t](j[b,h,s,t])\n{MIX}",
        HEADS,
        ONE_ATTENTION,
        {"y": "p i j a"},
    ),
    "not causal": attention("q[b,s,h,d] * k[b,t,h,d] / 2"),
    "keys before queries": attention("where(t <= s, k[b,t,h,d] * q[b,s,h,d] / 2, -inf)"),
    "heads that share a query": Case(
        f"i[b,t,h,d] = k[b,t,h,d] * 2\na[b,h,s,t] = softmax[t](one[s,d] * i[b,t,h,d])\n{MIX}", HEADS, "map i; attention y"
    ),
    "soft-capped": attention("where(t <= s, 3 * tanh(sum[d](q[b,s,h,d] * k[b,t,h,d]) / 3), -inf)"),
    "a sliding window": attention("where(t <= s and s - t < 4, sum[d](q[b,s,h,d] * k[b,t,h,d]), -inf)"),
    "ALiBi": attention("where(t <= s, sum[d](q[b,s,h,d] * k[b,t,h,d]) - slope[h] * (s - t), -inf)"),
    "a padding mask": attention("where(t < lengths[b], sum[d](q[b,s,h,d] * k[b,t,h,d]), -inf)"),
    "rows that see nothing": attention("where(t < s - 5, sum[d](q[b,s,h,d] * k[b,t,h,d]), -inf)"),
    "a letter that only the scores have": Case(
        "a[b,m,h,s,t] = softmax[t](sum[d](q[b,s,h,d] * k[b,t,h,d]) - g[m] * t)\ny[b,m,s,h,d] = a[b,m,h,s,t] * v[b,t,h,d]",
        "y b m s h d",
        "contract a~0; map a; contract y",
        unfused="scores have m",
    ),
    "a letter that nothing has": Case(
        "a[b,m,h,s,t] = softmax[t](sum[d](q[b,s,h,d] * k[b,t,h,d]))\ny[b,m,s,h,d] = a[b,m,h,s,t] * v[b,t,h,d]",
        "y b m s h d",
        "contract a~0; map a; contract y",
        unfused="m is in none of its operands",
    ),
    "attention and its projection": Case(
        f"a[b,h,s,t] = {SCORES}\ni[b,s,h,d] = a[b,h,s,t] * v[b,t,h,d]\ny[b,s,m] = x[b,s,m] + i[b,s,h,d] * wo[m,h,d]",
        "y b s m",
        "attention i; contract y",
    ),
    "probabilities that are read too": Case(
        f"a[b,h,s,t] = {SCORES}\n{MIX}\nalso[b,h,s] = max[t](a[b,h,s,t])",
        "y b s h d; also b h s",
        "contract a~0; map a; contract y; map also",
        unfused="softmax a is read elsewhere",
    ),
    "probabilities that are an output": Case(
        f"a[b,h,s,t] = {SCORES}\n{MIX}", "y b s h d; a b h s t", "contract a~0; map a; contract y", unfused="softmax a is read elsewhere"
    ),
    "scores that are read too": Case(
        f"p[b,h,s,t] = q[b,s,h,d] * k[b,t,h,d]\na[b,h,s,t] = softmax[t](p[b,h,s,t])\n{MIX}",
        "y b s h d; p b h s t",
        "contract p; map a; contract y",
        unfused="scores p are read elsewhere",
    ),
    "a matrix and a vector": Case("y[f] = w[f,m] * g[m] + bias[f]", "y f", "map y"),
    "a token and a matrix": Case("i[b,m] = x[b, lengths[b]-1, m]\ny[b,f] = i[b,m] * w[f,m]", "y b f", "map i; contract y"),
    "three factors": Case("y[b,s,n] = x[b,s,m] * w[f,m] * back[n,f]", "y b s n", "contract y~0; contract y"),
    "an output that is consumed": Case("a[b,s,f] = x[b,s,m] * w[f,m]\ny[b,s,f] = gelu(a[b,s,f])", "y b s f; a b s f", "contract a; map y"),
    "a value that two read": Case(
        "a[b,s,m] = x[b,s,m] * 2\ny[b,s,m] = a[b,s,m] + 1\nalso[b,s,m] = a[b,s,m] + 2", "y b s m; also b s m", "map a; map y; map also"
    ),
    "what no output needs": Case("a[b,s,m] = x[b,s,m] * 2\ny[b,s,m] = x[b,s,m] + 1", ROW, "map y"),
    "a gather and its neighbour": Case("y[b,s,m] = table[ids[b,s], m] + c[m]", ROW, "gather y~0; map y"),
    "an input and a weight as outputs": Case("y[b,s,m] = x[b,s,m] * g[m]", "y b s m; x b s m; g m", "map y; map x; map g"),
    "one element looked up": Case(
        "i[b,s,m] = x[b,s,m] + 1\ny[0] = tanh(i[0, lengths[1], 2] * 2)\ny[1] = tanh(i[1, lengths[1] - 1, 3])",
        "y parts; i b s m",
        "map i; map y",
    ),
    "scores at other elements too": Case(
        "p[h,s,t] = q[0,s,h,d] * k[0,t,h,d]\ni[h,s,t] = tanh(p[h,s,t])\n"
        "a[h,s,t] = softmax[t](i[h,s,t] + i[0,s,t])\ny[s,h,d] = a[h,s,t] * v[0,t,h,d]",
        "y s h d",
        "contract i; map a; contract y",
        unfused="reads its scores at other elements too",
    ),
    "parts": Case(
        "i[b,s,m] = x[b,s,m] + 1\ny[b,s,0,m] = i[b,s,m] * 2\ny[b,s,1,m] = i[b,s,m] - r[b,s,m]", "y b s parts m", "map y", {"y": "i"}
    ),
}


def program_of(case: Case) -> Program:
    outputs = []
    for text in case.outputs.split("; "):
        name, _, axes = text.partition(" ")
        outputs.append(f"  {name}: {{axes: {axes}}}\n")
    body = "".join(f"  - '{line}'\n" for line in case.body.splitlines())
    return elaborate(read_document(f"{HEAD}{body}outputs:\n{''.join(outputs)}", "small.yaml"))


def fused(program: Program, options: FuseOptions | None = None) -> OpGraph:
    return fuse(program, [o.name for o in program.outputs], options)


def data_of(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    data: dict[str, np.ndarray] = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in program.inputs}
    data |= {w.name: rng.standard_normal(w.shape).astype(np.float32) for w in program.weights}
    data["ids"] = rng.integers(0, program.sizes["ffn"], (2, 13)).astype(np.int32)
    data["lengths"] = np.array([13, 5], np.int32)
    return data


def worst(program: Program, opgraph: OpGraph, pieces: Mapping[str, int]) -> float:
    """The largest error of any output against the reference in fp64, over that output's largest element."""
    data = data_of(program)
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    expected = evaluate(program, tensors, tensors, torch.float64)
    got = direct(split(opgraph, pieces, DType.FP32), data)  # type: ignore[arg-type]
    assert got.keys() == expected.keys()
    errors = [(got[name].double() - want).abs().max() / want.abs().max().clamp(min=1) for name, want in expected.items()]
    return float(torch.stack(errors).max())


@pytest.mark.parametrize("what", CASES)
def test_what_is_fused(what: str) -> None:
    case = CASES[what]
    opgraph = fused(program_of(case))
    assert "; ".join(f"{KIND_WORD[type(op)]} {op.base}" for op in opgraph.ops) == case.ops
    by_base = {op.base: set(op.fused) for op in opgraph.ops}
    for base, names in (case.takes_in or {}).items():
        assert set(names.split()) <= by_base[base]
    assert bool(opgraph.unfused) == bool(case.unfused), opgraph.unfused
    assert case.unfused in " ".join(opgraph.unfused) and "~" not in " ".join(opgraph.unfused)


@pytest.mark.parametrize("what", CASES)
def test_what_is_fused_computes_the_reference(what: str) -> None:
    program = program_of(CASES[what])
    for options in (None, FuseOptions(attention=False), FuseOptions(maps=False), FuseOptions(epilogues=False)):
        assert worst(program, fused(program, options), {}) <= TOLERANCE, options


@pytest.mark.parametrize("grain", [1, 3])
@pytest.mark.parametrize("what", CASES)
def test_ragged_pieces_compute_the_reference(what: str, grain: int) -> None:
    """Small tiles: the rule on sides is lowered, and every letter is cut into three, or as many as it may be."""
    program = program_of(CASES[what])
    opgraph = fused(program)
    with patch.object(tiling, "GRAIN", grain), patch.object(template, "GRAIN", grain):
        most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
        pieces = {letter: min(3, n) for letter, n in most.items()}
        assert max(pieces.values(), default=1) > 1
        assert worst(program, opgraph, pieces) <= TOLERANCE, pieces


def test_without_attention_the_scores_exist() -> None:
    program = program_of(CASES["attention in five"])
    assert [type(op).__name__ for op in fused(program, FuseOptions(attention=False)).ops] == ["ContractOp", "MapOp", "ContractOp"]


def doubling(first: str, letters: str) -> str:
    """Thirty statements of which each reads the one before twice."""
    steps = [f"c0[{letters}] = {first}", *(f"c{n}[{letters}] = tanh(c{n - 1}[{letters}]) + c{n - 1}[{letters}] / 2" for n in range(1, 30))]
    return "\n".join(steps)


@pytest.mark.parametrize(
    "case",
    [
        Case(f"{doubling('x[b,s,m]', 'b,s,m')}\ny[b,s,m] = c29[b,s,m]", ROW, ""),
        Case(f"{doubling('q[b,s,h,d] * k[b,t,h,d]', 'b,h,s,t')}\na[b,h,s,t] = softmax[t](c29[b,h,s,t])\n{MIX}", HEADS, ""),
    ],
    ids=["a chain of maps", "a chain of scores"],
)
def test_what_is_read_twice_does_not_double_without_end(case: Case) -> None:
    program = program_of(case)
    opgraph = fused(program)
    assert max(size(e) for op in opgraph.ops for e in expressions(op)) <= MOST_NODES
    assert "too long" in " ".join(opgraph.unfused)
    assert worst(program, opgraph, {}) <= TOLERANCE


def test_a_long_chain_of_scores_whose_weights_are_read_twice() -> None:
    """Written out one within another they would be deeper than expressions may be."""
    steps = "\n".join(f"c{n}[b,h,s,t] = tanh(c{n - 1}[b,h,s,t])" for n in range(1, 400))
    program = program_of(
        Case(f"c0[b,h,s,t] = q[b,s,h,d] * k[b,t,h,d]\n{steps}\na[b,h,s,t] = softmax[t](c399[b,h,s,t])\n{READ_TWICE}", HEADS, "")
    )
    assert worst(program, fused(program), {}) <= TOLERANCE


def test_a_chain_is_inlined_at_a_cost_of_its_own_length() -> None:
    """Each statement takes in all before it: expressions that were walked again for each would be some 100 nodes a statement."""
    steps = [f"c{n}[b,s,m] = tanh(c{n - 1}[b,s,m]) + {n}" for n in range(1, 61)]
    case = Case("\n".join(["c0[b,s,m] = x[b,s,m]", *steps, "y[b,s,m] = c60[b,s,m]"]), ROW, "")
    program = program_of(case)
    with patch.object(inline, "children", side_effect=children) as walked:
        (op,) = fused(program).ops
    assert len(op.fused) == 61
    assert walked.call_count <= 12 * len(steps)


@given(
    st.lists(
        st.sampled_from(["a[s]", "b[s]", "sum[t](a[s] * b[t])", "softmax[s](b[s])", "max[t](where(t <= s, b[t], a[s]))", "2"]), min_size=1
    )
)
def test_what_is_known_of_parts_is_true_of_the_whole(terms: list[str]) -> None:
    """Whichever parts were asked for before."""
    known, whole = KnownContents(), over_letters(terms[0])
    for term in terms[1:]:
        known.of(whole)
        whole = Binary("+", over_letters(term), Binary("*", whole, over_letters("b[s]")))
    found = known.of(whole)
    letters = {letter for node in walk(whole) if isinstance(node, Reduce) for letter in node.letters}
    assert (found.nodes, found.loads, found.reduced) == (size(whole), loads(whole), letters)
    assert known.of(whole) is found


def test_keys_in_tiles_under_heads_that_share_a_query() -> None:
    program = program_of(CASES["heads that share a query"])
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        assert worst(program, fused(program), {"t": 3}) <= TOLERANCE  # type: ignore[dict-item]


def test_a_sum_over_rows_of_what_a_row_reduction_gives_stays_apart() -> None:
    """As one operation it would hold all rows whole."""
    p = small_program("h[b,s,m] = x0[b,s,m] * rsqrt(mean[m](x0[b,s,m]**2) + eps)", "y[m] = sum[b,s](h[b,s,m])", outputs="{y: {axes: m}}")
    assert [op.base for op in fuse(p).ops] == ["h", "y"]
    p = small_program("h[b,s,m] = x0[b,s,m] * rsqrt(mean[m](x0[b,s,m]**2) + eps)", "y[b,s,m] = h[b,s,m] - mean[m](h[b,s,m])")
    assert [op.base for op in fuse(p).ops] == ["y"]
