"""Tiling: which letters an op may be cut along, where the cuts fall, and which box of an operand a tile reads.

A letter can be cut in an op unless the op reduces a row over it. Pieces are equal, multiples of GRAIN where they are that large. No side of
a matrix product is cut under GRAIN: a letter's tile times the extents of the letters inside it on the target is at least GRAIN, unless
the whole side is smaller. An op for which a piece would be too short takes several together.

    f = 1536 in 5 pieces:   0   320   640   960   1280  1536      (1536 / 5 = 307.2, rounded up to 320)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod

from einpage.einsum_front.expr import Axis, Expr, Letter, Load, Num, Reduce, walk
from einpage.einsum_front.intervals import interval
from einpage.einsum_front.job import Box
from einpage.einsum_front.opgraph import AttentionOp, ContractOp, FusedOp, GatherOp, MapOp, expressions

GRAIN = 64
"""The smallest side of a contraction's tile, in elements."""

Cuts = tuple[int, ...]
"""Cut points of one dimension, 0 and the extent included."""

Ranges = Mapping[Letter, tuple[int, int]]
"""Half-open range by letter."""


def cuts(extent: int, pieces: int) -> Cuts:
    """Cut points for at most `pieces` equal pieces."""
    size = ceil(extent / pieces)
    if size >= GRAIN:
        size = ceil(size / GRAIN) * GRAIN
    return (*range(0, extent, size), extent)


def target_letters(op: FusedOp) -> tuple[Letter | None, ...]:
    """The letter of each dimension of the op's value; None where its statements put integers there."""
    if not isinstance(op, MapOp):
        return op.target
    columns = zip(*(part.target for part in op.parts), strict=True)
    return tuple(index.letter if isinstance(index := column[0], Axis) and all(c == index for c in column) else None for column in columns)


def chain_letters(op: FusedOp) -> tuple[Letter, ...]:
    """Letters that may be cut into a chain of accumulating tasks."""
    return op.contractions[0].letters if isinstance(op, ContractOp) else ()


def uncut_letters(op: FusedOp) -> frozenset[Letter]:
    """Letters that every task of the op covers whole."""
    bound = {letter for e in expressions(op) for node in walk(e) if isinstance(node, Reduce) for letter in node.letters}
    if isinstance(op, AttentionOp):
        bound |= {*op.score_letters, op.row}
    return frozenset(bound)


def cuttable_letters(op: FusedOp) -> tuple[Letter, ...]:
    """Letters the op may be cut along, the target's first, then the chain's."""
    uncut = uncut_letters(op)
    return tuple(letter for letter in (*target_letters(op), *chain_letters(op)) if letter is not None and letter not in uncut)


@dataclass(frozen=True, slots=True)
class Tiling:
    """All that an op's cuts depend on: read off the op once, asked under every split."""

    target: tuple[Letter | None, ...]
    """As `target_letters`."""
    inside: tuple[tuple[Letter, tuple[Letter, ...]], ...]
    """The letters the op may be cut along, each with those inside it on its side of the op."""
    chain: tuple[Letter, ...]
    """Those of them that are cut into a chain of accumulating tasks."""


def tiling_of(op: FusedOp) -> Tiling:
    """What decides how `op` may be cut."""
    target = target_letters(op)
    named = [letter for letter in target if letter is not None]
    cuttable = cuttable_letters(op)
    inside = tuple((letter, tuple(_inside(op, letter, named))) for letter in cuttable)
    return Tiling(target, inside, tuple(letter for letter in chain_letters(op) if letter in cuttable))


def most_pieces(tilings: Iterable[Tiling], extents: Mapping[Letter, int]) -> dict[Letter, int]:
    """For every letter that some op may be cut along: into how many pieces at most."""
    least: dict[Letter, int] = {}
    for tiling in tilings:
        for letter, inside in tiling.inside:
            tile = _least_tile(letter, inside, extents)
            least[letter] = min(least.get(letter, tile), tile)
    return {letter: max(1, extents[letter] // tile) for letter, tile in sorted(least.items())}


def own_cuts(tiling: Tiling, cuts_by_letter: Mapping[Letter, Cuts]) -> dict[Letter, Cuts]:
    """Where the op cuts each letter: as everybody does, several pieces taken together where one would be too short for it."""
    extents = {letter: c[-1] for letter, c in cuts_by_letter.items()}
    own: dict[Letter, Cuts] = {letter: (0, extent) for letter, extent in extents.items()}
    for letter, inside in tiling.inside:
        points = cuts_by_letter[letter]
        together = ceil(_least_tile(letter, inside, extents) / (points[1] - points[0]))
        own[letter] = points if together == 1 else (*points[:-1:together], points[-1])
    return own


def _least_tile(letter: Letter, inside: tuple[Letter, ...], extents: Mapping[Letter, int]) -> int:
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


def load_box(load: Load, ranges: Ranges, shape: tuple[int, ...]) -> Box:
    """The box of a value of `shape` that a load can touch while its letters run over `ranges`."""
    spans = [_span(index, ranges, extent) for index, extent in zip(load.indices, shape, strict=True)]
    return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))


def _span(index: Expr, ranges: Ranges, extent: int) -> tuple[int, int]:
    match index:
        case Axis(letter):
            return ranges[letter]
        case Num(value):
            return int(value), int(value) + 1
        case _:
            known = interval(index, ranges)
            if known is None:
                return 0, extent
            return max(0, int(known[0])), min(extent, int(known[1]) + 1)
