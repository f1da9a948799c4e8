"""What an attention's mask leaves: which blocks of scores it empties, the range of keys that a block of queries can see, how many
(query, key) pairs there are.

The mask is read off the scores' expression: `where(condition, ..., -inf)` at its root. Nothing is assumed about it; blocks are judged by
interval arithmetic, the mixed ones halved until they can be counted one by one. Data (lengths, say) is not looked at: it empties nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Num, Region, Unary, free_letters, loads, substitute
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.base.columns import Bools
from einpage.einsum_front.base.interval import EITHER, FALSE, TRUE, Interval, truth

LEAF = 512
"""Mixed blocks up to this side are counted element by element."""
GRAIN = 64
"""To so many queries is it known which see some of a block of keys."""
MOST_COUNTED = 1 << 27
"""Pairs of mixed blocks that are counted one by one: of a causal mask over a million positions, of a window over a hundred thousand."""
MOST_MIXED = 8192
"""Mixed blocks that are halved once more."""
MOST_BLOCKS = 2048
"""Looked at to tell which keys are seen: of a window, some hundred thousand keys."""


def condition(score: Expr) -> Expr | None:
    """The expression that must hold for a score to be more than -inf; None where the mask empties nothing."""
    match score:
        case Call("where", (mask, _, other)) if is_minus_infinity(other):
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


def emptied(score: Expr, region: Region) -> bool:
    """True where `score` is surely -inf all over `region`."""
    match score:
        case Call("where", (mask, then, other)):
            known = truth(interval(mask, region))
            return (known == FALSE or emptied(then, region)) and (known == TRUE or emptied(other, region))
        case _:
            return is_minus_infinity(score)


def decided(e: Expr, region: Region) -> Expr:
    """`e` without the conditions that hold, or do not, all over `region`."""

    def step(node: Expr) -> Expr | None:
        match node:
            case Call("where", (mask, then, other)) if (known := truth(interval(mask, region))) != EITHER:
                return decided(then if known == TRUE else other, region)
        return None

    return substitute(e, step)


def is_minus_infinity(e: Expr) -> bool:
    """Whether `e` is -inf as a literal: a number, or the negation of inf."""
    return e in (Num(float("-inf")), Unary("-", Num(float("inf"))))


def visible(score: Expr, row: Letter, region: Region, grain: int) -> tuple[int, int]:
    """The part of `row`'s range, in multiples of `grain`, outside which the mask is surely false. May be empty."""
    mask = condition(score)
    if mask is None:
        return region[row]
    others = tuple((letter, region[letter]) for letter in sorted(free_letters(mask)) if letter != row)
    return _visible(mask, row, region[row], others, grain)


@lru_cache(maxsize=4096)
def _visible(
    mask: Expr, row: Letter, keys: tuple[int, int], others: tuple[tuple[Letter, tuple[int, int]], ...], grain: int
) -> tuple[int, int]:
    """Tiles that differ in other letters than the mask's see the same."""
    region = dict(others)
    start, end = keys
    blocks = -(-(end - start) // grain)

    def edge(i: int) -> int:
        return min(start + i * grain, end)

    def seen(first: int, last: int) -> bool:
        """Whether something may be visible between two edges: of a part no more than of the whole."""
        return truth(interval(mask, {**region, row: (edge(first), edge(last))})) != FALSE

    first, last = _outermost(seen, 0, blocks, leftmost=True), _outermost(seen, 0, blocks, leftmost=False)
    return (edge(first), edge(last + 1)) if first is not None and last is not None else (start, start)


def _outermost(seen: Callable[[int, int], bool], first: int, last: int, leftmost: bool) -> int | None:
    """The leftmost or the rightmost i in [first, last) for which `seen(i, i + 1)`, halving ranges that are seen at all."""
    if first == last or not seen(first, last):
        return None
    if last - first == 1:
        return first
    middle = (first + last) // 2
    for a, b in ((first, middle), (middle, last)) if leftmost else ((middle, last), (first, middle)):
        if (found := _outermost(seen, a, b, leftmost)) is not None:
            return found
    return None


def pairs(score: Expr, query: Letter | None, row: Letter, region: Region, at_least: bool) -> int:
    """How many (query, key) pairs of the region the mask surely or, where a clause depends on data, possibly lets through.

    Where that depends on other letters, and where more than MOST_COUNTED pairs of more than MOST_MIXED blocks are undecided, these count as
    none (`at_least`) or as all.
    """
    mask = condition(score)
    queries, keys = region[query] if query is not None else (0, 1), region[row]
    if mask is None:
        return _area(queries, keys)
    mask = without_data(mask)
    if not free_letters(mask) <= {row, query}:
        known = truth(interval(mask, region))
        return _area(queries, keys) if known == TRUE or (known == EITHER and not at_least) else 0
    sure, undecided = _count(mask, query or Letter(""), row, queries, keys)
    return sure if at_least else sure + undecided


def keys_seen(score: Expr, query: Letter | None, row: Letter, region: Region) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of keys that some query of the region surely or, where a clause depends on data, possibly sees.

    Where that depends on other letters, and is undecided, none does; nor do keys that more than MOST_BLOCKS blocks would tell.
    """
    mask, keys = condition(score), region[row]
    if mask is None:
        return (keys,)
    mask = without_data(mask)
    if not free_letters(mask) <= {row, query}:
        return (keys,) if truth(interval(mask, region)) == TRUE else ()
    return _keys_seen(mask, query or Letter(""), row, region[query] if query is not None else (0, 1), keys)


@lru_cache(maxsize=256)
def _keys_seen(mask: Expr, query: Letter, row: Letter, queries: tuple[int, int], keys: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for start, end in _KeysSeen(mask, query, row).ranges(queries, keys):
        if found and found[-1][1] == start:
            start, _ = found.pop()
        found.append((start, end))
    return tuple(found)


@dataclass(slots=True)
class _KeysSeen:
    """The keys that some query sees, found in blocks of both."""

    mask: Expr
    query: Letter
    row: Letter
    blocks_left: int = MOST_BLOCKS

    def ranges(self, queries: tuple[int, int], keys: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Those that are seen, ascending; neighbours may touch."""
        if keys[0] >= keys[1] or not self._may_go_on():
            return
        queries = self._narrowed(queries, keys)
        start, end = queries
        if start == end:
            return
        if any(self._truth((one, one + 1), keys) == TRUE for one in (end - 1, (start + end) // 2, start)):
            yield keys
        elif keys[1] - keys[0] <= LEAF:
            edges = np.flatnonzero(np.diff(self._seen(queries, keys), prepend=False, append=False)) + keys[0]
            yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        else:
            for half in _halves(keys):
                yield from self.ranges(queries, half)

    def _narrowed(self, queries: tuple[int, int], keys: tuple[int, int]) -> tuple[int, int]:
        """Those of `queries` that may see something, to the grain."""
        start, end = queries

        def edge(i: int) -> int:
            return min(start + i * GRAIN, end)

        def sees(first: int, last: int) -> bool:
            return self._truth((edge(first), edge(last)), keys) != FALSE

        blocks = -(-(end - start) // GRAIN)
        first, last = (_outermost(sees, 0, blocks, leftmost) for leftmost in (True, False))
        return (edge(first), edge(last + 1)) if first is not None and last is not None else (start, start)

    def _seen(self, queries: tuple[int, int], keys: tuple[int, int]) -> Bools:
        """[key] whether some query sees it, of a block of keys."""
        known = self._truth(queries, keys)
        if known != EITHER or not self._may_go_on():
            return np.full(keys[1] - keys[0], known == TRUE)
        if queries[1] - queries[0] <= LEAF:
            seen: Bools = np.logical_or.reduce(_on_grid(self.mask, self.query, self.row, queries, keys), axis=0)
            return seen
        early, late = _halves(queries)
        found = self._seen(late, keys)  # of a causal mask, the half that sees more
        return found if found.all() else np.logical_or(found, self._seen(early, keys))

    def _truth(self, queries: tuple[int, int], keys: tuple[int, int]) -> Interval:
        return truth(interval(self.mask, {self.query: queries, self.row: keys})) if queries[0] < queries[1] else FALSE

    def _may_go_on(self) -> bool:
        self.blocks_left -= 1
        return self.blocks_left >= 0


def _on_grid(mask: Expr, query: Letter, row: Letter, queries: tuple[int, int], keys: tuple[int, int]) -> Bools:
    """[query, key] whether the mask holds."""
    grid = {query: np.arange(*queries, dtype=np.float64)[:, None], row: np.arange(*keys, dtype=np.float64)[None, :]}
    return np.broadcast_to(_evaluate(mask, grid) != 0, (queries[1] - queries[0], keys[1] - keys[0]))


def _area(queries: tuple[int, int], keys: tuple[int, int]) -> int:
    return (queries[1] - queries[0]) * (keys[1] - keys[0])


@lru_cache(maxsize=4096)
def _count(mask: Expr, query: Letter, row: Letter, queries: tuple[int, int], keys: tuple[int, int]) -> tuple[int, int]:
    """Pairs that are surely let through, and pairs of blocks that were not looked into."""
    blocks, side, sure = [(queries, keys)], LEAF, 0
    while True:
        mixed = list[tuple[tuple[int, int], tuple[int, int]]]()
        for a, b in blocks:
            known = truth(interval(mask, {query: a, row: b})) if _area(a, b) else FALSE
            if known == TRUE:
                sure += _area(a, b)
            elif known == EITHER:
                mixed.append((a, b))
        area = sum(_area(a, b) for a, b in mixed)
        if all(max(a[1] - a[0], b[1] - b[0]) <= side for a, b in mixed):
            if area <= MOST_COUNTED:
                return sure + sum(_count_one_by_one(mask, query, row, a, b) for a, b in mixed), 0
            side //= 2
        if len(mixed) > MOST_MIXED or side < GRAIN:
            return sure, area
        blocks = [(a, b) for some, others in mixed for a in _halves(some, side) for b in _halves(others, side)]


def _count_one_by_one(mask: Expr, query: Letter, row: Letter, queries: tuple[int, int], keys: tuple[int, int]) -> int:
    """GRAIN queries at a time, which a processor's cache has room for."""
    starts = range(queries[0], queries[1], GRAIN)
    return sum(int(_on_grid(mask, query, row, (start, min(start + GRAIN, queries[1])), keys).sum()) for start in starts)


def _halves(block: tuple[int, int], side: int = LEAF) -> tuple[tuple[int, int], ...]:
    start, end = block
    if end - start <= side:
        return (block,)
    middle = start + (end - start) // 2
    return (start, middle), (middle, end)


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
