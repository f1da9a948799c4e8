"""One generated kernel and how to launch it: what the code generators give to those who run or compile it."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.kernels.tiles.tiles import Tiles


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A matrix within one tile, as the GPU's copy engine (TMA) reads it block by block; beyond its end are zeros."""

    operand: int
    tile: int
    offset: int
    """Element of the tile at which the matrix starts."""
    shape: tuple[int, int]
    stride: int
    """Elements from one row to the next; those of a row are contiguous."""
    block: tuple[int, int]
    """Rows and columns that one load reads."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's source, and all that its launch needs but the tensors."""

    text: str
    """The module's source. Its kernel takes the pointers, the descriptors, the result's pointer, then the starts."""
    pointers: tuple[tuple[int, int, int], ...]
    """The operand, its tile and the element therein that each pointer points to."""
    descriptors: tuple[Descriptor, ...]
    starts: tuple[int, ...]
    """Numbers passed when it runs: the starts of letters whose value the kernel needs. The text counts every letter from 0."""
    block: tuple[tuple[str, int], ...]
    """The constants of the text: how much one program takes along each axis."""
    programs: int
    tiles: Tiles
