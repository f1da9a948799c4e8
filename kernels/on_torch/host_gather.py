"""The host gather: rows of a table that lies on the host, copied straight into a result tile.

In: a GatherJob, the table's and the indices' tiles. Out: the rows, and how many bytes crossed the link (the result's: never the table's).
Indices are checked: one outside the table is an error that names it and its position. It is no kernel of Triton on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.einsum_front.algebra.expr import Expr, Letter, Load, Region, free_letters, loads
from einpage.einsum_front.algebra.expr import size as node_count
from einpage.einsum_front.base.dtype import ElementType, Stored
from einpage.einsum_front.graph.job import Box, GatherJob, Range, View, range_by_letter
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_indices
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.layout.affine import Affine, ascending, row_major
from einpage.kernels.layout.assemble import assemble
from einpage.kernels.layout.blocks import extents, whole
from einpage.kernels.layout.window import strided_tile
from einpage.kernels.multiply.unpack_steps import temporary_bytes, to_numbers


@dataclass(frozen=True, slots=True)
class _TableTile:
    """One tile of the table: which rows it holds, how its element [row, rest letters] lies, and which part of the result it fills."""

    tile: int
    start: int
    end: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    part: tuple[slice, ...]
    """Per rest letter, counted from the job's own start."""
    type: ElementType


@dataclass(frozen=True, slots=True)
class GatherKernel:
    """A prepared GatherJob. Call it on the engine that owns the link."""

    job: GatherJob
    at: int
    """The table's dimension that is looked up."""
    index_letters: tuple[Letter, ...]
    rest: tuple[Letter, ...]
    tiles: tuple[_TableTile, ...]
    rows: int
    read_index: Callable[[Operands], Tensor]
    """The index tensor, axes as in `index_letters`, int64."""
    scratch_bytes: int

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None, *others: Tensor) -> int:
        """Fill `result`; returns the bytes moved. Raises IndexOutOfRange."""
        assert not others, "a gather has one result"
        job = self.job
        index = self.read_index(operands)
        flat = index.reshape(-1)
        self._check(index, flat)
        target = result.permute([job.target.index(x) for x in (*self.index_letters, *self.rest)])
        if not index.dim():
            index, target = index[None], target[None]
        for tile in self._tiles_with(flat):
            table = operands[0][tile.tile]
            if len(self.tiles) == 1:
                self._fill(*self._rows(table, tile, flat - tile.start), target)
            else:
                here = ((index >= tile.start) & (index < tile.end)).nonzero(as_tuple=True)
                within: tuple[EllipsisType | slice, ...] = (..., *tile.part)
                rows, numbers = self._rows(table, tile, index[here] - tile.start)
                target[within][here] = rows[numbers].to(result.dtype)
        return result.nbytes

    def rows_wanted(self, operands: Operands) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Of each tile of the table that has any, its position, and which of its rows are looked up, ascending: what of a table has to be
        at hand. `operands[0]` is not looked at. Raises IndexOutOfRange."""
        index = self.read_index(operands)
        flat = index.reshape(-1)
        self._check(index, flat)
        rows = np.unique(flat.numpy())
        for tile in self._tiles_with(flat):
            first, last = np.searchsorted(rows, (tile.start, tile.end))
            if first < last:
                yield tile.tile, rows[first:last] - tile.start

    def _rows(self, table: Tensor, tile: _TableTile, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor whose rows are a tile's, and the numbers in it of the rows that have these in the tile: of a table that is kept as it is
        stored, only rows that are wanted are there."""
        if not isinstance(tile.type, Stored):
            return table.as_strided(tile.size, tile.stride, table.storage_offset() + tile.offset), numbers
        blocks = table.view(tile.size[0], -1)[numbers]
        found = torch.empty(len(numbers) * tile.stride[0])
        to_numbers(blocks.view(-1), found, tile.type)()
        return found.as_strided((len(numbers), *tile.size[1:]), tile.stride, tile.offset), torch.arange(len(numbers))

    def _fill(self, rows: Tensor, flat: Tensor, target: Tensor) -> None:
        if target.is_contiguous() and rows.dtype == target.dtype:
            torch.index_select(rows, 0, flat, out=target.view(flat.numel(), *rows.shape[1:]))
        else:
            target.copy_(rows[flat].view(target.shape))

    def _tiles_with(self, flat: Tensor) -> Iterator[_TableTile]:
        """The tiles that hold some row of `flat`: a table in many is looked at where its rows are."""
        if len(self.tiles) == 1:
            yield from self.tiles
            return
        rows = np.unique(flat.numpy())
        first = np.searchsorted(rows, [tile.start for tile in self.tiles])
        last = np.searchsorted(rows, [tile.end for tile in self.tiles])
        for i in np.flatnonzero(first < last).tolist():
            yield self.tiles[i]

    def _check(self, index: Tensor, flat: Tensor) -> None:
        if not flat.numel():
            return
        least, most = (int(x) for x in flat.aminmax())
        if least < 0 or most >= self.rows:
            bad = least if least < 0 else most
            found = tuple(int(x) for x in (index == bad).nonzero()[0])
            ranges = range_by_letter(self.job)
            position = tuple(p + ranges[x].start for p, x in zip(found, self.index_letters, strict=True))
            raise IndexOutOfRange(self.job.reads[0].name, self.at, bad, self.rows, position)


def prepare_gather(job: GatherJob) -> GatherKernel:
    """`job` ready to run on host tensors."""
    table = job.reads[0]
    assert job.load.name == table.name, "a gather reads its table first"
    at = next(d for d, i in enumerate(job.load.indices) if loads(i))
    index = job.load.indices[at]
    ranges = range_by_letter(job)
    index_letters = tuple(x for x in job.target if x in free_letters(index))
    rest = tuple(x for x in job.target if x not in index_letters)
    indices = [None if d == at else _affine(i) for d, i in enumerate(job.load.indices)]
    tiles = tuple(tile for j in range(len(table.boxes)) if (tile := _table_tile(table, j, indices, rest, ranges)) is not None)
    elements = prod(ranges[x].extent for x in index_letters)
    result_bytes = job.result.boxes[0].size * job.result.dtype.nbytes
    straight = len(tiles) == 1 and job.target == (*index_letters, *rest) and table.element_type is job.result.dtype
    scratch_bytes = 24 * elements * (1 if isinstance(index, Load) else node_count(index)) + (0 if straight else 2 * result_bytes)
    if isinstance(table.element_type, Stored):
        assert at == 0, "a table that is kept as it is stored is looked up by its rows"
        unpacked = elements * table.element_type.row_elements(table.boxes[0].shape)
        scratch_bytes += table.element_type.bytes_of(unpacked) + 4 * unpacked + temporary_bytes(table.element_type, unpacked)
    read_index = _index_reader(job, index, index_letters)
    return GatherKernel(job, at, index_letters, rest, tiles, max(b.end[at] for b in table.boxes), read_index, scratch_bytes)


def _index_reader(job: GatherJob, index: Expr, letters: tuple[Letter, ...]) -> Callable[[Operands], Tensor]:
    """What reads the index tensor, axes as in `letters`, int64."""
    view, region = job.reads[1], whole(job.ranges)
    if not isinstance(index, Load):
        return partial(_computed_index, job, index, letters, region)
    indices = [_affine(i) for i in index.indices]
    hulls = [a.hull(region) for a in indices]
    box = Box(tuple(lo for lo, _ in hulls), tuple(hi for _, hi in hulls))
    window, assembled = strided_tile(box, 1, 0, view.dtype, indices).window(letters, region), assemble(view, 1, box)
    return lambda operands: assembled(operands).as_strided(window.size, window.stride, window.offset).to(torch.int64)


def _computed_index(job: GatherJob, index: Expr, letters: tuple[Letter, ...], region: Region, operands: Operands) -> Tensor:
    """The index tensor where the index is arithmetic."""
    found: list[Tensor] = []
    extent = extents(region)
    listed = compile_indices([(index, found.append)], letters, extent, job.reads)
    bind(listed, region, job.reads, {}, [])(operands)()
    return found[0].to(torch.int64).expand([extent[x] for x in letters])


def split_gather(job: GatherJob, nbytes: int) -> Iterator[GatherJob]:
    """`job` split into jobs of at most `nbytes` of the result each (one element at least), which lie one after the other in it.

    result [b=2, s=5, m=4], 64 bytes of fp32 a job:  b 0, s 0:4   b 0, s 4:5   b 1, s 0:4   b 1, s 4:5
    """
    (box,), shape = job.result.boxes, job.result.boxes[0].shape
    inside = [prod(shape[d + 1 :]) * job.result.dtype.nbytes for d in range(len(shape))]
    if not shape or inside[0] * shape[0] <= nbytes:
        yield job
        return
    at = next((d for d, inner in enumerate(inside) if inner <= nbytes), len(shape) - 1)
    step = max(1, nbytes // inside[at])
    for outer in product(*(range(a, b) for a, b in zip(box.start[:at], box.end[:at], strict=True))):
        for low in range(box.start[at], box.end[at], step):
            start = (*outer, low, *box.start[at + 1 :])
            end = (*(i + 1 for i in outer), min(low + step, box.end[at]), *box.end[at + 1 :])
            narrowed = {x: Range(x, a, b) for x, a, b in zip(job.target, start, end, strict=True)}
            ranges = tuple(narrowed.get(r.letter, r) for r in job.ranges)
            yield replace(job, ranges=ranges, result=replace(job.result, boxes=(Box(start, end),)))


def _affine(e: Expr) -> Affine:
    index = ascending(e)
    assert index is not None, "a gather's other indices are letters or numbers"
    return index


def _table_tile(
    table: View, j: int, indices: list[Affine | None], rest: tuple[Letter, ...], ranges: dict[Letter, Range]
) -> _TableTile | None:
    """How tile `j` gives rows over the `rest` letters; None for a tile of other columns."""
    box = table.boxes[j]
    at, step = indices.index(None), row_major(box.shape)
    offset, stride, part = 0, dict.fromkeys(rest, 0), {x: (0, ranges[x].extent) for x in rest}
    for d, a in enumerate(indices):
        if a is None:
            continue
        lo, hi = a.hull(whole(ranges.values()))
        low, high = max(lo, box.start[d]), min(hi, box.end[d])
        if high <= low:
            return None
        offset += (low - box.start[d]) * step[d]
        for letter, c in a.terms:
            stride[letter] += c * step[d]
        if (low, high) != (lo, hi):
            ((letter, c),) = a.terms
            assert c == 1, f"{table.name}: tiles end along a dimension that is read with steps"
            part[letter] = (low - lo, high - lo)
    size = (box.shape[at], *(part[x][1] - part[x][0] for x in rest))
    slices = tuple(slice(*part[x]) for x in rest)
    return _TableTile(j, box.start[at], box.end[at], size, (step[at], *(stride[x] for x in rest)), offset, slices, table.element_type)
