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
from einpage.einsum_front.base.libraries import MOST_UNPACKED_ROWS
from einpage.kernels.on_llvm.blocks import NumberLayout, unpack_blocks
from einpage.kernels.on_llvm.column_products import column_products
from einpage.kernels.on_llvm.compile import NativeCall, why_not_llvm
from einpage.kernels.on_llvm.ir import LANES
from einpage.kernels.on_llvm.matrix_products import COLUMNS, PANEL, ROWS, matrix_products
from einpage.kernels.on_llvm.row_products import AT_ONCE, AT_ONCE_OF_LARGE, row_products, rows_at_once
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
    layout: NumberLayout,
    x: NDArray[np.float32],
    columns: int,
    adds: bool = False,
    transposed: bool = False,
    *,
    many: bool = False,
    call: NativeCall | None = None,
) -> NDArray[np.float32]:
    """x [rows, inner] times the weights' transpose, written into a part of a larger array of UNTOUCHED; by `call`, where it is given."""
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
    if many:
        matrix_products(rows, adds)(*numbers, columns, inner, rows)
    else:
        (call or row_products(layout, rows, inner, adds))(*numbers, columns, inner)
    found, rest = (out[:, :rows].T, out[:, rows:]) if transposed else (out[:, :columns], out[:, columns:])
    assert (rest == UNTOUCHED).all(), "written beyond the result"
    return found


FORMATS = [DType.FP32, *BlockFormat]


@pytest.mark.parametrize(("layout", "rows"), list(product(FORMATS, (1, 2, 3, 4, 5, 7, 8, 9, 15, MOST_UNPACKED_ROWS))))
def test_products_of_few_rows(layout: NumberLayout, rows: int) -> None:
    step = layout.elements if isinstance(layout, BlockFormat) else 1
    inners = (step, 3 * step) if step > 1 else (1, 15, 16, 17, 70)
    for inner, columns, adds, transposed in product(inners, (1, 2, 13), (False, True), (False, True)):
        x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
        _, w, _ = weights(layout, columns, inner)
        assert relative_error(multiplied(layout, x, columns, adds, transposed), x, w, adds) < 1e-6, (inner, columns, adds, transposed)


@pytest.mark.parametrize("layout", [DType.FP32, BlockFormat.FP16, BlockFormat.BF16])
@pytest.mark.parametrize("rows", [8, 9, MOST_UNPACKED_ROWS])
def test_no_bit_depends_on_how_many_rows_are_multiplied_at_once(rows: int, layout: NumberLayout) -> None:
    """An x that is larger than a first cache is taken in parts of fewer rows."""
    inner, columns = 40, 13
    assert (rows_at_once(layout, rows, inner), rows_at_once(layout, rows, 2000)) == (AT_ONCE, AT_ONCE_OF_LARGE)
    x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
    whole, parts = (multiplied(layout, x, columns, call=row_products(layout, rows, like, False)) for like in (inner, 2000))
    assert np.array_equal(whole, parts)
    assert relative_error(parts, x, weights(layout, columns, inner)[1], False) < 1e-6


def test_blocks_are_unpacked_for_as_many_rows_as_there_are_registers_for() -> None:
    assert rows_at_once(BlockFormat.Q4_1, 16, 4096) == AT_ONCE
    assert rows_at_once(DType.FP32, 5, 4096) == 5


def relative_error(found: NDArray[np.float32], x: NDArray[np.float32], w: NDArray[np.float32], adds: bool) -> float:
    """How far x w^T is off at most, in parts of what its terms sum to in absolute value."""
    exact = x.astype(np.float64) @ w.astype(np.float64).T + (float(UNTOUCHED) if adds else 0.0)
    scale = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T + 8
    return float((np.abs(found - exact) / scale).max())


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 17, 18, 19, 20, 70])
def test_products_of_many_rows(rows: int) -> None:
    for inner, columns, adds, transposed in product(
        (1, 16, 17, 70), (1, COLUMNS, PANEL, 2 * PANEL + COLUMNS + 3), (False, True), (False, True)
    ):
        x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
        _, w, _ = weights(DType.FP32, columns, inner)
        found = multiplied(DType.FP32, x, columns, adds, transposed, many=True)
        assert relative_error(found, x, w, adds) < 1e-6, (inner, columns, adds, transposed)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, MOST_UNPACKED_ROWS])
def test_products_with_a_matrix_that_lies_column_by_column(rows: int) -> None:
    for inner, columns, adds in product((1, 7, 8, 9, 70), (1, 15, 16, 17, 50), (False, True)):
        random = np.random.default_rng(rows)
        x, w = random.standard_normal((rows, inner)).astype(np.float32), random.standard_normal((inner, columns)).astype(np.float32)
        wide_x, wide_w = (np.pad(of, ((0, 0), (0, 3)), constant_values=np.nan) for of in (x, w))
        out = np.full((rows, columns + 2), UNTOUCHED, np.float32)
        at, pitch = out.ctypes.data, columns + 2
        column_products(rows, adds)(
            wide_x.ctypes.data, inner + 3, wide_w.ctypes.data, 4 * (columns + 3), at, pitch, at, pitch, columns, inner
        )
        assert (out[:, columns:] == UNTOUCHED).all(), "written beyond the result"
        assert relative_error(out[:, :columns], x, w.T.copy(), adds) < 1e-6, (inner, columns, adds)


@pytest.mark.parametrize("format", list(BlockFormat))
def test_blocks_are_multiplied_to_the_bit_as_the_numbers_in_them(format: BlockFormat) -> None:
    inner, columns = max(4 * format.elements, 70 if not format.is_quantised else 0), 21
    raw, w, row_bytes = weights(format, columns, inner)
    for rows in (1, 2, 5, 8, 16):
        x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
        stored, plain = (np.empty((rows, columns), np.float32) for _ in range(2))
        for layout, source, row, out in ((format, raw, row_bytes, stored), (DType.FP32, w, 4 * inner, plain)):
            row_products(layout, rows, inner, False)(
                x.ctypes.data, inner, source.ctypes.data, row, 0, 0, 0, out.ctypes.data, columns, 1, columns, inner
            )
        assert np.array_equal(stored, plain)


def test_what_is_no_number_stays_none() -> None:
    x = np.full((2, 16), np.inf, np.float32)
    _, w, _ = weights(DType.FP32, 3, 16)
    w[:] = 0.0
    assert np.isnan(multiplied(DType.FP32, x, 3)).all()
    weights.cache_clear()
