"""Values as Triton source text: what kind each is, along which axes of a block it runs, and truths among numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

Axes = frozenset[str]
"""Axes of the block a value runs along, each a character; none for a scalar."""
NONE: Axes = frozenset()


@dataclass(frozen=True, slots=True)
class Val:
    """The text of a value."""

    text: str
    axes: Axes
    kind: str
    """'f' fp32, 'b' truth, 'i' int64, 'c' a number known now, 'r' as stored."""
    number: float | int = 0


def number(value: float | int) -> Val:
    if isinstance(value, float) and not math.isfinite(value):
        return Val(f'float("{value}")', NONE, "c", value)
    return Val(repr(value) if value >= 0 else f"({value!r})", NONE, "c", value)


def arithmetic(x: Val, index: bool) -> Val:
    """`x` as a number: truths become 0 and 1."""
    if x.kind == "b":
        return Val(f"{x.text}.to({'tl.int64' if index else 'tl.float32'})", x.axes, "i" if index else "f")
    if x.kind == "c" and not index and isinstance(x.number, int):
        return Val(number(float(x.number)).text, NONE, "c", float(x.number))
    return x


def tensor(x: Val) -> Val:
    """A number as a block of one element, where arithmetic is left to the kernel: `1 / 0` is an error in Python."""
    return Val(f"tl.full((1, 1), {x.text}, tl.float32)", NONE, "f") if x.kind == "c" else x


def truth(x: Val) -> str:
    return x.text if x.kind == "b" else f"({x.text} != 0)"


def logic(op: str, x: Val, y: Val, index: bool) -> Val:
    if x.kind == "c":
        return y if bool(x.number) == (op == "and") else x
    if x.kind == y.kind == "b":
        return Val(f"({x.text} {'&' if op == 'and' else '|'} {y.text})", x.axes | y.axes, "b")
    condition, x, y = truth(x), arithmetic(x, index), arithmetic(y, index)
    then, other = (y, x) if op == "and" else (x, y)
    return Val(f"tl.where({condition}, {then.text}, {other.text})", x.axes | y.axes, "i" if index else "f")


def power_text(x: Val, y: Val) -> str:
    if y.kind == "c" and y.number == 0.5:
        return f"tl.sqrt_rn({x.text})"
    if y.kind == "c" and y.number == int(y.number) and 1 <= y.number <= 4:
        return "(" + " * ".join([x.text] * int(y.number)) + ")"
    if x.kind == "c" and x.number > 0:
        return f"tl.exp2({y.text} * {math.log2(x.number)!r})"
    return f"power({x.text}, {y.text})" if y.kind != "c" else f"power({x.text}, tl.full((1, 1), {y.text}, tl.float32))"
