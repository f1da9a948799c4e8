"""Lower bounds: what the largest task of a pattern needs at the least, whichever split of a range is taken.

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
from einpage.einsum_front.choose.working_set import Operand, Pattern, WorkingSets
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, GatherOp, OverflowOp, PairsOp, dtype_of, op_loads
from einpage.einsum_front.tile.split import cuts_by_letter
from einpage.einsum_front.tile.task_template import accumulators
from einpage.einsum_front.tile.template import Template, all_letters
from einpage.einsum_front.tile.tiling import GRAIN, least_tile, longest_and_shortest

SplitRange = Mapping[Letter, tuple[int, int]]
"""A range of splits. By letter that may be cut: the least and the most pieces, both included."""


@dataclass(frozen=True, slots=True)
class PieceLengths:
    """What is known of a letter's pieces in one op, under every split of a range; in elements."""

    each: int
    """No piece is shorter."""
    longest: int
    """The longest is no shorter."""


class LowerBounds:
    """Bytes by pattern and range of splits, remembered."""

    def __init__(self, working_sets: WorkingSets, most: Mapping[Letter, int] | None = None) -> None:
        """`most` is into how many pieces each letter may be cut, where it is more than the ops of `working_sets` say."""
        self.working_sets, self.extents = working_sets, working_sets.opgraph.program.extents
        self.measured = 0
        """How many bounds were computed: what the time of a search is in proportion to."""
        self._known: dict[tuple[object, ...], int] = {}
        self._longest_and_shortest = {x: longest_and_shortest(self.extents[x], top) for x, top in (most or working_sets.most).items()}
        self._shortest_known: dict[tuple[Letter, int, int], int] = {}
        self._lengths_known: dict[tuple[int, Letter, tuple[int, int]], PieceLengths] = {}
        """By template, which the working sets keep alive."""

    def of(self, pattern: Pattern, splits: SplitRange) -> int:
        """Bytes that the largest task of `pattern` needs at the least; its working set where the range is one split."""
        key = (pattern, *(splits[letter] for letter in pattern.letters))
        if key not in self._known:
            if all(splits[letter][0] == splits[letter][1] for letter in pattern.letters):
                cut = cuts_by_letter(self.working_sets.opgraph, {letter: n for letter, (_, n) in splits.items()})
                self._known[key] = self.working_sets.largest_bytes(pattern, cut)
            else:
                self.measured += 1
                self._known[key] = self._bound(pattern, splits)
        return self._known[key]

    def _bound(self, pattern: Pattern, splits: SplitRange) -> int:
        op = pattern.template.op
        own = {letter: self._lengths(pattern.template, letter, splits) for letter in all_letters(op)}
        tasks = _tasks(op, own, self.extents) if pattern.is_whole else _shortest_tasks(op, own, pattern)
        return max((self._task(pattern, lengths, longest_of, own, splits) for lengths, longest_of in tasks), default=0)

    def _task(
        self,
        pattern: Pattern,
        lengths: Mapping[Letter, int],
        longest_of: int | None,
        own: Mapping[Letter, PieceLengths],
        splits: SplitRange,
    ) -> int:
        """Aligned operands, carried sums and result of a task over pieces of `lengths`."""
        op, chain = pattern.template.op, pattern.template.tiling.chain
        size = prod(_target(pattern.template, lengths))
        may_be_in_place = any(last and may for last, may in zip(pattern.last_uses, pattern.in_place, strict=True))
        result = 0 if may_be_in_place else int(aligned(dtype_of(op, self.working_sets.dtype).bytes_of(size)))
        if isinstance(op, GatherOp):
            return result
        whole = {**lengths, **{letter: self.extents[letter] for letter in chain}}
        unchained = result + self._operands(pattern, whole, longest_of, splits)
        if not isinstance(op, ContractOp | OverflowOp) or not chain:
            return unchained
        carry = aligned(DType.FP32.bytes_of(accumulators(op) * size))
        first = self._operands(pattern, {**lengths, **{letter: own[letter].longest for letter in chain}}, longest_of, splits)
        last = self._operands(pattern, {**lengths, **{letter: own[letter].each for letter in chain}}, longest_of, splits)
        chained = carry + max(first, result + last)
        return chained if self._is_chained(pattern.template, splits) else min(unchained, chained)

    def _operands(self, pattern: Pattern, lengths: Mapping[Letter, int], longest_of: int | None, splits: SplitRange) -> int:
        total = 0
        for n, (loads_of_slot, operand) in enumerate(zip(pattern.template.loads, pattern.operands, strict=True)):
            least = max(self._read(load, operand, lengths, n == longest_of, splits) for load in loads_of_slot)
            total += aligned(operand.dtype.bytes_of(least))
        return total

    def _read(self, load: Load, operand: Operand, lengths: Mapping[Letter, int], longest: bool, splits: SplitRange) -> int:
        """Elements of the tiles that hold what `load` touches."""
        size = 1
        for d, (index, extent) in enumerate(zip(load.indices, operand.shape, strict=True)):
            touched = _touched(index, lengths, extent)
            if operand.writer is not None:
                letter = operand.writer.tiling.target[d]
                if letter is None:
                    touched = extent
                else:
                    tile = self._lengths(operand.writer, letter, splits)
                    touched = max(touched, tile.longest if longest else tile.each)
            size *= touched
        return size

    def _lengths(self, template: Template, letter: Letter, splits: SplitRange) -> PieceLengths:
        extent = self.extents[letter]
        if letter not in splits:
            return PieceLengths(extent, extent)
        key = (id(template), letter, splits[letter])
        if key not in self._lengths_known:
            self._lengths_known[key] = self._new_lengths(template, letter, splits[letter])
        return self._lengths_known[key]

    def _new_lengths(self, template: Template, letter: Letter, pieces_range: tuple[int, int]) -> PieceLengths:
        extent = self.extents[letter]
        inside = dict(template.tiling.inside)
        if letter not in inside:
            return PieceLengths(extent, extent)
        least = least_tile(letter, inside[letter], self.extents)
        few, many = pieces_range
        if template.tiling.unchanged is not None and template.tiling.unchanged[0] == letter:
            return PieceLengths(1, -(-(extent - template.tiling.unchanged[1]) // many))
        pieces = min(many, extent // least)
        if pieces == 1:
            return PieceLengths(extent, extent)
        longest = int(self._longest_and_shortest[letter][0][many - 1])
        return PieceLengths(max(self._shortest(letter, few, many), least), max(-(-extent // pieces), longest))

    def _shortest(self, letter: Letter, few: int, many: int) -> int:
        """The shortest piece of `letter` in any of `few` to `many` pieces, before any are merged."""
        key = (letter, few, many)
        if key not in self._shortest_known:
            self._shortest_known[key] = int(self._longest_and_shortest[letter][1][few - 1 : many].min())
        return self._shortest_known[key]

    def _is_chained(self, template: Template, splits: SplitRange) -> bool:
        """Whether the op is a chain of several tasks under every split of the range."""
        inside = dict(template.tiling.inside)
        for letter in template.tiling.chain:
            few, many = splits[letter]
            least = least_tile(letter, inside[letter], self.extents)
            if few > 1 and self._shortest(letter, few, many) >= least:
                return True
        return False


def _tasks(
    op: FusedOp, own: Mapping[Letter, PieceLengths], extents: Mapping[Letter, int]
) -> Iterator[tuple[dict[Letter, int], int | None]]:
    """Lengths by letter in tasks that every split has, and the operand of which the task reads the longest tile.

    They are: the task with the longest pieces of all letters; one over the longest tile of each operand; of an attention, the last,
    to which a causal mask leaves most keys.
    """
    longest = {letter: lengths.longest for letter, lengths in own.items()}
    each = {letter: lengths.each for letter, lengths in own.items()}
    if isinstance(op, AttentionOp | PairsOp):
        last = {letter: (extent - 1, extent) for letter, extent in extents.items()} | {op.row: (0, extents[op.row])}
        start, end = visible(op.score, op.row, last, GRAIN)
        yield {**each, op.row: max(1, end - start)}, None
        if condition(op.score) is not None:
            longest[op.row] = each[op.row] = 1
    yield longest, None
    for n in range(len({load.name for load in op_loads(op)})):
        yield each, n


def _shortest_tasks(op: FusedOp, own: Mapping[Letter, PieceLengths], pattern: Pattern) -> Iterator[tuple[dict[Letter, int], None]]:
    """As `_tasks`, of an op that outputs need in part: any one of its tasks."""
    each = {letter: lengths.each for letter, lengths in own.items()}
    if isinstance(op, AttentionOp | PairsOp) and condition(op.score) is not None:
        each[op.row] = 1
    if pattern.needed:
        yield each, None


def _target(template: Template, lengths: Mapping[Letter, int]) -> list[int]:
    pairs = zip(template.tiling.target, template.op.shape, strict=True)
    return [extent if letter is None else lengths[letter] for letter, extent in pairs]


def _touched(index: Expr, lengths: Mapping[Letter, int], extent: int) -> int:
    """Elements of one dimension that an index surely touches."""
    if isinstance(index, Axis):
        return lengths[index.letter]
    return extent if loads(index) else 1
