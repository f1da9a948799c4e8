"""Tiles of matrix products, as a table: a pure function of dtype, shape class and architecture, no autotuning.

A product's shape class says what limits it: the side that is small, how many programs there are, how many sums a program keeps.
Entries were chosen by registers and shared memory; those after the first are for bench/gpu.sh to time. On sm_90 the copy engine (TMA)
reads the factors where they lie so that it can, and the first entry without it is used elsewhere; blocks of 16 rows are read by pointers:
they have no use for it. The compiler specialises warps only where a program has four of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles

PROGRAMS = 100
"""About how many programs a GPU runs at once; with fewer it is partly idle."""
SHORTEST = 16
"""Elements of the summed axis that a tensor core takes at once."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """What the choice of a tile depends on."""

    dtype: DType
    """Of the factors; fp32 where they differ."""
    batch: int
    rows: int
    columns: int
    inner: int
    sums: int
    """How many accumulators a program keeps."""


class ShapeClass(Enum):
    """What limits a product, by which the table is read."""

    DECODE = "at most 16 rows (or columns)"
    NARROW = "at most 64 rows (or columns)"
    FEW = "too few tiles of 128 x 128 to keep the GPU busy"
    SQUARE = "many tiles of 128 x 128"
    LARGE = "many tiles of 128 x 256"
    TWO_SUMS = "two sums over one x"
    MANY_SUMS = "more than two sums"


def shape_class(p: ProductShape) -> ShapeClass:
    """What limits `p`."""
    small = min(p.rows, p.columns)
    if small <= 16:
        return ShapeClass.DECODE
    if p.sums > 2:
        return ShapeClass.MANY_SUMS
    if small <= 64:
        return ShapeClass.NARROW
    if _tiles(p, 128, 128) < PROGRAMS:
        return ShapeClass.FEW
    if p.sums == 2:
        return ShapeClass.TWO_SUMS
    return ShapeClass.LARGE if p.rows >= 256 and p.columns >= 256 and _tiles(p, 128, 256) >= PROGRAMS else ShapeClass.SQUARE


def _tiles(p: ProductShape, rows: int, columns: int) -> int:
    return p.batch * -(-p.rows // rows) * -(-p.columns // columns)


def product_tiles(p: ProductShape, capability: int, fp32_products: Fp32Products = Fp32Products.TF32X3) -> Tiles:
    """The tile of product `p` on sm_`capability`."""
    return variants(p, capability, fp32_products)[0]


def variants(p: ProductShape, capability: int, fp32_products: Fp32Products = Fp32Products.TF32X3) -> tuple[Tiles, ...]:
    """The table's entry for `p`: the tile in use, then those worth timing against it. A small side of the product is the tile's. One at
    least has no descriptors."""
    shape = shape_class(p)
    table = (_FULL[fp32_products] if p.dtype is DType.FP32 else _HALF)[capability][shape]
    found = tuple(_fitting(t, p, SHARED_LIMIT[capability]) for t in table)
    if p.columns < p.rows and shape in (ShapeClass.DECODE, ShapeClass.NARROW):
        return tuple(replace(t, rows=t.columns, columns=t.rows) for t in found)
    return found


def _fitting(tiles: Tiles, p: ProductShape, limit: int) -> Tiles:
    """`tiles` with fewer stages, then shorter steps, where the factors of all sums, none shared, take more shared memory than there is."""

    def shared_bytes(stages: int, inner: int) -> int:
        return (stages - 1) * p.sums * (tiles.rows + tiles.columns) * inner * p.dtype.nbytes  # the last stage is in registers

    stages, inner = tiles.stages, tiles.inner
    while stages > 2 and shared_bytes(stages, inner) > limit:
        stages -= 1
    while inner > SHORTEST and shared_bytes(stages, inner) > limit:
        inner //= 2
    return replace(tiles, stages=stages, inner=inner)


def _tma(rows: int, columns: int, inner: int, warps: int, stages: int) -> Tiles:
    return Tiles(rows, columns, inner, warps, stages, descriptors=True)


def _persistent(rows: int, columns: int, inner: int, warps: int, stages: int) -> Tiles:
    return Tiles(rows, columns, inner, warps, stages, descriptors=True, persistent=True)


def _specialised(rows: int, columns: int, inner: int, warps: int, stages: int) -> Tiles:
    return Tiles(rows, columns, inner, warps, stages, descriptors=True, specialised=True)


_HALF = {
    80: {
        ShapeClass.DECODE: (Tiles(16, 32, 256, 4, 3), Tiles(16, 64, 64, 4, 4), Tiles(16, 128, 128, 8, 3)),
        ShapeClass.NARROW: (Tiles(64, 128, 64, 8, 3), Tiles(64, 64, 64, 4, 4)),
        ShapeClass.FEW: (Tiles(64, 64, 64, 4, 4), Tiles(64, 128, 64, 8, 3), Tiles(64, 64, 64, 8, 4)),
        ShapeClass.SQUARE: (Tiles(128, 128, 64, 8, 3), Tiles(128, 128, 32, 4, 4), Tiles(128, 128, 64, 8, 4)),
        ShapeClass.LARGE: (Tiles(128, 256, 64, 8, 3), Tiles(256, 128, 64, 8, 3), Tiles(128, 128, 64, 8, 3), Tiles(128, 128, 32, 4, 4)),
        ShapeClass.TWO_SUMS: (Tiles(128, 64, 64, 8, 3), Tiles(64, 128, 64, 8, 3), Tiles(128, 64, 32, 4, 4)),
        ShapeClass.MANY_SUMS: (Tiles(64, 64, 32, 8, 3),),
    },
    90: {
        ShapeClass.DECODE: (Tiles(16, 64, 128, 4, 4), Tiles(16, 32, 256, 4, 4), Tiles(16, 128, 128, 8, 3)),
        ShapeClass.NARROW: (
            _tma(64, 128, 64, 8, 4),
            Tiles(64, 128, 64, 8, 4),
            Tiles(64, 128, 64, 8, 3),
            Tiles(64, 64, 64, 4, 4),
        ),
        ShapeClass.FEW: (
            _tma(64, 64, 64, 4, 4),
            Tiles(64, 64, 64, 4, 4),
            Tiles(128, 64, 64, 8, 4),
            Tiles(64, 128, 64, 8, 4),
            _tma(128, 64, 64, 8, 4),
        ),
        ShapeClass.SQUARE: (
            _tma(128, 128, 64, 8, 4),
            Tiles(128, 128, 64, 8, 4),
            Tiles(128, 128, 64, 8, 3),
            Tiles(128, 128, 64, 4, 4),
            _persistent(128, 128, 64, 8, 4),
            _specialised(128, 128, 64, 4, 4),
            _specialised(128, 128, 128, 4, 3),
        ),
        ShapeClass.LARGE: (
            _tma(128, 256, 64, 8, 4),
            _tma(128, 256, 64, 8, 3),
            _persistent(128, 256, 64, 8, 3),
            _tma(256, 128, 64, 8, 4),
            _persistent(128, 128, 64, 8, 4),
            Tiles(128, 256, 64, 8, 4),
            Tiles(128, 256, 64, 8, 3),
            Tiles(256, 128, 64, 8, 3),
            Tiles(128, 256, 64, 8, 4, group=16),
            Tiles(128, 128, 64, 8, 4),
            _specialised(128, 256, 64, 4, 3),
            _specialised(128, 256, 64, 4, 4),
        ),
        ShapeClass.TWO_SUMS: (
            _tma(128, 128, 64, 8, 4),
            _tma(128, 128, 64, 8, 3),
            _persistent(128, 128, 64, 8, 3),
            Tiles(128, 128, 64, 8, 4),
            Tiles(128, 128, 64, 8, 3),
            Tiles(128, 64, 64, 4, 4),
            _specialised(128, 128, 64, 4, 3),
        ),
        ShapeClass.MANY_SUMS: (Tiles(64, 64, 64, 4, 3),),
    },
}
"""bf16 and fp16."""
_HALF[86] = {**_HALF[80], ShapeClass.DECODE: (Tiles(16, 32, 256, 4, 3), Tiles(16, 32, 128, 4, 4), Tiles(16, 128, 128, 8, 3))}
"""16 x 64 in four warps spills there."""
_FMA = {
    ShapeClass.DECODE: (Tiles(16, 64, 64, 4, 3), Tiles(16, 32, 64, 4, 3)),
    ShapeClass.NARROW: (Tiles(64, 64, 32, 8, 3), Tiles(64, 32, 32, 4, 3)),
    ShapeClass.FEW: (Tiles(64, 64, 32, 8, 3), Tiles(64, 32, 32, 4, 3)),
    ShapeClass.SQUARE: (Tiles(128, 128, 16, 8, 3), Tiles(128, 64, 16, 8, 3), Tiles(64, 64, 32, 8, 3)),
    ShapeClass.LARGE: (Tiles(128, 128, 16, 8, 3), Tiles(128, 64, 16, 8, 3)),
    ShapeClass.TWO_SUMS: (Tiles(64, 64, 16, 8, 3), Tiles(64, 64, 32, 8, 3)),
    ShapeClass.MANY_SUMS: (Tiles(32, 32, 32, 4, 3),),
}
_TF32 = {
    80: {
        ShapeClass.DECODE: (Tiles(16, 64, 32, 4, 3), Tiles(16, 32, 64, 4, 3)),
        ShapeClass.NARROW: (Tiles(64, 64, 32, 4, 3), Tiles(64, 32, 32, 4, 3)),
        ShapeClass.FEW: (Tiles(64, 64, 32, 4, 3), Tiles(64, 32, 32, 4, 3)),
        ShapeClass.SQUARE: (Tiles(128, 64, 32, 8, 3), Tiles(64, 128, 32, 8, 3), Tiles(64, 64, 32, 4, 3)),
        ShapeClass.LARGE: (Tiles(128, 64, 32, 8, 3), Tiles(64, 128, 32, 8, 3), Tiles(64, 64, 32, 4, 3)),
        ShapeClass.TWO_SUMS: (Tiles(64, 64, 16, 8, 3), Tiles(64, 32, 32, 4, 3)),
        ShapeClass.MANY_SUMS: (Tiles(64, 32, 16, 4, 3),),
    },
    90: {
        ShapeClass.DECODE: (Tiles(16, 64, 32, 4, 3), Tiles(16, 32, 64, 4, 3)),
        ShapeClass.NARROW: (_tma(64, 64, 32, 4, 3), Tiles(64, 64, 32, 4, 3), Tiles(64, 32, 32, 4, 3)),
        ShapeClass.FEW: (_tma(64, 64, 32, 4, 3), Tiles(64, 64, 32, 4, 3), Tiles(64, 32, 32, 4, 3)),
        ShapeClass.SQUARE: (_tma(128, 128, 32, 8, 3), _tma(128, 64, 32, 8, 3), Tiles(128, 128, 32, 8, 3), Tiles(128, 64, 32, 8, 3)),
        ShapeClass.LARGE: (
            _tma(128, 128, 32, 8, 3),
            _persistent(128, 128, 32, 8, 3),
            _tma(128, 64, 32, 8, 3),
            Tiles(128, 128, 32, 8, 3),
            Tiles(128, 64, 32, 8, 3),
        ),
        ShapeClass.TWO_SUMS: (_tma(128, 64, 32, 8, 3), Tiles(128, 64, 32, 8, 3), Tiles(64, 64, 32, 4, 3)),
        ShapeClass.MANY_SUMS: (Tiles(64, 32, 32, 4, 3),),
    },
}
_TF32[86] = {**_TF32[80], ShapeClass.DECODE: (Tiles(16, 64, 32, 4, 3),)}
"""16 x 32 in steps of 64 spills there."""
_FULL = {
    Fp32Products.IEEE: {80: _FMA, 86: _FMA, 90: _FMA},
    Fp32Products.TF32X3: _TF32,
}
"""fp32: in exact arithmetic without tensor cores, and as three products of tf32."""
