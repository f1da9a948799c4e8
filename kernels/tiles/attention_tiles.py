"""Tiles of flash attention, as a table: a pure function of dtype, head size and architecture, no autotuning.

`rows` are queries, `columns` the keys of a step. Entries were chosen by registers and shared memory, so that none spills whatever the
mask; bench/gpu.sh times the alternatives. A loop over tiles of keys needs registers of its own: where they are short its steps are shorter.
"""

from __future__ import annotations

from dataclasses import replace

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.tiles.tiles import Tiles, cover

_HALF = {
    80: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 3), 256: Tiles(64, 32, 0, 8, 3)},
    86: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 2), 256: Tiles(64, 32, 0, 8, 2)},
    90: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 3), 256: Tiles(128, 64, 0, 8, 2)},
}
"""bf16 and fp16, by the longer of the two head sizes, up to a power of two."""
_FULL = {
    80: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 32, 0, 4, 2), 256: Tiles(32, 16, 0, 4, 2)},
    86: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 32, 0, 4, 2), 256: Tiles(32, 16, 0, 4, 2)},
    90: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 16, 0, 8, 2), 256: Tiles(32, 16, 0, 4, 2)},
}
"""fp32, in exact arithmetic without tensor cores."""
_SHORTER = {(80, 128), (86, 128), (90, 256)}
"""(architecture, head size) in bf16 and fp16 whose steps are halved where keys lie in several tiles."""


def attention_tiles(dtype: DType, head: int, queries: int, key_tiles: int, capability: int) -> Tiles:
    """The tile for heads of `head` elements, this many queries, and keys in this many pieces; few queries are few rows of four warps."""
    head = cover(head, 256, 64)
    half = dtype is not DType.FP32
    tiles = (_HALF if half else _FULL)[capability][head]
    if half and key_tiles > 1 and (capability, head) in _SHORTER:
        tiles = replace(tiles, columns=tiles.columns // 2)
    rows = cover(queries, tiles.rows, 16)
    return replace(tiles, rows=rows, warps=min(tiles.warps, 4) if rows < min(tiles.rows, 64) else tiles.warps)
