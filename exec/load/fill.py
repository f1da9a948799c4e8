"""Weights into memory, streaming: the only copy that is left is the one in the caller's slots.

Each checkpoint tensor is read once, in blocks of whole rows that are boxes of the weight's own axes; a block is
reordered by a view (no copy), and copied, casting, into every tile it meets.

    source (k g e z) m, weight [k, g, z, e, m]:    rows  ── view ──► [k, g, e, z, m] ── permute ──► [k, g, z, e, m] ──► tiles
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from einpage.checkpoints.files.checkpoint import Checkpoint
from einpage.checkpoints.match.resolve import Resolved
from einpage.einsum_front.base.dtype import BlockFormat, DType, ElementType, Stored, as_run
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Program, Source, Weight
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE


@dataclass(frozen=True, slots=True)
class NotFiniteWeight:
    """Numbers of a checkpoint's tensor that are not finite, or not finite in the run's dtype."""

    tensor: str
    shape: tuple[int, ...]
    count: int
    """How many."""
    beyond: bool
    """True for finite numbers that the dtype does not hold, False for NaN and inf in the file."""
    first: tuple[int, ...]
    """Index of the first, in the checkpoint's tensor."""
    value: float
    """The first."""


BLOCK_BYTES = 2 << 20
"""Of a block as float32. Dequantising takes up to four times that for a moment."""


def fill(
    graph: TaskGraph,
    resolved: Resolved,
    slots: Mapping[TensorId, torch.Tensor],
    progress: Callable[[str, int], None] | None = None,
) -> tuple[NotFiniteWeight, ...]:
    """Write every weight tile of `graph` that has a slot into it, a tensor of the tile's shape in the run's dtype, or of its
    bytes where it is kept as it is stored; say what is not finite.

    `progress(name, nbytes)` is called after each block with the bytes written to slots of that weight. Raises WeightError
    where the file cannot be read any more.
    """
    not_finite: dict[tuple[str, bool], NotFiniteWeight] = {}
    tiles_by_value: dict[str, list[TensorId]] = {}
    for tensor in graph.tensors:
        if tensor.kind is Kind.WEIGHT and tensor.id in slots:
            tiles_by_value.setdefault(tensor.value, []).append(tensor.id)
    shape_by_value = {v.name: v.shape for v in graph.values}
    place = {name: i for i, name in enumerate(resolved.checkpoint.tensors)}
    for value in sorted(tiles_by_value, key=lambda v: place[resolved.source_by_weight[v].name]):
        tiles = [(graph.tensors[tile].box, slots[tile]) for tile in tiles_by_value[value]]
        source, type = resolved.source_by_weight[value], graph.tensors[tiles_by_value.pop(value)[0]].element_type
        for block in read_blocks(resolved.checkpoint, source, shape_by_value[value], type):
            nbytes = sum(_copy_overlap(block, box, slot) for box, slot in tiles)
            for weight in _not_finite(block, resolved, value, type):
                earlier = not_finite.setdefault((value, weight.beyond), replace(weight, count=0))
                not_finite[value, weight.beyond] = replace(earlier, count=earlier.count + weight.count)
            if progress is not None:
                progress(value, nbytes)
    return tuple(dict.fromkeys(not_finite.values()))  # two weights may be one tensor


def _not_finite(block: WeightBlock, resolved: Resolved, value: str, type: ElementType) -> Iterator[NotFiniteWeight]:
    """What of `block` is not finite, and what is not in the run's dtype: most often nothing, which one pass in the cache tells."""
    name, dtype, rows = resolved.source_by_weight[value].name, TORCH_DTYPE[as_run(type)], block.rows
    most = torch.finfo(dtype).max
    if isinstance(type, Stored):
        if type.dtype is not DType.FP16 and _scales(rows, type.format).isfinite().all():
            return
        rows = torch.from_numpy(resolved.checkpoint.read_rows(name, block.first_row, block.first_row + len(rows)))
    low, high = (float(x) for x in torch.aminmax(rows))
    if -most <= low and high <= most:
        return
    shape = resolved.checkpoint.tensors[name]
    finite = rows.isfinite()
    for beyond, found in ((False, ~finite), (True, finite & ~rows.to(dtype).isfinite())):
        if count := int(found.sum()):
            row, column = (int(i) for i in found.nonzero()[0])
            first = _unravel((block.first_row + row) * rows.shape[1] + column, shape)
            yield NotFiniteWeight(name, shape, count, beyond, first, float(rows[row, column]))


def _scales(rows: torch.Tensor, format: BlockFormat) -> torch.Tensor:
    """Numbers that are finite only where all of `rows`, in blocks [row, bytes], are."""
    if not format.is_quantised:
        return rows.view(torch.bfloat16 if format is BlockFormat.BF16 else torch.float16)
    halves = rows.view(torch.float16).view(-1, format.nbytes // 2)
    return halves[:, [at // 2 for at in format.scales_at]]


def read_weight(resolved: Resolved, weight: Weight) -> torch.Tensor:
    """A whole weight in its own axes, fp32: for the eager reference and for tests."""
    out = torch.empty(weight.shape, dtype=torch.float32)
    whole = Box((0,) * len(weight.shape), weight.shape)
    for block in read_blocks(resolved.checkpoint, resolved.source_by_weight[weight.name], weight.shape):
        _copy_overlap(block, whole, out)
    return out


def read_weights(resolved: Resolved, program: Program) -> dict[str, torch.Tensor]:
    """Every weight that was resolved, by its unique name, fp32."""
    return {w.name: read_weight(resolved, w) for w in program.weights if w.name in resolved.source_by_weight}


@dataclass(frozen=True, slots=True)
class WeightBlock:
    """A box of a weight and its elements, a strided view in the weight's own axes."""

    box: Box
    data: torch.Tensor
    """Of what is kept as it is stored: axes before a row's, then the bytes of the row."""
    rows: torch.Tensor
    """The same elements as the checkpoint has them, from `first_row` on."""
    first_row: int
    stored: Stored | None = None
    """How the bytes are stored; None: they are numbers."""


def read_blocks(checkpoint: Checkpoint, source: Source, shape: tuple[int, ...], type: ElementType = DType.FP32) -> Iterator[WeightBlock]:
    """The weight of this shape in disjoint blocks that cover it, in the order of the file: numbers, or as it is stored.

    The dimensions before the checkpoint's last are walked like an odometer, outermost first: all but one of them whole
    or at a single index, that one in runs as long as BLOCK_BYTES allows. So every block is contiguous rows in the file
    and a box in the weight.
    """
    row_dims = tuple(d for group in source.groups[:-1] for d in group)
    order = (*row_dims, *(source.groups[-1] if source.groups else ()))
    assert sorted(order) == list(range(len(shape))), f"{source.name}: groups {source.groups} do not permute {len(shape)} dimensions"
    extents = tuple(shape[d] for d in row_dims)
    columns = tuple(shape[d] for d in order[len(row_dims) :])
    back = tuple(order.index(d) for d in range(len(shape)))
    for corner, counts, first_row in _boxes(extents, max(1, BLOCK_BYTES // (4 * max(1, prod(columns))))):
        start = (*corner, *(0 for _ in columns))
        box = Box(tuple(start[i] for i in back), tuple((*(a + n for a, n in zip(corner, counts, strict=True)), *columns)[i] for i in back))
        if isinstance(type, Stored):
            stored = torch.from_numpy(checkpoint.read_stored(source.name, first_row, first_row + prod(counts)))
            data = stored.view((*counts, stored.shape[1])).permute((*back[: len(row_dims)], len(row_dims)))
            yield WeightBlock(box, data, stored, first_row, type)
            continue
        rows = checkpoint.read_rows(source.name, first_row, first_row + prod(counts))
        read = torch.from_numpy(rows)
        if source.plus:
            read = read.float() + source.plus
        yield WeightBlock(box, read.view((*counts, *columns)).permute(back), read, first_row)


def _boxes(extents: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Split a row-major space into boxes of contiguous indices, at most `most` each: (corner, counts, first flat index)."""
    split_at = len(extents)
    inner = 1
    while split_at > 0 and inner * extents[split_at - 1] <= most:
        split_at -= 1
        inner *= extents[split_at]
    if split_at == 0:
        yield (0,) * len(extents), extents, 0
        return
    outer, along, whole = extents[: split_at - 1], extents[split_at - 1], extents[split_at:]
    run = max(1, most // inner)
    for number in range(prod(outer)):
        index = _unravel(number, outer)
        for a in range(0, along, run):
            count = min(run, along - a)
            corner = (*index, a, *(0 for _ in whole))
            yield corner, (*(1 for _ in outer), count, *whole), (number * along + a) * inner


def _unravel(number: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(extents):
        number, digit = divmod(number, extent)
        index.append(digit)
    return tuple(reversed(index))


def _copy_overlap(block: WeightBlock, box: Box, slot: torch.Tensor) -> int:
    """Copy what a block and a tile share, casting to the slot's dtype; how many bytes that was."""
    if not block.box.intersects(box):
        return 0
    low = tuple(max(a, b) for a, b in zip(block.box.start, box.start, strict=True))
    high = tuple(min(a, b) for a, b in zip(block.box.end, box.end, strict=True))
    to, of = _slices(low, high, box), _slices(low, high, block.box)
    if block.stored is not None:
        before = len(low) - block.stored.row_dims
        first = block.stored.bytes_of(box.start[before] * prod(block.box.shape[before + 1 :]))
        row_bytes = block.stored.bytes_of(block.stored.row_elements(box.shape))
        slot, to, of = slot.view(*box.shape[:before], row_bytes), to[:before], (*of[:before], slice(first, first + row_bytes))
    target = slot[to]
    target.copy_(block.data[of])
    return target.numel() * target.element_size()


def _slices(low: tuple[int, ...], high: tuple[int, ...], within: Box) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, within.start, strict=True))
