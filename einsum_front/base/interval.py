"""Closed intervals of numbers and their arithmetic: each result holds every value that operands from the intervals give.

Python's operators throughout: `//` rounds down, `%` takes the sign of its divisor, comparisons give FALSE, TRUE or, where both can
happen, EITHER. None stands for a value of which nothing is known, which may be NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isnan


@dataclass(frozen=True, slots=True)
class Interval:
    """Every number from `low` to `high`, both included; an infinite end is not known, or infinite."""

    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high)"""
        return self.low, self.high


FALSE, TRUE, EITHER = Interval(0, 0), Interval(1, 1), Interval(0, 1)
UNBOUNDED = Interval(-inf, inf)
"""Some number."""


def hull(values: Iterable[float]) -> Interval | None:
    """The least interval that holds all of `values`; None where one is NaN."""
    every = list(values)
    return None if any(isnan(x) for x in every) else Interval(min(every), max(every))


def negated(x: Interval) -> Interval:
    """The interval of -v for v in `x`."""
    return Interval(-x.high, -x.low)


def truth(x: Interval | None) -> Interval:
    """`x` as a truth value: any number but 0 is true."""
    if x is None or x.low <= 0 <= x.high:
        return FALSE if x == FALSE else EITHER
    return TRUE


def arithmetic(op: str, x: Interval, y: Interval, whole: bool) -> Interval | None:
    """`x op y` for one of `+ - * // %`, None for any other; `whole` where both hold whole numbers alone."""
    match op:
        case "+":
            return Interval(x.low + y.low, x.high + y.high)
        case "-":
            return Interval(x.low - y.high, x.high - y.low)
        case "*":
            return hull(a * b for a in x.ends for b in y.ends)
        case "//" if y.low > 0:
            return hull(a // b for a in x.ends for b in y.ends)
        case "%" if y.low > 0:
            return _remainder(x, y, whole)
        case _:
            return None


def _remainder(x: Interval, y: Interval, whole: bool) -> Interval:
    if x.low >= 0 and x.high < y.low:
        return x
    if y.low == y.high and x.low // y.low == x.high // y.low:
        return Interval(x.low % y.low, x.high % y.low)
    return Interval(0, y.high - 1 if whole else y.high)


def compared(op: str, x: Interval, y: Interval) -> Interval:
    """`x op y` for a comparison."""
    match op:
        case "<":
            return _verdict(x.high < y.low, x.low >= y.high)
        case "<=":
            return _verdict(x.high <= y.low, x.low > y.high)
        case ">" | ">=":
            return compared("<" if op == ">" else "<=", y, x)
    apart, equal = x.high < y.low or y.high < x.low, x.low == x.high == y.low == y.high
    return _verdict(equal, apart) if op == "==" else _verdict(apart, equal)


def _verdict(always: bool, never: bool) -> Interval:
    return TRUE if always else FALSE if never else EITHER
