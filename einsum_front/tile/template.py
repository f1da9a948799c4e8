"""Templates: an op with its values' names replaced by slots, so that the same layer at every depth is cut once.

In: an op and which letters are cut where. Out: a Template (the op over slots `x`, `wq`, ...) and, for each of its tasks, the ranges and
boxes it works on. No tensor ids occur here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import sub
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Reduce, Region, loads, substitute, walk
from einpage.einsum_front.algebra.masks import visible
from einpage.einsum_front.algebra.rewrite import axes_only
from einpage.einsum_front.graph.job import Box, Contraction, Part
from einpage.einsum_front.graph.opgraph import (
    AttentionOp,
    ContractOp,
    FusedOp,
    GatherOp,
    MapOp,
    OverflowOp,
    PairsOp,
    expressions,
    op_loads,
    target_letters,
)
from einpage.einsum_front.tile.tiling import GRAIN, Cuts, Tiling, own_cuts


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """Equal only to itself: `templates_of` makes one object for all ops that are alike."""

    op: FusedOp
    """Its value is called "", its loads name slots."""
    slots: tuple[str, ...]
    """Slot names, in order of first appearance; unique within the op."""
    shapes: tuple[tuple[int, ...], ...]
    """Per slot, the shape of the value in it."""
    loads: tuple[tuple[Load, ...], ...]
    """Per slot, the op's loads of it, in reading order, duplicates included."""
    tiling: Tiling

    @staticmethod
    def of(skeleton: Skeleton, tiling: Tiling) -> Template:
        """The template of a skeleton; `tiling` is that of any op that has it."""
        op, slots, shapes = skeleton
        loads_of_slots = tuple(tuple(load for load in op_loads(op) if load.name == slot) for slot in slots)
        return Template(op, slots, shapes, loads_of_slots, tiling)


@dataclass(frozen=True, slots=True)
class Tile:
    """One output tile of an op and, where a contraction letter is cut, one step of the chain of tasks that accumulate it."""

    box: Box
    """Of the result, in the value's coordinates."""
    ranges: tuple[tuple[Letter, tuple[int, int]], ...]
    """Every letter of the op, the target's first."""
    chain_index: int
    chain_length: int
    """Position in, and length of, the chain of accumulating tasks; 0 and 1 where nothing is chained."""
    at: tuple[int, ...]
    """Tile index along each dimension of the value, then along each letter of the chain."""

    @property
    def is_last(self) -> bool:
        """Whether the task writes the value's tile itself, and not accumulators."""
        return self.chain_index == self.chain_length - 1


Skeleton: TypeAlias = "tuple[FusedOp, tuple[str, ...], tuple[tuple[int, ...], ...]]"
"""Op, slots and shapes of a template: what two ops that are alike share."""


def skeleton_of(
    op: FusedOp, base_by_value: Mapping[str, str], shape_by_value: Mapping[str, tuple[int, ...]]
) -> tuple[Skeleton, tuple[str, ...]]:
    """`op` without its values' names, and the value in each of its slots."""
    slot_by_value: dict[str, str] = {}
    for load in op_loads(op):
        if load.name not in slot_by_value:
            word, n = base_by_value[load.name], 2
            while word in slot_by_value.values():
                word, n = f"{base_by_value[load.name]}_{n}", n + 1
            slot_by_value[load.name] = word
    values = tuple(slot_by_value)
    renamed = _with_slots(op, slot_by_value)
    return (renamed, tuple(slot_by_value.values()), tuple(shape_by_value[v] for v in values)), values


def _with_slots(op: FusedOp, slot_by_value: Mapping[str, str]) -> FusedOp:
    def slot(e: Expr) -> Expr:
        def step(node: Expr) -> Expr | None:
            if not isinstance(node, Load):
                return None
            return Load(slot_by_value[node.name], tuple(slot(i) for i in node.indices))

        return substitute(e, step)

    def load(e: Load) -> Load:
        found = slot(e)
        assert isinstance(found, Load)
        return found

    match op:
        case MapOp():
            unchanged = op.unchanged and replace(op.unchanged, value=slot_by_value[op.unchanged.value])
            parts = tuple(Part(p.target, slot(p.expr)) for p in op.parts)
            return replace(op, parts=parts, value="", loop=(), fused=(), unchanged=unchanged)
        case ContractOp():
            pairs = tuple(Contraction(load(c.x), load(c.y), c.letters) for c in op.contractions)
            return replace(op, contractions=pairs, epilogue=slot(op.epilogue), value="", loop=(), fused=())
        case AttentionOp():
            return replace(
                op, q=load(op.q), k=load(op.k), v=load(op.v), score=slot(op.score), epilogue=slot(op.epilogue), value="", loop=(), fused=()
            )
        case PairsOp():
            pairs = tuple(Contraction(load(c.x), load(c.y), c.letters) for c in op.products)
            factor, score, weight = op.factor and load(op.factor), slot(op.score), slot(op.weight)
            op = replace(op, products=pairs, score=score, weight=weight, factor=factor, epilogue=slot(op.epilogue))
            return replace(op, value="", loop=(), fused=())
        case GatherOp():
            return replace(op, load=load(op.load), value="", loop=(), fused=())
        case OverflowOp():
            return replace(op, checked=load(op.checked), before=op.before and load(op.before), value="", loop=(), fused=())


def all_letters(op: FusedOp) -> tuple[Letter, ...]:
    """Every letter of an op: the target's in order, then the others by appearance."""
    found = dict.fromkeys(letter for letter in target_letters(op) if letter is not None)
    if isinstance(op, MapOp):
        found |= dict.fromkeys(index.letter for part in op.parts for index in part.target if isinstance(index, Axis))
    for node in (node for e in expressions(op) for node in walk(e)):
        match node:
            case Axis(letter):
                found.setdefault(letter)
            case Reduce(_, letters):
                found |= dict.fromkeys(letters)
    return tuple(found)


def result_cuts(template: Template, cuts_by_letter: Mapping[Letter, Cuts]) -> tuple[Cuts, ...]:
    """Where each dimension of the op's value is cut."""
    return _of_result(template, own_cuts(template.tiling, cuts_by_letter))


def _of_result(template: Template, own: Mapping[Letter, Cuts]) -> tuple[Cuts, ...]:
    pairs = zip(template.tiling.target, template.op.shape, strict=True)
    return tuple(own[letter] if letter is not None else (0, extent) for letter, extent in pairs)


Alike: TypeAlias = Callable[[Letter, int, int], Hashable]
"""alike(letter, start, end): equal for pieces of a letter that no difference is made between."""


def tiles(
    template: Template,
    cuts_by_letter: Mapping[Letter, Cuts],
    sample: bool = False,
    alike: Alike | None = None,
    within: Region | None = None,
) -> Iterator[Tile]:
    """Every tile of the op, row-major over its value, the tasks of a chain one after another; of the target's letters in `within`, only
    pieces that share an element with the range there. Tiles of unchanged rows are another op's.

    With `sample`, only some that almost always hold the largest: along each dimension the first piece, the longest and the last
    three (a causal mask lets later rows see more), of a chain the first two tasks, the longest and the last two. Of pieces that
    are `alike`, only the first (and the last of a chain, which writes the result).
    """
    op, target, chain = template.op, template.tiling.target, template.tiling.chain
    own = own_cuts(template.tiling, cuts_by_letter)
    grid = _of_result(template, own)
    counts = [len(own[letter]) - 1 for letter in chain]
    length = prod(counts)
    letters = all_letters(op)
    whole = {letter: (0, cuts_by_letter[letter][-1]) for letter in letters}
    numbers = _sampled(range(length), [_longest(own[letter]) for letter in chain], counts) if sample else range(length)
    steps = [(n, tuple((own[x][i], own[x][i + 1]) for x, i in zip(chain, at, strict=True)), at) for n, at in _unraveled(numbers, counts)]
    if alike is not None and chain:
        keys = [(*(alike(letter, *piece) for letter, piece in zip(chain, pieces, strict=True)), n == length - 1) for n, pieces, _ in steps]
        steps = sorted(dict(zip(reversed(keys), reversed(steps), strict=True)).values())
    within = {**_written(template), **(within or {})}
    ranges_within = [None if letter is None else within.get(letter) for letter in target]
    for index in product(*(_pieces(x, c, sample, alike, w) for x, c, w in zip(target, grid, ranges_within, strict=True))):
        box = Box(tuple(c[i] for c, i in zip(grid, index, strict=True)), tuple(c[i + 1] for c, i in zip(grid, index, strict=True)))
        ranges = dict(whole)
        for letter, a, b in zip(target, box.start, box.end, strict=True):
            if letter is not None:
                ranges[letter] = (a, b)
        if isinstance(op, AttentionOp | PairsOp):
            ranges[op.row] = _visible_keys(op, ranges)
        for n, pieces, step in steps:
            ranges.update(zip(chain, pieces, strict=True))
            yield Tile(box, tuple((letter, ranges[letter]) for letter in letters), n, length, (*index, *step))


def _written(template: Template) -> dict[Letter, tuple[int, int]]:
    """Of a letter along which rows are unchanged: the others."""
    if template.tiling.unchanged is None:
        return {}
    letter, rows = template.tiling.unchanged
    return {letter: (rows, template.op.shape[template.tiling.target.index(letter)])}


def _sampled(numbers: range, longest: list[int], counts: list[int]) -> list[int]:
    """Of a chain's tasks: the first two, that with the `longest` pieces, the last two."""
    number = 0
    for i, count in zip(longest, counts, strict=True):
        number = number * count + i
    return sorted({*numbers[:2], number, *numbers[-2:]})


def _unraveled(numbers: Iterable[int], counts: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each number with its index in a row-major grid of `counts`."""
    for number in numbers:
        rest, index = number, []
        for count in reversed(counts):
            rest, i = divmod(rest, count)
            index.append(i)
        yield number, tuple(reversed(index))


def _pieces(letter: Letter | None, points: Cuts, sample: bool, alike: Alike | None, within: tuple[int, int] | None) -> list[int]:
    start, end = within or (points[0], points[-1])
    first, n = bisect_right(points, start) - 1, bisect_left(points, end)
    longest = first + _longest(points[first : n + 1])
    found = sorted({first, longest, *range(max(first, n - 3), n)}) if sample else list(range(first, n))
    if letter is None or alike is None:
        return found
    first_alike = {alike(letter, points[i], points[i + 1]): i for i in reversed(found)}
    return sorted(first_alike.values())


def _longest(points: Cuts) -> int:
    """The first of the longest pieces."""
    lengths = list(map(sub, points[1:], points))
    return lengths.index(max(lengths))


def _visible_keys(op: AttentionOp | PairsOp, ranges: Region) -> tuple[int, int]:
    """The keys that the mask leaves a tile's queries; where it leaves none, one grain, so that the kernel has rows to write 0 for."""
    start, end = visible(op.score, op.row, ranges, GRAIN)
    return (start, end) if start < end else (ranges[op.row][0], min(ranges[op.row][0] + GRAIN, ranges[op.row][1]))


def in_place_slots(template: Template) -> tuple[bool, ...]:
    """Per slot: whether the result may be written in place, into its bytes.

    It may where they are read element by element at the target's own letters, in no product and no reduction.
    """
    op, target = template.op, template.tiling.target
    out = []
    for slot, shape, uses in zip(template.slots, template.shapes, template.loads, strict=True):
        same = all(axes_only(use) == target for use in uses) and shape == op.shape
        inner = {load.name for e in _read_elsewhere(op) for load in loads(e)}
        out.append(same and slot not in inner and None not in target)
    return tuple(out)


def _read_elsewhere(op: FusedOp) -> tuple[Expr, ...]:
    """Expressions whose operands are read at other elements than the one being written."""
    match op:
        case MapOp():
            reduced = [node for p in op.parts for node in walk(p.expr) if isinstance(node, Reduce)]
            indices = [i for load in op_loads(op) for i in load.indices]
            return (*reduced, *indices)
        case ContractOp():
            return (*(side for c in op.contractions for side in (c.x, c.y)), *(i for load in loads(op.epilogue) for i in load.indices))
        case AttentionOp() | PairsOp() | GatherOp() | OverflowOp():
            return expressions(op)
