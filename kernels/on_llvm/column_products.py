"""Products of a few rows with a matrix of fp32 numbers that lies column by column: what is summed over lies a row of the matrix apart.

    out[r, n] = (init[r, n] +) sum over m of x[r, m] * w[m, n]

The matrix is read once and in order, AT_ONCE of its rows side by side; results are summed where they lie. Each is the sum, in order, of
sums over AT_ONCE numbers: its bits depend on its row and its column alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from einpage.einsum_front.base.libraries import MOST_UNPACKED_ROWS
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.ir import FLOATS, FMA, LANES, LINE_BYTES, MASKED_LOAD, MASKED_STORE, PREFETCH, Ir

AT_ONCE = 8
"""Rows of the matrix, and rows of x whose sums are in registers."""
_PerColumns: TypeAlias = "Callable[[str, str | None], None]"
_PARAMETERS = ("ptr %x", "i64 %xs", "ptr %w", "i64 %ws", "ptr %init", "i64 %ir", "ptr %out", "i64 %or", "i64 %n", "i64 %m")


@cache
def column_products(rows: int, adds: bool) -> NativeCall:
    """The function for so many rows, at most MOST_UNPACKED_ROWS: (x, xs, w, ws, init, ir, out, or, n, m).

    x, w, init and out are addresses: of x [rows, m], xs elements from row to row; of w [m, n], ws bytes from row to row; of init and out
    [rows, n], each with its elements from row to row. init is read where `adds`, and may be out.
    """
    return compiled(column_products_text(rows, adds), "column_products", "pnpnpnpnnn")


def column_products_text(rows: int, adds: bool) -> str:
    """The text of `column_products`."""
    assert 1 <= rows <= MOST_UNPACKED_ROWS
    ir = Ir()
    vectors = ir.value(f"udiv i64 %n, {LANES}")
    rest = ir.value(f"sub i64 %n, {ir.value(f'mul i64 {vectors}, {LANES}')}")
    mask = ir.first_lanes(rest)
    any_rest = ir.value(f"zext i1 {ir.value(f'icmp ne i64 {rest}, 0')} to i64")
    out = [ir.index("%out", ir.value(f"mul i64 %or, {r}"), "float") for r in range(rows)]
    init = [ir.index("%init", ir.value(f"mul i64 %ir, {r}"), "float") for r in range(rows)] if adds else []

    def for_all_columns(body: _PerColumns) -> None:
        """`body(element, mask)` for each vector of columns; the last may be a part of one."""

        def whole(i: str, _: object) -> list[str]:
            body(ir.value(f"mul i64 {i}, {LANES}"), None)
            return []

        def part(_: str, __: object) -> list[str]:
            body(ir.value(f"mul i64 {vectors}, {LANES}"), mask)
            return []

        ir.loop(vectors, whole)
        ir.loop(any_rest, part)

    def start(element: str, lanes: str | None) -> None:
        for r in range(rows):
            first = ir.load_lanes(ir.index(init[r], element, "float"), lanes) if adds else "zeroinitializer"
            ir.store_lanes(first, ir.index(out[r], element, "float"), lanes)

    def some_inner(first: str, count: int) -> list[str]:
        """Add what `count` rows of the matrix from `first` on contribute."""
        w = [ir.index("%w", ir.value(f"mul i64 %ws, {ir.value(f'add i64 {first}, {j}')}")) for j in range(count)]
        x = [ir.index("%x", ir.value(f"add i64 {first}, {ir.value(f'mul i64 %xs, {r}')}"), "float") for r in range(rows)]
        ahead = ir.value(f"mul i64 %ws, {count}")

        def add(element: str, lanes: str | None) -> None:
            at = [ir.index(row, element, "float") for row in w]
            for address in at:
                ir.do(f"call void @llvm.prefetch.p0(ptr {ir.index(address, ahead)}, i32 0, i32 2, i32 1)")
            some = [ir.load_lanes(address, lanes) for address in at]
            for r in range(rows):
                total = "zeroinitializer"
                for j in range(count):
                    factor = ir.all_lanes("float", ir.load("float", ir.index(x[r], str(j), "float"), 4))
                    total = ir.value(f"call {FLOATS} @llvm.fma.v{LANES}f32({FLOATS} {some[j]}, {FLOATS} {factor}, {FLOATS} {total})")
                place = ir.index(out[r], element, "float")
                ir.store_lanes(ir.value(f"fadd {FLOATS} {ir.load_lanes(place, lanes)}, {total}"), place, lanes)

        for_all_columns(add)
        return []

    assert LINE_BYTES == 4 * LANES, "a vector of columns is a line, which one prefetch brings"
    for_all_columns(start)
    blocks = ir.value(f"udiv i64 %m, {AT_ONCE}")
    done = ir.value(f"mul i64 {blocks}, {AT_ONCE}")
    ir.loop(blocks, lambda i, _: some_inner(ir.value(f"mul i64 {i}, {AT_ONCE}"), AT_ONCE))
    ir.loop(ir.value(f"sub i64 %m, {done}"), lambda i, _: some_inner(ir.value(f"add i64 {i}, {done}"), 1))
    return ir.function("column_products", _PARAMETERS, (FMA, MASKED_LOAD, MASKED_STORE, PREFETCH))
