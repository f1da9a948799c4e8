"""bf16 put right in Triton's interpreter, which keeps it as uint16 bit patterns: products widened, casts from fp32 rounded to
nearest even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_MENDED = "_einpage_bf16"


def mend() -> None:
    """Replace the interpreter's product and casts; once."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, _MENDED, False):
        return
    dot, cast, fp_to_fp = builder.create_dot, builder.cast_impl, builder.create_fp_to_fp

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), d, *rest)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(src.data), tl.bfloat16)
        return cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(src.data), tl.bfloat16)
        return fp_to_fp(self, src, dst_type, rounding_mode)

    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp = create_dot, cast_impl, create_fp_to_fp
    setattr(builder, _MENDED, True)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(data: Any) -> Any:
    bits = np.ascontiguousarray(data).view(np.uint32)
    even = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    nearest = ((bits + even) >> 16).astype(np.uint16)
    return np.where(np.isnan(data), np.uint16(0x7FC0), nearest)
