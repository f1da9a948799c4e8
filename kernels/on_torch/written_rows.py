"""Maps that put rows into a value at a place that data give: what is left as it was is copied, where it is not there already, and the rows
after it.

In: a job. Out: a TorchKernel, or None where on_torch/map.py is to compute it. It allocates nothing. The result may be the operand that is
left as it was, at the same bytes: then only rows are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Region
from einpage.einsum_front.graph.job import MapJob, View
from einpage.einsum_front.graph.written_rows import WrittenRows, written_rows
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.blocks import whole
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, Window, affine_indices, strided_tile

MOST_PLACES = 256
"""Places that rows are put into one after the other: a batch has one for each sequence."""
COUNTED = Letter("written row")
"""Stands for the number of a row; no spec has such a letter."""


def prepare_written_rows(job: MapJob) -> TorchKernel | None:
    """`job`, if that is all it does, and in not too many places."""
    found = written_rows(job)
    if found is None or job.result.is_checked:  # only what is computed is looked at
        return None
    region = whole(job.ranges)
    places = tuple(dict.fromkeys(i.letter for i in found.start.indices if isinstance(i, Axis)))
    if prod(region[x][1] - region[x][0] for x in places) > MOST_PLACES:
        return None
    tiles = _tiles(job, found)
    if tiles is None:
        return None
    return TorchKernel((_step(found, region, places, tiles),), (), 0)


@dataclass(frozen=True, slots=True)
class _RowTiles:
    place: StridedTile
    """Of the first row."""
    rows: StridedTile
    before: StridedTile
    result: StridedTile


@dataclass(frozen=True, slots=True)
class _Put:
    """Where the rows of one place go, what they are, and into what."""

    place: Window
    rows: Window
    result: Window


def _tiles(job: MapJob, found: WrittenRows) -> _RowTiles | None:
    region = whole(job.ranges) | {COUNTED: (0, found.count)}
    counted = [Axis(COUNTED) if n == found.counted else i for n, i in enumerate(found.rows.indices)]
    loads = (found.start, Load(found.rows.name, tuple(counted)), found.before)
    indices = [of for load in loads if (of := affine_indices(load)) is not None]
    assert len(indices) == len(loads), "letters and numbers are affine"
    views = [_operand(job, load.name) for load in loads]
    place, rows, before = (
        strided_tile(view.boxes[0], operand, 0, view.dtype, of) for (operand, view), of in zip(views, indices, strict=True)
    )
    result = strided_tile(job.result.boxes[0], len(job.reads), 0, job.result.dtype, indices[2])
    return _RowTiles(place, rows, before, result) if all(tile.contains(region) for tile in (place, rows, before, result)) else None


def _operand(job: MapJob, name: str) -> tuple[int, View]:
    return next((i, view) for i, view in enumerate(job.reads) if view.name == name)


def _step(found: WrittenRows, region: Region, places: tuple[Letter, ...], tiles: _RowTiles) -> BoundStep:
    order = tuple(region)
    along = order.index(found.along)
    of_rows = tuple(COUNTED if n == along else x for n, x in enumerate(order))
    puts: list[_Put] = []
    for values in product(*(range(*region[x]) for x in places)):
        here = dict(region) | {x: (v, v + 1) for x, v in zip(places, values, strict=True)} | {COUNTED: (0, found.count)}
        puts.append(_Put(tiles.place.window((), here), tiles.rows.window(of_rows, here), tiles.result.window(order, here)))
    interval = region[found.along]
    return _put(tiles.before.window(order, region), tiles.result.window(order, region), tuple(puts), along, interval, found.shift)


@lru_cache(maxsize=4096)  # layers have the same few steps
def _put(before: Window, result: Window, puts: tuple[_Put, ...], along: int, interval: tuple[int, int], shift: int) -> BoundStep:
    """Copy, then put rows along that axis of the result, whose rows are those of `interval`."""

    def bound(buffers: JobBuffers) -> BoundCall:
        source, target = before.of(buffers), result.of(buffers)
        is_there = source.data_ptr() == target.data_ptr() and source.stride() == target.stride()
        views = [(_array(put.place, buffers), _array(put.rows, buffers), _array(put.result, buffers)) for put in puts]
        outside = (slice(None),) * along

        def call() -> None:
            if not is_there:
                target.copy_(source)
            for place, rows, into in views:
                first = int(place) + shift
                low, high = max(first, interval[0]), min(first + rows.shape[along], interval[1])
                if low < high:
                    into[(*outside, slice(low - interval[0], high - interval[0]))] = rows[(*outside, slice(low - first, high - first))]

        return call

    return bound


def _array(window: Window, buffers: JobBuffers) -> NDArray[np.generic]:
    """What is copied is small, and numpy keeps the interpreter's lock for it, where torch would wait to have it back."""
    seen = window.of(buffers)
    found: NDArray[np.generic] = (seen.view(torch.int16) if seen.dtype is torch.bfloat16 else seen).numpy()
    return found
