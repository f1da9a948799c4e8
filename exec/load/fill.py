"""Weights into memory, streaming: the only copy that is left is the one in the caller's slots.

Each checkpoint tensor is read once, in blocks of whole rows that are boxes of the weight's own axes; a block is
reordered by a view (no copy), and copied, casting, into every tile it meets. Several threads do so, each a block at a time: what is read,
made of random bits or dequantised is in that thread's cache when it is cast. What is told of blocks is told in their order, by the caller.

    source (k g e z) m, weight [k, g, z, e, m]:    rows  ── view ──► [k, g, e, z, m] ── permute ──► [k, g, z, e, m] ──► tiles
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import prod
from os import sched_getaffinity
from typing import TypeVar

import numpy as np
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


BLOCK_BYTES = 4 << 20
"""Of a block as float32. Dequantising takes up to four times that for a moment, in each thread."""
MOST_THREADS = 16
"""That fill at once."""
WORTH_THREADS = 4 << 20
"""Elements; fewer are filled by the calling thread."""
BLOCKS_AT_ONCE = 8
"""That a thread is given: to wake one up takes as long as to copy a part of a block."""
AHEAD = 2
"""How often a thread is given blocks before the caller has heard of the first."""

_INFINITE, _NEGATIVE_INFINITE = 0x7C00, 0xFC00
"""Bits in fp16; those beyond are NaN."""

T = TypeVar("T")


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

    def blocks() -> Iterator[_Filling]:
        for value in sorted(tiles_by_value, key=lambda v: place[resolved.source_by_weight[v].name]):
            tiles = [(graph.tensors[tile].box, slots[tile]) for tile in tiles_by_value[value]]
            type = graph.tensors[tiles_by_value[value][0]].element_type
            places = block_places(resolved.source_by_weight[value], shape_by_value[value])
            yield from (_Filling(value, type, at, tiles) for at in places if any(at.box.intersects(box) for box, _ in tiles))

    def fill_blocks(some: Sequence[_Filling]) -> list[_Filled]:
        return [_fill_block(resolved, block) for block in some]

    given = blocks()
    calls = (partial(fill_blocks, some) for some in iter(lambda: [*islice(given, BLOCKS_AT_ONCE)], []))
    elements = sum(prod(shape_by_value[value]) for value in tiles_by_value)
    for filled in chain.from_iterable(in_order(calls, _threads() if elements > WORTH_THREADS else 1)):
        for weight in filled.not_finite:
            earlier = not_finite.setdefault((filled.value, weight.beyond), replace(weight, count=0))
            not_finite[filled.value, weight.beyond] = replace(earlier, count=earlier.count + weight.count)
        if progress is not None:
            progress(filled.value, filled.nbytes)
    return tuple(dict.fromkeys(not_finite.values()))  # two weights may be one tensor


@dataclass(frozen=True, slots=True)
class _Filling:
    """A block of a weight, and the tiles that it is copied into."""

    value: str
    type: ElementType
    at: BlockPlace
    tiles: Sequence[tuple[Box, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Filled:
    """What is told of a block."""

    value: str
    nbytes: int
    not_finite: tuple[NotFiniteWeight, ...]


def _fill_block(resolved: Resolved, filling: _Filling) -> _Filled:
    block = read_block(resolved.checkpoint, resolved.source_by_weight[filling.value], filling.at, filling.type)
    nbytes = sum(_copy_overlap(block, box, slot) for box, slot in filling.tiles)
    return _Filled(filling.value, nbytes, tuple(_not_finite(block, resolved, filling.value, filling.type)))


def _threads() -> int:
    return min(MOST_THREADS, len(sched_getaffinity(0)))


def in_order(calls: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """The results of `calls`, in their order, each made by one of so many threads. The first that raises, in that order, ends it: what is
    not begun then is not done."""
    if threads == 1:
        for call in calls:
            yield call()
        return
    given: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(threads, "einpage-fill", torch.set_num_threads, (1,))  # a cast is not to start threads of its own
    try:
        for call in calls:
            given.append(pool.submit(call))
            if len(given) >= AHEAD * threads:
                yield given.popleft().result()
        while given:
            yield given.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(torch.get_num_threads())  # of this thread; the pool's set what new ones begin with


def _not_finite(block: WeightBlock, resolved: Resolved, value: str, type: ElementType) -> Iterator[NotFiniteWeight]:
    """What of `block` is not finite, and what is not in the run's dtype: most often nothing, which one pass in the cache tells."""
    name, dtype, rows = resolved.source_by_weight[value].name, TORCH_DTYPE[as_run(type)], block.rows
    if isinstance(type, Stored):
        if type.dtype is not DType.FP16 and _scales(rows, type.format).isfinite().all():
            return
        rows = torch.from_numpy(resolved.checkpoint.read_rows(name, block.first_row, block.first_row + len(rows)))
    if _is_finite(rows, dtype):
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


def _is_finite(rows: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether all of `rows` is, in `dtype` too.

    Every other dtype holds what fp16 does, whose bits are compared in a quarter of the time: infinity and NaN are the largest of the
    positive numbers, read as signed integers, and of the negative ones, read as unsigned."""
    if rows.dtype is torch.float16:
        bits = rows.numpy()
        return int(bits.view(np.int16).max()) < _INFINITE and int(bits.view(np.uint16).max()) < _NEGATIVE_INFINITE
    most = torch.finfo(dtype).max
    low, high = (float(x) for x in torch.aminmax(rows))
    return -most <= low and high <= most


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


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block lies: in the checkpoint's tensor, and in the weight."""

    first_row: int
    shape: tuple[int, ...]
    """Of the block, its dimensions as the checkpoint has them; the rows are all but the last group."""
    rows: int
    box: Box
    back: tuple[int, ...]
    """For each dimension of the weight, which of `shape` it is."""


def read_blocks(checkpoint: Checkpoint, source: Source, shape: tuple[int, ...]) -> Iterator[WeightBlock]:
    """The weight of this shape in disjoint blocks that cover it, in the order of the file."""
    for at in block_places(source, shape):
        yield read_block(checkpoint, source, at)


def read_block(checkpoint: Checkpoint, source: Source, at: BlockPlace, type: ElementType = DType.FP32) -> WeightBlock:
    """One block, read now: numbers, or as it is stored. Raises WeightError where the file cannot be read any more."""
    if isinstance(type, Stored):
        before = len(at.shape) - type.row_dims
        stored = torch.from_numpy(checkpoint.read_stored(source.name, at.first_row, at.first_row + at.rows))
        data = stored.view((*at.shape[:before], stored.shape[1])).permute((*at.back[:before], before))
        return WeightBlock(at.box, data, stored, at.first_row, type)
    read = torch.from_numpy(checkpoint.read_rows(source.name, at.first_row, at.first_row + at.rows))
    if source.plus:
        read = read.float() + source.plus
    return WeightBlock(at.box, read.view(at.shape).permute(at.back), read, at.first_row)


def block_places(source: Source, shape: tuple[int, ...]) -> Iterator[BlockPlace]:
    """The blocks of a weight of this shape: disjoint, covering it, in the order of the file.

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
        extent, start = (*counts, *columns), (*corner, *(0 for _ in columns))
        box = Box(tuple(start[i] for i in back), tuple(start[i] + extent[i] for i in back))
        yield BlockPlace(first_row, extent, prod(counts), box, back)


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
