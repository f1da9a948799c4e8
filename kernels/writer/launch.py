"""One generated kernel and how to launch it: what the code generators give to those who run or compile it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.tiles import Tiles

STORES = 2
"""In how many parts the copy engine writes a block of a result: while it writes one, the next is computed."""


RESULT = -1
"""The result, where a descriptor names an operand."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A part of one tile, as the GPU's copy engine (TMA) reads or writes it block by block: a matrix, or several of one shape. What is read
    beyond its end is zero, what is written there is left out."""

    operand: int
    """RESULT for one that is written."""
    tile: int
    offset: int
    """Element of the tile at which it starts."""
    shape: tuple[int, ...]
    """Of two to five dimensions: rows and columns last."""
    strides: tuple[int, ...]
    """Elements from one value of each dimension to the next; of the last, 1."""
    block: tuple[int, ...]
    """How much of each dimension one load reads, or one store writes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's source, and all that its launch needs but the tensors."""

    text: str
    """The module's source. Its kernel takes the pointers, the descriptors, the results' pointers, then the starts."""
    pointers: tuple[tuple[int, int, int], ...]
    """The operand, its tile and the element therein that each pointer points to."""
    descriptors: tuple[Descriptor, ...]
    starts: tuple[int, ...]
    """Numbers passed when it runs: the starts of letters whose value the kernel needs. The text counts every letter from 0."""
    block: tuple[tuple[str, int], ...]
    """The constants of the text: how much one program takes along each axis."""
    programs: int
    tiles: Tiles
    """What it is written for, which is not what was asked where that cannot be."""
    fp32_products: Fp32Products | None = None
    """How it multiplies factors of fp32; None where it has none."""

    @property
    def compiled_as(self) -> tuple[str, int, int]:
        """What tells a compiled kernel from others: its text, warps and stages."""
        return self.text, self.tiles.warps, self.tiles.stages

    @property
    def way(self) -> str:
        """How it reads factors, how its programs follow each other, how it multiplies fp32, for people: `TMA, persistent`."""
        return self.tiles.way + (f", {self.fp32_products.value}" if self.fp32_products else "")

    @property
    def stored_elements(self) -> int:
        """Elements of a block of the result that the copy engine writes."""
        return sum(STORES * prod(d.block) for d in self.descriptors if d.operand == RESULT)
