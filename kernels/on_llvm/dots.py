"""Sums of products of some rows of x with some rows of a matrix, in registers, as text of LLVM's intermediate representation.

In: addresses of rows. Out: for each pair of rows one vector of sums, LANES numbers at a time in order; their lanes are added in one order.
So a result's bits depend on its two rows alone, whichever kernel computes it, and whatever else it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.on_llvm.blocks import MASKED_SHORTS, NumberLayout, block_bytes, block_elements, fewer_numbers, is_divisible, numbers
from einpage.kernels.on_llvm.ir import FLOATS, FMA, LANES, LINE_BYTES, MASKED_LOAD, PREFETCH, Ir

DECLARATIONS = (FMA, MASKED_LOAD, MASKED_SHORTS, PREFETCH)
PARAMETERS = (
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
"""x, w, init and out are addresses: of x [rows, m], xs elements from row to row; of w [n, m], ws bytes from row to row; of init and out
[rows, n], each with its elements from row to row and from column to column. init is read where a product is added to it, and may be out."""
KINDS = "pnpnpnnpnnnn"


class Dots:
    """What multiplies rows of x by rows of the matrix and stores the results, in a function of PARAMETERS."""

    def __init__(self, ir: Ir, layout: NumberLayout, adds: bool) -> None:
        self._ir, self._layout, self._adds = ir, layout, adds
        step = block_elements(layout)
        self._blocks = ir.value(f"udiv i64 %m, {step}")
        self._rest = ir.value(f"sub i64 %m, {ir.value(f'mul i64 {self._blocks}, {step}')}")

    def row_of_x(self, row: str) -> str:
        """The address of that row."""
        return self._ir.index("%x", self._ir.value(f"mul i64 %xs, {row}"), "float")

    def row_of_matrix(self, row: str) -> str:
        """The address of that row."""
        return self._ir.index("%w", self._ir.value(f"mul i64 %ws, {row}"))

    def sums(self, x: Sequence[str], w: Sequence[str], ahead: Callable[[str], None] | None = None) -> list[str]:
        """For each of `x` and each of `w`, addresses of rows, the sum of their products: scalars, those of a row of x one after the other.
        `ahead(offset)` comes before each block; `offset` is the block's, in bytes, from the start of its row of the matrix."""
        ir, nbytes, step = self._ir, block_bytes(self._layout), block_elements(self._layout)

        def block(i: str, sums: Sequence[str]) -> list[str]:
            offset, element = ir.value(f"mul i64 {i}, {nbytes}"), ir.value(f"mul i64 {i}, {step}")
            if ahead is not None:
                ahead(offset)
            of_rows = [numbers(ir, self._layout, ir.index(row, offset)) for row in w]
            for n, of_each in enumerate(zip(*of_rows, strict=True)):
                shifted = ir.value(f"add i64 {element}, {LANES * n}")
                sums = self._added(sums, of_each, x, partial(self._numbers_of_x, shifted))
            return list(sums)

        sums = ir.loop(self._blocks, block, ["zeroinitializer"] * (len(x) * len(w)))
        if is_divisible(self._layout):
            sums = self._last(sums, x, w)
        return ir.sums(sums)

    def _last(self, sums: Sequence[str], x: Sequence[str], w: Sequence[str]) -> list[str]:
        """`sums` with the numbers behind the last whole block."""
        ir, nbytes, step = self._ir, block_bytes(self._layout), block_elements(self._layout)
        offset, element = ir.value(f"mul i64 {self._blocks}, {nbytes}"), ir.value(f"mul i64 {self._blocks}, {step}")

        def last(_: str, sums: Sequence[str]) -> list[str]:
            some = [fewer_numbers(ir, self._layout, ir.index(row, offset), self._rest) for row in w]
            return self._added(sums, some, x, lambda row: fewer_numbers(ir, DType.FP32, ir.index(row, element, "float"), self._rest))

        there = ir.value(f"zext i1 {ir.value(f'icmp ne i64 {self._rest}, 0')} to i64")
        return ir.loop(there, last, sums)

    def _added(self, sums: Sequence[str], w: Sequence[str], x: Sequence[str], numbers_of: Callable[[str], str]) -> list[str]:
        """`sums` and the products of some numbers of each row of the matrix, which `w` are, with those of each row of x."""
        out: list[str] = []
        for n, row in enumerate(x):
            some = numbers_of(row)
            of_row = sums[n * len(w) : (n + 1) * len(w)]
            out += [
                self._ir.value(f"call {FLOATS} @llvm.fma.v{LANES}f32({FLOATS} {v}, {FLOATS} {some}, {FLOATS} {s})")
                for v, s in zip(w, of_row, strict=True)
            ]
        return out

    def _numbers_of_x(self, element: str, row: str) -> str:
        return self._ir.load(FLOATS, self._ir.index(row, element, "float"), 4)

    def prefetch(self, address: str, nbytes: int) -> None:
        """Bring so many bytes nearer, which are wanted soon; they need not be there."""
        for line in range(-(-nbytes // LINE_BYTES)):
            self._ir.do(f"call void @llvm.prefetch.p0(ptr {self._ir.index(address, str(LINE_BYTES * line))}, i32 0, i32 2, i32 1)")

    def store(self, row: str, column: str, total: str) -> None:
        """Write a result, with what it is added to."""
        ir = self._ir
        if self._adds:
            place = ir.value(f"add i64 {ir.value(f'mul i64 %ir, {row}')}, {ir.value(f'mul i64 %ic, {column}')}")
            total = ir.value(f"fadd float {ir.load('float', ir.index('%init', place, 'float'), 4)}, {total}")
        place = ir.value(f"add i64 {ir.value(f'mul i64 %or, {row}')}, {ir.value(f'mul i64 %oc, {column}')}")
        ir.do(f"store float {total}, ptr {ir.index('%out', place, 'float')}, align 4")
