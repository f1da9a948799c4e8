"""Where the elements of a load lie for torch: from letters to strided windows of packed row-major tiles.

In: a view (boxes), a load whose indices are affine in the letters. Out: a `StridedTile` per box, which for a region of the letters gives
a `Window`: sizes, strides and an offset to look through, with no copy. A window's axes follow a given order of letters; a letter the load
lacks has size 1, so windows broadcast.

    value x [8, 6], box (4,0)..(8,6), load x[s, m+1]:   element (s, m) lies at (s - 4)*6 + (m + 1) = -23 + 6 s + m
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Region
from einpage.einsum_front.base.dtype import DType, ElementType
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.layout.affine import Affine, address, ascending, row_major

JobBuffers: TypeAlias = Sequence[Sequence[Tensor]]
"""All a running job can address: its operands, then its results, then its scratch buffers; each a sequence of tensors."""
BoundCall: TypeAlias = Callable[[], object]
"""Works on tensors that are known, and may be called as often as wanted."""
BoundStep: TypeAlias = Callable[[JobBuffers], BoundCall]
"""One step of a prepared job, its windows known: given the buffers, it looks through them once."""


@dataclass(frozen=True, slots=True)
class Window:
    """A strided look at one tensor of the job's buffers."""

    operand: int
    tile: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from the tensor's own start."""

    def of(self, buffers: JobBuffers) -> Tensor:
        """The strided view of its tensor, in the shape `size`; shares the tensor's memory."""
        t = buffers[self.operand][self.tile]
        return t.as_strided(self.size, self.stride, t.storage_offset() + self.offset)

    def flat(self) -> Window:
        """Without its first dimension, whose size is 1."""
        return Window(self.operand, self.tile, self.size[1:], self.stride[1:], self.offset)


@dataclass(frozen=True, slots=True)
class StridedTile:
    """One packed tensor as a load sees it: the element at letters v lies at `origin + sum(stride[l] * v[l])`."""

    operand: int
    tile: int
    dtype: ElementType
    stride: Mapping[Letter, int]
    origin: int
    bounds: tuple[tuple[Affine, int, int], ...] = ()
    """Per dimension: the index and the box's interval. Empty for scratch, which holds whatever is asked."""

    def contains(self, region: Region) -> bool:
        """Whether every element that the load reads in `region` lies in the tile."""
        return all(lo <= low and high <= hi for a, lo, hi in self.bounds for low, high in (a.hull(region),))

    def intersects(self, region: Region) -> bool:
        """Whether some element that the load reads in `region` may lie in the tile."""
        return all(low < hi and lo < high for a, lo, hi in self.bounds for low, high in (a.hull(region),))

    def window(self, order: Sequence[Letter], region: Region) -> Window:
        """Axes as in `order`; letters the tile lacks have size 1."""
        size = tuple(region[x][1] - region[x][0] if x in self.stride else 1 for x in order)
        stride = tuple(self.stride.get(x, 0) for x in order)
        return Window(self.operand, self.tile, size, stride, self.offset(region))

    def offset(self, region: Region) -> int:
        """Where the first element of `region` lies, in elements from the tensor's start."""
        return self.origin + sum(step * region[letter][0] for letter, step in self.stride.items())


def strided_tiles(view: View, operand: int, indices: Sequence[Affine]) -> tuple[StridedTile, ...]:
    """The boxes of `view` as tiles of a load with these indices; those that no letter can reach (another number) are left out."""
    out = []
    for j, box in enumerate(view.boxes):
        if all(a.terms or lo <= a.const < hi for a, lo, hi in zip(indices, box.start, box.end, strict=True)):
            out.append(strided_tile(box, operand, j, view.element_type, indices))
    return tuple(out)


def strided_tile(box: Box, operand: int, j: int, dtype: ElementType, indices: Sequence[Affine]) -> StridedTile:
    """Tile `j` of an operand, packed `box`, as a load with these indices sees it."""
    place = address(box, indices)
    return StridedTile(operand, j, dtype, dict(place.terms), place.const, tuple(zip(indices, box.start, box.end, strict=True)))


def scratch_tile(operand: int, j: int, letters: Sequence[Letter], region: Region, dtype: DType = DType.FP32) -> StridedTile:
    """Scratch buffer `j`, laid out packed over `letters` for `region`."""
    stride = dict(zip(letters, row_major([region[x][1] - region[x][0] for x in letters]), strict=True))
    return StridedTile(operand, j, dtype, stride, -sum(step * region[x][0] for x, step in stride.items()))


def affine_indices(load: Load) -> tuple[Affine, ...] | None:
    """The load's indices as affine functions, or None where one is not."""
    found = [ascending(i) for i in load.indices]
    return None if any(f is None for f in found) else tuple(f for f in found if f is not None)


def tile_borders(reads: Sequence[View], loads: Iterable[Load]) -> dict[Letter, set[int]]:
    """Where bare letters of `loads` go from one tile of what they read to the next."""
    view_by_name = {v.name: v for v in reads}
    out: dict[Letter, set[int]] = defaultdict(set)
    for load in loads:
        boxes = view_by_name[load.name].boxes
        for d, index in enumerate(load.indices):
            if len(boxes) > 1 and isinstance(index, Axis):
                out[index.letter] |= {box.start[d] for box in boxes}
    return out


def in_several_tiles(reads: Sequence[View]) -> frozenset[int]:
    """The operands that are spread over more than one tile."""
    return frozenset(i for i, view in enumerate(reads) if len(view.boxes) > 1)
