"""Comparisons as linear inequalities over whole numbers, and what they leave of an expression: Fourier-Motzkin elimination (Schrijver,
Theory of Linear and Integer Programming, 1986, section 12.2).

In: comparisons that hold together, the range of each letter. Out: the interval of an expression, or None where nothing satisfies them. The
variables are letters, integer inputs, and what is not linear; a division by a number is a variable with inequalities of its own. All but
one are eliminated; an inequality is divided by what its coefficients share and its constant rounded down, which whole numbers allow. The
interval holds every solution and may hold more: rounding is not complete, and past MOST_ROWS inequalities are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, inf, isfinite
from typing import NewType, TypeAlias

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Num, Region, Unary, free_letters
from einpage.einsum_front.algebra.intervals import Integers, interval, not_whole
from einpage.einsum_front.base.interval import UNBOUNDED, Interval

Variable = NewType("Variable", int)
"""A whole number that is not known."""
Comparison: TypeAlias = "tuple[str, Expr, Expr]"
"""An operator of expr.COMPARISONS but `!=`, and its sides."""
_Terms: TypeAlias = "tuple[tuple[Variable, int], ...]"

MOST_ROWS = 400
"""Inequalities of a system while variables are eliminated."""
MOST_STEPS = 200
"""Numbers that are tried for letters in search of a point."""


@dataclass(frozen=True, slots=True)
class Inequality:
    """sum of coefficient * variable + const >= 0."""

    terms: _Terms
    """Sorted by variable; no coefficient is 0."""
    const: int

    @staticmethod
    def of(coefficients: Mapping[Variable, int], const: int) -> Inequality:
        """Divided by the greatest common divisor of the coefficients."""
        terms = tuple((v, c) for v, c in sorted(coefficients.items()) if c)
        divisor = gcd(*(c for _, c in terms)) or 1
        return Inequality(tuple((v, c // divisor) for v, c in terms), const // divisor)

    def coefficient(self, variable: Variable) -> int:
        """0 for a variable it does not have."""
        return dict(self.terms).get(variable, 0)


def bounds(variable: Variable, system: Iterable[Inequality]) -> Interval | None:
    """An interval that holds the variable in every solution; None where there surely is none."""
    rows = _tightest(system)
    while (others := {v for row in rows for v, _ in row.terms} - {variable}) and rows:
        rows = _eliminated(min(sorted(others), key=lambda v: _pairs(v, rows)), rows)
    if any(not row.terms and row.const < 0 for row in rows):
        return None
    low = max((-row.const for row in rows if row.coefficient(variable) > 0), default=-inf)
    high = min((row.const for row in rows if row.coefficient(variable) < 0), default=inf)
    return Interval(low, high) if low <= high else None


def _tightest(rows: Iterable[Inequality]) -> list[Inequality]:
    """Of inequalities that differ in the constant alone, the one that implies the others; none that always hold."""
    const_by_terms: dict[_Terms, int] = {}
    for row in rows:
        const_by_terms[row.terms] = min(const_by_terms.get(row.terms, row.const), row.const)
    return [Inequality(terms, const) for terms, const in const_by_terms.items() if terms or const < 0]


def _pairs(variable: Variable, rows: list[Inequality]) -> int:
    below = sum(row.coefficient(variable) > 0 for row in rows)
    return below * sum(row.coefficient(variable) < 0 for row in rows)


def _eliminated(variable: Variable, rows: list[Inequality]) -> list[Inequality]:
    """What `rows` say of the other variables: each lower bound of `variable` is at most each upper bound."""
    without = [row for row in rows if not row.coefficient(variable)]
    if len(without) + _pairs(variable, rows) > MOST_ROWS:
        return without
    for x in rows:
        for y in rows:
            a, b = x.coefficient(variable), -y.coefficient(variable)
            if a > 0 and b > 0:
                every = {v for v, _ in (*x.terms, *y.terms)}
                total = {v: b * x.coefficient(v) + a * y.coefficient(v) for v in every}
                without.append(Inequality.of(total, b * x.const + a * y.const))
    return _tightest(without)


@dataclass(frozen=True, slots=True)
class _Form:
    """const + sum of coefficient * variable."""

    coefficients: dict[Variable, int]
    const: int

    def plus(self, other: _Form, times: int) -> _Form:
        """self + times * other."""
        every = {**self.coefficients, **other.coefficients}
        total = {v: self.coefficients.get(v, 0) + times * other.coefficients.get(v, 0) for v in every}
        return _Form(total, self.const + times * other.const)

    def at_least(self, least: int) -> Inequality:
        """self >= least."""
        return Inequality.of(self.coefficients, self.const - least)


class System:
    """The inequalities of comparisons that hold together; they grow by those of every letter, quotient and input that is named."""

    def __init__(self, comparisons: Sequence[Comparison], region: Region, integers: Integers) -> None:
        self._region = region
        self._integers = integers
        self._variable_by_expr: dict[Expr, Variable] = {}
        self._rows: list[Inequality] = []
        for op, x, y in comparisons:
            left, right = self._form(x), self._form(y)
            if left is not None and right is not None:
                self._rows += _comparison(op, left, right)

    def values(self, index: Expr) -> Interval | None:
        """An interval that holds `index`; None where the comparisons surely hold nowhere."""
        region = dict(self._region)
        for letter in free_letters(index):
            known = bounds(self._variable(Axis(letter)), self._rows)
            if known is None:
                return None
            region[letter] = (int(known.low), int(known.high) + 1)
        rough = interval(index, region, self._integers) or UNBOUNDED
        form = self._form(index)
        if form is None:
            return rough
        value = self._fresh()
        exact = bounds(value, [*self._rows, *_comparison("==", _Form({value: 1}, 0), form)])
        if exact is None or max(exact.low, rough.low) > min(exact.high, rough.high):
            return None
        return Interval(max(exact.low, rough.low), min(exact.high, rough.high))

    def points(self, letters: Sequence[Letter]) -> Iterator[dict[Letter, int]]:
        """Numbers of the letters that the inequalities seem to leave, the least first, as far as MOST_STEPS lead."""
        steps = [MOST_STEPS]
        return self._points({}, [(letter, self._variable(Axis(letter))) for letter in letters], self._rows, steps)

    def _points(
        self, point: dict[Letter, int], letters: Sequence[tuple[Letter, Variable]], rows: list[Inequality], steps: list[int]
    ) -> Iterator[dict[Letter, int]]:
        if not letters:
            yield point
            return
        (letter, variable), *others = letters
        known = bounds(variable, rows)
        at = known.low if known is not None else inf
        while known is not None and at <= known.high and steps[0] > 0:
            steps[0] -= 1
            n = int(at)
            fixed = [*rows, *_comparison("==", _Form({variable: 1}, 0), _Form({}, n))]
            yield from self._points({**point, letter: n}, others, fixed, steps)
            at += 1

    def _fresh(self) -> Variable:
        return Variable(len(self._variable_by_expr))

    def _variable(self, e: Expr) -> Variable:
        """What stands for `e`, with all that is known of it alone."""
        if e not in self._variable_by_expr:
            self._variable_by_expr[e] = variable = self._fresh()
            known = interval(e, self._region, self._integers) or UNBOUNDED
            form = _Form({variable: 1}, 0)
            self._rows += [form.at_least(int(known.low))] if isfinite(known.low) else []
            self._rows += [_Form({variable: -1}, 0).at_least(-int(known.high))] if isfinite(known.high) else []
            self._rows += self._of_call(form, e)
        return self._variable_by_expr[e]

    def _of_call(self, value: _Form, e: Expr) -> list[Inequality]:
        """A maximum is at least each argument, a minimum at most."""
        match e:
            case Call("max", args):
                sides = [("<=", self._form(x)) for x in args]
            case Call("min", args):
                sides = [(">=", self._form(x)) for x in args]
            case Call("abs", (x,)):
                sides = [("<=", self._form(x)), ("<=", self._form(Unary("-", x)))]
            case _:
                return []
        return [row for op, form in sides if form is not None for row in _comparison(op, form, value)]

    def _quotient(self, e: Expr, x: _Form, divisor: int) -> _Form:
        """x // divisor: q with divisor * q <= x < divisor * (q + 1)."""
        known = e in self._variable_by_expr
        q = _Form({self._variable(e): 1}, 0)
        if not known:
            rest = x.plus(q, -divisor)
            self._rows += [rest.at_least(0), _Form({}, divisor - 1).plus(rest, -1).at_least(0)]
        return q

    def _form(self, e: Expr) -> _Form | None:
        """`e` as a linear form over variables; None where it is not made of whole numbers."""
        match e:
            case Num(value):
                return _Form({}, int(value)) if isfinite(value) and value == int(value) else None
            case Unary("-", x):
                inner = self._form(x)
                return None if inner is None else _Form({}, 0).plus(inner, -1)
            case Binary("+" | "-" as op, x, y):
                left, right = self._form(x), self._form(y)
                return None if left is None or right is None else left.plus(right, 1 if op == "+" else -1)
            case Binary("*", x, Num(by)) | Binary("*", Num(by), x) if by == int(by):
                inner = self._form(x)
                return None if inner is None else _Form({}, 0).plus(inner, int(by))
            case Binary("//" | "%" as op, x, Num(by)) if by == int(by) and by > 0:
                inner = self._form(x)
                if inner is None:
                    return None
                quotient = self._quotient(Binary("//", x, Num(int(by))), inner, int(by))
                return quotient if op == "//" else inner.plus(quotient, -int(by))
        return _Form({self._variable(e): 1}, 0) if not_whole(e, self._integers) is None else None


def _comparison(op: str, x: _Form, y: _Form) -> list[Inequality]:
    match op:
        case "<" | "<=":
            return [y.plus(x, -1).at_least(int(op == "<"))]
        case ">" | ">=":
            return _comparison("<" if op == ">" else "<=", y, x)
    return [*_comparison("<=", x, y), *_comparison("<=", y, x)]
