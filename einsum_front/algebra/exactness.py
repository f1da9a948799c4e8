"""Which conditions fp32 decides as whole numbers do: values are computed in fp32, which is exact up to 2**24.

In: an expression, the range of each letter, the values of each integer input. Out: how far from 0 fp32 gives it exactly; beyond, fp32 is
beyond as well, on the same side, because rounding keeps the order. So `s < pad[b] + 5` is decided right whatever `pad` holds, while
`pad[b] - len[b] >= 0` is so only where both have ranges: two large numbers may differ by one.
"""

from __future__ import annotations

from math import inf, isfinite

from einpage.einsum_front.algebra.expr import COMPARISONS, Axis, Binary, Call, Expr, Load, Num, Region, Unary
from einpage.einsum_front.algebra.intervals import Integers, interval
from einpage.einsum_front.base.interval import Interval

EXACT = 2**24
"""Whole numbers of at most this magnitude are fp32 numbers."""


class Exactness:
    """What fp32 gives exactly over a region."""

    def __init__(self, region: Region, integers: Integers) -> None:
        self._region = region
        self._integers = integers
        self._reach_by_expr: dict[Expr, float] = {}

    def decides(self, condition: Expr) -> bool:
        """Whether fp32 finds the condition true just where whole numbers do."""
        match condition:
            case Unary("not", x):
                return self.decides(x)
            case Binary("and" | "or", x, y):
                return self.decides(x) and self.decides(y)
            case Binary(op, x, y) if op in COMPARISONS:
                a, b = self.reach(x), self.reach(y)
                return a > self._most(y) if b == inf else a == inf and b > self._most(x)
            case _:
                return self.reach(condition) > 0

    def reach(self, e: Expr) -> float:
        """The magnitude below which fp32 gives `e` exactly, and beyond which it gives no less on the same side; 0 where it may err."""
        if e not in self._reach_by_expr:
            found = self._reach(e)
            self._reach_by_expr[e] = inf if self._most(e) < found else min(found, EXACT)
        return self._reach_by_expr[e]

    def _most(self, e: Expr) -> float:
        known = interval(e, self._region, self._integers)
        return inf if known is None else max(map(abs, known.ends))

    def _reach(self, e: Expr) -> float:
        match e:
            case Num(value):
                return EXACT if isfinite(value) and value == int(value) else 0
            case Axis():
                return EXACT
            case Load(name, _):
                return EXACT if self._integers(name) is not None else 0
            case Unary("-", x):
                return self.reach(x)
            case Unary() | Binary("and" | "or"):
                return EXACT if self.decides(e) else 0
            case Binary(op, x, y) if op in COMPARISONS:
                return EXACT if self.decides(e) else 0
            case Binary("+" | "-", x, y):
                a, b = self.reach(x), self.reach(y)
                return _less(a, self._most(y)) if b == inf else _less(b, self._most(x)) if a == inf else 0
            case Binary("*", x, y):
                a, b = self.reach(x), self.reach(y)
                return min(a, b) if max(a, b) == inf else 0
            case Binary("//", x, Num(int(by))) if by > 0 and self.reach(x) != inf:
                return max(self.reach(x) // by - 1, 0)
            case Binary("//" | "%", x, y):
                known = interval(y, self._region, self._integers)
                return EXACT if self.reach(x) == self.reach(y) == inf and _is_positive(known) else 0
            case Call("where", (condition, x, y)):
                return min(self.reach(x), self.reach(y)) if self.decides(condition) else 0
            case Call("min" | "max" | "abs" | "relu", args):
                return min(map(self.reach, args))
            case _:
                return 0


def _less(reach: float, by: float) -> float:
    return EXACT if reach == inf else max(reach - by, 0)


def _is_positive(known: Interval | None) -> bool:
    return known is not None and known.low > 0
