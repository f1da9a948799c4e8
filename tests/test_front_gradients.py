"""Gradients: of every form of the language, of shipped specs and of random programs, against torch's autograd and against differences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Expr, Load, rebuild, walk
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.differentiate.gradients import with_gradients
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.hoist import is_contraction
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.describe import statements
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import load_document, read_document
from gradient_cases import LOSS, Data, autograd, off_by, own_gradients, reachable, slopes, tensors_of, with_loss, with_towards
from semantic_specs import checkpoint_data, semantic_spec
from spec_strategies import random_data, random_spec
from specs_small import SPECS

TOLERANCE = 1e-9
"""Of the largest element of a gradient, in fp64."""
STEP, SLOPE_TOLERANCE, KINK = 1e-5, 1e-5, 1e-3
"""Of differences: the step, what they may be off by, and the difference of two one-sided ones that tells of a kink."""

HEAD = """\
einpage: 1
name: form
sizes: {batch: 3, seq: 5, model: 4, taps: 3}
scalars: {eps: 1.0e-2}
axes: {b: batch, s: seq, t: seq, m: model, n: model, k: taps, z: 2, u: 6}
inputs:
  ids: {axes: b s, dtype: int32, range: 0 .. 5}
  lengths: {axes: b, dtype: int32, range: 1 .. seq}
  pad: {axes: b, dtype: int32, range: 0 .. seq}
weights:
  x: {axes: b s m, from: x}
  y: {axes: b s m, from: y}
  w: {axes: n m, from: w}
  g: {axes: m, from: g}
  q: {axes: b s z m, from: q}
  e: {axes: u m, from: e}
  v: {axes: m k, from: v}
  c: {axes: "", from: c}
  square: {axes: m m, from: square}
"""

FORMS: dict[str, tuple[str, ...]] = {
    "product": ("o[b,s,n] = x[b,s,m] * w[n,m]",),
    "product of three": ("o[b,n] = x[b,s,m] * y[b,s,m] * w[n,m]",),
    "square of a value": ("o[b,s,m] = x[b,s,m] * x[b,s,m]",),
    "negative product": ("o[b,s,n] = -x[b,s,m] * w[n,m] - (-g[n])",),
    "difference": ("o[b,s,m] = x[b,s,m] - y[b,s,m]",),
    "bias": ("o[b,s,n] = x[b,s,m] * w[n,m] + g[n]",),
    "scalar": ("o[b,s,m] = x[b,s,m] * c + c",),
    "quotient": ("o[b,s,m] = x[b,s,m] / (2 + y[b,s,m] * y[b,s,m])",),
    "quotient of a sum": ("o[b,m] = sum[s](x[b,s,m] / (2 + y[b,s,m]**2))",),
    "divided by a number": ("o[b,s,n] = x[b,s,m] * w[n,m] / 3",),
    "power": ("o[b,s,m] = x[b,s,m]**2 + y[b,s,m]**3 + g[m]**0 + g[m]**1 + (2 + x[b,s,m])**-1.5",),
    "power by a value": ("o[b,s,m] = (3 + x[b,s,m]) ** y[b,s,m] + 2 ** x[b,s,m]",),
    "remainder": ("o[b,s,m] = x[b,s,m] % 0.7 + 3 % (2 + y[b,s,m])",),
    "floor": ("o[b,s,m] = x[b,s,m] * (y[b,s,m] // 0.3)",),
    "comparison": ("o[b,s,m] = x[b,s,m] * (y[b,s,m] > 0.1) + (x[b,s,m] < 0) * (not y[b,s,m] > 0 or x[b,s,m] > 1)",),
    "sum": ("o[b,m] = sum[s](x[b,s,m])",),
    "sum without a letter": ("o[b,m] = sum[s](where(1, g[m], s))",),
    "sum of what lacks a letter": ("o[b,m] = sum[s](x[b,s,m] + g[m])",),
    "two indices of one letter": ("o[b,z] = square[z + 1,z + 2] * c",),
    "sum over all": ("o = sum[b,s,m](x[b,s,m] * y[b,s,m]**2)",),
    "reductions without a letter": (
        "r[m] = mean[s](where(1, g[m], s)) * max[s](where(1, g[m], s)) * min[s](where(1, c, s))",
        "o[b,m] = r[m] + sum[s](softmax[s,m](where(1, g[m], s)) * y[b,s,m])",
    ),
    "repeated over the target": ("r[b,s,m] = g[m] * c", "o[b,s,m] = r[b,s,m] * x[b,s,m]"),
    "mean": ("o[b] = mean[s,m](x[b,s,m] ** 2)",),
    "max": ("o[b,m] = max[s](x[b,s,m] * 2) + max[b,s](y[b,s,m])",),
    "min": ("o[b,m] = min[s](x[b,s,m]) * max[s](where(s < 3, y[b,s,m], -inf))",),
    "ties": ("r[b,s,m] = x[b,0,m] * (s > 1)", "o[b,m] = max[s](r[b,s,m]) + min[s](r[b,s,m])"),
    "softmax": ("o[b,s,m] = softmax[s](x[b,s,m]) * y[b,s,m]",),
    "softmax over two": ("o[b,s,m] = softmax[s,m](3 * x[b,s,m]) * y[b,s,m]",),
    "masked softmax": ("o[b,s,m] = softmax[s](where(s < lengths[b] - 1, x[b,s,m], -inf)) * y[b,s,m]",),
    "attention": (
        "p[b,s,t] = softmax[t](where(t <= s, x[b,s,m] * y[b,t,m] / 2, -inf))",
        "o[b,s,n] = p[b,s,t] * (x[b,t,m] * w[n,m])",
    ),
    "norm": ("h[b,s,m] = x[b,s,m] * rsqrt(mean[m](x[b,s,m]**2) + eps) * g[m]", "o[b,s,n] = h[b,s,m] * w[n,m]"),
    "norm inside a product": ("o[b,s,n] = x[b,s,m] * rsqrt(mean[m](x[b,s,m]**2) + eps) * g[m] * w[n,m]",),
    "functions": (
        "o[b,s,m] = exp(x[b,s,m]) + log(2 + y[b,s,m]) * sqrt(x[b,s,m]**2 + 1) + rsqrt(y[b,s,m]**2 + 1) + sin(x[b,s,m]) * cos(y[b,s,m])",
        "o[b,s,m] += tanh(x[b,s,m]) * erf(y[b,s,m]) + sigmoid(x[b,s,m]) * silu(y[b,s,m]) + gelu(x[b,s,m]) * gelu_tanh(y[b,s,m])",
        "o[b,s,m] += relu(x[b,s,m]) * abs(y[b,s,m]) + min(x[b,s,m], y[b,s,m]) * max(x[b,s,m], g[m])",
    ),
    "function of a product": ("h[b,s,n] = gelu(x[b,s,m] * w[n,m] + g[n])", "o[b,s,m] = h[b,s,n] * w[n,m]"),
    "gate of two products": ("o[b,s,n] = silu(x[b,s,m] * w[n,m]) * (y[b,s,m] * w[n,m])",),
    "where": ("o[b,s,m] = where(s >= m, x[b,s,m], y[b,s,m] * 2)",),
    "where by data": ("o[b,s,m] = where(x[b,s,m] > y[b,s,m], x[b,s,m] * g[m], y[b,s,m])",),
    "where in a product": ("o[b,s,n] = where(s < lengths[b], x[b,s,m], 0) * w[n,m]",),
    "what a condition discards": ("o[b,s,m] = where(x[b,s,m] > 0, sqrt(x[b,s,m]) + log(x[b,s,m]), 0) + where(s > 0, y[b,s,m] / s, 0)",),
    "what a condition discards of a factor": ("o[b,m] = sum[s](where(x[b,s,m] > 0, g[m] * log(x[b,s,m]), 0))",),
    "and in a sum": ("o[b,m] = sum[s](where(x[b,s,m] > 0, log(x[b,s,m]), 0) * y[b,s,m])",),
    "number as an index": ("o[b,m] = q[b,2,0,m] * sum[s](q[b,s,1,m]) + q[b,s,0,m] * x[b,s,m]",),
    "one element": ("o[b] = x[b,0,1] * square[1,2] + x[b,4,0]",),
    "diagonal": ("o[b,m] = square[m,m] * g[m]",),
    "other letters": ("o[b,s,t] = x[b,s,m] * x[b,t,m]",),
    "exchanged letters": ("o[m,n] = square[m,n] * square[n,m]",),
    "gather": ("o[b,s,m] = e[ids[b,s],m] * x[b,s,m]",),
    "gather twice": ("h[b,s,m] = e[ids[b,s],m]", "o[b,s,u] = h[b,s,m] * e[u,m]"),
    "gather by arithmetic": ("o[b,s,m] = e[5 - ids[b,s],m] + e[(ids[b,s] * 2 + s) % 6, m]",),
    "last of each": ("o[b,m] = x[b,lengths[b]-1,m] * 2",),
    "shift": ("o[b,s,m] = where(s >= 1, x[b,s-1,m], 0) * y[b,s,m]",),
    "shift in itself": ("o[b,s,m] = where(s >= 1, x[b,s-1,m] * x[b,s,m], x[b,s,m]**2)",),
    "shift ahead": ("o[b,s,m] = where(s + 2 < seq, x[b,s+2,m], g[m])",),
    "backwards": ("o[b,s,m] = x[b,seq-1-s,m] * y[b,s,m]",),
    "shift by data": ("o[b,s,m] = where(s >= pad[b], x[b,s-pad[b],m], 0) * y[b,s,m]",),
    "convolution": ("o[b,s,m] = where(s + k >= 2, x[b,s+k-2,m], 0) * v[m,k]",),
    "convolution over channels": ("r[b,s,k,m] = where(s + k >= 2, x[b,s+k-2,m], 0)", "o[b,s,n] = r[b,s,k,m] * v[m,k] * w[n,m]"),
    "stride": ("o[b,z,m] = x[b,2*z+1,m] * c",),
    "half": ("o[b,s,m] = x[b,s // 2,m] * y[b,s,m]",),
    "clamped": ("o[b,s,m] = x[b,min(s + 1, 4),m] * y[b,max(s - 2, 0),m]",),
    "clamped under another letter": ("o[b,s,m] = where(s >= 1, sum[s](x[b,max(s - 1, 0),m]) * y[b,s,m], 0)",),
    "computed over two letters": ("o[b,z,n] = x[b,z*2+n//2,n] * w[n,z+1]",),
    "parts": ("r[b,s,0,m] = x[b,s,m] - y[b,s,m]", "r[b,s,1,m] = x[b,s,m] * y[b,s,m]", "o[b,s,m] = r[b,s,0,m] * r[b,s,1,m]"),
    "parts read whole": ("r[b,s,0,m] = x[b,s,m]", "r[b,s,1,m] = x[b,s,m] * y[b,s,m]", "o[b,s,z] = r[b,s,z,m] * g[m] + r[b,s,0,0]"),
    "rotation": (
        "r[b,s,0,m] = q[b,s,0,m] * cos(s * 0.3) - q[b,s,1,m] * sin(s * 0.3)",
        "r[b,s,1,m] = q[b,s,1,m] * cos(s * 0.3) + q[b,s,0,m] * sin(s * 0.3)",
        "o[b,s,t] = r[b,s,z,m] * q[b,t,z,m]",
    ),
    "set again": ("o[b,s,m] = x[b,s,m] * g[m]", "o[b,s,m] = tanh(o[b,s,m]) * o[b,s,m]", "o[b,s,m] += o[b,s,m] * y[b,s,m]"),
    "repeat": ("o[b,s,m] = x[b,s,m]", "repeat: 3\n    as: l\n    body:\n      - o[b,s,m] += tanh(o[b,s,n] * w[n,m]) * (l + 1) * 0.3"),
    "position": ("o[b,s,m] = x[b,s,m] * s + m",),
    "not used": ("r[b,s,m] = x[b,s,m] * y[b,s,m]", "o[b,s,m] = x[b,s,m] * c"),
    "cross entropy": (
        "l[b,s,u] = x[b,s,m] * e[u,m] * 3",
        "nll[b,s] = log(sum[u](exp(l[b,s,u] - max[u](l[b,s,u])))) + max[u](l[b,s,u]) - l[b,s,ids[b,s]]",
        "o = sum[b,s](where(s < lengths[b], nll[b,s], 0)) / sum[b](lengths[b])",
    ),
}  # fmt: skip


DISCARDED = ("what a condition discards", "what a condition discards of a factor", "and in a sum")


def form_program(*body: str) -> Program:
    target = next(s for s in reversed(body) if s.lstrip().startswith("o")).partition("=")[0].strip().removesuffix("+").strip()
    letters = target.partition("[")[2].rstrip("]").replace(",", " ")
    items = "".join(f"  - {item}\n" for item in body)
    text = f'{HEAD}body:\n{items}outputs: {{o: {{axes: "{letters}"}}}}\n'
    return with_loss(elaborate(read_document(text, "form.yaml")))


def data_of(program: Program, seed: int) -> Data:
    """Inputs and weights by name: floats in -1 … 1, whole numbers in their range."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in program.inputs:
        if i.dtype is not None and not i.dtype.is_float:
            assert i.range is not None
            found[i.name] = rng.integers(i.range[0], i.range[1] + 1, i.shape)
        elif i.default is None:
            found[i.name] = rng.uniform(-1, 1, i.shape)
    return found | {w.name: rng.uniform(-1, 1, w.shape) for w in program.weights}


def check_autograd(program: Program, data: Data, about: str = "") -> list[str]:
    """That every gradient is autograd's; the names."""
    names = reachable(program)
    found, expected = own_gradients(program, names, data), autograd(program, names, data)
    assert all(found[name].shape == expected[name].shape for name in names)
    wrong = {name: share for name, share in off_by(found, expected).items() if not share <= TOLERANCE}
    assert not wrong, f"gradients are off by {wrong}{about}"
    return names


def check_slopes(program: Program, data: Data, seed: int, about: str = "") -> tuple[int, int]:
    """That the loss grows as fast as gradients say, along a direction for each leaf. How many were compared, and how many have a kink."""
    names = reachable(program)
    found = own_gradients(program, names, data)
    generator = torch.Generator().manual_seed(seed)
    kinks = 0
    for name in names:
        direction = torch.rand(found[name].shape, generator=generator, dtype=torch.float64) * 2 - 1
        before, behind = slopes(program, name, data, direction, STEP)
        expected, own = (before + behind) / 2, float((found[name] * direction).sum())
        scale = max(1.0, abs(expected), float(found[name].abs().max()))
        if not abs(before - behind) <= KINK * scale:
            kinks += 1
            continue
        assert abs(own - expected) <= SLOPE_TOLERANCE * scale, f"along {name} the loss grows by {expected}, its gradient says {own}{about}"
    return len(names), kinks


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_the_language(name: str) -> None:
    program = form_program(*FORMS[name])
    data = with_towards(program, data_of(program, 7), 7)
    assert check_slopes(program, data, 7) == (len(reachable(program)), 0)
    if name not in DISCARDED:  # where torch's is NaN
        assert check_autograd(program, data)


def test_what_a_condition_discards_has_a_finite_gradient() -> None:
    for name in DISCARDED:
        program = form_program(*FORMS[name])
        found = own_gradients(program, reachable(program), with_towards(program, data_of(program, 7), 7))
        assert all(torch.isfinite(g).all() and g.any() for g in found.values()), name


def plain(name: str) -> str:
    """A value's name as a spec allows it."""
    return re.sub("[.@#]", "_", name)


def as_spec(program: Program, outputs: Mapping[str, str]) -> str:
    """The program's statements as a spec's text; `outputs`: values, each with its axes."""

    def renamed(e: Expr) -> Expr:
        found = rebuild(e, renamed)
        return replace(found, name=plain(found.name)) if isinstance(found, Load) else found

    lines = [
        "einpage: 1",
        "name: written",
        "sizes: {}",
        f"axes: {{{', '.join(f'{x}: {n}' for x, n in program.extents.items())}}}",
        "inputs:",
    ]
    for i in program.inputs:
        more = f", dtype: {i.dtype.value}, range: {i.range[0]} .. {i.range[1]}" if i.dtype and i.range else ""
        lines.append(f'  {i.name}: {{axes: "{" ".join(i.letters)}"{more}}}')
    lines += ["weights:", *(f'  {w.name}: {{axes: "{" ".join(w.letters)}", from: {w.name}}}' for w in program.weights), "body:"]
    for d in program.definitions:
        parts = tuple(Part(p.target, renamed(p.expr)) for p in d.parts)
        lines += [f"  - '{line}'" for line in statements(replace(d, name=plain(d.name), parts=parts))]
    lines += ["outputs:", *(f'  {plain(name)}: {{axes: "{axes}"}}' for name, axes in outputs.items())]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", [name for name in FORMS if not name.endswith("without a letter")])  # whose own text is none
def test_what_is_made_is_a_spec(name: str) -> None:
    """The statements, printed and read again, are accepted, indices proven, and give the same gradients."""
    program = form_program(*FORMS[name])
    names = reachable(program)
    data = with_towards(program, data_of(program, 7), 7)
    made, values = with_gradients(program, LOSS, names), tensors_of(data)
    outputs = [o for o in made.outputs if o.name.startswith("d_")]
    again = elaborate(read_document(as_spec(made, {o.value: " ".join(o.letters) for o in outputs}), "written.yaml"))
    found = evaluate(again, values, values, torch.float64)
    expected = evaluate(made, values, values, torch.float64, [o.name for o in outputs])
    assert max(off_by({o.name: found[plain(o.value)] for o in outputs}, expected).values()) <= TOLERANCE


def test_a_product_inside_a_function_is_computed_once() -> None:
    """An MLP has two products, and two gradients of each but the input's."""
    program = shipped_program("mlp")
    made = with_gradients(program, LOSS, [w.name for w in program.weights])
    products = [x for d in made.definitions for p in d.parts for x in walk(p.expr) if is_contraction(x)]
    assert len(products) == 2 + 3


def test_each_layer_has_its_gradients_in_turn() -> None:
    """In the reverse order of the layers, a weight's among those of its layer; a layer's scores do not outlive it."""
    program = shipped_program("llama")
    made = with_gradients(program, LOSS, [w.name for w in program.weights])
    turns = [d.loop for d in made.definitions[len(program.definitions) :] if d.loop]
    assert turns == sorted(turns, key=lambda loop: -loop[0] if loop else 0) or turns[0] == (0,)
    assert {d.name for d in made.definitions} >= {"d_wq.1", "d_x.3", "again_a.0", "d_embed"}


LAYERS = {"batch": 2, "seq": 7, "vocab": 23, "model": 24, "layers": 2, "heads": 4, "ffn": 20}
SHIPPED: dict[str, dict[str, int]] = {
    "matmul_chain": {"rows": 5, "width": 6, "depth": 3},
    "mlp": {"batch": 5, "inner": 6, "hidden": 10, "outer": 4},
    "attention": {"batch": 2, "seq": 9, "model": 12, "heads": 3},
    "llama": {**LAYERS, "kv_heads": 2},
    "gpt2": {**LAYERS, "context": 9},
    "mistral": {**LAYERS, "kv_heads": 2, "window": 3},
    "qwen3": {**LAYERS, "kv_heads": 2, "head": 8},
    "gemma3": {**LAYERS, "kv_heads": 2, "head": 8, "window": 3},
    "phi3": {**LAYERS, "kv_heads": 2, "window": 3},
    "mixtral": {**LAYERS, "kv_heads": 2, "experts": 3, "window": 4},
    "opt": {**LAYERS, "context": 12},
    "bert": {**LAYERS, "context": 9},
    "t5": {**LAYERS, "head": 6},
}


def shipped_program(name: str) -> Program:
    program = elaborate(load_document(SPECS / f"{name}.yaml"), SHIPPED[name])
    return with_loss(with_tied_weights(program, [s.name for w in program.weights if w.fallback is None for s in w.sources]))


def shipped_data(program: Program, seed: int) -> Data:
    data = data_of(program, seed)
    scale = {w.name: 1.5 / max(w.shape) ** 0.5 if len(w.shape) > 1 else 1.0 for w in program.weights}
    return with_towards(
        program, {name: array * scale.get(name, 1) if array.dtype.kind == "f" else array for name, array in data.items()}, seed
    )


def test_every_shipped_spec_is_differentiated() -> None:
    assert set(SHIPPED) == {path.stem for path in Path(SPECS).glob("*.yaml")}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_spec(name: str) -> None:
    program = shipped_program(name)
    names = check_autograd(program, shipped_data(program, 3))
    assert set(names) >= {w.name for w in program.weights}


def random_case(seed: int) -> tuple[Program, Data, str]:
    """A random program with a loss, and its data; even seeds of one generator, odd ones of the other."""
    if seed % 2:
        text = random_spec(seed, most_statements=5)
        program = elaborate(read_document(text, "made.yaml"))
        data: Data = random_data(program, seed)
    else:
        text = semantic_spec(seed)
        program = elaborate(read_document(text, "made.yaml"))
        given = checkpoint_data(text, seed)
        rng = np.random.default_rng(seed)
        defaults = {i.name: np.full(i.shape, i.default, float if i.dtype is None else int) for i in program.inputs if i.default is not None}
        data = {**defaults, **given.inputs, **{w.name: rng.uniform(-1, 1, w.shape) for w in program.weights}}
    program = with_loss(program)
    return program, with_towards(program, data, seed), f"\nseed {seed}\n{text}"


def check_random(seeds: range) -> None:
    compared = kinks = 0
    for seed in seeds:
        program, data, about = random_case(seed)
        more, of_them = check_slopes(program, data, seed, about)
        compared, kinks = compared + more, kinks + of_them
    assert kinks <= 0.03 * compared, f"{kinks} kinks in {compared}"


@pytest.mark.parametrize("block", range(5))
def test_random_programs(block: int) -> None:
    check_random(range(20 * block, 20 * (block + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_a_thousand_random_programs(block: int) -> None:
    check_random(range(1000 + 100 * block, 1000 + 100 * (block + 1)))


def test_tied_weights_add_up() -> None:
    """A weight used twice has the gradient of both uses."""
    program = shipped_program("llama")
    assert "lm_head" not in {w.name for w in program.weights}
    data = shipped_data(program, 5)
    apart = with_loss(elaborate(load_document(SPECS / "llama.yaml"), SHIPPED["llama"]))
    both = own_gradients(apart, ["embed", "lm_head"], {**data, "lm_head": data["embed"]})
    tied = own_gradients(program, ["embed"], data)["embed"]
    assert off_by({"embed": tied}, {"embed": both["embed"] + both["lm_head"]})["embed"] <= TOLERANCE
    assert off_by({"embed": tied}, {"embed": both["embed"]})["embed"] > 1e-3


def refused(program: Program, loss: str, *names: str) -> str:
    with pytest.raises(UsageError) as caught:
        with_gradients(program, loss, names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_has_no_gradient_is_refused() -> None:
    program = form_program("o[b,s,m] = x[b,s,m] * y[b,s,m] + e[ids[b,s],m] + (g[m] > 0)")
    assert "`ids` holds whole numbers" in refused(program, LOSS, "x", "ids")
    assert "no weight or input is called `xx`" in refused(program, LOSS, "xx") and "did you mean" in refused(program, LOSS, "xx")
    assert "does not depend on `w`" in refused(program, LOSS, "w")
    assert "does not depend on `g`" in refused(program, LOSS, "g")
    assert "no output is called `los`" in refused(program, "los", "x") and "did you mean `loss`" in refused(program, "los", "x")
    assert "sum[b,s,m](o[b,s,m])" in refused(program, "o", "x")


def test_a_program_with_gradients_puts_out_what_it_did() -> None:
    program = shipped_program("llama")
    data = tensors_of(shipped_data(program, 3))
    made = with_gradients(program, LOSS, ["wq@1"])
    before, after = (evaluate(p, data, data, torch.float64, [LOSS, "logits"]) for p in (program, made))
    assert all(torch.equal(before[name], after[name]) for name in before)
