"""Gradients of attentions of many forms: sums over pairs, which hold no value of all pairs, right however they are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.algebra.masks import condition
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.differentiate.gradients import with_gradients
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.graph.opgraph import AttentionOp, OpGraph, PairsOp
from einpage.einsum_front.graph.program import Output, Program
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from gradient_cases import LOSS, reachable, tensors_of, with_loss
from real_bytes import direct

SPEC = """
einpage: 1
name: attention_of_a_kind
sizes: {{batch: {b}, kv: {k}, group: {g}, queries: {s}, keys: {t}, head: {d}, own: {e}}}
axes: {{b: batch, k: kv, g: group, s: queries, t: keys, d: head, e: own}}
inputs:
  lengths: {{axes: b, dtype: int32}}
  slope: {{axes: k g}}
weights:
  q: {{axes: b s k g d, from: q}}
  key: {{axes: b t k d, from: k}}
  val: {{axes: b t k e, from: v}}
body:
  - c[b,k,g,s,t] = q[b,s,k,g,d] * key[b,t,k,d]
  - a[b,k,g,s,t] = softmax[t]({score})
  - o[b,s,k,g,e] = {out}
outputs: {{o: {{axes: b s k g e}}}}
"""
SCORES = ("c[b,k,g,s,t]", "c[b,k,g,s,t] / 2", "3 * tanh(c[b,k,g,s,t] / 3)", "c[b,k,g,s,t] * 0.5 + slope[k,g] * (t - s)")
MASKS = ("", "t <= s", "t <= s and s - t < 3", "t < lengths[b]", "t <= s and t < lengths[b]", "t >= s", "t // 2 == s // 2")
SUM = "a[b,k,g,s,t] * val[b,t,k,e]"
OUTS = (SUM, f"0.5 * sum[t]({SUM})", f"tanh(sum[t]({SUM}))")
EXTENTS = {"b": 2, "k": 2, "g": 2, "s": 5, "t": 7, "d": 3, "e": 4}


def program_of(score: str, mask: str, out: str = SUM, extents: Mapping[str, int] = EXTENTS) -> Program:
    text = SPEC.format(score=f"where({mask}, {score}, -inf)" if mask else score, out=out, **extents)
    return with_loss(elaborate(read_document(text, "attention.yaml")))


def data_of(program: Program, seed: int) -> dict[str, NDArray[np.float64]]:
    """Numbers for all inputs and weights; some sequences have no key at all."""
    rng = np.random.default_rng(seed)
    shapes = {x.name: x.shape for x in (*program.inputs, *program.weights)}
    found = {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}
    return {**found, "lengths": rng.integers(0, 8, shapes["lengths"]).astype(np.int32)}


def fused(program: Program, names: list[str], options: FuseOptions | None = None) -> OpGraph:
    return fuse(with_gradients(program, LOSS, names), [LOSS, *(f"d_{name}" for name in names)], options)


def pairs_held(graph: OpGraph, extents: Mapping[str, int]) -> list[str]:
    """The values of all pairs of queries and keys."""
    size = prod(extents[x] for x in "bkgst")
    return [op.value for op in graph.ops if prod(op.shape) >= size and {"s", "t"} <= set(getattr(op, "target", ()))]


@given(
    st.sampled_from(SCORES), st.sampled_from(MASKS), st.sampled_from(OUTS),
    st.fixed_dictionaries({x: st.integers(1, n) for x, n in (("b", 2), ("k", 2), ("g", 3), ("s", 9), ("t", 11), ("d", 4), ("e", 5))}),
    st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_gradients_are_right_however_they_are_cut(score: str, mask: str, out: str, extents: dict[str, int], seed: int) -> None:
    program, rng = program_of(score, mask, out, extents), Random(seed)
    names = reachable(program)
    values = data_of(program, seed)
    given_values = tensors_of(values)
    made = with_gradients(program, LOSS, names)
    outputs = [f"d_{name}" for name in names]
    expected = evaluate(made, given_values, given_values, torch.float64, outputs)
    graph = fuse(made, outputs)
    with patch.object(tiling, "GRAIN", 2), patch.object(template, "GRAIN", 2):
        most = most_pieces(map(tiling_of, graph.ops), made.extents)
        pieces = {letter: n for letter, top in most.items() if (n := rng.randint(1, min(top, 3))) > 1}
        tasks = split(graph, pieces, DType.FP32)
    tasks.verify()
    found = direct(tasks, values)
    for name in outputs:
        scale = max(1.0, *(float(x.abs().max()) for x in expected.values()))
        assert float((found[name].double() - expected[name]).abs().max()) <= 1e-5 * scale, f"{name}, {pieces}"


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_no_value_of_all_pairs_is_held(score: str, mask: str) -> None:
    """Neither forward nor on the way back; of sums of rows, the logarithm alone is over pairs."""
    program = program_of(score, mask)
    graph = fused(program, ["q", "key", "val"])
    found = [op for op in graph.ops if isinstance(op, PairsOp)]
    assert sum(isinstance(op, AttentionOp) for op in graph.ops) == 1
    assert sorted(op.value for op in found if op.factor is not None) == ["d_key", "d_q", "d_val"]
    assert [op.is_logarithm for op in found if op.factor is None] == [True]
    assert pairs_held(graph, program.extents) == []
    assert all((condition(op.score) is not None) == bool(mask) for op in found), "kernels know what the mask leaves out"


def test_they_stay_tensors_where_somebody_wants_them() -> None:
    program = program_of("c[b,k,g,s,t]", "t <= s")
    made = with_gradients(program, LOSS, ["q", "val"])
    copied = next(d for d in made.definitions if d.base == "again_a")
    letters = tuple(i.letter for i in copied.parts[0].target)  # type: ignore[union-attr]
    asked = replace(made, outputs=(*made.outputs, Output("weights", copied.name, letters, copied.shape)))
    graph = fuse(asked, ["d_q", "d_val", "weights"])
    assert not any(isinstance(op, PairsOp) for op in graph.ops)
    apart = fused(program, ["q", "val"], FuseOptions(attention=False))
    assert not any(isinstance(op, AttentionOp | PairsOp) for op in apart.ops)


def test_an_attention_of_other_scores_lends_no_sum_of_rows() -> None:
    """Two attentions over the same values: each has its own sums."""
    text = SPEC.format(score="where(t <= s, c[b,k,g,s,t], -inf)", out=SUM, **EXTENTS)
    more = """  - c2[b,k,g,s,t] = q[b,s,k,g,d] * key[b,t,k,d]
  - a2[b,k,g,s,t] = softmax[t](where(t >= s, c2[b,k,g,s,t], -inf))
  - o2[b,s,k,g,e] = a2[b,k,g,s,t] * val[b,t,k,e]
outputs:"""
    text = text.replace("outputs:", more)
    text = text.replace("outputs: {o:", "outputs: {o2: {axes: b s k g e}, o:")
    program = with_loss(elaborate(read_document(text, "two.yaml")))
    names, values = ["q", "key", "val"], data_of(program, 3)
    made = with_gradients(program, LOSS, names)
    outputs = [f"d_{name}" for name in names]
    expected = evaluate(made, tensors_of(values), tensors_of(values), torch.float64, outputs)
    graph = fuse(made, [LOSS, *outputs])
    assert sum(isinstance(op, AttentionOp) for op in graph.ops) == 2
    assert sum(isinstance(op, PairsOp) and not op.is_logarithm and op.factor is None for op in graph.ops) == 0
    found = direct(split(graph, {}, DType.FP32), values)
    assert all(float((found[name].double() - expected[name]).abs().max()) <= 1e-5 for name in outputs)
