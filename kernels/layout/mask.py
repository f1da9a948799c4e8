"""Which blocks of an attention's scores the mask empties, known from the ranges of the letters alone.

In: a score expression and a region. Out: True only where every score of the region is -inf. Data (lengths, say) is not looked at: such
a mask empties nothing here.
"""

from __future__ import annotations

import math

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Num, Unary
from einpage.kernels.layout.blocks import Region

Interval = tuple[float, float]


def emptied(score: Expr, region: Region) -> bool:
    """True where `score` is -inf all over `region`."""
    match score:
        case Num(value):
            return value == -math.inf
        case Unary("-", Num(value)):
            return value == math.inf
        case Call("where", (condition, then, other)):
            known = truth(condition, region)
            if known is None:
                return emptied(then, region) and emptied(other, region)
            return emptied(then if known else other, region)
    return False


def truth(e: Expr, region: Region) -> bool | None:
    """`e` as a truth value that holds all over `region`, or None where it varies or is not known."""
    match e:
        case Unary("not", x):
            known = truth(x, region)
            return None if known is None else not known
        case Binary("and" | "or" as op, x, y):
            absorbing = op == "or"
            sides = (truth(x, region), truth(y, region))
            if absorbing in sides:
                return absorbing
            return None if None in sides else not absorbing
        case Binary("<" | "<=" | ">" | ">=" | "==" | "!=" as op, x, y):
            left, right = interval(x, region), interval(y, region)
            return None if left is None or right is None else _compare(op, left, right)
    found = interval(e, region)
    if found is None:
        return None
    if found[0] == found[1] == 0:
        return False
    return True if found[0] > 0 or found[1] < 0 else None


def _compare(op: str, x: Interval, y: Interval) -> bool | None:
    if op in (">", ">="):
        return _compare("<" if op == ">" else "<=", y, x)
    if op == "<":
        return True if x[1] < y[0] else False if x[0] >= y[1] else None
    if op == "<=":
        return True if x[1] <= y[0] else False if x[0] > y[1] else None
    apart = x[1] < y[0] or y[1] < x[0]
    equal = x[0] == x[1] == y[0] == y[1]
    if not apart and not equal:
        return None
    return equal if op == "==" else apart


def interval(e: Expr, region: Region) -> Interval | None:
    """Bounds of `e` over `region`, or None where it depends on data or on an operator not followed here."""
    match e:
        case Num(value):
            return float(value), float(value)
        case Axis(letter):
            start, stop = region[letter]
            return float(start), float(stop - 1)
        case Unary("-", x):
            found = interval(x, region)
            return None if found is None else (-found[1], -found[0])
        case Binary("+" | "-" | "*" | "//" as op, x, y):
            left, right = interval(x, region), interval(y, region)
            if left is None or right is None:
                return None
            return _arithmetic(op, left, right)
    return None


def _arithmetic(op: str, x: Interval, y: Interval) -> Interval | None:
    if op == "+":
        return x[0] + y[0], x[1] + y[1]
    if op == "-":
        return x[0] - y[1], x[1] - y[0]
    if op == "//":
        return (x[0] // y[0], x[1] // y[0]) if y[0] == y[1] > 0 else None
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)
