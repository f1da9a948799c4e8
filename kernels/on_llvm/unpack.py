"""Rows of blocks as rows of fp32 numbers, packed: for products of more rows than sums fit registers, and for rows that are looked up."""

from __future__ import annotations

from functools import cache

from einpage.einsum_front.base.dtype import BlockFormat
from einpage.kernels.on_llvm.blocks import MASKED_SHORTS, block_bytes, block_elements, is_divisible, numbers
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.ir import FLOATS, LANES, Ir


@cache
def unpack_blocks(format: BlockFormat) -> NativeCall:
    """(source, target, count): `count` whole blocks (of numbers stored one by one: LANES times as many) from one address to the other."""
    return compiled(unpack_text(format), "unpack_blocks", "ppn")


def unpack_text(format: BlockFormat) -> str:
    """The text of `unpack_blocks`."""
    ir = Ir()

    def block(i: str, _: object) -> list[str]:
        source = ir.index("%source", ir.value(f"mul i64 {i}, {block_bytes(format)}"))
        target = ir.index("%target", ir.value(f"mul i64 {i}, {block_elements(format)}"), "float")
        for n, some in enumerate(numbers(ir, format, source)):
            ir.do(f"store {FLOATS} {some}, ptr {ir.index(target, str(LANES * n), 'float')}, align 4")
        return []

    ir.loop("%count", block)
    return ir.function(
        "unpack_blocks", ("ptr noalias %source", "ptr noalias %target", "i64 %count"), (MASKED_SHORTS,) if is_divisible(format) else ()
    )
