"""Tiling: which letters an op may be cut along, where the cuts fall, and which box of an operand a tile reads.

A letter can be cut in an op unless the op reduces a row over it. There are as many pieces as are asked for: multiples of GRAIN, or at
least of 8, where that leaves a last piece of GRAIN, else as equal as can be. No side of a matrix product is cut under GRAIN: a letter's
tile times the extents of the letters inside it on the target is at least GRAIN, unless the whole side is smaller. An op for which a
piece would be too short merges several.

    f = 1536 in 5 pieces:   0   320   640   960   1280  1536      (1536 / 5 = 307.2, rounded up to 320)
    v = 200 in 3 pieces:    0   67    134   200                   (72 would leave 56 for the last)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from operator import sub
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Num, Reduce, Region, walk
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.algebra.rewrite import axes_only
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import (
    AttentionOp,
    ContractOp,
    FusedOp,
    GatherOp,
    MapOp,
    OverflowOp,
    PairsOp,
    expressions,
    target_letters,
)

GRAIN = 64
"""The smallest side of a contraction's tile, in elements."""

GRAINS = (64, 32, 16, 8)
"""What the sizes of pieces are multiples of, where they can be: kernels waste least on the first."""

MOST_PIECES = 4096
"""A letter is cut into no more: 4,096 tiles of every op that has it are tens of thousands of tasks a model."""

Counts: TypeAlias = "NDArray[np.int64]"

Cuts = tuple[int, ...]
"""Cut points of one dimension, 0 and the extent included."""


def cuts(extent: int, pieces: int) -> Cuts:
    """Cut points for `pieces` pieces (one element each where the extent has not so many), the longer ones first."""
    pieces = min(pieces, extent)
    for grain in GRAINS:
        size = -(-extent // (pieces * grain)) * grain
        if extent - (pieces - 1) * size >= GRAIN:
            return (*range(0, extent, size), extent)
    short, longer = divmod(extent, pieces)
    border = longer * (short + 1)
    return (*range(0, border, short + 1), *range(border, extent, short), extent)


def longest_and_shortest(extent: int, most: int) -> tuple[Counts, Counts]:
    """For 1 to `most` pieces, at most `extent`, [pieces - 1]: the longest that `cuts` makes, which is the first, and the shortest, which
    is the last; in elements.
    """
    pieces = np.arange(1, most + 1)
    longest, shortest = -(-extent // pieces), extent // pieces
    for grain in reversed(GRAINS):
        size = -(-extent // (pieces * grain)) * grain
        last = extent - (pieces - 1) * size
        longest, shortest = np.where(last >= GRAIN, np.minimum(size, extent), longest), np.where(last >= GRAIN, last, shortest)
    return longest, shortest


def chain_letters(op: FusedOp) -> tuple[Letter, ...]:
    """Letters that may be cut into a chain of accumulating tasks."""
    match op:
        case ContractOp():
            return op.contractions[0].letters
        case OverflowOp():
            return axes_only(op.checked) or ()
        case _:
            return ()


def uncut_letters(op: FusedOp) -> frozenset[Letter]:
    """Letters that every task of the op covers whole."""
    bound = {letter for e in expressions(op) for node in walk(e) if isinstance(node, Reduce) for letter in node.letters}
    if isinstance(op, AttentionOp):
        bound |= {*op.score_letters, op.row}
    if isinstance(op, PairsOp):
        bound |= {*op.letters, *(letter for c in op.products for letter in c.letters)}
    return frozenset(bound)


def cuttable_letters(op: FusedOp) -> tuple[Letter, ...]:
    """Letters the op may be cut along, the target's first, then the chain's."""
    uncut = uncut_letters(op)
    return tuple(letter for letter in (*target_letters(op), *chain_letters(op)) if letter is not None and letter not in uncut)


@dataclass(frozen=True, slots=True)
class Tiling:
    """All that an op's cuts depend on: read off the op once, used under every split."""

    target: tuple[Letter | None, ...]
    """As `target_letters`."""
    inside: tuple[tuple[Letter, tuple[Letter, ...]], ...]
    """The letters the op may be cut along, each with those inside it on its side of the op."""
    chain: tuple[Letter, ...]
    """Those of them that are cut into a chain of accumulating tasks."""
    unchanged: tuple[Letter, int] | None = None
    """A letter of the target and a number of rows along it that no task writes: it is cut there too."""


def tiling_of(op: FusedOp) -> Tiling:
    """What decides how `op` may be cut."""
    target = target_letters(op)
    named = [letter for letter in target if letter is not None]
    cuttable = cuttable_letters(op)
    inside = tuple((letter, tuple(_inside(op, letter, named))) for letter in cuttable)
    return Tiling(target, inside, tuple(letter for letter in chain_letters(op) if letter in cuttable), _unchanged(op, target, cuttable))


def _unchanged(op: FusedOp, target: tuple[Letter | None, ...], cuttable: tuple[Letter, ...]) -> tuple[Letter, int] | None:
    if not isinstance(op, MapOp) or op.unchanged is None:
        return None
    letter = target[op.unchanged.dim]
    assert letter in cuttable, "rows are counted along a letter of the target"
    return letter, op.unchanged.rows


def most_pieces(tilings: Iterable[Tiling], extents: Mapping[Letter, int]) -> dict[Letter, int]:
    """For every letter that some op may be cut along: into how many pieces at most."""
    least: dict[Letter, int] = {}
    for tiling in tilings:
        for letter, inside in tiling.inside:
            tile = least_tile(letter, inside, extents)
            least[letter] = min(least.get(letter, tile), tile)
    return {letter: min(max(1, extents[letter] // tile), MOST_PIECES) for letter, tile in sorted(least.items())}


def own_cuts(tiling: Tiling, cuts_by_letter: Mapping[Letter, Cuts]) -> dict[Letter, Cuts]:
    """Where the op cuts each letter: at the common points, pieces merged where one would be too short for it."""
    extents = {letter: c[-1] for letter, c in cuts_by_letter.items()}
    own: dict[Letter, Cuts] = {letter: (0, extent) for letter, extent in extents.items()}
    for letter, inside in tiling.inside:
        own[letter] = merged(cuts_by_letter[letter], least_tile(letter, inside, extents))
    if tiling.unchanged is not None:
        letter, rows = tiling.unchanged
        own[letter] = tuple(sorted({*own[letter], rows}))
    return own


@lru_cache(maxsize=4096)
def merged(points: Cuts, least: int) -> Cuts:
    """Some of `points`, so that no piece is under `least` (the extent itself is not) and the longest is as short as can be."""
    gaps = [*map(sub, points[1:], points)]
    if min(gaps) >= least:
        return points
    # No piece is shorter than a gap. Merged from the left, each is shorter than least + max(gaps), and the last takes what is left over.
    short, enough = max(least, max(gaps)) - 1, min(points[-1], 2 * least + max(gaps))
    while enough - short > 1:
        middle = (short + enough) // 2
        if _mergeable(points, least, middle)[0]:
            enough = middle
        else:
            short = middle
    mergeable, own = _mergeable(points, least, enough), [0]
    while own[-1] < len(points) - 1:
        near = bisect_left(points, points[own[-1]] + least)
        far = bisect_right(points, points[own[-1]] + enough)
        own.append(next(j for j in range(far - 1, near - 1, -1) if mergeable[j]))
    return tuple(points[i] for i in own)


def _mergeable(points: Cuts, least: int, most: int) -> list[bool]:
    """By point: whether what follows it can be merged into pieces of `least` to `most`."""
    n = len(points)
    found = [False] * (n - 1) + [True]
    near = far = n
    count = 0  # how many of found[near:far]
    for i in range(n - 2, -1, -1):
        while points[near - 1] - points[i] >= least:
            near -= 1
            count += found[near]
        while points[far - 1] - points[i] > most:
            far -= 1
            count -= found[far]
        found[i] = count > 0
    return found


def least_tile(letter: Letter, inside: tuple[Letter, ...], extents: Mapping[Letter, int]) -> int:
    """The shortest piece of `letter` that the rule on sides allows."""
    return min(extents[letter], ceil(GRAIN / prod(extents[other] for other in inside)))


def _inside(op: FusedOp, letter: Letter, target: list[Letter]) -> list[Letter]:
    """The letters on the same side of the op as `letter` and inside it, which its tiles hold whole.

    A product has two sides and, where a letter is in both operands and in the target, a batch; a batch letter may be cut to 1.
    """
    match op:
        case ContractOp():
            x, y = _axes(op.contractions[0].x), _axes(op.contractions[0].y)
            summed = op.contractions[0].letters
            side = list(summed) if letter in summed else _side(letter, target, x, y)
        case AttentionOp():
            side = _side(letter, target, _axes(op.q), _axes(op.k)) if letter in _axes(op.q) | _axes(op.k) else target
        case PairsOp(products=()):
            side = target
        case PairsOp():
            x, y = _axes(op.products[0].x), _axes(op.products[0].y)
            side = _side(letter, target, x, y) if letter in x | y else target
        case OverflowOp():
            side = list(chain_letters(op))
        case MapOp() | GatherOp():
            side = target
    return side[side.index(letter) + 1 :] if letter in side else [other for other in target if other != letter]


def _side(letter: Letter, target: list[Letter], x: set[Letter], y: set[Letter]) -> list[Letter]:
    """The letters of the target that only the operand of `letter` has; none for a batch letter."""
    if letter in x and letter in y:
        return []
    mine, other = (x, y) if letter in x else (y, x)
    return [found for found in target if found in mine and found not in other]


def _axes(load: Load) -> set[Letter]:
    return {index.letter for index in load.indices if isinstance(index, Axis)}


def load_box(load: Load, ranges: Region, shape: tuple[int, ...]) -> Box:
    """The box of a value of `shape` that a load can touch while its letters run over `ranges`."""
    spans = [_span(index, ranges, extent) for index, extent in zip(load.indices, shape, strict=True)]
    return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))


def _span(index: Expr, ranges: Region, extent: int) -> tuple[int, int]:
    match index:
        case Axis(letter):
            return ranges[letter]
        case Num(value):
            return int(value), int(value) + 1
        case _:
            known = interval(index, ranges)
            if known is None:
                return 0, extent
            return max(0, int(known.low)), min(extent, int(known.high) + 1)
