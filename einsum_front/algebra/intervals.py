"""The values of an expression over a region, by interval arithmetic.

In: an expression and the half-open range of each letter. Out: an interval that holds every value, None where nothing is known; truths are
FALSE, TRUE or EITHER. An index is proven to lie in its dimension by it, a block of scores to be masked, a load to read part of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import COMPARISONS, Axis, Binary, Call, Expr, Load, Num, Region, Unary, children
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.interval import EITHER, Interval, arithmetic, compared, negated, truth

Integers: TypeAlias = "Callable[[str], Interval | None]"
"""The values of each tensor of whole numbers, by name; None for any other tensor."""


def _no_integers(name: str) -> None:
    return None


def interval(e: Expr, region: Region, integers: Integers = _no_integers) -> Interval | None:
    """The values `e` can take. A load of a tensor that is none of `integers` can be NaN as well."""
    match e:
        case Num(value):
            return Interval(value, value)
        case Axis(letter):
            start, end = region[letter]
            return Interval(start, end - 1)
        case Load(name, _):
            return integers(name)
        case Unary("not", x):
            known = truth(interval(x, region, integers))
            return Interval(1 - known.high, 1 - known.low)
        case Unary(_, x):
            inner = interval(x, region, integers)
            return None if inner is None else negated(inner)
        case Binary(op, x, y):
            left, right = interval(x, region, integers), interval(y, region, integers)
            if op in ("and", "or"):
                a, b = truth(left), truth(right)
                pick = min if op == "and" else max
                return Interval(pick(a.low, b.low), pick(a.high, b.high))
            if left is None or right is None:
                return EITHER if op in COMPARISONS else None
            return compared(op, left, right) if op in COMPARISONS else arithmetic(op, left, right, not_whole(e, integers) is None)
        case Call(fn, args):
            known_args = [interval(a, region, integers) for a in args]
            known_only = [i for i in known_args if i is not None]
            values = FUNCTIONS[fn].interval
            return None if values is None or len(known_only) < len(args) else values(*known_only)
        case _:
            return None


def not_whole(e: Expr, integers: Integers = _no_integers) -> Expr | None:
    """The first part of `e`, in reading order, for which `e` is not made of whole numbers; None where all of it is."""
    match e:
        case Num(value):
            return None if isinstance(value, int) else e
        case Axis() | Unary():
            pass
        case Load(name, _):
            return e if integers(name) is None else None
        case Binary(op, _, _) if op not in ("/", "**"):
            pass
        case Call(fn, _) if FUNCTIONS[fn].interval is not None:
            pass
        case _:
            return e
    return next((found for child in children(e) if (found := not_whole(child, integers)) is not None), None)
