"""Kernels compiled for the processor at hand: blocks unpacked as their format's own library does, products as numpy's in float64."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.kernels.on_llvm.blocks import NumberLayout
from einpage.kernels.on_llvm.compile import why_not_llvm
from einpage.kernels.on_llvm.ir import LANES
from einpage.kernels.on_llvm.row_products import MOST_ROWS, row_products
from einpage.kernels.on_llvm.unpack import unpack_blocks
from stored_blocks import dequantised, random_blocks

pytestmark = pytest.mark.skipif(why_not_llvm() is not None, reason=str(why_not_llvm()))
UNTOUCHED = np.float32(7.25)


@given(st.sampled_from(list(BlockFormat)), st.integers(1, 5), st.integers(0, 2**32), st.booleans())
def test_blocks_are_taken_apart_as_their_own_library_does(format: BlockFormat, count: int, seed: int, finite: bool) -> None:
    times = 1 if format.is_quantised else LANES
    raw = random_blocks(format, count * times, seed, finite)
    out = np.full(count * times * format.elements + 3, UNTOUCHED, np.float32)
    unpack_blocks(format)(raw.ctypes.data, out.ctypes.data, count)
    assert np.array_equal(out[:-3], dequantised(format, raw), equal_nan=True)
    assert (out[-3:] == UNTOUCHED).all()


@cache
def weights(layout: NumberLayout, columns: int, inner: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], int]:
    """Rows in `layout`, the same as numbers, and the bytes of a row."""
    if not isinstance(layout, BlockFormat):
        w = np.random.default_rng(inner).standard_normal((columns, inner)).astype(np.float32)
        return w.reshape(-1).view(np.uint8), w, 4 * inner
    raw = random_blocks(layout, columns * inner // layout.elements, inner)
    return raw, dequantised(layout, raw).reshape(columns, inner), inner // layout.elements * layout.nbytes


def multiplied(
    layout: NumberLayout, x: NDArray[np.float32], columns: int, adds: bool = False, transposed: bool = False
) -> NDArray[np.float32]:
    """x [rows, inner] times the weights' transpose, written into a part of a larger array of UNTOUCHED."""
    rows, inner = x.shape
    raw, _, row_bytes = weights(layout, columns, inner)
    out = np.full((columns, rows + 2) if transposed else (rows, columns + 2), UNTOUCHED, np.float32)
    of_row, of_column = (1, rows + 2) if transposed else (columns + 2, 1)
    wide = np.concatenate((x, np.full((rows, 5), np.nan, np.float32)), axis=1)
    numbers = (
        wide.ctypes.data,
        inner + 5,
        raw.ctypes.data,
        row_bytes,
        out.ctypes.data,
        of_row,
        of_column,
        out.ctypes.data,
        of_row,
        of_column,
    )
    row_products(layout, rows, adds)(*numbers, columns, inner)
    found, rest = (out[:, :rows].T, out[:, rows:]) if transposed else (out[:, :columns], out[:, columns:])
    assert (rest == UNTOUCHED).all(), "written beyond the result"
    return found


FORMATS = [DType.FP32, *BlockFormat]


@pytest.mark.parametrize(("layout", "rows"), list(product(FORMATS, (1, 2, 3, 4, 5, 7, 8, 9, 15, MOST_ROWS))))
def test_products_of_few_rows(layout: NumberLayout, rows: int) -> None:
    step = layout.elements if isinstance(layout, BlockFormat) else 1
    inners = (step, 3 * step) if step > 1 else (1, 15, 16, 17, 70)
    for inner, columns, adds, transposed in product(inners, (1, 2, 13), (False, True), (False, True)):
        x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
        _, w, _ = weights(layout, columns, inner)
        exact = x.astype(np.float64) @ w.astype(np.float64).T + (float(UNTOUCHED) if adds else 0.0)
        scale = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T + 8
        error = np.abs(multiplied(layout, x, columns, adds, transposed) - exact) / scale
        assert error.max() < 1e-6, (inner, columns, adds, transposed)


@pytest.mark.parametrize("format", list(BlockFormat))
def test_blocks_are_multiplied_to_the_bit_as_the_numbers_in_them(format: BlockFormat) -> None:
    inner, columns = max(4 * format.elements, 70 if not format.is_quantised else 0), 21
    raw, w, row_bytes = weights(format, columns, inner)
    for rows in (1, 2, 5, 8, 16):
        x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
        stored, plain = (np.empty((rows, columns), np.float32) for _ in range(2))
        for layout, source, row, out in ((format, raw, row_bytes, stored), (DType.FP32, w, 4 * inner, plain)):
            row_products(layout, rows, False)(
                x.ctypes.data, inner, source.ctypes.data, row, 0, 0, 0, out.ctypes.data, columns, 1, columns, inner
            )
        assert np.array_equal(stored, plain)


def test_what_is_no_number_stays_none() -> None:
    x = np.full((2, 16), np.inf, np.float32)
    _, w, _ = weights(DType.FP32, 3, 16)
    w[:] = 0.0
    assert np.isnan(multiplied(DType.FP32, x, 3)).all()
    weights.cache_clear()
