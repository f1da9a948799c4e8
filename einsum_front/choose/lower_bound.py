"""Floors: what the largest task of a pattern needs at the least, whichever of a box of splits is taken.

In: a range of numbers of pieces by letter. Out: bytes that no split of them goes below. Two lengths of a letter's pieces are known for the
whole range: what the longest has at the least, and what every piece has. A task reads whole tiles: those of its operands' writers.

    s = 200 in 100 to 200 pieces, a product (64 at the least): three at most, so the longest has 67 and each has 64
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, loads
from einpage.einsum_front.algebra.masks import condition, visible
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.choose.working_set import Pattern, Sizer, Source
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, GatherOp, op_loads
from einpage.einsum_front.tile.split import cuts_by_letter
from einpage.einsum_front.tile.template import Template, all_letters
from einpage.einsum_front.tile.tiling import GRAIN, cuts, least_tile

Box = Mapping[Letter, tuple[int, int]]
"""By letter that may be cut: the least and the most pieces, both included."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of a letter's pieces in one op."""

    each: int
    longest: int


class Floors:
    """Floors by pattern and box, remembered."""

    def __init__(self, sizer: Sizer, most: Mapping[Letter, int]) -> None:
        self.sizer, self.extents = sizer, sizer.opgraph.program.extents
        self._known: dict[tuple[object, ...], int] = {}
        self._loads: dict[Pattern, list[list[Load]]] = {}
        self._pieces = {letter: [_ends(cuts(self.extents[letter], n + 1)) for n in range(top)] for letter, top in most.items()}

    def of(self, pattern: Pattern, box: Box) -> int:
        """Bytes that the largest task of `pattern` needs at the least; its working set where the box leaves no choice."""
        key = (pattern, *(box[letter] for letter in pattern.letters))
        if key not in self._known:
            if all(box[letter][0] == box[letter][1] for letter in pattern.letters):
                cut = cuts_by_letter(self.sizer.opgraph, {letter: n for letter, (_, n) in box.items()})
                self._known[key] = self.sizer.footprint(pattern, cut)
            else:
                self._known[key] = self._floor(pattern, box)
        return self._known[key]

    def _floor(self, pattern: Pattern, box: Box) -> int:
        template, op = pattern.template, pattern.template.op
        own = {letter: self._lengths(template, letter, box) for letter in all_letters(op)}
        chain = template.tiling.chain
        best = 0
        for lengths, longest_of in self._tasks(op, own, len(pattern.sources)):
            size = prod(_target(template, lengths))
            result: int = aligned(size * self.sizer.dtype.nbytes)
            if any(dies and may for dies, may in zip(pattern.dying, pattern.takeovers, strict=True)):
                result = 0
            if isinstance(op, GatherOp):
                best = max(best, result)
                continue
            whole = {**lengths, **{letter: self.extents[letter] for letter in chain}}
            found = result + self._operands(pattern, whole, longest_of, box)
            if isinstance(op, ContractOp) and chain:
                carry = aligned(len(op.contractions) * size * DType.FP32.nbytes)
                first = {**lengths, **{letter: own[letter].longest for letter in chain}}
                last = {**lengths, **{letter: own[letter].each for letter in chain}}
                chained = carry + max(
                    self._operands(pattern, first, longest_of, box), result + self._operands(pattern, last, longest_of, box)
                )
                found = chained if self._is_chained(template, box) else min(found, chained)
            best = max(best, found)
        return best

    def _operands(self, pattern: Pattern, lengths: Mapping[Letter, int], longest_of: int | None, box: Box) -> int:
        if pattern not in self._loads:
            op = pattern.template.op
            self._loads[pattern] = [[load for load in op_loads(op) if load.name == slot] for slot in pattern.template.slots]
        total = 0
        for n, (found, source) in enumerate(zip(self._loads[pattern], pattern.sources, strict=True)):
            least = max(self._read(load, source, lengths, n == longest_of, box) for load in found)
            total += aligned(least * source.dtype.nbytes)
        return total

    def _read(self, load: Load, source: Source, lengths: Mapping[Letter, int], longest: bool, box: Box) -> int:
        """Elements of the tiles that hold what `load` touches."""
        size = 1
        for d, (index, extent) in enumerate(zip(load.indices, source.shape, strict=True)):
            asked = _asked(index, lengths, extent)
            if source.writer is not None:
                letter = source.writer.tiling.target[d]
                if letter is None:
                    asked = extent
                else:
                    tile = self._lengths(source.writer, letter, box)
                    asked = max(asked, tile.longest if longest else tile.each)
            size *= asked
        return size

    def _lengths(self, template: Template, letter: Letter, box: Box) -> Lengths:
        extent = self.extents[letter]
        inside = dict(template.tiling.inside)
        if letter not in inside:
            return Lengths(extent, extent)
        least = least_tile(letter, inside[letter], self.extents)
        few, many = box[letter]
        pieces = min(many, extent // least)
        if pieces == 1:
            return Lengths(extent, extent)
        each = min(short for _, short in self._pieces[letter][few - 1 : many])
        return Lengths(max(each, least), max(-(-extent // pieces), self._pieces[letter][many - 1][0]))

    def _tasks(self, op: FusedOp, own: Mapping[Letter, Lengths], slots: int) -> Iterator[tuple[dict[Letter, int], int | None]]:
        """Lengths in tasks that are there for sure, and the operand of which that task reads the longest tile.

        They are: the task with the longest pieces of all letters; one over the longest tile of each operand; of an attention, the last,
        to which a causal mask leaves most keys.
        """
        longest = {letter: lengths.longest for letter, lengths in own.items()}
        each = {letter: lengths.each for letter, lengths in own.items()}
        if isinstance(op, AttentionOp):
            last = {letter: (extent - 1, extent) for letter, extent in self.extents.items()} | {op.row: (0, self.extents[op.row])}
            start, end = visible(op.score, op.row, last, GRAIN)
            yield {**each, op.row: max(1, end - start)}, None
            if condition(op.score) is not None:
                longest[op.row] = each[op.row] = 1
        yield longest, None
        for n in range(slots):
            yield each, n

    def _is_chained(self, template: Template, box: Box) -> bool:
        """Whether the op is a chain of several tasks under every split of the box."""
        inside = dict(template.tiling.inside)
        for letter in template.tiling.chain:
            few, many = box[letter]
            least = least_tile(letter, inside[letter], self.extents)
            if few > 1 and min(short for _, short in self._pieces[letter][few - 1 : many]) >= least:
                return True
        return False


def _ends(points: tuple[int, ...]) -> tuple[int, int]:
    """The longest piece, which is the first, and the shortest, which is the last."""
    return points[1], points[-1] - points[-2]


def _target(template: Template, lengths: Mapping[Letter, int]) -> list[int]:
    pairs = zip(template.tiling.target, template.op.shape, strict=True)
    return [extent if letter is None else lengths[letter] for letter, extent in pairs]


def _asked(index: Expr, lengths: Mapping[Letter, int], extent: int) -> int:
    """Elements of one dimension that an index surely touches."""
    if isinstance(index, Axis):
        return lengths[index.letter]
    return extent if loads(index) else 1
