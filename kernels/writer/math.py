"""Functions that generated kernels call, in Triton's own operations: no libdevice, so the interpreter runs them too. Values are fp32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def floor_div(x, y):  # type: ignore[no-untyped-def]
    """Python's x // y."""
    return tl.floor(tl.div_rn(x + tl.zeros((1, 1), tl.float32), y + tl.zeros((1, 1), tl.float32)))


@triton.jit
def floor_mod(x, y):  # type: ignore[no-untyped-def]
    """Python's x % y: the sign of y."""
    return x - floor_div(x, y) * y


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
    odd = floor_mod(y, 2.0) == 1
    below = tl.where(tl.floor(y) == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(x < 0, below, size)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent; no overflow for a large |x|."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)
