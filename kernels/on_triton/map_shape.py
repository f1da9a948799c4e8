"""How a MapJob lies on the blocks of its kernel: which letters are rows and which are columns, and how many of each a program takes.

In: a job and parts with the same target letters. Out: a `MapShape`. Letters that reductions bind are columns, so that a program holds whole
rows; where memory runs along a row letter instead, a block is as wide as it is high. A pointwise job is rows alone, unless an operand
runs along another letter than the result (a transposition): then a block spans both, and either side is read in whole lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einpage.einsum_front.algebra.expr import Call, Expr, Letter, Reduce, children, free_letters, loads, walk
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.graph.job import MapJob, Part, View
from einpage.kernels.layout.affine import address, affine
from einpage.kernels.tiles.tiles import CROSS, POINTWISE, REUSE, ROW, Tiles, cover, warps

REUSE_FROM = 4
"""How many times a costly function must be used for its letters to get an axis of their own."""


@dataclass(frozen=True, slots=True)
class MapShape:
    """How a map job lies on the blocks of its kernel."""

    rows: tuple[Letter, ...]
    """Letters of the target along rows, the last one fastest."""
    columns: tuple[Letter, ...]
    """Letters of the target along columns."""
    by_row: tuple[Reduce, ...]
    """Reductions computed once a row, inner ones first. Any other depends on letters that an enclosing one binds."""
    tiles: Tiles
    """`rows` x `columns` elements a block."""
    whole_rows: bool
    """Whether a row fits a block."""


def reductions(e: Expr) -> Iterator[Reduce]:
    """Every reduction in `e`, inner ones first."""
    for child in children(e):
        yield from reductions(child)
    if isinstance(e, Reduce):
        yield e


def map_shape(job: MapJob, letters: Sequence[Letter], parts: Sequence[Part]) -> MapShape:
    """The shape for parts of `job` whose target letters are `letters`."""
    extent = {r.letter: r.extent for r in job.ranges}
    rows, by_row = _rows(letters, parts)
    columns = tuple(x for x in letters if x not in rows)
    strides = _strides(job, parts)
    if by_row:
        longest = max(prod(extent[x] for x in group) for group in (columns, *(r.letters for r in by_row)))
        return _reducing(job, rows, columns, by_row, longest, strides)
    last = next((x for x in reversed(rows) if extent[x] > 1), None)
    crossing = [x for x, weight in _along(strides).most_common() if x in rows and x != last and 4 * weight >= job.result.boxes[0].size]
    reused = _reused(parts, rows, last, extent)
    if reused:
        others = [x for x in rows if x not in reused]
        wide = cover(prod(extent[x] for x in reused), REUSE.columns)
        high = cover(prod(extent[x] for x in others), REUSE.rows)
        return MapShape(tuple(others), reused, (), Tiles(high, wide, 0, REUSE.warps, 1), False)
    if last is None or not crossing or min(extent[last], extent[crossing[0]]) < CROSS.rows // 4:
        most = cover(prod(extent[x] for x in rows), POINTWISE.rows)
        return MapShape(tuple(rows), (), (), Tiles(most, 1, 0, warps(most), 1), True)
    at = rows.index(crossing[0]) + 1
    high, wide = (cover(prod(extent[x] for x in group), most) for group, most in ((rows[:at], CROSS.rows), (rows[at:], CROSS.columns)))
    return MapShape(tuple(rows[:at]), tuple(rows[at:]), (), Tiles(high, wide, 0, warps(high * wide), 1), False)


def _reused(parts: Sequence[Part], rows: Sequence[Letter], last: Letter | None, extent: Mapping[Letter, int]) -> tuple[Letter, ...]:
    """Letters that costly functions depend on, where the others make them be computed over and over (angles, for every head)."""
    found: set[Letter] = set()
    for node in (n for p in parts for n in walk(p.expr)):
        if isinstance(node, Call) and FUNCTIONS[node.fn].costly:
            letters = free_letters(node) & set(rows)
            found |= letters if prod(extent[x] for x in rows if x not in letters) >= REUSE_FROM else set()
    repeats = prod(extent[x] for x in rows if x not in found)
    return tuple(x for x in rows if x in found) if last in found and repeats >= REUSE_FROM else ()


def _reducing(
    job: MapJob, rows: list[Letter], columns: tuple[Letter, ...], by_row: tuple[Reduce, ...], longest: int, strides: list[_Strides]
) -> MapShape:
    extent = {r.letter: r.extent for r in job.ranges}
    count = prod(extent[x] for x in rows)
    along = _along(strides)
    contiguous = max(along, key=lambda x: along[x], default=None)
    if contiguous in rows and longest > 1:
        rows = [*(x for x in rows if x != contiguous), contiguous]
        high = cover(count, CROSS.rows)
        wide = cover(longest, max(1, ROW.rows // high))
    else:
        wide = cover(longest, ROW.columns)
        high = cover(count, max(1, ROW.rows // wide))
    return MapShape(tuple(rows), columns, by_row, Tiles(high, wide, 0, warps(high * wide), 1), longest <= wide)


def _rows(letters: Sequence[Letter], parts: Sequence[Part]) -> tuple[list[Letter], tuple[Reduce, ...]]:
    """The letters no reduction binds, and the reductions that are numbers of a row; one that is not leaves its letters to the rows."""
    outermost = [r for p in parts for r in _outermost(p.expr)]
    while True:
        bound = {x for r in outermost for x in r.letters}
        rows = [x for x in letters if x not in bound]
        good = [r for r in outermost if _of_row(r, rows)]
        if len(good) == len(outermost):
            every = dict.fromkeys(r for p in parts for r in reductions(p.expr))
            return rows, tuple(r for r in every if _of_row(r, rows))
        outermost = good


def _of_row(r: Reduce, rows: Sequence[Letter]) -> bool:
    return free_letters(r.body) - set(r.letters) <= set(rows) and not set(r.letters) & set(rows)


def _outermost(e: Expr) -> Iterator[Reduce]:
    if isinstance(e, Reduce):
        yield e
        return
    for child in children(e):
        yield from _outermost(child)


_Strides = tuple[dict[Letter, int], int]
"""Stride by letter (those of more than one element), and how many elements are touched."""


def _strides(job: MapJob, parts: Sequence[Part]) -> list[_Strides]:
    """Every access of memory, the result's first."""
    view_by_name = {v.name: v for v in job.reads}
    extent = {r.letter: r.extent for r in job.ranges}
    places = [(job.result, p.target) for p in parts]
    places += [(view_by_name[load.name], load.indices) for p in parts for load in dict.fromkeys(loads(p.expr))]
    return [_access_strides(view, indices, extent) for view, indices in places]


def _access_strides(view: View, indices: Sequence[Expr], extent: dict[Letter, int]) -> _Strides:
    place = address(view.boxes[0], [affine(i) for i in indices])
    stride = {letter: c for letter, c in place.terms if extent[letter] > 1}
    return stride, prod(extent[x] for x in stride)


def _along(accesses: list[_Strides]) -> Counter[Letter]:
    """How many elements are read or written in lines along each letter."""
    found: Counter[Letter] = Counter()
    for stride, elements in accesses:
        for letter, step in stride.items():
            if abs(step) == 1:
                found[letter] += elements
    return found


def memory_order(letters: Sequence[Letter], job: MapJob, parts: Sequence[Part]) -> tuple[Letter, ...]:
    """`letters` in the order in which the largest access that has them all finds them, the fastest last."""
    having = [a for a in _strides(job, parts) if set(letters) <= set(a[0])]
    if not having:
        return tuple(letters)
    stride = max(having, key=lambda a: a[1])[0]
    return tuple(sorted(letters, key=lambda x: -abs(stride[x])))
