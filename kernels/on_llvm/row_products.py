"""Products of a few rows with a matrix that lies row by row, as fp32 or in blocks: each number of the matrix is unpacked once, in
registers, and multiplied by all rows. With few rows a product takes as long as its matrix takes to be read.

    out[r, n] = (init[r, n] +) sum over m of x[r, m] * w[n, m]
"""

from __future__ import annotations

from functools import cache

from einpage.einsum_front.base.dtype import BlockFormat
from einpage.einsum_front.base.libraries import MOST_UNPACKED_ROWS
from einpage.kernels.on_llvm.blocks import NumberLayout, block_bytes
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.dots import DECLARATIONS, KINDS, PARAMETERS, Dots
from einpage.kernels.on_llvm.ir import Ir

AT_ONCE = 8
"""So many rows have sums in registers at a time."""
SUMS = 24
"""Vectors of sums that are kept in registers."""
MOST_COLUMNS = 6


@cache
def row_products(layout: NumberLayout, rows: int, adds: bool) -> NativeCall:
    """The function of PARAMETERS for so many rows, at most MOST_UNPACKED_ROWS; init is read where `adds`."""
    return compiled(row_products_text(layout, rows, adds), "row_products", KINDS)


def columns_at_once(layout: NumberLayout, rows: int) -> int:
    """How many rows of the matrix are read side by side: with more, rows of x are loaded less often, but memory is read less in order,
    which prefetches then have to make up for."""
    at_once = min(rows, AT_ONCE)
    if isinstance(layout, BlockFormat) and layout.is_quantised:
        return min(3, 16 // at_once)
    return 1 if rows <= 2 else min(MOST_COLUMNS, SUMS // at_once)


def row_products_text(layout: NumberLayout, rows: int, adds: bool) -> str:
    """The text of `row_products`."""
    assert 1 <= rows <= MOST_UNPACKED_ROWS
    ir = Ir()
    side = columns_at_once(layout, rows)
    dots = Dots(ir, layout, adds)
    groups = ir.value(f"udiv i64 %n, {side}")
    x = [dots.row_of_x(str(r)) for r in range(rows)]

    def columns(first: str, count: int) -> list[str]:
        at = [ir.value(f"add i64 {first}, {j}") for j in range(count)]
        w = [dots.row_of_matrix(n) for n in at]
        following = ir.index(w[0], ir.value(f"mul i64 %ws, {count}"))

        def ahead(offset: str) -> None:
            dots.prefetch(ir.index(following, ir.value(f"mul i64 {offset}, {count}")), block_bytes(layout) * count)

        for start in range(0, rows, AT_ONCE):
            some = range(start, min(start + AT_ONCE, rows))
            sums = dots.sums([x[r] for r in some], w, ahead if count > 1 and start == 0 else None)
            for (r, n), total in zip(((r, n) for r in some for n in at), sums, strict=True):
                dots.store(str(r), n, total)
        return []

    ir.loop(groups, lambda i, _: columns(ir.value(f"mul i64 {i}, {side}"), side))
    done = ir.value(f"mul i64 {groups}, {side}")
    ir.loop(ir.value(f"sub i64 %n, {done}"), lambda i, _: columns(ir.value(f"add i64 {i}, {done}"), 1))
    return ir.function("row_products", PARAMETERS, DECLARATIONS)
