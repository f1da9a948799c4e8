"""Interval arithmetic over expressions: what an index or a mask can be, over ranges of letters.

In: an expression and the half-open range of each letter. Out: an inclusive interval that holds every value the expression takes, None where
nothing is known (it depends on data). Comparisons give (0, 0), (1, 1) or (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Num, Unary

Interval: TypeAlias = "tuple[float, float]"
"""Inclusive: least and greatest value."""

FALSE, TRUE, EITHER = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)


def interval(e: Expr, range_by_letter: Mapping[Letter, tuple[int, int]]) -> Interval | None:
    """Bounds of `e` over the half-open ranges, or None where they are not known."""
    match e:
        case Num(value):
            return (value, value)
        case Axis(letter):
            start, stop = range_by_letter[letter]
            return (start, stop - 1)
        case Unary(op, x):
            inner = interval(x, range_by_letter)
            if op == "not":
                inner = inner or EITHER
                return (float(not inner[1]), float(not inner[0]))
            return None if inner is None else (-inner[1], -inner[0])
        case Binary("and" | "or" as op, x, y):
            a, b = _truth(interval(x, range_by_letter)), _truth(interval(y, range_by_letter))
            pick = min if op == "and" else max
            return (pick(a[0], b[0]), pick(a[1], b[1]))
        case Binary(op, x, y):
            left, right = interval(x, range_by_letter), interval(y, range_by_letter)
            return None if left is None or right is None else _binary(op, left, right)
        case Call("min" | "max" as fn, (x, y)):
            left, right = interval(x, range_by_letter), interval(y, range_by_letter)
            if left is None or right is None:
                return None
            choose = min if fn == "min" else max
            return (choose(left[0], right[0]), choose(left[1], right[1]))
        case _:
            return None


def _truth(i: Interval | None) -> Interval:
    if i is None or i[0] <= 0 <= i[1]:
        return FALSE if i == FALSE else EITHER
    return TRUE


def _binary(op: str, a: Interval, b: Interval) -> Interval | None:
    match op:
        case "+":
            return (a[0] + b[0], a[1] + b[1])
        case "-":
            return (a[0] - b[1], a[1] - b[0])
        case "*":
            ends = [x * y for x in a for y in b]
            return None if any(math.isnan(x) for x in ends) else (min(ends), max(ends))
        case "//" if b[0] > 0:
            ends = [x // y for x in a for y in b]
            return (min(ends), max(ends))
        case "%" if b[0] == b[1] and b[0] > 0:
            n = b[0]
            return (a[0] % n, a[1] % n) if a[0] // n == a[1] // n else (0, n - 1)
        case "<":
            return _compare(a[1] < b[0], a[0] >= b[1])
        case "<=":
            return _compare(a[1] <= b[0], a[0] > b[1])
        case ">":
            return _compare(a[0] > b[1], a[1] <= b[0])
        case ">=":
            return _compare(a[0] >= b[1], a[1] < b[0])
        case "==":
            return _compare(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0])
        case "!=":
            return _compare(a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1])
        case _:
            return None


def _compare(always: bool, never: bool) -> Interval:
    return TRUE if always else FALSE if never else EITHER
