"""What numbers a tensor holds: the range of those that are finite, how many are none, and where the first of these is.

In: a tensor. Out: NumberCounts. Where all is finite, one pass reads it and nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch


@dataclass(frozen=True, slots=True)
class NumberCounts:
    """Of one tensor, or of the tiles of one value."""

    count: int
    low: float
    high: float
    """Of the finite numbers; inf and -inf where there are none."""
    nan: int = 0
    plus_inf: int = 0
    minus_inf: int = 0
    first: tuple[int, ...] | None = None
    """Index of the first that is not finite, row by row."""

    @property
    def bad(self) -> int:
        """How many are NaN or infinite."""
        return self.nan + self.plus_inf + self.minus_inf

    def text(self) -> str:
        """`from -1.2 to 3.4`, or `2 of 8 values are NaN, the first at [0, 3]`."""
        if not self.bad:
            return f"from {self.low:.4g} to {self.high:.4g}"
        kinds = [(n, name) for n, name in ((self.nan, "NaN"), (self.plus_inf, "inf"), (self.minus_inf, "-inf")) if n]
        what = kinds[0][1] if len(kinds) == 1 else f"not finite ({', '.join(f'{n} {name}' for n, name in kinds)})"
        return f"{self.bad} of {self.count} values {'is' if self.bad == 1 else 'are'} {what}, the first at {list(self.first or ())}"


def number_counts(tensor: torch.Tensor) -> NumberCounts:
    """The counts of `tensor`, which has at least one element."""
    low, high = (float(x) for x in torch.aminmax(tensor))
    if isfinite(low) and isfinite(high):
        return NumberCounts(tensor.numel(), low, high)
    finite = tensor.isfinite()
    first = tuple(int(i) for i in torch.unravel_index((~finite).flatten().int().argmax(), tensor.shape))
    numbers = tensor[finite]
    low, high = (float(x) for x in torch.aminmax(numbers)) if numbers.numel() else (float("inf"), float("-inf"))
    nan, plus_inf, minus_inf = (int(found.sum()) for found in (tensor.isnan(), tensor.isposinf(), tensor.isneginf()))
    return NumberCounts(tensor.numel(), low, high, nan, plus_inf, minus_inf, first)


def merged(parts: list[tuple[NumberCounts, tuple[int, ...]]]) -> NumberCounts:
    """The counts of a value from those of disjoint tiles, each with the value's index of its first element. At least one."""
    return NumberCounts(
        count=sum(p.count for p, _ in parts),
        low=min(p.low for p, _ in parts),
        high=max(p.high for p, _ in parts),
        nan=sum(p.nan for p, _ in parts),
        plus_inf=sum(p.plus_inf for p, _ in parts),
        minus_inf=sum(p.minus_inf for p, _ in parts),
        first=min((tuple(a + b for a, b in zip(p.first, start, strict=True)) for p, start in parts if p.first is not None), default=None),
    )
