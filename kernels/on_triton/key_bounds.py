"""Which keys a block of queries sees, from the conditions of a score: what bounds the loop over keys and what needs no mask.

In: a score expression. Out: it taken apart into conditions, a scale and the rest; and `Limit`s, the conditions that hold up to (or from)
one key for each query. Between the limits that hold for every query of a block no condition is looked at.

    where(t <= s and s - t < 4, acc0 / 8, -inf), queries 8..10:     keys   4 5 6 7 8 9 10
                                                                    8        x x x x            seen by some: 5..10
                                                                    9          x x x x          seen by all:  7..8
                                                                    10           x x x x
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Unary, free_letters, substitute
from einpage.kernels.layout.affine import linear


@dataclass(frozen=True, slots=True)
class Score:
    """where(conditions, body * scale, -inf)."""

    conditions: tuple[Expr, ...]
    body: Expr
    scale: float
    """Above 0."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition that means row <= rest (`upper`) or row >= rest."""

    condition: Expr
    upper: bool
    letters: tuple[tuple[Letter, int], ...]
    """`rest` is the sum of factor * letter, of factor * data, and of `const`."""
    data: tuple[tuple[Load, int], ...]
    const: int


def taken_apart(score: Expr) -> Score:
    conditions: list[Expr] = []
    while isinstance(score, Call) and score.fn == "where" and _is_minus_inf(score.args[2]):
        conditions += _conjuncts(score.args[0])
        score = score.args[1]
    scale, body = _scaled(score)
    return Score(tuple(conditions), body, scale)


def _is_minus_inf(e: Expr) -> bool:
    match e:
        case Num(value):
            return value == -math.inf
        case Unary("-", Num(value)):
            return value == math.inf
    return False


def _conjuncts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op == "and":
        yield from _conjuncts(e.x)
        yield from _conjuncts(e.y)
    else:
        yield e


def _scaled(e: Expr) -> tuple[float, Expr]:
    """`e` as a number above 0 times an expression."""
    match e:
        case Binary("*", Num(value), x) | Binary("*" | "/", x, Num(value)) if 0 < value < math.inf:
            scale, body = _scaled(x)
            return (scale / value if e.op == "/" else scale * value), body
    return 1.0, e


def limits(
    conditions: Collection[Expr], row: Letter, queries: Collection[Letter], batch: Collection[Letter], is_index: Callable[[Load], bool]
) -> tuple[Limit, ...]:
    """The conditions that bound the row letter by the letters of a block of queries, or by integer data of one batch index."""
    found = (_limit(c, row, {*queries, *batch}, batch, is_index) for c in conditions)
    return tuple(limit for limit in found if limit is not None)


def _limit(
    condition: Expr, row: Letter, known: Collection[Letter], batch: Collection[Letter], is_index: Callable[[Load], bool]
) -> Limit | None:
    match condition:
        case Binary("<=" | "<", x, y) | Binary(">=" | ">", y, x):
            strict = condition.op in ("<", ">")
        case _:
            return None
    data: dict[Letter, Load] = {}

    def stand_in(node: Expr) -> Expr | None:
        if isinstance(node, Load) and is_index(node) and free_letters(node) <= set(batch):
            letter = Letter(f"datum {len(data)}")
            data[letter] = node
            return Axis(letter)
        return None

    form = linear(substitute(Binary("-", y, x), stand_in))  # >= 0 where the condition holds
    if form is None or abs(form[0].get(row, 0)) != 1:
        return None
    upper = form[0][row] < 0
    sign = 1 if upper else -1
    rest = {letter: sign * c for letter, c in form[0].items() if letter != row and c}
    if not {x for x in rest if x not in data} <= set(known):
        return None
    return Limit(
        condition,
        upper,
        tuple((x, c) for x, c in rest.items() if x not in data),
        tuple((data[x], c) for x, c in rest.items() if x in data),
        sign * (form[1] - strict),
    )
