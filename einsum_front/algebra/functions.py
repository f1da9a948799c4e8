"""The functions of the language, a row each: whatever a part of einpage knows of a function by name, it reads here.

A meaning is written once, for Python's numbers, numpy arrays and torch tensors alike: `m` is the library that has `exp log sqrt sin cos
tanh erf abs minimum maximum where` for them. It is the definition; the torch and Triton forms are how kernels compute it. Neither library
is imported here: a torch form is asked for with the module, a Triton form is text over the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from einpage.einsum_front.base.interval import Interval


class _LeftOut(str):
    """Empty, and callable: all can be imported without the column, so that the test that names it runs and fails."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        return self


LEFT_OUT: Any = _LeftOut()
"""Stands where a row leaves out a column, which no row may."""


@dataclass(frozen=True, slots=True)
class Function:
    """A pointwise function."""

    name: str
    parameters: tuple[str, ...] = LEFT_OUT
    about: str = LEFT_OUT
    """What it computes of its parameters, in a line."""
    meaning: Callable[..., Any] = LEFT_OUT
    """(m, *arguments) -> value, its definition."""
    interval: Callable[..., Interval] | None = LEFT_OUT
    """(*intervals of the arguments) -> the values it takes; given where whole numbers of whole numbers come out, so that it may stand in
    an index, and None for all others."""
    torch: Callable[[Any], Callable[..., Any]] = LEFT_OUT
    """torch -> what computes it of tensors in one call."""
    temporary: bool = LEFT_OUT
    """Whether that call may allocate a tensor of its result's size beside it; one that does not takes `out=`."""
    triton: str = LEFT_OUT
    """An expression of Triton over the parameters, which may call what kernels/writer/math.py has."""
    costly: bool = LEFT_OUT
    """Whether it costs many instructions: a GPU's kernel avoids computing equal values twice, and a CPU takes longer than to add."""
    derivatives: tuple[str, ...] = LEFT_OUT
    """By parameter, an expression of the language over the parameters: how fast the value grows with it. At a kink, the mean of both sides
    for two equal arguments, 0 for one argument."""
    finite: bool = LEFT_OUT
    """Whether it, and its derivatives, are finite wherever the arguments are: so 0 times any of them is 0."""

    @property
    def arity(self) -> int:
        """How many arguments it takes."""
        return len(self.parameters)


def _sigmoid(m: Any, x: Any) -> Any:
    small = m.exp(-m.abs(x))
    return m.where(x < 0, small, 1.0) / (1.0 + small)


def _absolute(x: Interval) -> Interval:
    least = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Interval(least, max(abs(x.low), abs(x.high)))


_ROWS = (
    Function(
        "exp",
        parameters=("x",),
        about="e to the x.",
        meaning=lambda m, x: m.exp(x),
        interval=None,
        torch=lambda torch: torch.exp,
        temporary=False,
        triton="tl.exp(x)",
        costly=False,
        derivatives=("exp(x)",),
        finite=False,
    ),
    Function(
        "log",
        parameters=("x",),
        about="The natural logarithm.",
        meaning=lambda m, x: m.log(x),
        interval=None,
        torch=lambda torch: torch.log,
        temporary=False,
        triton="tl.log(x)",
        costly=True,
        derivatives=("1 / x",),
        finite=False,
    ),
    Function(
        "sqrt",
        parameters=("x",),
        about="The square root, correctly rounded.",
        meaning=lambda m, x: m.sqrt(x),
        interval=None,
        torch=lambda torch: torch.sqrt,
        temporary=False,
        triton="tl.sqrt_rn(x)",
        costly=False,
        derivatives=("0.5 * rsqrt(x)",),
        finite=False,
    ),
    Function(
        "rsqrt",
        parameters=("x",),
        about="One over the square root.",
        meaning=lambda m, x: 1 / m.sqrt(x),
        interval=None,
        torch=lambda torch: torch.rsqrt,
        temporary=False,
        triton="tl.rsqrt(x)",
        costly=False,
        derivatives=("-0.5 * rsqrt(x) / x",),
        finite=False,
    ),
    Function(
        "sin",
        parameters=("x",),
        about="The sine of radians.",
        meaning=lambda m, x: m.sin(x),
        interval=None,
        torch=lambda torch: torch.sin,
        temporary=False,
        triton="tl.sin(x)",
        costly=True,
        derivatives=("cos(x)",),
        finite=True,
    ),
    Function(
        "cos",
        parameters=("x",),
        about="The cosine of radians.",
        meaning=lambda m, x: m.cos(x),
        interval=None,
        torch=lambda torch: torch.cos,
        temporary=False,
        triton="tl.cos(x)",
        costly=True,
        derivatives=("-sin(x)",),
        finite=True,
    ),
    Function(
        "tanh",
        parameters=("x",),
        about="The hyperbolic tangent.",
        meaning=lambda m, x: m.tanh(x),
        interval=None,
        torch=lambda torch: torch.tanh,
        temporary=False,
        triton="tanh(x)",
        costly=True,
        derivatives=("1 - tanh(x) * tanh(x)",),
        finite=True,
    ),
    Function(
        "erf",
        parameters=("x",),
        about="The error function.",
        meaning=lambda m, x: m.erf(x),
        interval=None,
        torch=lambda torch: torch.erf,
        temporary=False,
        triton="tl.erf(x)",
        costly=True,
        derivatives=("1.1283791670955126 * exp(-x * x)",),
        finite=True,
    ),
    Function(
        "sigmoid",
        parameters=("x",),
        about="1 / (1 + exp(-x)).",
        meaning=_sigmoid,
        interval=None,
        torch=lambda torch: torch.sigmoid,
        temporary=False,
        triton="tl.sigmoid(x)",
        costly=False,
        derivatives=("sigmoid(x) * sigmoid(-x)",),
        finite=True,
    ),
    Function(
        "silu",
        parameters=("x",),
        about="x * sigmoid(x), also called swish.",
        meaning=lambda m, x: x * _sigmoid(m, x),
        interval=None,
        torch=lambda torch: torch.nn.functional.silu,
        temporary=True,
        triton="x * tl.sigmoid(x)",
        costly=False,
        derivatives=("sigmoid(x) * (1 + x * sigmoid(-x))",),
        finite=True,
    ),
    Function(
        "gelu",
        parameters=("x",),
        about="x times the normal distribution function, by erf.",
        meaning=lambda m, x: x * (1 + m.erf(x / math.sqrt(2))) / 2,
        interval=None,
        torch=lambda torch: torch.nn.functional.gelu,
        temporary=True,
        triton="0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))",
        costly=True,
        derivatives=("0.5 * (1 + erf(0.7071067811865476 * x)) + 0.3989422804014327 * x * exp(-0.5 * x * x)",),
        finite=True,
    ),
    Function(
        "gelu_tanh",
        parameters=("x",),
        about="The approximation of gelu by tanh.",
        meaning=lambda m, x: x * (1 + m.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        interval=None,
        torch=lambda torch: partial(torch.nn.functional.gelu, approximate="tanh"),
        temporary=True,
        triton="0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
        costly=True,
        derivatives=(
            "sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x)) * (1 + 1.5957691216057308 * x * (1 + "
            "0.134145 * x * x) * sigmoid(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))",
        ),
        finite=True,
    ),
    Function(
        "relu",
        parameters=("x",),
        about="x where it is positive, else 0.",
        meaning=lambda m, x: m.where(x < 0, 0, x),
        interval=lambda x: Interval(max(0, x.low), max(0, x.high)),
        torch=lambda torch: partial(torch.clamp, min=0),
        temporary=False,
        triton="tl.maximum(x, 0)",
        costly=False,
        derivatives=("where(x > 0, 1, 0)",),
        finite=True,
    ),
    Function(
        "abs",
        parameters=("x",),
        about="The absolute value.",
        meaning=lambda m, x: m.abs(x),
        interval=_absolute,
        torch=lambda torch: torch.abs,
        temporary=False,
        triton="tl.abs(x)",
        costly=False,
        derivatives=("where(x > 0, 1, where(x < 0, -1, 0))",),
        finite=True,
    ),
    Function(
        "min",
        parameters=("x", "y"),
        about="The lesser of two.",
        meaning=lambda m, x, y: m.minimum(x, y),
        interval=lambda x, y: Interval(min(x.low, y.low), min(x.high, y.high)),
        torch=lambda torch: torch.minimum,
        temporary=False,
        triton="tl.minimum(x, y)",
        costly=False,
        derivatives=("where(x < y, 1, where(x == y, 0.5, 0))", "where(y < x, 1, where(x == y, 0.5, 0))"),
        finite=True,
    ),
    Function(
        "max",
        parameters=("x", "y"),
        about="The greater of two.",
        meaning=lambda m, x, y: m.maximum(x, y),
        interval=lambda x, y: Interval(max(x.low, y.low), max(x.high, y.high)),
        torch=lambda torch: torch.maximum,
        temporary=False,
        triton="tl.maximum(x, y)",
        costly=False,
        derivatives=("where(x > y, 1, where(x == y, 0.5, 0))", "where(y > x, 1, where(x == y, 0.5, 0))"),
        finite=True,
    ),
    Function(
        "where",
        parameters=("condition", "x", "y"),
        about="x where the condition is true, else y.",
        meaning=lambda m, condition, x, y: m.where(condition != 0, x, y),
        interval=lambda condition, x, y: Interval(min(x.low, y.low), max(x.high, y.high)),
        torch=lambda torch: torch.where,
        temporary=False,
        triton="tl.where(condition, x, y)",
        costly=False,
        derivatives=("0", "where(condition, 1, 0)", "where(condition, 0, 1)"),
        finite=True,
    ),
)
FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
"""By name, in the order in which errors list them."""
