"""An adjoint: how fast the loss grows with an expression, at each point of the letters that the expression depends on.

In: adjoints and expressions. Out: adjoints of parts of the expression, as an expression that is right where its guards hold, to be read as
0 elsewhere. A guard is applied late, so that what a condition discards is never seen, be it the derivative of a square root at -1; before a
finite factor it is applied at once, so that a product stays a product and a sum over it a contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite, prod

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
    Reduction,
    Unary,
    free_letters,
)
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.algebra.guards import Guard, Guards

ZERO, ONE = Num(0), Num(1)


def negated(e: Expr) -> Expr:
    """-e."""
    match e:
        case Num(value):
            return Num(-value)
        case Unary("-", x):
            return x
        case _:
            return Unary("-", e)


def times(x: Expr, y: Expr) -> Expr:
    """x * y; where one is 0 or 1 by a condition, the other or 0: nothing is multiplied by 0."""
    match x, y:
        case (Num(value), other) | (other, Num(value)) if value in (0, 1):
            return other if value == 1 else ZERO
        case Unary("-", inner), other:
            return negated(times(inner, other))
        case other, Unary("-", inner):
            return negated(times(other, inner))
        case _, Call("where", (condition, Num(1), Num(0))):
            return where(condition, x)
        case Num(a), Num(b):
            return Num(a * b)
        case _:
            return Binary("*", x, y)


def divided(x: Expr, y: Expr) -> Expr:
    """x / y."""
    match x:
        case Num(0):
            return ZERO
        case Unary("-", inner):
            return Unary("-", divided(inner, y))
        case _:
            return x if y == ONE else Binary("/", x, y)


def plus(x: Expr, y: Expr) -> Expr:
    """x + y."""
    match x, y:
        case (Num(0), other) | (other, Num(0)):
            return other
        case _, Unary("-", inner):
            return Binary("-", x, inner)
        case _:
            return Binary("+", x, y)


def where(condition: Expr, e: Expr) -> Expr:
    """`e` where the condition holds, else 0."""
    return ZERO if e == ZERO else Call("where", (condition, e, ZERO))


def guarded(guards: Iterable[Guard], e: Expr) -> Expr:
    """`e` where all of `guards` hold, else 0."""
    conditions = [g.condition if g.holds else Unary("not", g.condition) for g in dict.fromkeys(guards)]
    return where(reduce(lambda x, y: Binary("and", x, y), conditions), e) if conditions else e


def is_finite(e: Expr) -> bool:
    """Whether `e` is a finite number wherever what it loads is, so that 0 times it is 0."""
    match e:
        case Num(value):
            return isfinite(value)
        case Axis() | Load():
            return True
        case Unary(_, x):
            return is_finite(x)
        case Binary("/" | "//" | "%", x, Num(value)):
            return value != 0 and is_finite(x)
        case Binary("**", x, Num(int(value))):
            return value >= 0 and is_finite(x)
        case Binary(op, x, y):
            return op in COMPARISONS or (op in ("+", "-", "*", "and", "or") and is_finite(x) and is_finite(y))
        case Call(fn, args):
            return FUNCTIONS[fn].finite and all(map(is_finite, args))
        case Reduce(op, _, body):
            return op is Reduction.SOFTMAX or is_finite(body)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Adjoint:
    """That of an expression, over the letters that are free in it."""

    expr: Expr
    """Right where all of `guards` hold."""
    guards: Guards = ()
    """Elsewhere it is 0, whatever `expr` says. Their letters are free in the expression whose adjoint this is."""
    known: Guards = ()
    """Conditions outside which it is surely 0, those with other letters too: for some values of these they hold."""

    @property
    def value(self) -> Expr:
        """With the guards applied."""
        return guarded(self.guards, self.expr)

    def under(self, condition: Expr, holds: bool) -> Adjoint:
        """Of what counts only where the condition holds (or does not)."""
        guard = Guard(condition, holds)
        return replace(self, guards=(*self.guards, guard), known=(*self.known, guard))

    def by(self, f: Callable[[Expr], Expr]) -> Adjoint:
        """With `f` applied where the guards hold."""
        return replace(self, expr=f(self.expr))

    def times(self, factor: Expr, lost: frozenset[Letter]) -> Adjoint:
        """Multiplied by `factor`, before it is summed over the letters `lost`."""
        if not is_finite(factor):
            return self.by(lambda e: times(e, factor))
        inside = tuple(g for g in self.guards if free_letters(g.condition) & lost)
        rest = tuple(g for g in self.guards if g not in inside)
        return Adjoint(times(guarded(inside, self.expr), factor), rest, self.known)

    def summed(self, letters: frozenset[Letter], extents: Mapping[Letter, int]) -> Adjoint:
        """Summed over letters on which the expression does not depend."""
        if not letters:
            return self
        inside = tuple(g for g in self.guards if free_letters(g.condition) & letters)
        rest = tuple(g for g in self.guards if g not in inside)
        return Adjoint(total(guarded(inside, self.expr), letters, extents), rest, self.known)

    def within(self, bound: Iterable[Letter]) -> Adjoint:
        """Of the body of a reduction over `bound`: these letters are others than the ones of the same name around it."""
        known = tuple(g for g in self.known if not free_letters(g.condition) & set(bound))
        return replace(self, known=known)


def total(e: Expr, letters: Iterable[Letter], extents: Mapping[Letter, int]) -> Expr:
    """The sum of `e` over `letters`, whether it has them or not."""
    free = free_letters(e)
    inner = tuple(sorted(letter for letter in letters if letter in free))
    times_equal = prod(extents[letter] for letter in letters if letter not in free)
    negative = isinstance(e, Unary) and e.op == "-"
    body = e.x if isinstance(e, Unary) and negative else e
    found = Reduce(Reduction.SUM, inner, body) if inner else body
    found = times(found, Num(times_equal))
    return negated(found) if negative else found
