"""Products of a few rows with a matrix that lies row by row, as fp32 or in blocks: each number of the matrix is unpacked once, in
registers, and multiplied by all rows. With few rows a product takes as long as its matrix takes to be read.

    out[r, n] = (init[r, n] +) sum over m of x[r, m] * w[n, m]

Each result is summed LANES numbers at a time, in order of m, and then over the lanes in one order: its bits depend on its row and its
column of the matrix alone, and not on how many rows or columns there are, nor on whether the numbers lay in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.libraries import MOST_COMPILED_ROWS
from einpage.kernels.on_llvm.blocks import MASKED_SHORTS, NumberLayout, block_bytes, block_elements, fewer_numbers, is_divisible, numbers
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.ir import FLOATS, FMA, LANES, LINE_BYTES, MASKED_LOAD, PREFETCH, Ir

MOST_ROWS = MOST_COMPILED_ROWS
AT_ONCE = 8
"""So many rows have sums in registers at a time."""
SUMS = 24
"""Vectors of sums that are kept in registers."""
MOST_COLUMNS = 6
_PARAMETERS = (
    "ptr %x",
    "i64 %xs",
    "ptr %w",
    "i64 %ws",
    "ptr %init",
    "i64 %ir",
    "i64 %ic",
    "ptr %out",
    "i64 %or",
    "i64 %oc",
    "i64 %n",
    "i64 %m",
)


@cache
def row_products(layout: NumberLayout, rows: int, adds: bool) -> NativeCall:
    """The function for so many rows, at most MOST_ROWS: (x, xs, w, ws, init, ir, ic, out, or, oc, n, m).

    x, w, init and out are addresses: of x [rows, m], xs elements from row to row; of w [n, m], ws bytes from row to row; of init and out
    [rows, n], each with its elements from row to row and from column to column. init is read where `adds`, and may be out.
    """
    return compiled(row_products_text(layout, rows, adds), "row_products", "pnpnpnnpnnnn")


def columns_at_once(layout: NumberLayout, rows: int) -> int:
    """How many rows of the matrix are read side by side: with more, rows of x are loaded less often, but memory is read less in order,
    which prefetches then have to make up for."""
    at_once = min(rows, AT_ONCE)
    if isinstance(layout, BlockFormat) and layout.is_quantised:
        return min(3, 16 // at_once)
    return 1 if rows <= 2 else min(MOST_COLUMNS, SUMS // at_once)


def row_products_text(layout: NumberLayout, rows: int, adds: bool) -> str:
    """The text of `row_products`."""
    assert 1 <= rows <= MOST_ROWS
    ir = Ir()
    step, side = block_elements(layout), columns_at_once(layout, rows)
    blocks = ir.value(f"udiv i64 %m, {step}")
    rest = ir.value(f"sub i64 %m, {ir.value(f'mul i64 {blocks}, {step}')}")
    groups = ir.value(f"udiv i64 %n, {side}")
    body = _SomeColumns(ir, layout, rows, adds, blocks, rest)

    def group(i: str, _: object) -> list[str]:
        body.columns(ir.value(f"mul i64 {i}, {side}"), side)
        return []

    ir.loop(groups, group)
    done = ir.value(f"mul i64 {groups}, {side}")

    def one(i: str, _: object) -> list[str]:
        body.columns(ir.value(f"add i64 {i}, {done}"), 1)
        return []

    ir.loop(ir.value(f"sub i64 %n, {done}"), one)
    return ir.function("row_products", _PARAMETERS, (FMA, MASKED_LOAD, MASKED_SHORTS, PREFETCH))


class _SomeColumns:
    """What computes some columns of the product, which are rows of the matrix."""

    def __init__(self, ir: Ir, layout: NumberLayout, rows: int, adds: bool, blocks: str, rest: str) -> None:
        self.ir, self.layout, self.adds, self.blocks, self.rest = ir, layout, adds, blocks, rest
        self.rows = [range(first, min(first + AT_ONCE, rows)) for first in range(0, rows, AT_ONCE)]
        self.x = [ir.index("%x", ir.value(f"mul i64 %xs, {r}"), "float") for r in range(rows)]

    def columns(self, first: str, count: int) -> None:
        """Columns `first` to `first + count`, for all rows."""
        ir = self.ir
        at = [ir.value(f"add i64 {first}, {j}") for j in range(count)]
        w = [ir.index("%w", ir.value(f"mul i64 {n}, %ws")) for n in at]
        following = ir.index(w[0], ir.value(f"mul i64 %ws, {count}"))
        for number, rows in enumerate(self.rows):
            ahead = following if count > 1 and number == 0 else None
            sums = self._sums(rows, w, ahead)
            for (r, n), total in zip(((r, n) for r in rows for n in at), ir.sums(sums), strict=True):
                self._store(r, n, total)

    def _sums(self, rows: range, w: list[str], ahead: str | None) -> list[str]:
        """Vectors of sums, a row after the other."""
        ir, nbytes, step = self.ir, block_bytes(self.layout), block_elements(self.layout)

        def block(i: str, sums: Sequence[str]) -> list[str]:
            offset, element = ir.value(f"mul i64 {i}, {nbytes}"), ir.value(f"mul i64 {i}, {step}")
            if ahead is not None:
                self._prefetch(ir.index(ahead, ir.value(f"mul i64 {offset}, {len(w)}")), nbytes * len(w))
            of_rows = [numbers(ir, self.layout, ir.index(row, offset)) for row in w]
            for n, of_each in enumerate(zip(*of_rows, strict=True)):
                shifted = ir.value(f"add i64 {element}, {LANES * n}")
                sums = self._added(sums, rows, of_each, partial(self._x, shifted))
            return list(sums)

        sums = ir.loop(self.blocks, block, ["zeroinitializer"] * (len(rows) * len(w)))
        if not is_divisible(self.layout):
            return sums
        offset, element = ir.value(f"mul i64 {self.blocks}, {nbytes}"), ir.value(f"mul i64 {self.blocks}, {step}")

        def last(_: str, sums: Sequence[str]) -> list[str]:
            some = [fewer_numbers(ir, self.layout, ir.index(row, offset), self.rest) for row in w]
            x = {r: fewer_numbers(ir, DType.FP32, ir.index(self.x[r], element, "float"), self.rest) for r in rows}
            return self._added(sums, rows, some, x.__getitem__)

        there = ir.value(f"zext i1 {ir.value(f'icmp ne i64 {self.rest}, 0')} to i64")
        return ir.loop(there, last, sums)

    def _added(self, sums: Sequence[str], rows: range, w: Sequence[str], x_of: Callable[[int], str]) -> list[str]:
        """`sums` and the products of some numbers of each column with those of each row."""
        out: list[str] = []
        for n, r in enumerate(rows):
            x = x_of(r)
            of_row = sums[n * len(w) : (n + 1) * len(w)]
            out += [
                self.ir.value(f"call {FLOATS} @llvm.fma.v{LANES}f32({FLOATS} {v}, {FLOATS} {x}, {FLOATS} {s})")
                for v, s in zip(w, of_row, strict=True)
            ]
        return out

    def _x(self, element: str, row: int) -> str:
        return self.ir.load(FLOATS, self.ir.index(self.x[row], element, "float"), 4)

    def _prefetch(self, address: str, nbytes: int) -> None:
        """Bring so many bytes nearer, which are wanted soon; they need not be there."""
        for line in range(-(-nbytes // LINE_BYTES)):
            self.ir.do(f"call void @llvm.prefetch.p0(ptr {self.ir.index(address, str(LINE_BYTES * line))}, i32 0, i32 2, i32 1)")

    def _store(self, r: int, n: str, total: str) -> None:
        ir = self.ir
        if self.adds:
            place = ir.value(f"add i64 {ir.value(f'mul i64 %ir, {r}')}, {ir.value(f'mul i64 %ic, {n}')}")
            total = ir.value(f"fadd float {ir.load('float', ir.index('%init', place, 'float'), 4)}, {total}")
        place = ir.value(f"add i64 {ir.value(f'mul i64 %or, {r}')}, {ir.value(f'mul i64 %oc, {n}')}")
        ir.do(f"store float {total}, ptr {ir.index('%out', place, 'float')}, align 4")
