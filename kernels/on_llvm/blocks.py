"""Blocks of numbers as they are stored, unpacked in registers: each format's definition in LLVM's intermediate representation.

In: the address of a block. Out: its numbers in order, LANES at a time, in fp32, each rounded as `gguf.dequantize` rounds it (a product and
a sum are rounded apart). Numbers that are stored one by one come LANES at a time as well. Many blocks are unpacked to memory by a function
of their own: for products of more rows than sums fit registers, and for rows that are looked up. Formats are llama.cpp's:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h

    q4_1    | scale f16 | least f16 | 16 bytes |        element i: scale * (byte i & 15) + least, element 16 + i: of its shifted half
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias

from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.ir import BYTES, FLOATS, INTS, LANES, Ir, everywhere

NumberLayout: TypeAlias = "BlockFormat | DType"
"""How the numbers of a matrix lie: in blocks, or as fp32."""


def block_elements(layout: NumberLayout) -> int:
    """How many numbers are unpacked at a time."""
    return max(LANES, layout.elements) if isinstance(layout, BlockFormat) else LANES


def block_bytes(layout: NumberLayout) -> int:
    """Their bytes."""
    if isinstance(layout, BlockFormat):
        return layout.nbytes * (block_elements(layout) // layout.elements)
    return layout.bytes_of(LANES)


def is_divisible(layout: NumberLayout) -> bool:
    """Whether numbers are stored one by one, so that a row may end anywhere."""
    return not isinstance(layout, BlockFormat) or not layout.is_quantised


def numbers(ir: Ir, layout: NumberLayout, block: str) -> Iterator[str]:
    """The numbers of a block at address `block`: vectors of LANES."""
    assert layout is DType.FP32 or isinstance(layout, BlockFormat), f"{layout} cannot be unpacked"
    return _FORMATS[layout](ir, block)


def fewer_numbers(ir: Ir, layout: NumberLayout, address: str, count: str) -> str:
    """The first `count` of a vector of numbers stored one by one, then zeros; nothing behind them is read. `count` is an i64."""
    mask = ir.first_lanes(count)
    if layout is DType.FP32:
        return ir.load_lanes(address, mask)
    shorts = f"<{LANES} x i16>"
    some = ir.value(
        f"call {shorts} @llvm.masked.load.v{LANES}i16.p0(ptr {address}, i32 2, <{LANES} x i1> {mask}, {shorts} zeroinitializer)"
    )
    return _widened(ir, layout, some)


MASKED_SHORTS = f"declare <{LANES} x i16> @llvm.masked.load.v{LANES}i16.p0(ptr, i32, <{LANES} x i1>, <{LANES} x i16>)"


def _widened(ir: Ir, layout: NumberLayout, shorts: str) -> str:
    """16-bit floats as fp32."""
    if layout is BlockFormat.FP16:
        halves = ir.value(f"bitcast <{LANES} x i16> {shorts} to <{LANES} x half>")
        return ir.value(f"fpext <{LANES} x half> {halves} to {FLOATS}")
    wide = ir.value(f"zext <{LANES} x i16> {shorts} to {INTS}")
    shifted = ir.value(f"shl {INTS} {wide}, {everywhere('i32', 16)}")
    return ir.value(f"bitcast {INTS} {shifted} to {FLOATS}")


def _fp32(ir: Ir, block: str) -> Iterator[str]:
    yield ir.load(FLOATS, block, 4)


def _bf16(ir: Ir, block: str) -> Iterator[str]:
    yield _widened(ir, BlockFormat.BF16, ir.load(f"<{LANES} x i16>", block, 2))


def _fp16(ir: Ir, block: str) -> Iterator[str]:
    yield _widened(ir, BlockFormat.FP16, ir.load(f"<{LANES} x i16>", block, 2))


def _half(ir: Ir, block: str, offset: int) -> str:
    """The f16 at `offset` bytes, as a float."""
    return ir.value(f"fpext half {ir.load('half', ir.index(block, str(offset)), 2)} to float")


def _bytes(ir: Ir, block: str, offset: int) -> str:
    """LANES bytes as whole numbers from 0 to 255."""
    return ir.value(f"zext {BYTES} {ir.load(BYTES, ir.index(block, str(offset)))} to {INTS}")


def _signed(ir: Ir, block: str, offset: int) -> str:
    """LANES bytes as whole numbers from -128 to 127."""
    return ir.value(f"sext {BYTES} {ir.load(BYTES, ir.index(block, str(offset)))} to {INTS}")


def _low(ir: Ir, whole: str, bits: int) -> str:
    return ir.value(f"and {INTS} {whole}, {everywhere('i32', (1 << bits) - 1)}")


def _shifted(ir: Ir, whole: str, bits: int) -> str:
    return ir.value(f"lshr {INTS} {whole}, {everywhere('i32', bits)}") if bits else whole


def _less(ir: Ir, whole: str, number: int) -> str:
    return ir.value(f"sub {INTS} {whole}, {everywhere('i32', number)}")


def _scaled(ir: Ir, whole: str, scale: str) -> str:
    """`whole` numbers times a vector."""
    return ir.value(f"fmul {FLOATS} {ir.value(f'sitofp {INTS} {whole} to {FLOATS}')}, {scale}")


def _q8_0(ir: Ir, block: str) -> Iterator[str]:
    scale = ir.all_lanes("float", _half(ir, block, 0))
    for n in range(2):
        yield _scaled(ir, _signed(ir, block, 2 + LANES * n), scale)


def _q4_0(ir: Ir, block: str) -> Iterator[str]:
    scale, halves = ir.all_lanes("float", _half(ir, block, 0)), _bytes(ir, block, 2)
    yield _scaled(ir, _less(ir, _low(ir, halves, 4), 8), scale)
    yield _scaled(ir, _less(ir, _shifted(ir, halves, 4), 8), scale)


def _q4_1(ir: Ir, block: str) -> Iterator[str]:
    scale, least = (ir.all_lanes("float", _half(ir, block, offset)) for offset in (0, 2))
    halves = _bytes(ir, block, 4)
    for whole in (_low(ir, halves, 4), _shifted(ir, halves, 4)):
        yield ir.value(f"fadd {FLOATS} {_scaled(ir, whole, scale)}, {least}")


def _q4_k(ir: Ir, block: str) -> Iterator[str]:
    """A scale and a least number of f16 for 256 elements, times whole numbers of 6 bits for each 32 of them."""
    scale, least = _half(ir, block, 0), _half(ir, block, 2)
    packed = [ir.value(f"zext i8 {ir.load('i8', ir.index(block, str(4 + n)))} to i32") for n in range(12)]

    def six_bits(n: int, of_scale: bool) -> str:
        first = packed[n % 4 + (0 if of_scale else 4)]
        if n < 4:
            return ir.value(f"and i32 {first}, 63")
        both = packed[8 + n % 4]
        low = ir.value(f"and i32 {both}, 15") if of_scale else ir.value(f"lshr i32 {both}, 4")
        high = ir.value(f"and i32 {ir.value(f'lshr i32 {first}, 2')}, 48")
        return ir.value(f"or i32 {low}, {high}")

    def times(factor: str, whole: str) -> str:
        return ir.all_lanes("float", ir.value(f"fmul float {factor}, {ir.value(f'uitofp i32 {whole} to float')}"))

    for group in range(4):
        halves = [_bytes(ir, block, 16 + 32 * group + LANES * n) for n in range(2)]
        for is_high in range(2):
            n = 2 * group + is_high
            of_32, below = times(scale, six_bits(n, True)), times(least, six_bits(n, False))
            for whole in halves:
                some = _shifted(ir, whole, 4) if is_high else _low(ir, whole, 4)
                yield ir.value(f"fsub {FLOATS} {_scaled(ir, some, of_32)}, {below}")


def _q6_k(ir: Ir, block: str) -> Iterator[str]:
    """A scale of f16 for 256 elements, times a signed byte for each 16 of them; elements of 4 and 2 bits, less 32."""
    scale = _half(ir, block, 208)
    for group in range(2):
        low = [_bytes(ir, block, 64 * group + LANES * n) for n in range(4)]
        high = [_bytes(ir, block, 128 + 32 * group + LANES * n) for n in range(2)]
        for row in range(4):
            for n in range(2):
                signed = ir.value(f"sext i8 {ir.load('i8', ir.index(block, str(192 + 8 * group + 2 * row + n)))} to i32")
                of_16 = ir.all_lanes("float", ir.value(f"fmul float {scale}, {ir.value(f'sitofp i32 {signed} to float')}"))
                four = _low(ir, _shifted(ir, low[2 * (row % 2) + n], 4 * (row // 2)), 4)
                two = ir.value(f"shl {INTS} {_low(ir, _shifted(ir, high[n], 2 * row), 2)}, {everywhere('i32', 4)}")
                yield _scaled(ir, _less(ir, ir.value(f"or {INTS} {four}, {two}"), 32), of_16)


_FORMATS: dict[NumberLayout, Callable[[Ir, str], Iterator[str]]] = {
    DType.FP32: _fp32,
    BlockFormat.BF16: _bf16,
    BlockFormat.FP16: _fp16,
    BlockFormat.Q8_0: _q8_0,
    BlockFormat.Q4_0: _q4_0,
    BlockFormat.Q4_1: _q4_1,
    BlockFormat.Q4_K: _q4_k,
    BlockFormat.Q6_K: _q6_k,
}


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
