"""Block sizes of the Triton kernels, as a table: no autotuning, so a job always runs the same way."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.dtype import DType


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


PRODUCT = {DType.FP32: Tiles(64, 64, 32, 8, 3), DType.BF16: Tiles(128, 128, 64, 8, 3), DType.FP16: Tiles(128, 128, 64, 8, 3)}
"""Matrix products, by the dtype of the factors."""
ATTENTION = {DType.FP32: Tiles(64, 32, 0, 4, 2), DType.BF16: Tiles(64, 64, 0, 4, 2), DType.FP16: Tiles(64, 64, 0, 4, 2)}
"""Queries a block, keys a step."""
POINTWISE = Tiles(1024, 1, 0, 4, 1)
ROW = Tiles(1, 4096, 0, 4, 1)
"""`columns`: the longest row that is held at once; a longer one is read twice."""


def cover(extent: int, most: int, least: int = 1) -> int:
    """The power of two in [least, most] that covers `extent` best."""
    size = least
    while size < extent and size < most:
        size *= 2
    return size
