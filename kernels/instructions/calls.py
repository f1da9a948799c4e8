"""What instructions may call: torch functions by the operators and function names of expressions.

OUTABLE calls take `out=`; ALLOCATES_TEMPORARY ones need one more temporary while they run. A softmax of a row that is all -inf is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import COMPARISONS, Binary, Letter, Reduction
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.kernels.errors import DivisorIsZero


def copy(target: Tensor, value: Tensor) -> Tensor:
    """`target`, overwritten with `value`, which is broadcast and converted to its dtype."""
    return target.copy_(value)


def fill(target: Tensor, value: float) -> Tensor:
    """`target`, every element set to `value`, an fp32 rounded to its dtype."""
    return target.fill_(torch.tensor(value, dtype=torch.float32))


def to_float(x: Tensor) -> Tensor:
    """`x` as fp32; itself if it is already."""
    return x.to(torch.float32)


def to_int(x: Tensor) -> Tensor:
    """`x` as int64, rounded towards zero; itself if it is already."""
    return x.to(torch.int64)


def to_int_tensor(x: float) -> Tensor:
    """A number as an int64 tensor of no dimensions, rounded towards zero."""
    return torch.tensor(int(x), dtype=torch.int64)


def is_true(x: Tensor | float) -> Tensor:
    """`x != 0` as a bool tensor: elementwise for a tensor, of no dimensions for a number."""
    return x != 0 if isinstance(x, Tensor) else torch.tensor(bool(x))


@dataclass(frozen=True, slots=True)
class CheckedDivision:
    """A division of whole numbers (`//` or `%`), which has no answer where the divisor is 0."""

    fn: Callable[..., Tensor]
    division: Binary
    letters: tuple[Letter, ...]
    """Of the divisor, in the order of its dimensions."""

    def __call__(self, x: Tensor, y: Tensor, *numbers: Tensor) -> Tensor:
        """x // y or x % y, rounded down; `numbers` are those of `letters`. Raises DivisorIsZero, with the first place where y is 0."""
        if not y.all():
            first = tuple((y == 0).nonzero()[0].tolist())
            point = {x: int(n.expand(y.shape)[first]) for x, n in zip(self.letters, numbers, strict=True)}
            raise DivisorIsZero(self.division, point)
        return self.fn(x, y)


@dataclass(frozen=True, slots=True)
class RowReduction:
    """A reduction over some dimensions, kept with size 1."""

    fn: Callable[..., Tensor]
    dims: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The shape of `x`, with size 1 along `dims`."""
        return self.fn(x, dim=self.dims, keepdim=True)


def exponentials(x: Tensor, dims: tuple[int, ...], out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """exp(x - max) and its sum over `dims`; a row that is all -inf gives zeros and a sum of 0."""
    most = torch.amax(x, dim=dims, keepdim=True).clamp_(min=-3.0e38)
    found = torch.sub(x, most, out=out).exp_()
    return found, torch.sum(found, dim=dims, keepdim=True)


@dataclass(frozen=True, slots=True)
class RowSoftmax:
    """A softmax over some dimensions."""

    dims: tuple[int, ...]
    absent: int
    """How many equal rows lie along letters that the value lacks."""

    def __call__(self, x: Tensor) -> Tensor:
        """The shape of `x`; sums to 1 / `absent` over `dims`, or is 0 where the row is all -inf."""
        if not self.dims:
            return torch.where(x == -math.inf, 0.0, 1.0 / self.absent)
        found, total = exponentials(x, self.dims)
        return found.div_(total.clamp_(min=1e-30).mul_(self.absent))


def remainder(x: Tensor, y: Tensor | float) -> Tensor:
    """x % y in fp32, as in Python, for every quotient that there is: torch.remainder is NaN where x / y is infinite in fp32.

    x is first taken modulo multiples of y, y * 2^190 and y * 2^95, which changes nothing: fp32 holds each quotient then, and the largest
    quotient of two of its numbers, 2^277, is reached. Where a multiple is infinite, what is left of x has a quotient small enough.
    """
    y = torch.as_tensor(y, dtype=torch.float32)
    multiple = y * 2.0**127
    multiple *= 2.0**63
    found = torch.fmod(x, multiple)
    multiple = torch.mul(y, 2.0**95, out=multiple)
    torch.fmod(found, multiple, out=found)
    return torch.remainder(found, y, out=found)


REDUCTIONS: dict[Reduction, Callable[..., Tensor]] = {
    Reduction.SUM: torch.sum,
    Reduction.MEAN: torch.mean,
    Reduction.MAX: torch.amax,
    Reduction.MIN: torch.amin,
}
BINARY: dict[str, Callable[..., Any]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "//": torch.floor_divide,
    "%": torch.remainder,
    "**": torch.pow,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}
POINTWISE: dict[str, Callable[..., Any]] = {f.name: f.torch(torch) for f in FUNCTIONS.values()}
ALLOCATES_TEMPORARY: frozenset[Callable[..., Any] | None] = frozenset(
    (remainder, *(POINTWISE[f.name] for f in FUNCTIONS.values() if f.temporary))
)
OUTABLE: frozenset[Callable[..., Any] | None] = (
    frozenset((*(fn for op, fn in BINARY.items() if op not in COMPARISONS), torch.neg, *POINTWISE.values())) - ALLOCATES_TEMPORARY
)
