"""Values as Triton source text: what kind each is, along which axes of a block it runs, and truths among numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from einpage.kernels.instructions.value_kind import ValueKind, computed

BlockAxes = frozenset[str]
"""Axes of the block a value runs along, each a character; none for a scalar."""
NONE: BlockAxes = frozenset()


@dataclass(frozen=True, slots=True)
class Val:
    """The text of a value."""

    text: str
    axes: BlockAxes
    kind: ValueKind
    number: float | int = 0
    """For a NUMBER."""

    @property
    def is_number(self) -> bool:
        """Whether its value is a Python number, known now."""
        return self.kind is ValueKind.NUMBER


def number(value: float | int) -> Val:
    """A number known now."""
    if isinstance(value, float) and not math.isfinite(value):
        return Val(f'float("{value}")', NONE, ValueKind.NUMBER, value)
    return Val(repr(value) if value >= 0 else f"({value!r})", NONE, ValueKind.NUMBER, value)


def arithmetic(x: Val, index: bool) -> Val:
    """`x` as a number: truths become 0 and 1."""
    if x.kind is ValueKind.BOOL:
        return Val(f"{x.text}.to({'tl.int64' if index else 'tl.float32'})", x.axes, computed(index))
    if x.is_number and not index and isinstance(x.number, int):
        return Val(number(float(x.number)).text, NONE, ValueKind.NUMBER, float(x.number))
    return x


def tensor(x: Val) -> Val:
    """A number as a block of one element, where arithmetic is left to the kernel: `1 / 0` is an error in Python."""
    return Val(f"tl.full((1, 1), {x.text}, tl.float32)", NONE, ValueKind.FLOAT) if x.is_number else x


def truth(x: Val) -> str:
    """The text of a condition."""
    return x.text if x.kind is ValueKind.BOOL else f"({x.text} != 0)"


def logic(op: str, x: Val, y: Val) -> Val:
    """`x and y` or `x or y`: a truth."""
    for known, other in ((x, y), (y, x)):
        if known.is_number and bool(known.number) != (op == "and"):
            return number(int(op == "or"))
        if known.is_number:
            return Val(truth(other), other.axes, ValueKind.BOOL)
    return Val(f"({truth(x)} {'&' if op == 'and' else '|'} {truth(y)})", x.axes | y.axes, ValueKind.BOOL)


def power_text(x: Val, y: Val) -> str:
    """`x ** y`: a root or products where the power is a small number, an exponential where the base is known."""
    if y.is_number and y.number == 0.5:
        return f"tl.sqrt_rn({x.text})"
    if y.is_number and y.number == int(y.number) and 1 <= y.number <= 4:
        return "(" + " * ".join([x.text] * int(y.number)) + ")"
    if x.is_number and x.number > 0:
        return f"tl.exp2({y.text} * {math.log2(x.number)!r})"
    return f"power({x.text}, {y.text})" if not y.is_number else f"power({x.text}, tl.full((1, 1), {y.text}, tl.float32))"
