"""One generated kernel and how to launch it: what the writers of kernels hand to those who run or compile them."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.kernels.triton_tiles import Tiles


@dataclass(frozen=True, slots=True)
class Launch:
    text: str
    """The module's source. Its kernel takes the pointers, then the result's pointer, then the starts."""
    pointers: tuple[tuple[int, int, int], ...]
    """The operand, its tile and the element therein that each pointer points to."""
    starts: tuple[int, ...]
    """Numbers passed when it runs: where letters begin whose value the kernel needs. The text counts every letter from 0."""
    block: tuple[tuple[str, int], ...]
    """The constants of the text: how much one program takes along each axis."""
    programs: int
    tiles: Tiles
