"""The rules of differentiation: from the adjoint of an expression to that of each element it reads.

In: an expression and its adjoint. Out: its loads of values that a gradient is wanted of, each with its adjoint over the letters of its
indices. Comparisons, `and`, `or`, `not`, `//`, and indices are constants: what they read has no adjoint by them.

    y[b,o] = relu(sum[i](x[b,i] * w[o,i]))      adjoint of the sum   g[b,o] = where(sum[i](…) > 0, d_y[b,o], 0)
                                                of x[b,i]            sum[o](g[b,o] * w[o,i])
                                                of w[o,i]            sum[b](g[b,o] * x[b,i])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import log, prod
from typing import TypeAlias

from einpage.einsum_front.algebra.arithmetic import constant
from einpage.einsum_front.algebra.expr import (
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Name,
    Num,
    Reduce,
    Reduction,
    Unary,
    free_letters,
    size,
    substitute,
    walk,
)
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.differentiate.adjoint import ONE, ZERO, Adjoint, divided, negated, plus, times, where
from einpage.einsum_front.fuse.hoist import is_contraction
from einpage.einsum_front.graph.opgraph import has_reduce
from einpage.einsum_front.spec.parse import parse_expression

MOST_NODES = 40
"""An adjoint longer than this, or with a sum in it, that several elements need is a value of its own."""
LoadAdjoint: TypeAlias = "tuple[Load, Adjoint]"


class Rules:
    """Adjoints of what an expression reads."""

    def __init__(
        self, extents: Mapping[Letter, int], wanted: Callable[[str], bool], named: Callable[[Expr, frozenset[Letter]], Expr]
    ) -> None:
        """`wanted`: whether a gradient of a value is wanted; `named`: an expression over letters as a value, which is read instead."""
        self._extents, self._wanted, self._named = extents, wanted, named

    def of_statement(self, e: Expr, value: Expr, g: Adjoint) -> Iterator[LoadAdjoint]:
        """`adjoints` of all that a statement sets `value` to: a softmax need not be computed again."""
        if (
            isinstance(e, Reduce)
            and e.op is Reduction.SOFTMAX
            and free_letters(e) == free_letters(value)
            and set(e.letters) <= free_letters(e)
        ):
            yield from self.adjoints(e.body, Adjoint(_softmax(value, g.value, e.letters)))
        else:
            yield from self.adjoints(e, g)

    def adjoints(self, e: Expr, g: Adjoint) -> Iterator[LoadAdjoint]:
        """Each wanted load of `e` that counts, with its adjoint; `g` is that of `e`."""
        count = sum(1 for load in value_loads(e) if self._wanted(load.name))
        if count == 0 or g.expr == ZERO:
            return
        if count > 1 and (has_reduce(g.expr) or size(g.expr) > MOST_NODES):
            g = Adjoint(self._named(g.value, free_letters(e)), g.guards, g.known)
        match e:
            case Load():
                yield e, g
            case Unary("-", x):
                yield from self.adjoints(x, g.by(negated))
            case Binary():
                yield from self._binary(e, g)
            case Call():
                yield from self._call(e, g)
            case Reduce():
                yield from self._reduce(e, g)
            case _:
                raise AssertionError(f"no gradient goes into {type(e).__name__}")

    def _into(self, part: Expr, scope: frozenset[Letter], g: Adjoint) -> Iterator[LoadAdjoint]:
        """`g` is over `scope`; `part` may depend on fewer letters."""
        if self._is_wanted(part):
            yield from self.adjoints(part, self._cuttable(g.summed(scope - free_letters(part), self._extents)))

    def _is_wanted(self, e: Expr) -> bool:
        return any(self._wanted(load.name) for load in value_loads(e))

    def _cuttable(self, g: Adjoint) -> Adjoint:
        """`g` without a sum over rows around sums within each row, which no tile could hold a part of: what it adds is a value."""
        negative = isinstance(g.expr, Unary)
        e = g.expr.x if isinstance(g.expr, Unary) else g.expr
        if not isinstance(e, Reduce) or is_contraction(e):
            return g
        within = {letter for node in walk(e.body) if isinstance(node, Reduce) for letter in node.letters}
        if within <= set(e.letters):
            return g
        found: Expr = Reduce(e.op, e.letters, self._named(e.body, free_letters(e.body)))
        return Adjoint(negated(found) if negative else found, g.guards, g.known)

    def _times(self, part: Expr, factor: Expr, scope: frozenset[Letter], g: Adjoint) -> Iterator[LoadAdjoint]:
        yield from self._into(part, scope, g.times(factor, scope - free_letters(part)))

    def _binary(self, e: Binary, g: Adjoint) -> Iterator[LoadAdjoint]:
        op, x, y, scope = e.op, e.x, e.y, free_letters(e)
        match op:
            case "+" | "-":
                yield from self._into(x, scope, g)
                yield from self._into(y, scope, g if op == "+" else g.by(negated))
            case "*":
                yield from self._times(x, y, scope, g)
                yield from self._times(y, x, scope, g)
            case "/":
                yield from self._into(x, scope, g.by(lambda a: divided(a, y)))
                yield from self._into(y, scope, g.by(lambda a: negated(divided(divided(times(a, x), y), y))))
            case "%":
                yield from self._into(x, scope, g)
                yield from self._into(y, scope, g.by(lambda a: negated(times(a, Binary("//", x, y)))))
            case "**":
                yield from self._into(x, scope, g.by(lambda a: times(a, _power_by_base(x, y))))
                yield from self._into(y, scope, g.by(lambda a: times(a, _power_by_exponent(e))))

    def _call(self, e: Call, g: Adjoint) -> Iterator[LoadAdjoint]:
        scope = free_letters(e)
        if e.fn == "where":
            condition, then, other = e.args
            yield from self._into(then, scope, g.under(condition, True))
            yield from self._into(other, scope, g.under(condition, False))
            return
        for arg, derivative in zip(e.args, derivatives(e.fn, e.args), strict=True):
            yield from self._into(arg, scope, g.by(lambda a, d=derivative: times(a, d)))  # type: ignore[misc]

    def _reduce(self, e: Reduce, g: Adjoint) -> Iterator[LoadAdjoint]:
        """Letters that the body lacks repeat it: the largest of equal numbers is any of them, and a softmax over n of them is 1/n."""
        body, free = e.body, free_letters(e.body)
        letters = tuple(letter for letter in e.letters if letter in free)
        repeats = prod(self._extents[letter] for letter in e.letters if letter not in free)
        g = g.within(e.letters)
        match e.op:
            case Reduction.SUM:
                g = g.by(lambda a: times(a, Num(repeats)))
            case Reduction.MEAN:
                g = g.by(lambda a: divided(a, Num(prod(self._extents[letter] for letter in letters))))
            case Reduction.MAX | Reduction.MIN:
                if letters:
                    best = Binary("==", body, Reduce(e.op, letters, body))
                    equals = Reduce(Reduction.SUM, letters, Call("where", (best, ONE, ZERO)))
                    g = g.by(lambda a: divided(a, equals)).under(best, True)
            case Reduction.SOFTMAX:
                if not letters:
                    return
                g = Adjoint(_softmax(Reduce(e.op, letters, body), divided(g.value, Num(repeats)), letters), (), g.known)
        yield from self.adjoints(body, g)


def value_loads(e: Expr) -> Iterator[Load]:
    """The loads of `e` through which a gradient may go: not those in indices and conditions, nor under what is constant."""
    match e:
        case Load():
            yield e
        case Unary("-", x) | Reduce(_, _, x):
            yield from value_loads(x)
        case Binary("+" | "-" | "*" | "/" | "%" | "**", x, y):
            yield from value_loads(x)
            yield from value_loads(y)
        case Call("where", (_, x, y)):
            yield from value_loads(x)
            yield from value_loads(y)
        case Call(_, args):
            for arg in args:
                yield from value_loads(arg)


def derivatives(fn: str, args: Sequence[Expr]) -> tuple[Expr, ...]:
    """How fast `fn(*args)` grows with each argument."""
    arg_by_parameter = dict(zip(FUNCTIONS[fn].parameters, args, strict=True))
    return tuple(substitute(d, lambda e: arg_by_parameter[e.word] if isinstance(e, Name) else None) for d in _derivatives(fn))


@cache
def _derivatives(fn: str) -> tuple[Expr, ...]:
    """Over the names of the parameters."""
    return tuple(_folded(parse_expression(text)) for text in FUNCTIONS[fn].derivatives)


def _folded(e: Expr) -> Expr:
    """`e` with arithmetic on numbers done: `-1` is one."""

    def step(node: Expr) -> Expr | None:
        known = constant(node)
        return None if known is None else Num(known)

    return substitute(e, step)


def _power_by_base(x: Expr, y: Expr) -> Expr:
    match y:
        case Num(0):
            return ZERO
        case Num(1):
            return ONE
        case Num(2):
            return times(Num(2), x)
        case Num(value):
            return times(y, Binary("**", x, Num(value - 1)))
        case _:
            return times(y, Binary("**", x, Binary("-", y, ONE)))


def _power_by_exponent(e: Binary) -> Expr:
    """`x ** y * log(x)`; 0 where x is 0, as the power is for all exponents nearby."""
    match e.x:
        case Num(value):
            return times(e, Num(log(value))) if value > 0 else ZERO if value == 0 else times(e, Call("log", (e.x,)))
        case x:
            return where(Binary("!=", x, ZERO), times(e, Call("log", (x,))))


def _softmax(p: Expr, g: Expr, letters: tuple[Letter, ...]) -> Expr:
    """p * (g - sum(p * g)); 0 in rows that are all -inf, where p is 0."""
    weighted = times(p, g)
    mean = Reduce(Reduction.SUM, tuple(x for x in letters if x in free_letters(weighted)), weighted)
    return times(p, plus(g, negated(mean)))
