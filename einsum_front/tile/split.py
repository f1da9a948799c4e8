"""Splitting: from fused ops over whole values to a TaskGraph of tiles.

In: an OpGraph and into how many pieces each letter is cut. Out: a verified TaskGraph. A tile is a tensor; a cut contraction letter is a
chain of tasks through fp32 accumulators; weights are cut into the boxes that tasks ask for.
Tasks whose tile no output needs are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.describe import note_of
from einpage.einsum_front.graph.job import AttentionJob, Box, ContractJob, GatherJob, Job, MapJob, Range, View
from einpage.einsum_front.graph.opgraph import (
    KIND_WORD,
    AttentionOp,
    ContractOp,
    FusedOp,
    GatherOp,
    MapOp,
    OpGraph,
    op_loads,
    target_letters,
)
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, TaskGraph, Tensor, TensorId, Value, tile_name
from einpage.einsum_front.tile.flops import flops
from einpage.einsum_front.tile.grid import Grid, host_grids, templates_of
from einpage.einsum_front.tile.order import Draft, scheduled
from einpage.einsum_front.tile.template import Template, Tile, result_cuts, takeovers, tiles
from einpage.einsum_front.tile.tiling import Cuts, cuts, load_box, most_pieces, tiling_of


def split(opgraph: OpGraph, pieces: Mapping[Letter, int], dtype: DType) -> TaskGraph:
    """The TaskGraph of `opgraph` with each letter of `pieces` cut into that many pieces (letters left out stay whole).

    Raises UsageError for a letter that no op can be cut along, or for more pieces than the rule on sides allows.
    """
    check_pieces(opgraph, pieces)
    graph = _Splitter(opgraph, pieces, dtype).run()
    graph.verify()
    return graph


def check_pieces(opgraph: OpGraph, pieces: Mapping[Letter, int]) -> None:
    """Raises UsageError where `pieces` asks for what cannot be."""
    most = most_pieces(map(tiling_of, opgraph.ops), opgraph.program.extents)
    for letter, n in pieces.items():
        if letter not in most:
            raise UsageError(f"--split {letter}={n}: no operation can be cut along {letter!r}; letters that can: {', '.join(most)}")
        if not 1 <= n <= most[letter]:
            can = f"can be cut into 1 to {most[letter]} pieces" if most[letter] > 1 else "is too short to be cut"
            raise UsageError(f"--split {letter}={n}: {letter!r} (extent {opgraph.program.extents[letter]}) {can}")


def cuts_by_letter(opgraph: OpGraph, pieces: Mapping[Letter, int]) -> dict[Letter, Cuts]:
    """Cut points of every letter of the program."""
    return {letter: cuts(extent, pieces.get(letter, 1)) for letter, extent in opgraph.program.extents.items()}


@dataclass(frozen=True, slots=True)
class Sketch:
    """A task of a template: its job, and which tiles of which slots it reads."""

    job: Job
    reads: tuple[tuple[int, ...], ...]
    """Per slot, tile numbers in the grid of the value in it."""
    inplace: tuple[int, ...]
    """Slots whose (single) tile the result may take over."""
    flops: int
    bytes_touched: Nbytes
    tile: Tile


def sketch(
    template: Template, tile: Tile, grids: tuple[Grid, ...], dtypes: tuple[DType, ...], cut: tuple[Cuts, ...], dtype: DType
) -> Sketch:
    """One task of `template`: `grids` and `dtypes` per slot, `cut` of the result."""
    op, ranges = template.op, dict(tile.ranges)
    numbers, touched = [], 0
    for slot, shape, grid, slot_dtype in zip(template.slots, template.shapes, grids, dtypes, strict=True):
        boxes = dict.fromkeys(load_box(load, ranges, shape) for load in op_loads(op) if load.name == slot)
        numbers.append(tuple(sorted({n for box in boxes for n in grid.inside(box)})))
        touched += max(sum(box.size for box in boxes), 0) * slot_dtype.nbytes
    views = [View(s, d, tuple(g.box(n) for n in ns)) for s, d, g, ns in zip(template.slots, dtypes, grids, numbers, strict=True)]
    last = tile.link == tile.links - 1
    result = View("result", dtype, (tile.box,)) if last else View("result", DType.FP32, (accumulator_box(op, tile.box),))
    carry = None
    if tile.link > 0:
        carry = len(views)
        views.append(View("carry", DType.FP32, (accumulator_box(op, tile.box),)))
        touched += views[-1].boxes[0].size * 4
    rows = tuple(Range(letter, a, b) for letter, (a, b) in tile.ranges)
    job = _job(op, rows, tuple(views), result, carry, last)
    touched += result.boxes[0].size * result.dtype.nbytes
    taken = tuple(
        i
        for i, ok in enumerate(takeovers(template))
        if ok and last and dtypes[i] is dtype and grids[i].cuts == cut and len(numbers[i]) == 1 and not isinstance(op, GatherOp)
    )
    work = flops(op, ranges, at_least=False)
    nbytes = result.boxes[0].size * result.dtype.nbytes if isinstance(op, GatherOp) else touched
    return Sketch(job, tuple(numbers), taken, work, Nbytes(nbytes), tile)


def accumulator_box(op: FusedOp, box: Box) -> Box:
    """The box of the fp32 accumulators of a tile: the contractions of the op stacked in front."""
    assert isinstance(op, ContractOp)
    return Box((0, *box.start), (len(op.contractions), *box.end))


def _job(op: FusedOp, ranges: tuple[Range, ...], reads: tuple[View, ...], result: View, carry: int | None, last: bool) -> Job:
    match op:
        case MapOp():
            return MapJob(ranges, reads, result, op.parts)
        case ContractOp():
            return ContractJob(ranges, reads, result, op.contractions, op.target, op.epilogue, carry, last)
        case AttentionOp():
            return AttentionJob(ranges, reads, result, op.q, op.k, op.score_letters, op.score, op.row, op.v, op.target, op.epilogue)
        case GatherOp():
            return GatherJob(ranges, reads, result, op.target, op.load)


class _Splitter:
    """Tables that fill while ops are cut, in order."""

    def __init__(self, opgraph: OpGraph, pieces: Mapping[Letter, int], dtype: DType) -> None:
        self.opgraph, self.program, self.dtype = opgraph, opgraph.program, dtype
        self.cuts = cuts_by_letter(opgraph, pieces)
        self.values = declared_values(opgraph, dtype)
        self.templates = templates_of(opgraph, self.values)
        self.weight_letters = frozenset(letter for weight in self.program.weights for letter in weight.letters)
        self.grids: dict[str, Grid] = host_grids(self.templates, self.cuts, self.values)
        self.boxes: dict[Box, Box] = {}
        """One object for all equal ones: layers are cut alike."""
        self.tensors: list[Tensor] = []
        self.tensor_by_tile: dict[tuple[str, int], TensorId] = {}
        self.drafts: list[Draft] = []
        self.sketches: dict[tuple[object, ...], list[Sketch]] = {}

    def run(self) -> TaskGraph:
        ops = []
        whole = {letter: (0, extent) for letter, extent in self.program.extents.items()}
        segment, loop = -1, None
        work: dict[Template, tuple[int, Nbytes]] = {}
        notes: dict[tuple[Template, tuple[str, ...]], str] = {}
        for n, op in enumerate(self.opgraph.ops):
            if op.loop != loop:
                segment, loop = segment + 1, op.loop
            template, names = self.templates[op.value]
            if template not in work:
                dtypes = [self.values[v].dtype for v in names]
                work[template] = flops(op, whole, at_least=True), _whole_bytes(template, dtypes, self.dtype, whole)
            if (template, op.fused) not in notes:
                notes[template, op.fused] = note_of(template.op, op.fused)
            ops.append(Op(OpId(n), op.value, KIND_WORD[type(op)], *work[template], notes[template, op.fused]))
            self.cut(OpId(n), op, template, names, segment)
        tensors, tasks = scheduled(self.tensors, self.drafts, [v for _, v in self.opgraph.outputs])
        live = {t.value for t in tensors}
        values = tuple(v for v in self.values.values() if v.name in live)
        pieces = tuple((letter, len(c) - 1) for letter, c in sorted(self.cuts.items()) if len(c) > 2)
        return TaskGraph(self.program.name, self.dtype, pieces, values, tensors, tasks, tuple(ops), self.opgraph.outputs)

    def cut(self, op_id: OpId, op: FusedOp, template: Template, names: tuple[str, ...], segment: int) -> None:
        grid = Grid(result_cuts(template, self.cuts))
        self.grids[op.value] = grid
        slots = tuple(self.grids[name] for name in names)
        dtypes = tuple(self.values[name].dtype for name in names)
        key = (template, slots, dtypes)
        if key not in self.sketches:
            self.sketches[key] = [sketch(template, tile, slots, dtypes, grid.cuts, self.dtype) for tile in tiles(template, self.cuts)]
        rows = row_positions(op, self.weight_letters)
        carry: TensorId | None = None
        for number, s in enumerate(self.sketches[key]):
            operands = [tuple(self.tile(name, n) for n in ns) for name, ns in zip(names, s.reads, strict=True)]
            inplace = [operands[i][0] for i in s.inplace if self.values[names[i]].kind is Kind.ACTIVATION]
            if carry is not None and s.tile.link > 0:
                operands.append((carry,))
                if s.tile.link < s.tile.links - 1:
                    inplace.append(carry)
            if s.tile.link == s.tile.links - 1:
                result = self.tile(op.value, number // s.tile.links)
            else:
                result = carry = self.accumulator(op, s, number)
            at = s.tile.at
            order = (segment, tuple(at[i] for i in rows), tuple(at[i] for i in range(len(at)) if i not in rows), op_id, s.tile.link)
            link = f"+{s.tile.link}" if s.tile.links > 1 else ""
            name = f"{tile_name(op.value, s.tile.box)}{link}"
            self.drafts.append(
                Draft(
                    name, op_id, tuple(operands), result, tuple(inplace), s.flops, s.bytes_touched, s.job, isinstance(op, GatherOp), order
                )
            )

    def tile(self, name: str, number: int) -> TensorId:
        """The tensor that is tile `number` of a value, made at its first mention."""
        found = self.tensor_by_tile.get((name, number))
        if found is None:
            value, box = self.values[name], self.grids[name].box(number)
            box = self.boxes.setdefault(box, box)
            found = TensorId(len(self.tensors))
            self.tensors.append(Tensor(found, tile_name(name, box), name, box, value.dtype, value.kind))
            self.tensor_by_tile[name, number] = found
        return found

    def accumulator(self, op: FusedOp, s: Sketch, number: int) -> TensorId:
        name = f"{op.value}~acc{s.tile.link}"
        box = s.job.result.boxes[0]
        if name not in self.values:
            shape = (box.end[0], *op.shape)
            self.values[name] = Value(name, f"{op.base}~acc", shape, DType.FP32, Kind.ACTIVATION)
        found = TensorId(len(self.tensors))
        self.tensors.append(Tensor(found, tile_name(name, box), name, box, DType.FP32, Kind.ACTIVATION))
        return found


def declared_values(opgraph: OpGraph, dtype: DType) -> dict[str, Value]:
    """Every whole value of the graph by name: inputs, weights and what ops define."""
    program = opgraph.program
    outputs = {value for _, value in opgraph.outputs}
    values = {i.name: Value(i.name, i.name, i.shape, i.dtype or dtype, Kind.INPUT, (), i.default) for i in program.inputs}
    values |= {w.name: Value(w.name, w.base, w.shape, dtype, Kind.WEIGHT, w.sources) for w in program.weights}
    for op in opgraph.ops:
        kind = Kind.OUTPUT if op.value in outputs else Kind.ACTIVATION
        values[op.value] = Value(op.value, op.base, op.shape, dtype, kind)
    return values


def row_positions(op: FusedOp, weight_letters: frozenset[Letter]) -> tuple[int, ...]:
    """Positions in `Tile.at` of the target letters that no weight has: batch, sequence."""
    return tuple(i for i, letter in enumerate(target_letters(op)) if letter is not None and letter not in weight_letters)


def _whole_bytes(template: Template, dtypes: list[DType], dtype: DType, whole: Mapping[Letter, tuple[int, int]]) -> Nbytes:
    result = prod(template.op.shape) * dtype.nbytes
    if isinstance(template.op, GatherOp):
        table = prod(template.shapes[0]) * dtype.nbytes
        return Nbytes(min(result, table))
    total = result
    for slot, shape, slot_dtype in zip(template.slots, template.shapes, dtypes, strict=True):
        boxes = {load_box(load, whole, shape) for load in op_loads(template.op) if load.name == slot}
        total += min(sum(box.size for box in boxes), prod(shape)) * slot_dtype.nbytes
    return Nbytes(total)
