"""Clamps and conditions that a block decides: where s runs from 1 on, `where(s >= 1, x[max(s - 1, 0)], 0)` is `x[s - 1]`, a window.

In: expressions whose indices are clamped, a region. Out: the expressions without what changes nothing there; where to divide a letter so
that there are such regions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from einpage.einsum_front.algebra.expr import Call, Expr, Letter, Load, Num, Region, loads, rebuild, substitute, walk
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.base.interval import EITHER, TRUE, truth
from einpage.kernels.layout.affine import Affine, affine


def decided(e: Expr, region: Region) -> Expr:
    """`e` without a `where` whose condition is the same, and a `max` or `min` in an index that is one argument, all over `region`."""

    def unclamped(index: Expr) -> Expr:
        index = rebuild(index, unclamped)
        if not (isinstance(index, Call) and index.fn in ("max", "min")):
            return index
        x, y = index.args
        a, b = interval(x, region), interval(y, region)
        if a is None or b is None:
            return index
        larger, smaller = (x, y) if index.fn == "max" else (y, x)
        return larger if a.low >= b.high else smaller if b.low >= a.high else index

    def step(node: Expr) -> Expr | None:
        if isinstance(node, Load):
            return rebuild(node, unclamped)
        if isinstance(node, Call) and node.fn == "where" and (known := truth(interval(node.args[0], region))) != EITHER:
            return substitute(node.args[1 if known == TRUE else 2], step)
        return None

    return substitute(e, step)


def clamp_borders(expressions: Iterable[Expr], letters: Collection[Letter], region: Region) -> dict[Letter, set[int]]:
    """Where the longest of `letters` in each clamped index is divided, so that the clamp is idle on one side."""
    out: dict[Letter, set[int]] = defaultdict(set)
    for fn, index, limit in {c for e in expressions for load in loads(e) for i in load.indices for c in _clamps(i)}:
        own = [x for x, _ in index.terms if x in letters]
        if own:
            letter = max(own, key=lambda x: region[x][1] - region[x][0])
            out[letter].add(_border(fn, index, limit, letter, region))
    return out


def _clamps(index: Expr) -> Iterator[tuple[str, Affine, int]]:
    """`max` or `min`, what it clamps, less clamps inside, and the number."""
    for node in walk(index):
        if isinstance(node, Call) and node.fn in ("max", "min") and isinstance(node.args[1], Num):
            inner = node.args[0]
            while isinstance(inner, Call) and inner.fn in ("max", "min") and isinstance(inner.args[1], Num):
                inner = inner.args[0]
            found = affine(inner)
            if found is not None:
                yield node.fn, found, int(node.args[1].value)


def _border(fn: str, index: Affine, limit: int, letter: Letter, region: Region) -> int:
    """The first number of `letter` from which on (or before which) the clamp is idle, whatever the other letters."""
    c = dict(index.terms)[letter]
    low, high = index.with_numbers({letter: 0}).hull(region)
    if fn == "max":  # idle where c * letter + low >= limit
        return -((low - limit) // c) if c > 0 else (low - limit) // -c + 1
    last = high - 1  # idle where c * letter + last <= limit
    return (limit - last) // c + 1 if c > 0 else -((limit - last) // -c)
