"""Blocks of a stored weight unpacked into fp32 scratch, by steps of a job: rows of them at a time, the same rows once.

In: a tile that is kept as it is stored, a region of the letters. Out: the tile of scratch in which its numbers lie, and the steps that put
them there. Whole rows of the tile are unpacked. Quantised blocks are by kernels compiled for the processor; where these cannot be had,
by `gguf.dequantize`, which is their definition. Numbers stored one by one are converted by torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.base.dtype import BlockFormat, DType, Stored
from einpage.einsum_front.graph.job import Box
from einpage.kernels.layout.affine import row_major
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, strided_tile
from einpage.kernels.multiply.matrix import Factor, clip
from einpage.kernels.on_llvm.blocks import unpack_blocks
from einpage.kernels.on_llvm.compile import why_not_llvm

NUMBERS_OF = "numbers of"
"""How the names of scratch buffers for this begin."""
PANEL_BYTES = 512 << 10
"""Of numbers that are unpacked at a time: they are multiplied while they are in the second cache."""
PANEL_ROWS = 64
"""Panels have multiples of so many rows where they can: whatever is done to their product is then done in whole vectors."""
SLOW_BYTES_EACH = 24
"""What `gguf.dequantize` allocates for an element, at most."""


class ScratchBuffers(Protocol):
    """What `gemm.Scratch` is here."""

    operand: int
    product_bytes: int
    content: dict[str, object]

    def buffer(self, name: str, elements: int) -> int:
        """The number of buffer `name`, at least so large."""


def unpacked(factor: Factor, region: Region, side: str, scratch: ScratchBuffers) -> tuple[Factor, list[BoundStep]]:
    """`factor` with the tiles that have elements in `region` as numbers in scratch, where they are stored otherwise, and what puts them
    there. `side` says which factor of its product it is: both may be rows of one weight."""
    found = factor.at(region)
    if not any(isinstance(tile.dtype, Stored) for tile in found):
        return factor, []
    tiles, steps = [], list[BoundStep]()
    for n, tile in enumerate(found):
        assert isinstance(tile.dtype, Stored), "a value is kept in one way"
        numbers, more = _tile(tile, tile.dtype, clip(tile, region), f"{NUMBERS_OF} {tile.operand} as {side}, {n}", scratch)
        tiles.append(numbers)
        steps += more
    return Factor(tuple(tiles), factor.letters, factor.name), steps


def _tile(tile: StridedTile, stored: Stored, region: Region, name: str, scratch: ScratchBuffers) -> tuple[StridedTile, list[BoundStep]]:
    before = len(tile.bounds) - stored.row_dims
    shape = tuple(end - start for _, start, end in tile.bounds)
    columns = stored.row_elements(shape)
    hulls = [index.hull(region) for index, _, _ in tile.bounds[:before]]
    rows = [(low - start, high - start) for (low, high), (_, start, _) in zip(hulls, tile.bounds[:before], strict=True)]
    count = prod(high - low for low, high in rows)
    buffer = scratch.buffer(name, count * columns)
    start = (*(low for low, _ in hulls), *(start for _, start, _ in tile.bounds[before:]))
    end = (*(high for _, high in hulls), *(end for _, _, end in tile.bounds[before:]))
    numbers = strided_tile(Box(start, end), scratch.operand, buffer, DType.FP32, [index for index, _, _ in tile.bounds])
    scratch.product_bytes = max(scratch.product_bytes, temporary_bytes(stored, count * columns))
    content = tile.operand, tile.tile, tuple(rows)
    if scratch.content.get(name) == content:
        return numbers, []
    scratch.content[name] = content
    steps, done = list[BoundStep](), 0
    for first, some in _runs(rows, shape[:before]):
        steps.append(_step(tile.operand, tile.tile, stored, columns, first, some, scratch.operand, buffer, done * columns))
        done += some
    return numbers, steps


def limit_rows(size: dict[Letter, int], tile: StridedTile, stored: Stored) -> None:
    """Make extents of a block smaller so that its rows of `tile` take PANEL_BYTES as numbers at most, or are one: outer letters first, so
    that rows lie one after the other."""
    before = len(tile.bounds) - stored.row_dims
    most = max(1, PANEL_BYTES // (4 * stored.row_elements(tuple(end - start for _, start, end in tile.bounds))))
    letters = [index.terms[0][0] for index, _, _ in tile.bounds[:before] if len(index.terms) == 1]
    for n, letter in enumerate(letters):
        inside = prod(size[other] for other in letters[n + 1 :])
        several = max(1, most // inside)
        whole_vectors = several // PANEL_ROWS * PANEL_ROWS
        size[letter] = min(size[letter], whole_vectors if inside == 1 and whole_vectors else several)


def _runs(rows: list[tuple[int, int]], shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows that lie one after the other in a tile of this many: the first, and how many, of each run."""
    whole = len(rows)
    while whole > 0 and rows[whole - 1] == (0, shape[whole - 1]):
        whole -= 1
    strides = row_major(shape)
    if whole == 0:
        yield 0, prod(shape)
        return
    low, high = rows[whole - 1]
    for at in product(*(range(*interval) for interval in rows[: whole - 1])):
        yield sum(i * step for i, step in zip(at, strides, strict=False)) + low * strides[whole - 1], (high - low) * strides[whole - 1]


@lru_cache(maxsize=4096)
def _step(
    operand: int, tile: int, stored: Stored, columns: int, first: int, rows: int, scratch: int, buffer: int, offset: int
) -> BoundStep:
    row_bytes = stored.bytes_of(columns)

    def unpack_rows(buffers: JobBuffers) -> BoundCall:
        source = buffers[operand][tile][first * row_bytes : (first + rows) * row_bytes]
        return to_numbers(source, buffers[scratch][buffer][offset : offset + rows * columns], stored)

    return unpack_rows


def to_numbers(source: Tensor, target: Tensor, stored: Stored) -> BoundCall:
    """What writes the numbers of whole blocks, bytes [n], into fp32 [elements], rounded to the run's dtype."""
    unrounded: BoundCall
    if not stored.format.is_quantised:
        unrounded = partial(target.copy_, source.view(TORCH_DTYPE[DType(stored.format.value)]))
    elif why_not_llvm() is None:
        unrounded = _compiled(source, target, stored.format)
    else:
        unrounded = partial(_copy_by_definition, source, target, stored.format)
    if stored.dtype is DType.FP32:
        return unrounded

    def rounded() -> None:
        unrounded()
        target.copy_(target.to(TORCH_DTYPE[stored.dtype]))

    return rounded


def _compiled(source: Tensor, target: Tensor, format: BlockFormat) -> BoundCall:
    kernel, count = unpack_blocks(format), len(source) // format.nbytes
    first, last, kept = source.data_ptr(), target.data_ptr(), (source, target)  # addresses are of these
    return lambda: (kernel(first, last, count), kept)


def _copy_by_definition(source: Tensor, target: Tensor, format: BlockFormat) -> None:
    target.copy_(by_definition(source, format))


def by_definition(source: Tensor, format: BlockFormat) -> Tensor:
    """The numbers of whole blocks, bytes [n], as `gguf` has them: fp32 [elements]."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    blocks = source.numpy().reshape(-1, format.nbytes)
    return torch.from_numpy(dequantize(blocks, GGMLQuantizationType[format.value.upper()])).reshape(-1)


def temporary_bytes(stored: Stored, elements: int) -> int:
    """The most that `to_numbers` allocates when it is called."""
    slow = SLOW_BYTES_EACH * elements if stored.format.is_quantised and why_not_llvm() is not None else 0
    return slow + (0 if stored.dtype is DType.FP32 else stored.dtype.bytes_of(elements))
