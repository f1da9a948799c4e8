"""Products of many rows with a matrix of fp32 numbers that lies row by row.

    out[r, n] = (init[r, n] +) sum over m of x[r, m] * w[n, m]

The matrix is taken in panels that stay in the second cache while all rows are multiplied by them, and read once: while one panel is
multiplied, each block of it brings a block of the next one nearer. ROWS rows of x and COLUMNS of the matrix have their sums in registers;
rows of x stay in the first cache for a panel. Nothing is packed.
"""

from __future__ import annotations

from functools import cache

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.dots import DECLARATIONS, KINDS, PARAMETERS, Dots
from einpage.kernels.on_llvm.ir import LINE_BYTES, Ir

ROWS, COLUMNS = 4, 6
"""Of x and of the matrix, whose products are summed in registers at a time: with 24 of them, arithmetic takes longer than loads."""
PANEL = 4 * COLUMNS
"""Rows of the matrix."""


def matrix_products(rows: int, adds: bool) -> NativeCall:
    """The function of PARAMETERS and one more, `rows`, which is the number given here; init is read where `adds`."""
    return _matrix_products(rows % ROWS, adds)


@cache
def _matrix_products(rest: int, adds: bool) -> NativeCall:
    return compiled(matrix_products_text(rest, adds), "matrix_products", f"{KINDS}n")


def matrix_products_text(rest: int, adds: bool) -> str:
    """The text of `matrix_products` for a number of rows that leaves `rest` when it is divided by ROWS."""
    ir = Ir()
    dots = Dots(ir, DType.FP32, adds)
    groups = ir.value(f"udiv i64 %rows, {ROWS}")
    panels = ir.value(f"udiv i64 %n, {PANEL}")

    def panel(first: str, columns: int) -> list[str]:
        """All rows by so many rows of the matrix from `first` on."""

        def some_rows(group: str, count: int) -> list[str]:
            x_at = [ir.value(f"add i64 {ir.value(f'mul i64 {group}, {ROWS}')}, {r}") for r in range(count)]
            x = [dots.row_of_x(r) for r in x_at]

            def some_columns(j: str, _: object) -> list[str]:
                start = ir.value(f"add i64 {first}, {ir.value(f'mul i64 {j}, {side}')}")
                at = [ir.value(f"add i64 {start}, {c}") for c in range(side)]
                w = [dots.row_of_matrix(n) for n in at]
                following = dots.row_of_matrix(ir.value(f"add i64 {ir.value(f'add i64 {start}, {columns}')}, {brought(group)}"))

                def ahead(offset: str) -> None:
                    dots.prefetch(ir.index(following, offset), LINE_BYTES)

                sums = dots.sums(x, w, ahead if columns > 1 else None)
                for (r, n), total in zip(((r, n) for r in x_at for n in at), sums, strict=True):
                    dots.store(r, n, total)
                return []

            side = min(columns, COLUMNS)
            ir.loop(str(columns // side), some_columns)
            return []

        ir.loop(groups, lambda group, _: some_rows(group, ROWS))
        return some_rows(groups, rest) if rest else []

    def brought(group: str) -> str:
        """Of COLUMNS rows of the next panel, the one that a group of rows brings nearer; the last one again when all are."""
        last = COLUMNS - 1
        return ir.value(f"select i1 {ir.value(f'icmp ult i64 {group}, {last}')}, i64 {group}, i64 {last}")

    ir.loop(panels, lambda p, _: panel(ir.value(f"mul i64 {p}, {PANEL}"), PANEL))
    done = ir.value(f"mul i64 {panels}, {PANEL}")
    left = ir.value(f"sub i64 %n, {done}")
    sixes = ir.value(f"udiv i64 {left}, {COLUMNS}")
    ir.loop(sixes, lambda p, _: panel(ir.value(f"add i64 {done}, {ir.value(f'mul i64 {p}, {COLUMNS}')}"), COLUMNS))
    then = ir.value(f"add i64 {done}, {ir.value(f'mul i64 {sixes}, {COLUMNS}')}")
    ir.loop(ir.value(f"sub i64 %n, {then}"), lambda p, _: panel(ir.value(f"add i64 {then}, {p}"), 1))
    return ir.function("matrix_products", (*PARAMETERS, "i64 %rows"), DECLARATIONS)
