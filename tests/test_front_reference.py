"""The eager reference against evaluation element by element, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.program import Program, needed
from front_naive import evaluate_naively
from front_text import program

Y = "y[b,s,m] = x0[b,s,m]"


def data(p: Program, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and weights with small random values; integers lie in 0 … 3."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        i.name: torch.randint(0, 4, i.shape, generator=generator)
        if i.dtype is not None and not i.dtype.is_float
        else torch.randn(i.shape, generator=generator, dtype=torch.float64)
        for i in p.inputs
    }
    weights = {w.name: torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in p.weights}
    return inputs, weights


STATEMENTS = [
    "r[b,s,n] = x0[b,s,m] * w[n,m]",
    "r[n,b] = sum[s](x0[b,s,m] * w[n,m] * g[n])",
    "r[b,s] = x0[b,s,m] / abs(g[m]) * 2",
    "r[b,s] = x0[b,s,m] * g[m] / sqrt(model) / (1 + b) / (2 + b*s)",
    "r[b,s,n] = silu(x0[b,s,m]*w[n,m]) * (x0[b,s,m]*w[n,m]) - 1",
    "r[b,s] = (x0[b,s,m] + 1) * g[m]",
    "r[b,s,m] = x0[b,s,m] * rsqrt(mean[m](x0[b,s,m]**2) + eps) * g[m]",
    "r[b] = mean[s,m](x0[b,s,m]) + max[s](x0[b,s,0]) - min[m](x0[b,0,m])",
    "r[b] = sum[s](x0[b,s,m] * x0[b,s,m])",
    "r[b,s,t] = softmax[t](where(t < s, x0[b,s,m] * x0[b,t,m], -inf))",
    "r[b,s,m] = softmax[s,m](x0[b,s,m])",
    "r[b,m] = softmax[t](where(t < b, x0[b,t,0], -inf)) * x0[b,t,m]",
    "r[b,s] = g[ids[b,s]] * ids[b,s] + x0[b, ids[b,s], min(ids[b,s], s) + 1]",
    "r[s,z,e] = x0[0, s, 3*z + e] - x0[1, seq-1-s, e*2 % model]",
    "r[s,m] = x0[0,s,m] % 0.75 + x0[1,s,m] // 0.5 + (s - 2) // 3 - (s - 2) % 3",
    "r[s,t] = where(s == t or not (s < 2) and t != 1, s, -t)",
    "r[b,s,m] = exp(x0[b,s,m]) + log(abs(x0[b,s,m])) + sin(x0[b,s,m]) + cos(x0[b,s,m]) + tanh(x0[b,s,m]) + erf(x0[b,s,m])",
    "r[b,s,m] = sigmoid(x0[b,s,m]) + gelu(x0[b,s,m]) + gelu_tanh(x0[b,s,m]) + relu(x0[b,s,m]) + max(x0[b,s,m], g[m]) * min(g[m], s)",
    "r[s,e] = cos(s * 50.0 ** (-e / half))",
    "r = x0[b,s,m] * x0[b,s,m]",
    "r[m] = sum[n](w[n,m] + g[n]) + sum[n](where(n < 3, 1, 2))",
    "r[m] = w[m,m]",
    "r[s,z] = 1",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_kind_of_expression(statement: str) -> None:
    p = program(statement, "v = 0", outputs="{r: {axes: '" + letters_of(statement) + "'}}")
    inputs, weights = data(p)
    found = evaluate(p, inputs, weights, torch.float64)["r"]
    expected = evaluate_naively(p, {**inputs, **weights})[p.outputs[0].value]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    single = evaluate(p, inputs, weights)["r"]
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def letters_of(statement: str) -> str:
    target = statement.split("=")[0].strip()
    return target.partition("[")[2].rstrip("]").replace(",", " ")


def test_parts_and_repeats() -> None:
    repeat = (
        "repeat: 2\n    as: i\n    weights: {u: {axes: m, from: 'u.{i}'}}\n    body:\n"
        "      - h[b,s,0] = y[b,s,m] * u[m]\n      - h[b,s,1] = i - s\n      - y[b,s,m] += sum[z](h[b,s,z]) * u[m]"
    )
    p = program(Y, repeat)
    inputs, weights = data(p)
    expected = evaluate_naively(p, {**inputs, **weights})["y.2"]
    torch.testing.assert_close(evaluate(p, inputs, weights, torch.float64)["y"], expected)


def test_a_softmax_row_that_is_all_minus_infinity_is_zero() -> None:
    p = program("r[s,t] = softmax[t](where(t < s, s, -inf))", outputs="{r: {axes: s t}}")
    found = evaluate(p, {}, {})["r"]
    assert found[0].tolist() == [0, 0, 0, 0]
    assert found[2].tolist() == [0.5, 0.5, 0, 0]


def test_only_what_an_output_needs_is_computed() -> None:
    p = program(Y, "r[b] = x0[b,s,m] * g[m] * ids[b,s]", "u[b] = r[b] + 1", outputs="{y: {axes: b s m}, u: {axes: b}}")
    inputs, weights = data(p)
    assert needed(p, ["y.0"]) == {"y.0", "x0"}
    assert needed(p, ["u.0"]) == {"u.0", "r.0", "x0", "g", "ids"}
    assert list(evaluate(p, inputs, {}, outputs=["y"])) == ["y"]
    assert list(evaluate(p, inputs, weights)) == ["y", "u"]


@pytest.mark.parametrize(
    ("inputs", "weights", "outputs", "words"),
    [
        ({}, {"g": torch.ones(6)}, None, "the input `x0` is missing"),
        ({"x0": torch.ones(2, 4, 6)}, {}, None, "weights are missing: g"),
        ({"x0": torch.ones(2, 4, 5)}, {"g": torch.ones(6)}, None, "the input `x0` has shape"),
        ({"x0": torch.ones(2, 4, 6)}, {"g": torch.ones(5)}, None, "the weight `g` has shape"),
        ({"x0": torch.ones(2, 4, 6)}, {"g": torch.ones(6)}, ["z"], "no output is called `z`"),
    ],
)
def test_what_is_not_given(inputs: dict[str, Tensor], weights: dict[str, Tensor], outputs: list[str] | None, words: str) -> None:
    p = program("y[b,s,m] = x0[b,s,m] * g[m]")
    with pytest.raises(UsageError, match=words):
        evaluate(p, inputs, weights, outputs=outputs)


@pytest.mark.parametrize("index", [-1, 6])
def test_an_index_from_data_is_checked(index: int) -> None:
    p = program("r[b,s] = g[ids[b,s]]", outputs="{r: {axes: b s}}")
    ids = torch.zeros(2, 4, dtype=torch.int32)
    ids[1, 2] = index
    with pytest.raises(UsageError, match=f"the index {index} is outside 0 … 5"):
        evaluate(p, {"ids": ids}, {"g": torch.ones(6)})
