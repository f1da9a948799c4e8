"""What an attention's mask leaves: the span of keys a block of queries can see, and how many (query, key) pairs there are.

The mask is read off the scores' expression: `where(condition, ..., -inf)` at its root. Nothing is assumed about it; blocks are judged by
interval arithmetic, the mixed ones halved until they can be counted one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Num, Unary, free_letters, loads
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.algebra.intervals import FALSE, TRUE, interval

LEAF = 512
"""Mixed blocks up to this side are counted element by element."""

Ranges = Mapping[Letter, tuple[int, int]]


def condition(score: Expr) -> Expr | None:
    """The expression that must hold for a score to be more than -inf; None where the mask empties nothing."""
    match score:
        case Call("where", (mask, _, other)) if _is_minus_infinity(other):
            return mask
        case _:
            return None


def without_data(mask: Expr, unknown: bool = True) -> Expr:
    """`mask` with every clause that depends on data taken to hold (or, with `unknown` False, not to): what no kernel skips is visible."""
    match mask:
        case Binary("and" | "or" as op, x, y):
            return Binary(op, without_data(x, unknown), without_data(y, unknown))
        case Unary("not", x):
            return Unary("not", without_data(x, not unknown))
        case _:
            return Num(int(unknown)) if loads(mask) else mask


def _is_minus_infinity(e: Expr) -> bool:
    return e in (Num(float("-inf")), Unary("-", Num(float("inf"))))


def visible(score: Expr, row: Letter, ranges: Ranges, grain: int) -> tuple[int, int]:
    """The part of `row`'s range, in multiples of `grain`, outside which the mask is surely false. May be empty."""
    mask = condition(score)
    start, stop = ranges[row]
    if mask is None:
        return start, stop
    cuts = [*range(start, stop, grain), stop]
    alive = [i for i in range(len(cuts) - 1) if interval(mask, {**ranges, row: (cuts[i], cuts[i + 1])}) != FALSE]
    return (cuts[alive[0]], cuts[alive[-1] + 1]) if alive else (start, start)


def pairs(score: Expr, query: Letter | None, row: Letter, ranges: Ranges, at_least: bool) -> int:
    """How many (query, key) pairs of the ranges the mask surely or, where a clause depends on data, possibly lets through.

    Where that depends on other letters, undecided pairs count as none (`at_least`) or as all.
    """
    mask = condition(score)
    span = {query: ranges[query]} if query is not None else {}
    keys = ranges[row]
    whole = (keys[1] - keys[0]) * (ranges[query][1] - ranges[query][0] if query is not None else 1)
    if mask is None:
        return whole
    mask = without_data(mask)
    if not free_letters(mask) <= {row, *span}:
        others = interval(mask, ranges)
        return whole if others == TRUE or (others != FALSE and not at_least) else 0
    queries = ranges[query] if query is not None else (0, 1)
    return _count(mask, query or Letter(""), row, queries, keys)


@lru_cache(maxsize=4096)
def _count(mask: Expr, query: Letter, row: Letter, queries: tuple[int, int], keys: tuple[int, int]) -> int:
    area = (queries[1] - queries[0]) * (keys[1] - keys[0])
    known = interval(mask, {query: queries, row: keys})
    if known == FALSE or area == 0:
        return 0
    if known == TRUE:
        return area
    if max(queries[1] - queries[0], keys[1] - keys[0]) <= LEAF:
        grid = {query: np.arange(*queries, dtype=np.float64)[:, None], row: np.arange(*keys, dtype=np.float64)[None, :]}
        found = np.broadcast_to(_evaluate(mask, grid) != 0, (queries[1] - queries[0], keys[1] - keys[0]))
        return int(found.sum())
    halves = [(a, b) for a in _halves(queries) for b in _halves(keys)]
    return sum(_count(mask, query, row, a, b) for a, b in halves)


def _halves(span: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    start, stop = span
    if stop - start <= LEAF:
        return (span,)
    middle = start + (stop - start) // 2
    return (start, middle), (middle, stop)


def _evaluate(e: Expr, grid: Mapping[Letter, NDArray[np.float64]]) -> NDArray[np.float64]:
    """A mask's value at every point of a grid; masks hold numbers, letters and Python's operators only."""
    match e:
        case Num(value):
            return np.asarray(value, dtype=np.float64)
        case Axis(letter):
            return grid[letter]
        case Unary("not", x):
            return np.asarray(_evaluate(x, grid) == 0, dtype=np.float64)
        case Unary(_, x):
            return -_evaluate(x, grid)
        case Call(fn, args):
            values = [_evaluate(a, grid) for a in args]
            return np.asarray(FUNCTIONS[fn].meaning(_ARRAYS, *values), dtype=np.float64)
        case Binary(op, x, y):
            return np.asarray(_BINARY[op](_evaluate(x, grid), _evaluate(y, grid)), dtype=np.float64)
        case _:
            raise AssertionError(f"a mask without loads cannot hold {type(e).__name__}")


_BINARY: dict[str, Callable[..., object]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.mod, "**": np.power,
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip
_ARRAYS = SimpleNamespace(
    exp=np.exp, log=np.log, sqrt=np.sqrt, sin=np.sin, cos=np.cos, tanh=np.tanh, erf=np.vectorize(math.erf, otypes=[np.float64]), abs=np.abs,
    minimum=np.minimum, maximum=np.maximum, where=np.where,
)  # fmt: skip
"""What a function's meaning is made of."""
