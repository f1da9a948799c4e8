"""Guards: the conditions under which a part of an expression counts, and what they say of an index there.

`where(s + k >= 3, p[s + k - 3], 0)` reads `p` only where `s + k - 3` is at least 0. In: an expression, or an index with its guards and
the range of each letter. Out: each load's guards; the interval of an index where they hold. A guard is unpacked into cases, each of
comparisons of whole numbers; what it says otherwise is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TypeAlias

from einpage.einsum_front.algebra.exactness import Exactness
from einpage.einsum_front.algebra.expr import (
    COMPARISONS,
    Axis,
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
    substitute,
    text,
)
from einpage.einsum_front.algebra.inequalities import Comparison, System
from einpage.einsum_front.algebra.intervals import Integers, interval, not_whole
from einpage.einsum_front.algebra.rewrite import rename
from einpage.einsum_front.base.interval import FALSE, TRUE, Interval, truth

MOST_CASES = 64
"""Alternatives (`or`, `!=`) that guards are unpacked into; a guard that would make more is not used."""
MOST_TRIED = 16
"""Choices of letters that are tried in search of one under which conditions hold."""
MOST_ALTERNATIVES = 64
"""Expressions without `min`, `max`, `abs`, `where` that one with them is unpacked into."""


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
_Alternative: TypeAlias = tuple[tuple[_Case, ...], Expr]
"""An expression, and the cases in which another is equal to it."""


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


def values_under(index: Expr, guards: Guards, region: Region, integers: Integers) -> Interval | None:
    """An interval that holds `index` wherever all of `guards` hold; None where they surely hold nowhere."""
    reader = _CaseReader(region, integers)
    parts = [(case, piece) for cases, piece in reader.alternatives(index) for case in _both(reader.cases_of(guards), cases)]
    if len(parts) > MOST_CASES:
        parts = [(case, index) for case in reader.cases_of(guards)]
    found = [known for case, piece in parts if (known := reader.system(case).values(piece)) is not None]
    return Interval(min(i.low for i in found), max(i.high for i in found)) if found else None


def conjuncts(guards: Guards) -> tuple[Guard, ...]:
    """Conditions that hold where all of `guards` do and nowhere else, each as small as can be."""
    out: list[Guard] = []
    for guard in guards:
        match guard.condition:
            case Unary("not", x):
                out += conjuncts((Guard(x, not guard.holds),))
            case Binary("and" | "or" as op, x, y) if (op == "and") == guard.holds:
                out += conjuncts((Guard(x, guard.holds), Guard(y, guard.holds)))
            case _:
                out.append(guard)
    return tuple(out)


def is_decided(guard: Guard, region: Region, integers: Integers) -> bool:
    """Whether the condition is one of whole numbers that fp32 gets right."""
    return not_whole(guard.condition, integers) is None and Exactness(region, integers).decides(guard.condition)


def always_let_through(guards: Guards, letters: frozenset[Letter], region: Region, integers: Integers) -> bool:
    """Whether surely, for all numbers of `letters` that those of `guards` on them alone let through, some of the other letters let through.

    `t <= s` does so for each t, where s comes to reach the last t: tried are the ends of the other letters, and `letters` themselves.
    """
    near = tuple(g for g in guards if free_letters(g.condition) <= letters)
    far = tuple(g for g in guards if g not in near)
    others = sorted(frozenset().union(*(free_letters(g.condition) for g in far)) - letters)
    tried: list[list[Expr]] = []
    for x in others:
        last = region[x][1] - 1
        tried.append([Num(0), Num(last), *(Axis(y) for y in sorted(letters) if region[y][1] <= last + 1)])
    reader = _CaseReader(region, integers)
    for numbers in islice(product(*tried), MOST_TRIED):
        chosen = dict(zip(others, numbers, strict=True))
        refused = (Guard(rename(g.condition, chosen), not g.holds) for g in far)
        if all(reader.is_impossible((*near, guard)) for guard in refused):
            return True
    return False


def counterexample(index: Expr, guards: Guards, region: Region, integers: Integers, extent: int) -> dict[Letter, int] | None:
    """Letters for which the guards hold and `index` is not in 0 … extent - 1; None where none is found."""
    reader = _CaseReader(region, integers)
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

    def __init__(self, region: Region, integers: Integers) -> None:
        self._region = region
        self._integers = integers
        self._exactness = Exactness(region, integers)
        self._cases_by_guard: dict[tuple[Expr, bool], tuple[_Case, ...]] = {}

    def cases_of(self, guards: Guards) -> tuple[_Case, ...]:
        """Cases of which one applies wherever all of `guards` hold."""
        cases: tuple[_Case, ...] = ((),)
        for guard in guards:
            cases = _both(cases, self._cases(guard.condition, guard.holds))
        return cases

    def is_impossible(self, guards: Guards) -> bool:
        """Whether surely nothing satisfies all of `guards`."""
        return all(self.system(case).values(Num(0)) is None for case in self.cases_of(guards))

    def system(self, case: _Case) -> System:
        """The inequalities of a case."""
        return System(case, self._region, self._integers)

    def _cases(self, e: Expr, holds: bool) -> tuple[_Case, ...]:
        if (e, holds) not in self._cases_by_guard:
            self._cases_by_guard[e, holds] = self._found_cases(e, holds)
        return self._cases_by_guard[e, holds]

    def _found_cases(self, e: Expr, holds: bool) -> tuple[_Case, ...]:
        match e:
            case Num(value):
                return ((),) if bool(value) == holds else ()
            case Unary("not", x):
                return self._cases(x, not holds)
            case Binary("and" | "or" as op, x, y):
                a, b = self._cases(x, holds), self._cases(y, holds)
                return _both(a, b) if (op == "and") == holds else _either(a, b)
            case Binary(op, x, y) if op in COMPARISONS:
                return self._comparison(op if holds else _NEGATED[op], x, y) if self._exactness.decides(e) else ((),)
            case _:
                return self._cases(Binary("!=", e, Num(0)), holds)

    def _comparison(self, op: str, x: Expr, y: Expr) -> tuple[_Case, ...]:
        if op == "!=":
            return _either(self._comparison("<", x, y), self._comparison(">", x, y))
        found: tuple[_Case, ...] = ()
        for cases, piece in self.alternatives(Binary("-", x, y)):
            found = _either(found, _both(cases, (((op, piece, Num(0)),),)))
        return found

    def alternatives(self, e: Expr) -> tuple[_Alternative, ...]:
        """Expressions without a choice between two, each with the cases in which `e` is it; `e` as it is where there are too many."""
        return self._alternatives(e, MOST_ALTERNATIVES) or ((((),), e),)

    def _alternatives(self, e: Expr, most: int) -> tuple[_Alternative, ...] | None:
        node = _next_choice(e)
        if node is None:
            return ((((),), e),)
        condition, then, other = _choice(node)
        inner = [self._alternatives(_replaced(e, node, value), most // 2) if most > 1 else None for value in (then, other)]
        if None in inner:
            return None
        of_both = zip(inner, (True, False), strict=True)
        return tuple((_both(self._cases(condition, holds), more), piece) for found, holds in of_both for more, piece in found or ())


def _next_choice(e: Expr) -> Expr | None:
    """A choice between two values in `e`: the first by a condition, else the last, whose arguments have none."""
    found = list(_choices(e))
    return next((node for node in found if not isinstance(node, Call) or node.fn == "where"), found[-1] if found else None)


def _choices(e: Expr) -> Iterator[Expr]:
    """The choices in `e` but those in conditions and indices, in reading order."""
    match e:
        case Unary("not") | Binary("and" | "or"):
            yield e
        case Binary(op, _, _) if op in COMPARISONS:
            yield e
        case Call("where", (_, *values)):
            yield e
            for value in values:
                yield from _choices(value)
        case Load() | Reduce():
            return
        case _:
            if isinstance(e, Call) and e.fn in ("min", "max", "abs", "relu"):
                yield e
            for child in children(e):
                yield from _choices(child)


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return substitute(e, lambda node: new if node == old else node if isinstance(node, Load) else None)


def _choice(e: Expr) -> tuple[Expr, Expr, Expr]:
    """A condition, what `e`, one of _choices, is where it holds, what `e` is elsewhere."""
    match e:
        case Call("where", (condition, x, y)):
            return condition, x, y
        case Call("min", (x, y)):
            return Binary("<=", x, y), x, y
        case Call("max", (x, y)):
            return Binary(">=", x, y), x, y
        case Call("abs", (x,)):
            return Binary(">=", x, Num(0)), x, Unary("-", x)
        case Call("relu", (x,)):
            return Binary(">=", x, Num(0)), x, Num(0)
    return e, Num(1), Num(0)


def _both(a: tuple[_Case, ...], b: tuple[_Case, ...]) -> tuple[_Case, ...]:
    return a if len(a) * len(b) > MOST_CASES else tuple((*x, *y) for x in a for y in b)


def _either(a: tuple[_Case, ...], b: tuple[_Case, ...]) -> tuple[_Case, ...]:
    return ((),) if len(a) + len(b) > MOST_CASES else (*a, *b)


_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
