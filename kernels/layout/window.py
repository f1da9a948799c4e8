"""Where the elements of a load lie: from letters to strided windows of packed row-major tiles.

In: a view (boxes), a load whose indices are affine in the letters. Out: a `Tile` per box, which for a region of the letters gives a
`Window`: sizes, strides and an offset to look through, with no copy. A window's axes follow a given order of letters; a letter the load
lacks has size 1, so windows broadcast.

    value x [8, 6], box (4,0)..(8,6), load x[s, m+1]:   element (s, m) lies at (s - 4)*6 + (m + 1) = -23 + 6 s + m
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.layout.affine import Affine, affine
from einpage.kernels.layout.blocks import Region

Memory: TypeAlias = Sequence[Sequence[Tensor]]
"""All a running job can address: its operands, then (result,), then its scratch buffers; each a sequence of tensors."""
Op: TypeAlias = Callable[[Memory], None]
"""One step of a prepared job."""

TORCH_DTYPE = {
    DType.FP32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.BYTE: torch.uint8,
}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a packed row-major tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Window:
    """A strided look at one tensor of the job's memory."""

    operand: int
    tile: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from the tensor's own start."""

    def of(self, memory: Memory) -> Tensor:
        t = memory[self.operand][self.tile]
        return t.as_strided(self.size, self.stride, t.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Tile:
    """One packed tensor as a load sees it: the element at letters v lies at `origin + sum(stride[l] * v[l])`."""

    operand: int
    tile: int
    dtype: DType
    stride: Mapping[Letter, int]
    origin: int
    bounds: tuple[tuple[Affine, int, int], ...] = ()
    """Per dimension: the index and the box's interval. Empty for scratch, which holds whatever is asked."""

    def contains(self, region: Region) -> bool:
        return all(lo <= low and high <= hi for a, lo, hi in self.bounds for low, high in (a.hull(region),))

    def intersects(self, region: Region) -> bool:
        return all(low < hi and lo < high for a, lo, hi in self.bounds for low, high in (a.hull(region),))

    def window(self, order: Sequence[Letter], region: Region) -> Window:
        """Axes as in `order`; letters the tile lacks have size 1."""
        size = tuple(region[x][1] - region[x][0] if x in self.stride else 1 for x in order)
        stride = tuple(self.stride.get(x, 0) for x in order)
        return Window(self.operand, self.tile, size, stride, self.offset(region))

    def offset(self, region: Region) -> int:
        return self.origin + sum(step * region[letter][0] for letter, step in self.stride.items())


def tiles(view: View, operand: int, dims: Sequence[Affine]) -> tuple[Tile, ...]:
    """The boxes of `view` as tiles of a load whose indices are `dims`; those that no letter can reach (another number) are left out."""
    out = []
    for j, box in enumerate(view.boxes):
        if all(a.terms or lo <= a.const < hi for a, lo, hi in zip(dims, box.start, box.end, strict=True)):
            out.append(tile_of(box, operand, j, view.dtype, dims))
    return tuple(out)


def tile_of(box: Box, operand: int, j: int, dtype: DType, dims: Sequence[Affine]) -> Tile:
    stride: dict[Letter, int] = {}
    origin = 0
    for a, start, step in zip(dims, box.start, row_major(box.shape), strict=True):
        origin += (a.const - start) * step
        for letter, c in a.terms:
            stride[letter] = stride.get(letter, 0) + c * step
    return Tile(operand, j, dtype, stride, origin, tuple(zip(dims, box.start, box.end, strict=True)))


def scratch_tile(operand: int, j: int, letters: Sequence[Letter], region: Region, dtype: DType = DType.FP32) -> Tile:
    """Scratch buffer `j`, laid out packed over `letters` for `region`."""
    stride = dict(zip(letters, row_major([region[x][1] - region[x][0] for x in letters]), strict=True))
    return Tile(operand, j, dtype, stride, -sum(step * region[x][0] for x, step in stride.items()))


def dims_of(load: Load) -> tuple[Affine, ...] | None:
    """The load's indices as affine forms, or None where one is not."""
    forms = [affine(i) for i in load.indices]
    return None if any(f is None for f in forms) else tuple(f for f in forms if f is not None)


def cuts(view: View, load: Load) -> dict[Letter, set[int]]:
    """Where bare letters of `load` cross from one box of `view` to the next."""
    out: dict[Letter, set[int]] = {}
    if len(view.boxes) > 1:
        for d, index in enumerate(load.indices):
            if isinstance(index, Axis):
                out.setdefault(index.letter, set()).update(b.start[d] for b in view.boxes)
    return out
