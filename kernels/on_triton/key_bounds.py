"""Which keys a block of queries sees, from the conditions of a score: what bounds the loop over keys and what needs no mask.

In: a score expression. Out: a `MaskedScore`, its conditions, scale and rest; `KeyBound`s, the conditions that hold up to (or from) one
key for each query; `SeenKeys`, their text in a kernel. Between the bounds that hold for every query of a block no condition is
evaluated.

    where(t <= s and s - t < 4, acc0 / 8, -inf), queries 8..10:     keys   4 5 6 7 8 9 10
                                                                    8        x x x x            seen by some: 5..10
                                                                    9          x x x x          seen by all:  7..8
                                                                    10           x x x x
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, free_letters, substitute
from einpage.einsum_front.algebra.masks import is_minus_infinity
from einpage.kernels.layout.affine import affine
from einpage.kernels.writer.linear_index import times
from einpage.kernels.writer.values import Val
from einpage.kernels.writer.writer import Scope, Writer


@dataclass(frozen=True, slots=True)
class MaskedScore:
    """where(conditions, body * scale, -inf)."""

    conditions: tuple[Expr, ...]
    body: Expr
    scale: float
    """Above 0."""


@dataclass(frozen=True, slots=True)
class KeyBound:
    """A condition that means row <= bound (`is_last`) or row >= bound."""

    condition: Expr
    is_last: bool
    """Whether the bound is the last key that a query sees, not the first."""
    letters: tuple[tuple[Letter, int], ...]
    """The bound is the sum of factor * letter, of factor * data, and of `const`."""
    data: tuple[tuple[Load, int], ...]
    const: int


def masked_score(score: Expr) -> MaskedScore:
    """`score` with its conditions and its scale, if any, split off."""
    conditions: list[Expr] = []
    while isinstance(score, Call) and score.fn == "where" and is_minus_infinity(score.args[2]):
        conditions += _conjuncts(score.args[0])
        score = score.args[1]
    scale, body = _scaled(score)
    return MaskedScore(tuple(conditions), body, scale)


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


def key_bounds(
    conditions: Collection[Expr], row: Letter, queries: Collection[Letter], batch: Collection[Letter], is_index: Callable[[Load], bool]
) -> tuple[KeyBound, ...]:
    """The conditions that bound the row letter by the letters of a block of queries, or by integer data of one batch index."""
    found = (_key_bound(c, row, {*queries, *batch}, batch, is_index) for c in conditions)
    return tuple(bound for bound in found if bound is not None)


def _key_bound(
    condition: Expr, row: Letter, known: Collection[Letter], batch: Collection[Letter], is_index: Callable[[Load], bool]
) -> KeyBound | None:
    match condition:
        case Binary("<=" | "<", x, y) | Binary(">=" | ">", y, x):
            strict = condition.op in ("<", ">")
        case _:
            return None
    data: dict[Letter, Load] = {}

    def as_letter(node: Expr) -> Expr | None:
        if isinstance(node, Load) and is_index(node) and free_letters(node) <= set(batch):
            letter = Letter(f"datum {len(data)}")
            data[letter] = node
            return Axis(letter)
        return None

    margin = affine(substitute(Binary("-", y, x), as_letter))  # >= 0 where the condition holds
    coefficient = {} if margin is None else dict(margin.terms)
    if margin is None or abs(coefficient.get(row, 0)) != 1:
        return None
    is_last = coefficient[row] < 0
    sign = 1 if is_last else -1
    rest = {letter: sign * c for letter, c in coefficient.items() if letter != row}
    if not {x for x in rest if x not in data} <= set(known):
        return None
    return KeyBound(
        condition,
        is_last,
        tuple((x, c) for x, c in rest.items() if x not in data),
        tuple((data[x], c) for x, c in rest.items() if x in data),
        sign * (margin.const - strict),
    )


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """The keys that a block of ROWS queries from `first` on sees."""

    writer: Writer
    row: Letter
    bounds: Sequence[KeyBound]
    rows: Sequence[Letter]
    """The queries' letters, the outermost the one that bounds may be compared with."""
    scalars: Mapping[Letter, Val]
    """Those of one batch index."""

    def bound(self, is_last: bool, largest: bool) -> str:
        """The first key (or the one after the last) that some or all of this block's queries see; empty without a bound."""
        w = self.writer
        found = [self._extreme(bound, largest) for bound in self.bounds if bound.is_last == is_last]
        if not found:
            return ""
        text = str(w.range_by_letter[self.row].extent if is_last else 0)
        for other in found:
            text = f"tl.minimum({text}, {other} + 1)" if is_last else f"tl.maximum({text}, {other})"
        some = is_last == largest
        return w.assign(("to" if is_last else "from") + ("_some" if some else "_all"), text)

    def _extreme(self, bound: KeyBound, largest: bool) -> str:
        """The largest or smallest value of the bound among this block's queries, keys counted from 0."""
        w, terms = self.writer, []
        extent = {x: w.range_by_letter[x].extent for x, _ in bound.letters} | {x: w.range_by_letter[x].extent for x in self.rows}
        for letter, c in bound.letters:
            last = largest == (c > 0)
            if letter in self.scalars:
                terms.append(times(self.scalars[letter].text, c))
            elif letter == self.rows[0]:
                number = f"tl.minimum(first + ROWS - 1, {prod(extent[x] for x in self.rows) - 1})" if last else "first"
                inside = prod(extent[x] for x in self.rows[1:])
                terms.append(times(number if inside == 1 else f"{number} // {inside}", c))
            elif last:
                terms.append(str(c * (extent[letter] - 1)))
            terms.append(times(w.start(letter), c))
        for load, c in bound.data:
            terms.append(times(w.value(load, Scope(self.scalars, {}), True).text, c))
        return " + ".join([*terms, *([f"({bound.const})"] if bound.const else [])] or ["0"]) + f" - {w.start(self.row)}"
