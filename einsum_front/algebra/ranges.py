"""What integers an index expression can take, by interval arithmetic over the sizes.

In: a resolved expression. Out: an interval that holds every value it takes; what depends on data is unbounded. An index
of which nothing depends on data must be proven to lie in its dimension; the others are checked when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Unary

_TRUTH = ("<", "<=", ">", ">=", "==", "!=", "and", "or")


class NotWhole(Exception):
    """The expression is not made of whole numbers; `node` is the part that is not."""

    def __init__(self, node: Expr) -> None:
        super().__init__(node)
        self.node = node


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it; an infinite end is unknown."""

    low: float
    high: float


_UNKNOWN = Interval(-inf, inf)


def interval(e: Expr, extents: Mapping[Letter, int], is_integer: Callable[[str], bool]) -> Interval:
    """The values `e` can take; `is_integer` says which tensors hold integers. Raises NotWhole."""
    match e:
        case Num() if isinstance(e.value, int):
            return Interval(e.value, e.value)
        case Axis():
            return Interval(0, extents[e.letter] - 1)
        case Load() if is_integer(e.name):
            return _UNKNOWN
        case Unary("-"):
            x = interval(e.x, extents, is_integer)
            return Interval(-x.high, -x.low)
        case Unary("not"):
            interval(e.x, extents, is_integer)
            return Interval(0, 1)
        case Binary() if e.op in ("+", "-", "*", "//", "%") or e.op in _TRUTH:
            return _binary(e.op, interval(e.x, extents, is_integer), interval(e.y, extents, is_integer))
        case Call("min" | "max" | "abs" | "relu" | "where"):
            return _call(e.fn, [interval(a, extents, is_integer) for a in e.args])
        case _:
            raise NotWhole(e)


def _binary(op: str, x: Interval, y: Interval) -> Interval:
    if op in _TRUTH:
        return Interval(0, 1)
    if op == "+":
        return Interval(x.low + y.low, x.high + y.high)
    if op == "-":
        return Interval(x.low - y.high, x.high - y.low)
    if op == "*":
        corners = [0 if 0 in (a, b) else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
        return Interval(min(corners), max(corners))
    if y.low < 1 or y.high == inf:
        return _UNKNOWN
    if op == "%":
        return x if x.low >= 0 and x.high < y.low else Interval(0, y.high - 1)
    if inf in (-x.low, x.high):
        return _UNKNOWN
    corners = [a // b for a in (x.low, x.high) for b in (y.low, y.high)]
    return Interval(min(corners), max(corners))


def _call(fn: str, args: list[Interval]) -> Interval:
    lows, highs = [a.low for a in args], [a.high for a in args]
    match fn:
        case "min":
            return Interval(min(lows), min(highs))
        case "max":
            return Interval(max(lows), max(highs))
        case "where":
            return Interval(min(lows[1:]), max(highs[1:]))
        case "relu":
            return Interval(max(0, lows[0]), max(0, highs[0]))
    least = 0 if lows[0] <= 0 <= highs[0] else min(abs(lows[0]), abs(highs[0]))
    return Interval(least, max(abs(lows[0]), abs(highs[0])))
