"""Flags behind tiles: whether the numbers of a tile are finite, written by what writes them, block by block while they are in a cache.

In: windows of a result that has a flag. Out: steps of a kernel. The bits of a number are compared, in two passes: infinity and NaN are the
largest of the positive numbers, read as signed integers, and of the negative ones, read as unsigned.

    fp16:  0 01111 … 0 11110 | 0 11111 = inf, NaN        1 00000 … 1 11110 | 1 11111 = -inf, NaN
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import FLAG, RUN_DTYPES, Checked, DType
from einpage.kernels.layout.blocks import fit
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, Window

BLOCK_BYTES = 1 << 20
"""Of a block whose numbers are looked at once it is written."""
_DTYPE = {TORCH_DTYPE[dtype]: dtype for dtype in RUN_DTYPES}
_INTEGERS = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}
_INFINITY = {DType.FP32: 0x7F800000, DType.BF16: 0x7F80, DType.FP16: 0x7C00}
"""Its bits."""


def flag_of(tile: Tensor) -> Tensor:
    """The flag behind a packed tile: one number, fp32 [1]."""
    at = Checked(_DTYPE[tile.dtype]).flag_at(tile.numel()) // tile.element_size()
    bytes_of = tile.as_strided((FLAG.nbytes // tile.element_size(),), (1,), tile.storage_offset() + at)
    return bytes_of.view(TORCH_DTYPE[FLAG])


def fit_cache(extent: Mapping[Letter, int], letters: Iterable[Letter], target: Collection[Letter], dtype: DType) -> dict[Letter, int]:
    """Extents of blocks of a result over `target` of which each is in a core's cache once it is written. `letters` are split, the outermost
    first: a block is rows that lie one after the other."""
    size = dict(extent)
    for letter in letters:
        size = fit(size, [letter], lambda e: dtype.bytes_of(prod(e[x] for x in target)), BLOCK_BYTES)
    return size


@lru_cache(maxsize=4096)
def clear_flag(operand: int) -> BoundStep:
    """Before the first block of a result, which is that operand: its flag is 0."""
    return lambda buffers: flag_of(buffers[operand][0]).zero_


@lru_cache(maxsize=4096)
def raise_where_not_finite(written: Window) -> BoundStep:
    """After a block was written: its tile's flag is 1 where some number of the block is NaN or infinite."""

    def bound(buffers: JobBuffers) -> BoundCall:
        tile, block = buffers[written.operand][written.tile], written.of(buffers)
        flag, looks_finite = flag_of(tile).numpy(), finite_test(block)

        def check() -> None:
            if not looks_finite():
                flag[0] = 1

        return check

    return bound


def finite_test(numbers: Tensor) -> BoundCall:
    """What says whether all of `numbers` are finite now; it allocates nothing."""
    signed_type, unsigned_type = _INTEGERS[numbers.element_size()]
    signed: NDArray[Any] = numbers.view(signed_type).numpy()
    unsigned = signed.view(unsigned_type)
    infinity = _INFINITY[_DTYPE[numbers.dtype]]
    negative = infinity | 1 << (8 * numbers.element_size() - 1)
    return lambda: int(signed.max()) < infinity and int(unsigned.max()) < negative


@lru_cache(maxsize=4096)
def any_flag(reads: int) -> BoundStep:
    """Whether a flag of the tiles of operand 0 is set, or a number of the `reads` - 1 operands after it; into the result behind them."""

    def bound(buffers: JobBuffers) -> BoundCall:
        flags = [flag_of(tile).numpy() for tile in buffers[0]]
        flags += [operand[0].view(-1).numpy() for operand in buffers[1:reads]]
        result = buffers[reads][0].view(-1).numpy()

        def join() -> None:
            result[0] = any(flag[0] != 0 for flag in flags)

        return join

    return bound
