"""Products of a few rows with a matrix that lies row by row, as fp32 or in blocks: each number of the matrix is unpacked once, in
registers, and multiplied by all rows. With few rows a product takes as long as its matrix takes to be read.

    out[r, n] = (init[r, n] +) sum over m of x[r, m] * w[n, m]
"""

from __future__ import annotations

from functools import cache

from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.libraries import MOST_UNPACKED_ROWS
from einpage.kernels.on_llvm.blocks import NumberLayout, block_bytes
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.dots import DECLARATIONS, KINDS, PARAMETERS, Dots
from einpage.kernels.on_llvm.ir import Ir

AT_ONCE, AT_ONCE_OF_LARGE = 8, 4
"""So many rows have sums in registers at a time: of an x that a core's first cache holds, and of a larger one, which is then read from the
next cache half as often."""
FIRST_CACHE_BYTES = 32 << 10
SUMS = 24
"""Vectors of sums that are kept in registers."""
MOST_COLUMNS = 6


def row_products(layout: NumberLayout, rows: int, inner: int, adds: bool) -> NativeCall:
    """The function of PARAMETERS for so many rows, at most MOST_UNPACKED_ROWS, and about `inner` numbers in each; init is read where
    `adds`."""
    return _row_products(layout, rows, rows_at_once(layout, rows, inner), adds)


@cache
def _row_products(layout: NumberLayout, rows: int, at_once: int, adds: bool) -> NativeCall:
    return compiled(row_products_text(layout, rows, at_once, adds), "row_products", KINDS)


def rows_at_once(layout: NumberLayout, rows: int, inner: int) -> int:
    """How many rows have sums in registers at a time. No bit depends on it."""
    is_large = rows >= AT_ONCE and DType.FP32.bytes_of(rows * inner) > FIRST_CACHE_BYTES
    return AT_ONCE_OF_LARGE if is_large and not _is_quantised(layout) else min(rows, AT_ONCE)


def columns_at_once(layout: NumberLayout, rows: int, at_once: int) -> int:
    """How many rows of the matrix are read side by side: with more, rows of x are loaded less often, but memory is read less in order,
    which prefetches then have to make up for."""
    if _is_quantised(layout):
        return min(3, 16 // at_once)
    return 1 if rows <= 2 else min(MOST_COLUMNS, SUMS // at_once)


def _is_quantised(layout: NumberLayout) -> bool:
    """Whether it takes longer to unpack a block than to load it: each is then unpacked for as many rows as there are registers for."""
    return isinstance(layout, BlockFormat) and layout.is_quantised


def row_products_text(layout: NumberLayout, rows: int, at_once: int, adds: bool) -> str:
    """The text of `row_products`."""
    assert 1 <= rows <= MOST_UNPACKED_ROWS
    ir = Ir()
    side = columns_at_once(layout, rows, at_once)
    dots = Dots(ir, layout, adds)
    groups = ir.value(f"udiv i64 %n, {side}")
    x = [dots.row_of_x(str(r)) for r in range(rows)]

    def columns(first: str, count: int) -> list[str]:
        at = [ir.value(f"add i64 {first}, {j}") for j in range(count)]
        w = [dots.row_of_matrix(n) for n in at]
        following = ir.index(w[0], ir.value(f"mul i64 %ws, {count}"))

        def ahead(offset: str) -> None:
            dots.prefetch(ir.index(following, ir.value(f"mul i64 {offset}, {count}")), block_bytes(layout) * count)

        for start in range(0, rows, at_once):
            some = range(start, min(start + at_once, rows))
            sums = dots.sums([x[r] for r in some], w, ahead if count > 1 and start == 0 else None)
            for (r, n), total in zip(((r, n) for r in some for n in at), sums, strict=True):
                dots.store(str(r), n, total)
        return []

    ir.loop(groups, lambda i, _: columns(ir.value(f"mul i64 {i}, {side}"), side))
    done = ir.value(f"mul i64 {groups}, {side}")
    ir.loop(ir.value(f"sub i64 %n, {done}"), lambda i, _: columns(ir.value(f"add i64 {i}, {done}"), 1))
    return ir.function("row_products", PARAMETERS, DECLARATIONS)
