"""Working sets of ops under many splits, counted as the planner counts them: aligned operands and result, 0 for a result written in place.

In: an OpGraph and a dtype. Out: bytes for a split. Ops alike in all that decides their bytes (the same layer at every depth) are one
Pattern, and what was counted once is remembered: a step from one split to the next touches few patterns. Of an op that outputs need in
part, only tasks that every split has are counted: what a split adds to them is known once its graph is made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import prod
from operator import sub
from typing import Any

from einpage.einsum_front.algebra.expr import Axis, Letter
from einpage.einsum_front.base.dtype import DType, ElementType
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import AttentionOp, GatherOp, OpGraph, PairsOp, dtype_of, op_loads
from einpage.einsum_front.graph.program import WeightsAs
from einpage.einsum_front.graph.taskgraph import Kind, Value, tile_name
from einpage.einsum_front.tile.grid import Grid, boundaries_read, host_grid, ranges_evaluated, replaced_whole, templates_of
from einpage.einsum_front.tile.needed import Ranges, needed_ranges
from einpage.einsum_front.tile.split import check_pieces, cuts_by_letter, declared_values
from einpage.einsum_front.tile.task_template import accumulator_box
from einpage.einsum_front.tile.template import Template, Tile, in_place_slots, result_cuts, tiles
from einpage.einsum_front.tile.tiling import Cuts, load_box, most_pieces, own_cuts

POINTS = 128
"""Cut points that are handled in about the time in which a task is measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A split and what it needs."""

    pieces: tuple[tuple[Letter, int], ...]
    """Sorted by letter; letters in one piece are absent."""
    largest_bytes: int
    """The largest working set of a task, from a sample of each op's tiles: exact but for ragged corners, never too much."""
    task: str
    """The value that this task computes."""

    @property
    def by_letter(self) -> dict[Letter, int]:
        """`pieces` as a dictionary."""
        return dict(self.pieces)


@dataclass(frozen=True, slots=True)
class Counted:
    """The largest working set of a split, counted task by task."""

    nbytes: int
    task: str
    """The first task that needs so much."""
    exact: bool
    """Whether every task was counted; else `nbytes` is no more than what is needed."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What decides how a value that an op reads is cut into tiles."""

    shape: tuple[int, ...]
    dtype: ElementType
    writer: Template | None
    """Of a computed value, or of what replaces a state; None for another weight or input."""
    readers: frozenset[tuple[Template, str]]
    """Of a weight or an input, with the slot it is read in; empty for a computed value."""


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What the working sets of an op depend on, but for the split. Equal only to itself."""

    template: Template
    operands: tuple[Operand, ...]
    """Per slot."""
    last_uses: tuple[bool, ...]
    """Per slot: whether the op is the last that reads it."""
    in_place: tuple[bool, ...]
    """Per slot: whether the result may be written into its bytes, tiles permitting."""
    letters: tuple[Letter, ...]
    """Letters whose cuts may make a difference, sorted."""
    needed: tuple[Ranges, ...]
    """Parts of the result that outputs need under every split, each by the target's letters that it is not all of; of a tile outside
    them, a split may or may not have the tasks."""

    @property
    def is_whole(self) -> bool:
        """Whether outputs need all of the result, so every task of it, under every split."""
        return self.needed == ((),)


def _parts(template: Template, ranges: Ranges, extents: Mapping[Letter, int]) -> Ranges:
    """Of `ranges`, those of the target's letters that are not all of the letter, or all that is written of it."""
    unchanged = dict([template.tiling.unchanged] if template.tiling.unchanged is not None else [])
    return tuple((x, within) for x, within in ranges if x in template.tiling.target and within != (unchanged.get(x, 0), extents[x]))


def _letters(template: Template, operands: tuple[Operand, ...]) -> tuple[Letter, ...]:
    templates = {template, *(reader for operand in operands for reader, _ in operand.readers)}
    templates |= {operand.writer for operand in operands if operand.writer is not None}
    return tuple(sorted({letter for template in templates for letter, _ in template.tiling.inside}))


class WorkingSets:
    """Bytes by pattern and split."""

    def __init__(self, opgraph: OpGraph, dtype: DType, weights_as: WeightsAs = WeightsAs.RUN) -> None:
        self.opgraph, self.dtype, self.weights_as = opgraph, dtype, weights_as
        self.values: dict[str, Value] = declared_values(opgraph, dtype, weights_as)
        self.patterns: dict[Pattern, str] = {}
        """With the first value of the pattern, in order."""
        self.pattern_by_value: dict[str, Pattern] = {}
        self.measured = 0
        """How many tasks were measured: what the time of a search is in proportion to."""
        self._known: dict[tuple[object, ...], int] = {}
        self._grids: dict[tuple[int, ...], Grid] = {}
        """By operand, which a pattern keeps alive, and number of pieces of each letter."""
        self._boundaries: dict[tuple[object, ...], dict[str, tuple[set[int], ...]]] = {}
        self.searches: dict[tuple[object, ...], Any] = {}
        """What `best_first` found, by what was asked of it."""
        self.templates = templates = templates_of(opgraph, self.values)
        readers: dict[str, set[tuple[Template, str]]] = {name: set() for name in self.values}
        for template, names in templates.values():
            for slot, name in zip(template.slots, names, strict=True):
                if self.values[name].kind in (Kind.WEIGHT, Kind.INPUT):
                    readers[name].add((template, slot))
        writers = {name: template for name, (template, _) in templates.items()} | replaced_whole(templates, opgraph.program.states)
        operands = {n: Operand(v.shape, v.element_type, writers.get(n), frozenset(readers[n])) for n, v in self.values.items()}
        last_reader = {load.name: op.value for op in opgraph.ops for load in op_loads(op)}
        needed, extents = needed_ranges(opgraph, templates), opgraph.program.extents
        pattern_by_key: dict[tuple[object, ...], Pattern] = {}
        for op in opgraph.ops:
            template, names = templates[op.value]
            last_uses = tuple(self.values[n].kind is Kind.ACTIVATION and last_reader[n] == op.value for n in names)
            read = tuple(operands[n] for n in names)
            parts = tuple(_parts(template, ranges, extents) for ranges in needed.get(op.value, ()))
            key = (template, read, last_uses, parts)
            if key not in pattern_by_key:
                pattern_by_key[key] = Pattern(template, read, last_uses, in_place_slots(template), _letters(template, read), parts)
            pattern = pattern_by_key[key]
            self.patterns.setdefault(pattern, op.value)
            self.pattern_by_value[op.value] = pattern

        self.most = most_pieces((pattern.template.tiling for pattern in self.patterns), opgraph.program.extents)
        """Into how many pieces each letter may be cut."""

    def cut(self, pieces: Mapping[Letter, int]) -> dict[Letter, int]:
        """`pieces` without letters of the program that no op can be cut along and that are in one piece."""
        extents = self.opgraph.program.extents
        return {letter: n for letter, n in pieces.items() if n > 1 or letter in self.most or letter not in extents}

    def check(self, pieces: Mapping[Letter, int]) -> None:
        """Raises UsageError for a letter that cannot be cut, or not into so many pieces."""
        check_pieces(pieces, self.most, self.opgraph.program.extents)

    def measure(self, pieces: Mapping[Letter, int]) -> Choice:
        """The largest working set under `pieces`."""
        cut = cuts_by_letter(self.opgraph, pieces)
        largest, task = max(((self.largest_bytes(p, cut), value) for p, value in self.patterns.items()), key=lambda f: f[0])
        real = tuple((letter, len(c) - 1) for letter, c in sorted(cut.items()) if len(c) > 2)
        return Choice(real, largest, task)

    def largest_bytes(self, pattern: Pattern, cut: Mapping[Letter, Cuts]) -> int:
        """The largest working set of a task of `pattern`, in bytes."""
        key = (pattern, *(len(cut[letter]) for letter in pattern.letters))
        if key not in self._known:
            counter = self._counter(pattern, cut)
            needed = [tiles(pattern.template, cut, sample=True, alike=counter.alike, within=dict(part)) for part in pattern.needed]
            nbytes = [counter.task(tile) for tile in chain.from_iterable(needed)]
            self.measured += len(nbytes) + sum(len(cut[letter]) for letter in pattern.letters) // POINTS
            self._known[key] = max(nbytes, default=0)
        return self._known[key]

    def fits(self, pieces: Mapping[Letter, int], letter: Letter, most_bytes: int) -> bool:
        """Whether no working set under `pieces` is larger, of the patterns that cuts of `letter` make a difference to."""
        cut = cuts_by_letter(self.opgraph, pieces)
        return all(self.largest_bytes(p, cut) <= most_bytes for p in self.patterns if letter in p.letters)

    def count(self, pieces: Mapping[Letter, int], most_tasks: int) -> Counted:
        """The largest working set under `pieces`, from all tasks that are not alike; once `most_tasks` are counted, from a sample.

        Two pieces that are looked at, to find those alike, count as a task. Tasks that this split may not have are not counted.
        """
        cut = cuts_by_letter(self.opgraph, pieces)
        best, left, exact, largest_not_counted = Counted(0, "", True), most_tasks, True, 0
        for pattern, value in self.patterns.items():
            counter = self._counter(pattern, cut)
            for part in pattern.needed:
                left -= sum(len(cut[letter]) for letter, _ in pattern.template.tiling.inside) // 2
                counted = list(islice(tiles(pattern.template, cut, alike=counter.alike, within=dict(part)), left + 1)) if left > 0 else []
                if left <= 0 or len(counted) > left:
                    counted, exact = list(tiles(pattern.template, cut, sample=True, within=dict(part))), False
                left = max(0, left - len(counted))
                for tile in counted:
                    if (nbytes := counter.task(tile)) > best.nbytes:
                        step = f"+{tile.chain_index}" if tile.chain_length > 1 else ""
                        best = Counted(nbytes, f"{tile_name(value, tile.box)}{step}", True)
            if not pattern.is_whole:
                others = list(islice(tiles(pattern.template, cut, alike=counter.alike), left))
                exact, left = exact and len(others) < left, left - len(others)
                largest_not_counted = max([largest_not_counted, *map(counter.task, others)])
        return replace(best, exact=exact and largest_not_counted <= best.nbytes)

    def ranges_of_finest(self, fixed: Mapping[Letter, int]) -> int:
        """In how many ranges an index that is more than a letter is evaluated to measure the finest split (letters in `fixed` have their
        pieces): more than one by one could be, where a table is read along two letters of thousands of pieces."""
        cut = cuts_by_letter(self.opgraph, {**self.most, **fixed})
        readers = {template for pattern in self.patterns for operand in pattern.operands for template, _ in operand.readers}
        return sum(ranges_evaluated(template, cut) for template in readers)

    def tasks_at_most(self, pieces: Mapping[Letter, int]) -> int:
        """How many tasks `pieces` make, those that no output needs included."""
        cut = cuts_by_letter(self.opgraph, pieces)
        by_pattern = {p: prod(len(points) - 1 for points in own_cuts(p.template.tiling, cut).values()) for p in self.patterns}
        return sum(map(by_pattern.__getitem__, self.pattern_by_value.values()))

    def _counter(self, pattern: Pattern, cut: Mapping[Letter, Cuts]) -> _TaskBytes:
        grids = tuple(self._grid(operand, cut) for operand in pattern.operands)
        return _TaskBytes(pattern, grids, Grid(result_cuts(pattern.template, cut)), self.dtype)

    def _grid(self, operand: Operand, cut: Mapping[Letter, Cuts]) -> Grid:
        key = (id(operand), *map(len, cut.values()))
        if key not in self._grids:
            self._grids[key] = self._new_grid(operand, cut)
        return self._grids[key]

    def _new_grid(self, operand: Operand, cut: Mapping[Letter, Cuts]) -> Grid:
        if operand.writer is not None:
            return Grid(result_cuts(operand.writer, cut))
        points: list[set[int]] = [{0, extent} for extent in operand.shape]
        for template, slot in operand.readers:
            key = (template, *(len(cut[letter]) for letter, _ in template.tiling.inside))
            if key not in self._boundaries:
                self._boundaries[key] = boundaries_read(template, cut)
                self.measured += ranges_evaluated(template, cut)
            for have, more in zip(points, self._boundaries[key][slot], strict=True):
                have |= more
        return host_grid(operand.shape, operand.dtype, points)


class _TaskBytes:
    """Bytes of the tasks of one pattern over given grids."""

    def __init__(self, pattern: Pattern, grids: tuple[Grid, ...], result_grid: Grid, dtype: DType) -> None:
        self.op, self.pattern, self.grids = pattern.template.op, pattern, grids
        self.dtype = type = dtype_of(self.op, dtype)
        alike = [grid.cuts == result_grid.cuts and operand.dtype == type for grid, operand in zip(grids, pattern.operands, strict=True)]
        self.in_place = [all(conditions) for conditions in zip(pattern.last_uses, pattern.in_place, alike, strict=True)]
        self.known: dict[tuple[int, Box], int] = {}
        self.widths_known: dict[tuple[int, int, int, int], Counter[int]] = {}
        """By operand, dimension, first and last cut point of a run of tiles: how many are how wide."""

        plain = not isinstance(self.op, AttentionOp | PairsOp) and all(
            isinstance(i, Axis) for load in op_loads(self.op) for i in load.indices
        )
        one_place = all(len(set(loads)) == 1 for loads in pattern.template.loads)  # two of one operand may or may not meet in a tile
        self.alike = self.widths if plain and one_place else None
        """Of an op whose operands are each read at one place, at its own letters: by piece of a letter, what the bytes of its tasks
        depend on."""

    def widths(self, letter: Letter, start: int, end: int) -> tuple[tuple[int, ...], ...]:
        """The widths of the tiles of each operand that share an element with a piece of `letter`, and of the piece."""
        out = [(end - start,)]
        for loads, grid in zip(self.pattern.template.loads, self.grids, strict=True):
            for load in loads:
                for index, points in zip(load.indices, grid.cuts, strict=True):
                    if index == Axis(letter):
                        inside = points[bisect_right(points, start) - 1 : bisect_left(points, end) + 1]
                        out.append(tuple(map(sub, inside[1:], inside)))
        return tuple(out)

    def task(self, tile: Tile) -> int:
        """Aligned operands, carried sums and result of one task."""
        result = aligned(self.dtype.bytes_of(tile.box.size))
        if isinstance(self.op, GatherOp):
            return result
        ranges = dict(tile.ranges)
        total, in_place = 0, False
        for n, (loads, operand, grid) in enumerate(zip(self.pattern.template.loads, self.pattern.operands, self.grids, strict=True)):
            boxes = list(dict.fromkeys(load_box(load, ranges, operand.shape) for load in loads))
            total += self._tiles(n, boxes)
            in_place = in_place or (self.in_place[n] and len(boxes) == 1 and len(grid.inside(boxes[0])) == 1)
        if tile.chain_length > 1:
            total += aligned(DType.FP32.bytes_of(accumulator_box(self.op, tile.box).size))
        return total if not tile.is_last or in_place else total + result

    def _tiles(self, n: int, boxes: list[Box]) -> int:
        """Bytes of the tiles of operand `n` that share an element with any of `boxes`."""
        grid, bytes_of = self.grids[n], self.pattern.operands[n].dtype.bytes_of
        if len(boxes) > 1:
            tiles = {number for box in boxes for number in grid.inside(box)}
            return sum(aligned(bytes_of(grid.box(number).size)) for number in tiles)
        (box,) = boxes
        if (n, box) not in self.known:
            count_by_size = {1: 1}  # tiles by their elements, one dimension after another
            for d, (points, a, b) in enumerate(zip(grid.cuts, box.start, box.end, strict=True)):
                first, after = bisect_right(points, a) - 1, bisect_left(points, b)
                if after - first == 1:  # as a rule
                    width = points[after] - points[first]
                    count_by_size = {size * width: c for size, c in count_by_size.items()}
                    continue
                if (n, d, first, after) not in self.widths_known:
                    inside = points[first : after + 1]
                    self.widths_known[n, d, first, after] = Counter(map(sub, inside[1:], inside))
                widths = self.widths_known[n, d, first, after]
                pairs = [(size * width, c * k) for size, c in count_by_size.items() for width, k in widths.items()]
                count_by_size = {size: sum(c for s, c in pairs if s == size) for size, _ in pairs}
            self.known[n, box] = sum(c * aligned(bytes_of(size)) for size, c in count_by_size.items())
        return self.known[n, box]
