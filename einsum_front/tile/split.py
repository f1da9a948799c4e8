"""Splitting: from fused ops over whole values to a TaskGraph of tiles.

In: an OpGraph and into how many pieces each letter is cut. Out: a verified TaskGraph. A tile is a tensor; a cut contraction letter is a
chain of tasks through fp32 accumulators; weights are cut into the boxes that tasks read.
Tasks whose tile no output needs are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.base.dtype import FLAG, DType, ElementType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.describe import describe
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import (
    KIND_WORD,
    FusedOp,
    GatherOp,
    MapOp,
    OpGraph,
    OverflowOp,
    dtype_of,
    target_letters,
)
from einpage.einsum_front.graph.program import UnchangedRows, WeightsAs
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, TaskGraph, Tensor, TensorId, Value, tile_name
from einpage.einsum_front.tile.flops import flops, least_elements
from einpage.einsum_front.tile.grid import Grid, Templates, host_grids, templates_of
from einpage.einsum_front.tile.needed import Ranges, needed_ranges
from einpage.einsum_front.tile.order import Draft, in_tile_order
from einpage.einsum_front.tile.stored_weights import stored_weights
from einpage.einsum_front.tile.task_template import TaskTemplate, task_template
from einpage.einsum_front.tile.template import Template, result_cuts, tiles
from einpage.einsum_front.tile.tiling import Cuts, cuts, load_box, most_pieces


def split(
    opgraph: OpGraph, pieces: Mapping[Letter, int], dtype: DType, templates: Templates | None = None, weights_as: WeightsAs = WeightsAs.RUN
) -> TaskGraph:
    """The TaskGraph of `opgraph` with each letter of `pieces` cut into that many pieces (letters left out stay whole); `templates` are
    those of `opgraph`, where they were made before; `weights_as` says which weights are numbers.

    Raises UsageError for a letter that no op can be cut along, or for more pieces than the rule on sides allows.
    """
    graph = _Splitter(opgraph, pieces, dtype, templates, weights_as).run()
    graph.verify()
    return graph


def check_pieces(pieces: Mapping[Letter, int], most: Mapping[Letter, int], extents: Mapping[Letter, int]) -> None:
    """Raises UsageError for a letter that cannot be cut, or not into so many pieces; `most` as `most_pieces` has it."""
    for letter, n in pieces.items():
        if letter not in most:
            raise UsageError(f"--split {letter}={n}: no operation can be cut along {letter!r}; letters that can: {', '.join(most)}")
        if not 1 <= n <= most[letter]:
            can = f"can be cut into 1 to {most[letter]} pieces" if most[letter] > 1 else "is too short to be cut"
            raise UsageError(f"--split {letter}={n}: {letter!r} (extent {extents[letter]}) {can}")


def cuts_by_letter(opgraph: OpGraph, pieces: Mapping[Letter, int]) -> dict[Letter, Cuts]:
    """Cut points of every letter of the program."""
    return {letter: cuts(extent, pieces.get(letter, 1)) for letter, extent in opgraph.program.extents.items()}


class _Splitter:
    """The tables that grow while ops are cut, in order."""

    def __init__(
        self, opgraph: OpGraph, pieces: Mapping[Letter, int], dtype: DType, templates: Templates | None, weights_as: WeightsAs
    ) -> None:
        self.opgraph, self.program, self.dtype = opgraph, opgraph.program, dtype
        self.values = declared_values(opgraph, dtype, weights_as)
        self.templates = templates_of(opgraph, self.values) if templates is None else templates
        tilings = {template.tiling for template, _ in self.templates.values()}
        check_pieces(pieces, most_pieces(tilings, self.program.extents), self.program.extents)
        self.cuts = cuts_by_letter(opgraph, pieces)
        self.weight_letters = frozenset(letter for weight in self.program.weights for letter in weight.letters)
        self.grids: dict[str, Grid] = host_grids(self.templates, self.cuts, self.values, self.program.states)
        self.states = {state.name: state for state in self.program.states}
        self.boxes: dict[Box, Box] = {}
        """One object for all equal boxes: layers are cut alike."""
        self.tensors: list[Tensor] = []
        self.tensor_by_tile: dict[tuple[str, int], TensorId] = {}
        self.drafts: list[Draft] = []
        self.task_templates: dict[tuple[object, ...], list[TaskTemplate]] = {}

    def run(self) -> TaskGraph:
        """Cut every op and order the tasks."""
        ops = []
        segments = _segments(self.opgraph)
        depths = self.row_depths(segments)
        needed = needed_ranges(self.opgraph, self.templates)
        cost: dict[tuple[Template, Ranges], tuple[int, Nbytes]] = {}
        descriptions: dict[tuple[Template, tuple[str, ...]], str] = {}
        for n, op in enumerate(self.opgraph.ops):
            template, names = self.templates[op.value]
            for ranges in (found := needed.get(op.value, ())):
                if (template, ranges) not in cost:
                    dtypes, at = [self.values[v].element_type for v in names], dict(ranges)
                    cost[template, ranges] = flops(op, at, at_least=True), _least_bytes(template, dtypes, self.dtype, at)
            most = [max((cost[template, ranges][n] for ranges in found), default=0) for n in range(2)]
            if (template, op.fused) not in descriptions:
                descriptions[template, op.fused] = describe(template.op, op.fused)
            ops.append(Op(OpId(n), op.value, KIND_WORD[type(op)], most[0], Nbytes(most[1]), descriptions[template, op.fused]))
            self.cut(OpId(n), op, template, names, segments[n], depths.get(op.value, 0))
        tensors, tasks = in_tile_order(self.tensors, self.drafts, [v for _, v in self.opgraph.outputs])
        used = {t.value for t in tensors}
        values = tuple(v for v in self.values.values() if v.name in used)
        pieces = tuple((letter, len(c) - 1) for letter, c in sorted(self.cuts.items()) if len(c) > 2)
        return TaskGraph(self.program.name, self.dtype, pieces, values, tensors, tasks, tuple(ops), self.opgraph.outputs)

    def row_depths(self, segments: Sequence[int]) -> dict[str, int]:
        """By value of an op that reads a weight: the most letters that tell rows apart, of all ops of its segment that read it.

        Ops that share a weight are sorted as if they had the same rows, so slice by slice together: one pass over the weight serves all.
        """
        deepest: dict[tuple[int, str], int] = {}
        weights_by_value: dict[str, list[tuple[int, str]]] = {}
        for op, segment in zip(self.opgraph.ops, segments, strict=True):
            read = {name for name in self.templates[op.value][1] if self.values[name].kind is Kind.WEIGHT}
            weights_by_value[op.value] = keys = [] if isinstance(op, GatherOp) else [(segment, name) for name in read]
            for key in keys:
                deepest[key] = max(deepest.get(key, 0), len(row_positions(op, self.weight_letters)))
        return {value: max(map(deepest.__getitem__, keys)) for value, keys in weights_by_value.items() if keys}

    def cut(self, op_id: OpId, op: FusedOp, template: Template, names: tuple[str, ...], segment: int, row_depth: int) -> None:
        """Append the tasks of `op`, whose slots hold the values `names`; row tiles are sorted as if of `row_depth` letters."""
        grid = Grid(result_cuts(template, self.cuts))
        self.grids[op.value] = grid
        slots = tuple(self.grids[name] for name in names)
        dtypes = tuple(self.values[name].element_type for name in names)
        key = (template, slots, dtypes)
        if key not in self.task_templates:
            self.task_templates[key] = [
                task_template(template, tile, slots, dtypes, grid.cuts, self.dtype) for tile in tiles(template, self.cuts)
            ]
        if isinstance(op, MapOp) and op.unchanged is not None:
            self.share(op.value, op.unchanged)
        rows = row_positions(op, self.weight_letters)
        carry: TensorId | None = None
        for task in self.task_templates[key]:
            operands = [tuple(self.tile(name, n) for n in ns) for name, ns in zip(names, task.reads, strict=True)]
            inplace = [operands[i][0] for i in task.inplace if self.values[names[i]].kind is Kind.ACTIVATION]
            tile = task.tile
            if carry is not None and tile.chain_index > 0:
                operands.append((carry,))
                if not tile.is_last:
                    inplace.append(carry)
            if tile.is_last:
                (number,) = grid.inside(tile.box)
                result = self.tile(op.value, number)
            else:
                result = carry = self.accumulator(op, task)
            row_tile = tuple(i for at, i in enumerate(tile.at) if at in rows)
            row_tile += (0,) * (row_depth - len(row_tile))
            slice_tile = tuple(i for at, i in enumerate(tile.at) if at not in rows)
            step = f"+{tile.chain_index}" if tile.chain_length > 1 else ""
            self.drafts.append(
                Draft(
                    name=f"{tile_name(op.value, tile.box)}{step}",
                    op=op_id,
                    operands=tuple(operands),
                    result=result,
                    inplace=tuple(inplace),
                    flops=task.flops,
                    bytes_touched=task.bytes_touched,
                    job=task.job,
                    gathers=isinstance(op, GatherOp),
                    order=(segment, row_tile, slice_tile, op_id, tile.chain_index),
                )
            )

    def share(self, name: str, unchanged: UnchangedRows) -> None:
        """Tiles of `name` before its first written row are those of the value it was before."""
        before, grid = self.grids[unchanged.value], self.grids[name]
        for number in range(prod(len(points) - 1 for points in grid.cuts)):
            box = grid.box(number)
            if box.end[unchanged.dim] <= unchanged.rows:
                (same,) = before.inside(box)
                assert before.box(same) == box, "a state is cut alike before and after a write"
                self.tensor_by_tile[name, number] = self.tile(unchanged.value, same)

    def tile(self, name: str, number: int) -> TensorId:
        """The tensor that is tile `number` of a value, made when first asked for."""
        found = self.tensor_by_tile.get((name, number))
        if found is None:
            value, box = self.values[name], self.grids[name].box(number)
            box = self.boxes.setdefault(box, box)
            found = TensorId(len(self.tensors))
            self.tensors.append(Tensor(found, tile_name(name, box), name, box, value.element_type, self.kind(value, box)))
            self.tensor_by_tile[name, number] = found
        return found

    def kind(self, value: Value, box: Box) -> Kind:
        """That of the value; rows of a state that no write touches are the same in every pass."""
        state = self.states.get(value.name)
        if value.kind is Kind.INPUT and state is not None and state.along is not None and box.end[state.along] <= state.first_row:
            return Kind.CONSTANT
        return value.kind

    def accumulator(self, op: FusedOp, task: TaskTemplate) -> TensorId:
        """The tensor of a task's fp32 accumulators, which the next task of its chain reads."""
        name = f"{op.value}~acc{task.tile.chain_index}"
        box = task.job.result.boxes[0]
        if name not in self.values:
            shape = (box.end[0], *op.shape)
            self.values[name] = Value(name, f"{op.base}~acc", shape, DType.FP32, Kind.ACTIVATION)
        found = TensorId(len(self.tensors))
        self.tensors.append(Tensor(found, tile_name(name, box), name, box, DType.FP32, Kind.ACTIVATION))
        return found


def declared_values(opgraph: OpGraph, dtype: DType, weights_as: WeightsAs = WeightsAs.RUN) -> dict[str, Value]:
    """Every whole value of the graph by name: inputs, weights and what ops define."""
    program = opgraph.program
    outputs = {value for _, value in opgraph.outputs}
    values = {i.name: Value(i.name, i.name, i.shape, i.dtype or dtype, Kind.INPUT, (), i.default) for i in program.inputs}
    kept = stored_weights(opgraph, dtype, weights_as)
    values |= {w.name: Value(w.name, w.base, w.shape, kept.get(w.name, w.dtype or dtype), Kind.WEIGHT, w.sources) for w in program.weights}
    for op in opgraph.ops:
        kind = Kind.OUTPUT if op.value in outputs else Kind.ACTIVATION
        values[op.value] = Value(op.value, op.base, op.shape, dtype_of(op, dtype), kind)
    return values


def row_positions(op: FusedOp, weight_letters: frozenset[Letter]) -> tuple[int, ...]:
    """Positions in `Tile.at` of the target letters that no weight has: batch, sequence."""
    return tuple(i for i, letter in enumerate(target_letters(op)) if letter is not None and letter not in weight_letters)


def _segments(opgraph: OpGraph) -> list[int]:
    """By op, the number of its segment of the spec: an iteration of a repeat, or what stands between two."""
    found, loop = [], None
    segment = -1
    for op in opgraph.ops:
        if op.loop != loop or not found:
            segment, loop = segment + 1, op.loop
        found.append(segment)
    return found


def _least_bytes(template: Template, dtypes: list[ElementType], dtype: DType, ranges: Region) -> Nbytes:
    """Distinct operand bytes plus result bytes of the op over `ranges`, however it is cut; of a gather, the bytes that cross the link."""
    target = zip(template.tiling.target, template.op.shape, strict=True)
    result = dtype_of(template.op, dtype).bytes_of(
        prod(extent if letter is None else ranges[letter][1] - ranges[letter][0] for letter, extent in target)
    )
    if isinstance(template.op, GatherOp):
        table = dtype.bytes_of(prod(template.shapes[0]))
        return Nbytes(min(result, table))
    if isinstance(template.op, OverflowOp):
        return Nbytes(result + FLAG.bytes_of(len(template.slots)))
    total = result
    for loads, shape, slot_dtype in zip(template.loads, template.shapes, dtypes, strict=True):
        size_by_box: dict[Box, int] = {}
        for load in loads:
            box = load_box(load, ranges, shape)
            size_by_box[box] = max(size_by_box.get(box, 0), least_elements(template.op, load, ranges, box))
        apart: list[Box] = []
        for box in sorted(size_by_box, key=lambda box: -size_by_box[box]):
            if not any(box.intersects(other) for other in apart):
                apart.append(box)
        total += slot_dtype.bytes_of(sum(size_by_box[box] for box in apart))
    return Nbytes(total)
