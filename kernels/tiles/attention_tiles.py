"""Tiles of flash attention, as a table: a pure function of dtype, head size and architecture, no autotuning.

`rows` are queries, `columns` the keys of a step. Entries were chosen by registers and shared memory, so that none spills whatever the
mask; those after the first are for bench/gpu.sh to time. A loop over tiles of keys needs registers of its own: where they are short its
steps are shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.tiles import Tiles, cover


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the choice of a tile depends on, and what tells one attention's speed from another's."""

    dtype: DType
    """Of queries, keys and values; fp32 where they differ."""
    head: int
    """Elements of the longer of a key and a value."""
    batch: int
    queries: int
    keys: int
    key_tiles: int
    """In how many pieces keys and values lie."""


_HALF = {
    80: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 3), 256: Tiles(64, 32, 0, 8, 3)},
    86: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 2), 256: Tiles(64, 32, 0, 8, 2)},
    90: {64: Tiles(128, 64, 0, 8, 3), 128: Tiles(128, 64, 0, 8, 3), 256: Tiles(128, 64, 0, 8, 2)},
}
"""bf16 and fp16, by the longer of the two head sizes, up to a power of two."""
_MORE = {
    (90, 64): (
        Tiles(128, 128, 0, 8, 2, descriptors=True),
        Tiles(64, 64, 0, 4, 3),
        Tiles(64, 64, 0, 4, 3, descriptors=True),
        Tiles(128, 64, 0, 4, 2, descriptors=True, specialised=True),
    ),
    (90, 128): (
        Tiles(128, 128, 0, 8, 2, descriptors=True),
        Tiles(128, 64, 0, 8, 3, descriptors=True),
        Tiles(64, 64, 0, 4, 3),
        Tiles(64, 64, 0, 4, 2, descriptors=True),
        Tiles(128, 64, 0, 4, 2, descriptors=True, specialised=True),
    ),
}
"""By architecture and head size: those to be timed against the table's, bf16 and fp16."""
_FMA = {
    80: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 32, 0, 4, 2), 256: Tiles(32, 16, 0, 4, 2)},
    86: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 32, 0, 4, 2), 256: Tiles(32, 16, 0, 4, 2)},
    90: {64: Tiles(64, 32, 0, 8, 2), 128: Tiles(32, 16, 0, 8, 2), 256: Tiles(32, 16, 0, 4, 2)},
}
"""fp32, in exact arithmetic without tensor cores."""
_TF32 = {
    (80, 64): (Tiles(64, 16, 0, 8, 2),),
    (86, 64): (Tiles(64, 16, 0, 8, 2),),
    (90, 64): (Tiles(64, 32, 0, 4, 2, descriptors=True), Tiles(64, 32, 0, 4, 2)),
}
"""fp32 as three products of tf32, by architecture and head size; elsewhere whatever was tried spills, and products are exact."""
_SHORTER = {(80, 128), (86, 128), (90, 256)}
"""(architecture, head size) in bf16 and fp16 whose steps are halved where keys lie in several tiles."""


_PAIRS_HALF = {
    1: {64: Tiles(64, 64, 0, 4, 2), 128: Tiles(64, 32, 0, 4, 2), 256: Tiles(32, 32, 0, 4, 2)},
    2: {64: Tiles(64, 64, 0, 4, 2), 128: Tiles(64, 32, 0, 8, 2), 256: Tiles(32, 32, 0, 8, 1)},
}
"""Sums over pairs in bf16 and fp16, by products a pair (two and more) and the longest head size."""
_PAIRS_FP32 = {
    1: {64: Tiles(32, 32, 0, 4, 1), 128: Tiles(32, 16, 0, 4, 1), 256: Tiles(16, 16, 0, 8, 1)},
    2: {64: Tiles(32, 32, 0, 8, 1), 128: Tiles(16, 16, 0, 8, 1), 256: Tiles(16, 16, 0, 8, 1)},
}
"""In fp32, in exact arithmetic without tensor cores."""


def pairs_tiles(dtype: DType, products: int, head: int, rows: int) -> Tiles:
    """The tile of a sum over pairs, of so many rows; the same on every GPU."""
    tiles = (_PAIRS_FP32 if dtype is DType.FP32 else _PAIRS_HALF)[min(products, 2)][cover(head, 256, 64)]
    return replace(tiles, rows=cover(rows, tiles.rows, 16))


def attention_products(p: AttentionShape, capability: int, asked: Fp32Products) -> Fp32Products:
    """How factors of fp32 are multiplied where `asked` is good enough."""
    return asked if (capability, cover(p.head, 256, 64)) in _TF32 else Fp32Products.IEEE


def attention_variants(p: AttentionShape, capability: int, fp32_products: Fp32Products = Fp32Products.TF32X3) -> tuple[Tiles, ...]:
    """The tile in use, then those worth timing against it where there are many queries and keys lie in one piece. Few queries are few
    rows of four warps. One at least has no descriptors."""
    head = cover(p.head, 256, 64)
    if p.dtype is DType.FP32 and attention_products(p, capability, fp32_products) is Fp32Products.TF32X3:
        first, *others = _TF32[capability, head]
    elif p.dtype is DType.FP32:
        first, others = _FMA[capability][head], []
    else:
        first, others = _HALF[capability][head], [*_MORE.get((capability, head), ())]
        if p.key_tiles > 1 and (capability, head) in _SHORTER:
            first = replace(first, columns=first.columns // 2)
    rows = cover(p.queries, first.rows, 16)
    in_use = replace(first, rows=rows, warps=min(first.warps, 4) if rows < min(first.rows, 64) else first.warps)
    if rows < first.rows:
        return in_use, *(replace(in_use, descriptors=False) for _ in range(in_use.descriptors))
    return in_use, *(t for t in others if p.key_tiles == 1 or not t.descriptors)
