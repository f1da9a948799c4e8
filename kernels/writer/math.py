"""Functions that generated kernels call, in Triton's own operations: no libdevice, so the interpreter runs them too. Values are fp32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def floor_div(x, y):  # type: ignore[no-untyped-def]
    """Python's x // y: fp64 rounds no quotient under 2^29 of two fp32 up to a whole number."""
    x = (x + tl.zeros((1, 1), tl.float32)).to(tl.float64)
    y = (y + tl.zeros((1, 1), tl.float32)).to(tl.float64)
    quotient = x / y
    below_zero = (quotient == 0) & (x != 0) & ((x < 0) != (y < 0))  # of an infinite y
    return tl.where(below_zero, -1.0, tl.floor(quotient)).to(tl.float32)


@triton.jit
def floor_mod(x, y):  # type: ignore[no-untyped-def]
    """Python's x % y: the sign of y, and exact. The largest quotient of two fp32 is 2^277: x is taken modulo y * 2^252, y * 2^224, ..., y;
    each quotient is under 2^29 then, and fp64 holds it and its product with a divisor."""
    x = (x + tl.zeros((1, 1), tl.float32)).to(tl.float64)
    y = (y + tl.zeros((1, 1), tl.float32)).to(tl.float64)
    left, multiple = tl.broadcast(x, y * 7.237005577332262e75)  # 2^252
    for _ in range(10):
        quotient = left / multiple
        left = left - tl.where(quotient < 0, tl.ceil(quotient), tl.floor(quotient)) * multiple
        multiple = multiple * 3.725290298461914e-09  # 2^-28
    left = tl.where((tl.abs(y) == float("inf")) & (tl.abs(x) != float("inf")), x, left).to(tl.float32)
    return tl.where((left != 0) & ((left < 0) != (y < 0)), left + y.to(tl.float32), left)


@triton.jit
def floor_div_int(x, y):  # type: ignore[no-untyped-def]
    """Python's x // y on integers; Triton's own rounds towards zero."""
    return x // y - ((x % y != 0) & ((x % y < 0) != (y < 0))).to(tl.int32)


@triton.jit
def floor_mod_int(x, y):  # type: ignore[no-untyped-def]
    """Python's x % y on integers."""
    return x - floor_div_int(x, y) * y


@triton.jit
def power(x, y):  # type: ignore[no-untyped-def]
    """x ** y; NaN for a negative x and a y that is not whole."""
    size = tl.where(y == 0, 1.0, tl.exp2(y * tl.log2(tl.abs(x))))
    odd = y - tl.floor(y * 0.5) * 2.0 == 1
    below = tl.where(tl.floor(y) == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(x < 0, below, size)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent; no overflow for a large |x|."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)
