"""What integers an index expression can take, by interval arithmetic over the sizes.

In: a resolved expression. Out: an interval that holds every value it takes; what depends on data is unbounded. An index
of which nothing depends on data must be proven to lie in its dimension; the others are checked when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Unary
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.interval import Interval

_TRUTH = ("<", "<=", ">", ">=", "==", "!=", "and", "or")


class NotWhole(Exception):
    """The expression is not made of whole numbers; `node` is the part that is not."""

    def __init__(self, node: Expr) -> None:
        super().__init__(node)
        self.node = node


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
        case Call(fn, args) if (values := FUNCTIONS[fn].interval) is not None:
            return values(*(interval(a, extents, is_integer) for a in args))
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
