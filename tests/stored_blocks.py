"""Weights in blocks for tests: random ones of every format, and the numbers in them as `gguf` has them."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import BlockFormat

QUANTISED = [format for format in BlockFormat if format.is_quantised]


def gguf_type(format: BlockFormat) -> GGMLQuantizationType:
    return GGMLQuantizationType["F16" if format is BlockFormat.FP16 else format.value.upper()]


def dequantised(format: BlockFormat, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The definition: the numbers of whole blocks, flat."""
    with np.errstate(all="ignore"):
        return gguf.dequantize(raw.reshape(1, -1), gguf_type(format)).astype(np.float32).reshape(-1)


def random_blocks(format: BlockFormat, count: int, seed: int, finite: bool = True) -> NDArray[np.uint8]:
    """So many blocks [count, bytes], of any bytes; with `finite`, of scales that are small numbers."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, format.nbytes), np.uint8)
    if finite:
        for at in format.scales_at:
            raw[:, at : at + 2] = rng.uniform(-0.02, 0.02, (count, 1)).astype(np.float16).view(np.uint8)
        if format is BlockFormat.FP16:
            raw[:] = rng.uniform(-1, 1, (count, 1)).astype(np.float16).view(np.uint8)
        if format is BlockFormat.BF16:
            raw[:] = (rng.uniform(-1, 1, (count, 1)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return raw
