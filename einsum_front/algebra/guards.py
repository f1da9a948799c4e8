"""Guards: the conditions under which a part of an expression counts, and what they say of an index there.

`where(s + k >= 3, p[s + k - 3], 0)` reads `p` only where `s + k - 3` is at least 0. In: an expression, or an index with its guards and
the range of each letter. Out: each load's guards; the interval of an index where they hold. A guard is taken apart into cases, each of
comparisons of whole numbers; what it says otherwise is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import (
    COMPARISONS,
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Num,
    Reduce,
    Region,
    Unary,
    children,
    free_letters,
    rebuild,
    text,
)
from einpage.einsum_front.algebra.inequalities import Comparison, System
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.base.interval import FALSE, TRUE, Interval, truth

MOST_CASES = 64
"""Alternatives (`or`, `!=`) that guards are taken apart into; a guard that would make more is not used."""
EXACT = 2**24
"""Conditions are computed in fp32, which is exact up to here."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds (or does not) wherever a part of an expression counts."""

    condition: Expr
    holds: bool

    def __str__(self) -> str:
        return text(self.condition if self.holds else Unary("not", self.condition))


Guards: TypeAlias = tuple[Guard, ...]
_Case: TypeAlias = tuple[Comparison, ...]
"""Comparisons that hold together."""


def with_guards(e: Expr, f: Callable[[Load, Guards], Expr], guards: Guards = ()) -> Expr:
    """`e` with every load, inner ones first, replaced by `f` of it and its guards, outermost first."""
    match e:
        case Load():
            return f(replace(e, indices=tuple(with_guards(i, f, guards) for i in e.indices)), guards)
        case Call("where", (condition, then, other)):
            condition = with_guards(condition, f, guards)
            then = with_guards(then, f, (*guards, Guard(condition, True)))
            other = with_guards(other, f, (*guards, Guard(condition, False)))
            return replace(e, args=(condition, then, other))
        case Binary("and" | "or" as op, x, y):
            x = with_guards(x, f, guards)
            return replace(e, x=x, y=with_guards(y, f, (*guards, Guard(x, op == "and"))))
        case Reduce():  # its letters are others than the ones of the same name around it
            return _each(e, f, tuple(g for g in guards if not free_letters(g.condition) & set(e.letters)))
        case _:
            return _each(e, f, guards)


def _each(e: Expr, f: Callable[[Load, Guards], Expr], guards: Guards) -> Expr:
    return rebuild(e, lambda child: with_guards(child, f, guards))


def values_under(index: Expr, guards: Guards, region: Region, is_integer: Callable[[str], bool]) -> Interval | None:
    """An interval that holds `index` wherever all of `guards` hold; None where they surely hold nowhere."""
    reader = _CaseReader(region, is_integer)
    found = [known for case in reader.cases_of(guards) if (known := reader.system(case).values(index)) is not None]
    return Interval(min(i.low for i in found), max(i.high for i in found)) if found else None


def counterexample(index: Expr, guards: Guards, region: Region, is_integer: Callable[[str], bool], extent: int) -> dict[Letter, int] | None:
    """Letters for which the guards hold and `index` is not in 0 … extent - 1; None where none is found."""
    reader = _CaseReader(region, is_integer)
    letters = sorted(free_letters(index).union(*(free_letters(g.condition) for g in guards)))
    for case in reader.cases_of(guards):
        for beyond in (("<", index, Num(0)), (">=", index, Num(extent))):
            for point in reader.system((*case, beyond)).points(letters):
                if _holds(guards, point) and _is_outside(_value(index, point), extent):
                    return point
    return None


def _is_outside(value: Interval | None, extent: int) -> bool:
    return value is not None and (value.high < 0 or value.low >= extent)


def _value(e: Expr, point: Mapping[Letter, int]) -> Interval | None:
    return interval(e, {letter: (n, n + 1) for letter, n in point.items()})


def _holds(guards: Guards, point: Mapping[Letter, int]) -> bool:
    return all(truth(_value(g.condition, point)) == (TRUE if g.holds else FALSE) for g in guards)


class _CaseReader:
    """Guards as cases of comparisons."""

    def __init__(self, region: Region, is_integer: Callable[[str], bool]) -> None:
        self._region = region
        self._is_integer = is_integer

    def cases_of(self, guards: Guards) -> tuple[_Case, ...]:
        """Cases of which one applies wherever all of `guards` hold."""
        cases: tuple[_Case, ...] = ((),)
        for guard in guards:
            cases = _both(cases, self._cases(guard.condition, guard.holds))
        return cases

    def system(self, case: _Case) -> System:
        """The inequalities of a case."""
        return System(case, self._region, self._is_integer)

    def _cases(self, e: Expr, holds: bool) -> tuple[_Case, ...]:
        match e:
            case Num(value):
                return ((),) if bool(value) == holds else ()
            case Unary("not", x):
                return self._cases(x, not holds)
            case Binary("and" | "or" as op, x, y):
                a, b = self._cases(x, holds), self._cases(y, holds)
                return _both(a, b) if (op == "and") == holds else _either(a, b)
            case Binary(op, x, y) if op in COMPARISONS:
                if not (self._is_exact(x) and self._is_exact(y)):
                    return ((),)
                op = op if holds else _NEGATED[op]
                return ((("<", x, y),), ((">", x, y),)) if op == "!=" else (((op, x, y),),)
            case _:
                return self._cases(Binary("!=", e, Num(0)), holds)

    def _is_exact(self, x: Expr) -> bool:
        """Whether fp32 gives a side of a comparison exactly, or (an input as it is: rounding keeps the order) so that it compares right."""
        if isinstance(x, Load):
            return self._is_integer(x.name)
        known = interval(x, self._region)
        within = known is not None and max(abs(known.low), abs(known.high)) <= EXACT
        return within and all(map(self._is_exact, children(x)))


def _both(a: tuple[_Case, ...], b: tuple[_Case, ...]) -> tuple[_Case, ...]:
    return a if len(a) * len(b) > MOST_CASES else tuple((*x, *y) for x in a for y in b)


def _either(a: tuple[_Case, ...], b: tuple[_Case, ...]) -> tuple[_Case, ...]:
    return ((),) if len(a) + len(b) > MOST_CASES else (*a, *b)


_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
