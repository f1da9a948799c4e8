"""Block sizes of the Triton kernels, as a table: no autotuning, so a job always runs the same way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """How much one program of a kernel takes, in elements along each axis of its block, and how it runs."""

    rows: int
    columns: int
    inner: int
    """Elements of the summed axis a step; 0 where nothing is summed step by step."""
    warps: int
    stages: int
    """Of the software pipeline: how many steps are loaded ahead, the current one included."""
    group: int = 8
    """Blocks of rows that neighbouring programs of a matrix product go through together."""
    descriptors: bool = False
    """Factors are read by the copy engine (TMA, sm_90), where they lie so that it can."""
    specialised: bool = False
    """Some warps copy while others multiply."""
    persistent: bool = False
    """A program of a matrix product computes one block after the other, loads the next while it stores the last, and stores by TMA too."""

    @property
    def way(self) -> str:
        """How factors are read and blocks follow each other, for people: `TMA, persistent`, or `pointers`."""
        words = [
            (self.descriptors, "TMA"),
            (not self.descriptors, "pointers"),
            (self.persistent, "persistent"),
            (self.specialised, "specialised"),
        ]
        return ", ".join(word for holds, word in words if holds)


SHARED_LIMIT = {80: 166_912, 86: 101_376, 90: 232_448}
"""Bytes of shared memory one program may have, by compute capability; the compiler does not refuse more."""

POINTWISE = Tiles(2048, 1, 0, 4, 1)
"""`rows`: elements a program of a pointwise job."""
ROW = Tiles(2048, 16384, 0, 4, 1)
"""`rows`: elements a program of a row reduction, where rows are short; `columns`: the longest row that is loaded at once."""
CROSS = Tiles(64, 64, 0, 8, 1)
"""A block of a job whose operands and result run along different letters."""
REUSE = Tiles(32, 64, 0, 2, 1)
"""A block of a pointwise job with costly functions of its columns alone: few threads, so that each uses their values for many rows."""


def warps(elements: int) -> int:
    """How many warps a block of so many elements has: about 16 elements a thread."""
    return max(4, min(16, cover(-(-elements // 512), 16)))


def cover(extent: int, most: int, least: int = 1) -> int:
    """The power of two in [least, most] that covers `extent` best."""
    size = least
    while size < extent and size < most:
        size *= 2
    return size
