"""What errors advise is right: each formula computes what the function of that name does, and all that is advised can be parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.spec import elsewhere
from einpage.einsum_front.spec.parse import RESERVED, parse_expression, parse_statement
from einpage.einsum_front.spec.reader import read_document

F = torch.nn.functional
SPEC = """\
einpage: 1
name: advised
sizes: {{seq: 8}}
axes: {{s: seq, m: 5}}
inputs: {{x: {{axes: s m}}, y: {{axes: s m}}}}
body:
  - a[s,m] = x[s,m]
  - z[s{letters}] = {expression}
outputs: {{z: {{axes: s{letters_apart}}}}}
"""

BY_NAME: dict[str, Callable[..., Tensor]] = {
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "int": torch.trunc,
    "cosh": torch.cosh,
    "swish": F.silu,
    "sigmoid_linear_unit": F.silu,
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: F.relu(x) ** 2,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "fabs": torch.abs,
    "float": lambda x: x,
    "double": lambda x: x,
    "half": lambda x: x,
    "dropout": lambda x: F.dropout(x, training=False),
    "identity": lambda x: x,
    "power": torch.pow,
    "mod": torch.remainder,
}
REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    "var": lambda x: x.var(1, correction=0),
    "std": lambda x: x.std(1, correction=0),
    "norm": lambda x: x.norm(dim=1),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "average": lambda x: x.mean(1),
    "avg": lambda x: x.mean(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "normalize": lambda x: F.normalize(x, dim=1),
    **dict.fromkeys(("rms_norm", "rmsnorm"), lambda x: F.rms_norm(x, (5,), eps=1e-5)),
    **dict.fromkeys(("layer_norm", "layernorm"), lambda x: F.layer_norm(x, (5,), eps=1e-5)),
}


def numbers() -> Tensor:
    """Both signs, whole numbers, 0, and what overflows an exponential that is not written with care."""
    x = torch.linspace(-4, 4, 40, dtype=torch.float64).reshape(8, 5)
    x[0, 0], x[1], x[2, 2:4] = 0.0, torch.tensor([-3.0, 2.0, -1.0, 1.0, 7.0]), torch.tensor([900.0, -900.0])
    return x


def advised(formula: str, letters: tuple[str, ...], x: Tensor, y: Tensor) -> Tensor:
    """`formula` with `x` and `y` as elements, over s and m."""
    expression = re.sub(r"\by\b", "y[s,m]", re.sub(r"\bx\b", "a[s,m]", formula))
    spec = SPEC.format(expression=expression, letters="".join(f",{a}" for a in letters), letters_apart="".join(f" {a}" for a in letters))
    return evaluate(elaborate(read_document(spec, "advised.yaml")), {"x": x, "y": y}, {}, torch.float64)["z"]


def same(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want.double().numpy(), rtol=1e-12, atol=1e-13)


LOGARITHMS = ("log2", "log10", "log1p")
STEEP = ("sinh", "cosh", "exp2", "expm1")


@pytest.mark.parametrize("name", elsewhere.FORMULAS)
def test_a_formula_is_the_function(name: str) -> None:
    x = numbers()
    x = x.abs() + 0.1 if name in LOGARITHMS else x.clamp(-20, 20) if name in STEEP else x
    function = BY_NAME.get(name) or getattr(torch, name, None) or getattr(F, name)
    same(advised(elsewhere.FORMULAS[name], ("m",), x, x), function(x))


@pytest.mark.parametrize("name", elsewhere.FORMULAS_OF_TWO)
def test_a_formula_of_two_is_the_function(name: str) -> None:
    x, y = numbers(), numbers().flip(0) + 0.3
    x = x.abs() if name in ("pow", "power") else x
    same(advised(elsewhere.FORMULAS_OF_TWO[name], ("m",), x, y), (BY_NAME.get(name) or getattr(torch, name))(x, y))


@pytest.mark.parametrize("name", elsewhere.REDUCED)
def test_a_formula_of_rows_is_the_reduction(name: str) -> None:
    x = numbers().clamp(-9, 9)
    want = REDUCED[name](x)
    same(advised(elsewhere.REDUCED[name], ("m",)[: want.dim() - 1], x, x), want)


def snippets() -> Iterator[str]:
    """What stands between backticks in a cure, less signs and words."""
    words = (*elsewhere.OTHERWISE.values(), *elsewhere.STARTS.values(), *elsewhere.AFTER.values(), *elsewhere.CHARACTERS.values())
    for cure in (*words, *elsewhere.NAMES.values()):
        yield from (s for s in re.findall(r"`([^`]*)`", cure) if "(" in s or "[" in s)


@pytest.mark.parametrize("snippet", sorted(set(snippets())))
def test_what_is_advised_is_of_the_language(snippet: str) -> None:
    if "…" not in snippet:
        (parse_statement if re.search(r"[^<>=!]=[^=]", snippet) else parse_expression)(snippet)


def test_no_advice_is_about_a_word_that_exists() -> None:
    tables = (elsewhere.FORMULAS, elsewhere.FORMULAS_OF_TWO, elsewhere.REDUCED, elsewhere.OTHERWISE)
    every = [word for table in tables for word in table]
    assert len(every) == len(set(every)), "two cures for one word"
    assert not set(every) & RESERVED
    assert all(word == word.lower() for word in every)


@pytest.mark.parametrize(("word", "near"), [("sigmiod", "sigmoid"), ("SiLU", "silu"), ("softmx", "softmax"), ("sqr", None), ("sine", None)])
def test_a_near_miss(word: str, near: str | None) -> None:
    with pytest.raises(SpecError) as e:
        parse_expression(f"{word}(x[s])")
    assert (e.value.cure == f"did you mean `{near}`?") == (near is not None), e.value.cure
