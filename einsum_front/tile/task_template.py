"""One task of a template: the job of one tile, and which tiles of its operands it reads.

In: a template, one of its tiles, and how the values in its slots are cut. Out: a TaskTemplate, in tile numbers and not in tensors, so that
equal layers share it.
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.base.dtype import FLAG, DType, ElementType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import (
    AttentionJob,
    Box,
    ContractJob,
    GatherJob,
    Job,
    MapJob,
    OverflowJob,
    PairsJob,
    Range,
    View,
)
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, GatherOp, MapOp, OverflowOp, PairsOp, dtype_of
from einpage.einsum_front.tile.flops import flops
from einpage.einsum_front.tile.grid import Grid
from einpage.einsum_front.tile.template import Template, Tile, in_place_slots
from einpage.einsum_front.tile.tiling import Cuts, load_box


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """A task of a template: its job, and which tiles of which slots it reads."""

    job: Job
    reads: tuple[tuple[int, ...], ...]
    """Per slot, tile numbers in the grid of the value in it."""
    inplace: tuple[int, ...]
    """Slots in whose (single) tile the result may be written."""
    flops: int
    bytes_touched: Nbytes
    tile: Tile


def task_template(
    template: Template, tile: Tile, grids: tuple[Grid, ...], dtypes: tuple[ElementType, ...], cut: tuple[Cuts, ...], dtype: DType
) -> TaskTemplate:
    """The task of `template` that writes `tile`: `grids` and `dtypes` per slot, `cut` and `dtype` of the result."""
    op, ranges, type = template.op, dict(tile.ranges), dtype_of(template.op, dtype)
    numbers, touched = [], 0
    for loads, shape, grid, slot_dtype in zip(template.loads, template.shapes, grids, dtypes, strict=True):
        boxes = dict.fromkeys(load_box(load, ranges, shape) for load in loads)
        numbers.append(tuple(sorted({n for box in boxes for n in grid.inside(box)})))
        flags_alone = isinstance(op, OverflowOp) and loads[0] == op.checked
        touched += FLAG.bytes_of(len(numbers[-1])) if flags_alone else slot_dtype.bytes_of(sum(box.size for box in boxes))
    views = [View(s, d, tuple(g.box(n) for n in ns)) for s, d, g, ns in zip(template.slots, dtypes, grids, numbers, strict=True)]
    result = View("result", type, (tile.box,)) if tile.is_last else View("result", DType.FP32, (accumulator_box(op, tile.box),))
    carry = None
    if tile.chain_index > 0:
        carry = len(views)
        views.append(View("carry", DType.FP32, (accumulator_box(op, tile.box),)))
        touched += DType.FP32.bytes_of(views[-1].boxes[0].size)
    rows = tuple(Range(letter, a, b) for letter, (a, b) in tile.ranges)
    job = _job(op, rows, tuple(views), result, carry, tile.is_last)
    touched += result.element_type.bytes_of(result.boxes[0].size)
    in_place = tuple(
        i
        for i, ok in enumerate(in_place_slots(template))
        if ok and tile.is_last and dtypes[i] == type and grids[i].cuts == cut and len(numbers[i]) == 1 and not isinstance(op, GatherOp)
    )
    nbytes = result.dtype.bytes_of(result.boxes[0].size) if isinstance(op, GatherOp) else touched
    return TaskTemplate(job, tuple(numbers), in_place, flops(op, ranges, at_least=False), Nbytes(nbytes), tile)


def accumulator_box(op: FusedOp, box: Box) -> Box:
    """The box of the fp32 accumulators of a tile: the contractions of the op, or one flag, stacked in front."""
    assert isinstance(op, ContractOp | OverflowOp)
    return Box((0, *box.start), (accumulators(op), *box.end))


def accumulators(op: ContractOp | OverflowOp) -> int:
    """What each task of a chain hands on to the next, for each element of the result."""
    return len(op.contractions) if isinstance(op, ContractOp) else 1


def _job(op: FusedOp, ranges: tuple[Range, ...], reads: tuple[View, ...], result: View, carry: int | None, last: bool) -> Job:
    match op:
        case MapOp():
            return MapJob(ranges, reads, result, op.parts)
        case ContractOp():
            return ContractJob(ranges, reads, result, op.contractions, op.target, op.epilogue, carry, last)
        case AttentionOp():
            return AttentionJob(ranges, reads, result, op.q, op.k, op.score_letters, op.score, op.row, op.v, op.target, op.epilogue)
        case PairsOp():
            sums = (op.products, op.score, op.weight, op.factor, op.letters, op.row, op.is_logarithm)
            return PairsJob(ranges, reads, result, *sums, op.target, op.epilogue)
        case GatherOp():
            return GatherJob(ranges, reads, result, op.target, op.load)
        case OverflowOp():
            return OverflowJob(ranges, reads, result)
