"""What kernels are written for: the GPU's compute capability, and choices that a measurement forces."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles

CAPABILITIES = tuple(SHARED_LIMIT)
"""Compute capabilities that the tables speak of; 86 stands for all GPUs with less shared memory than 80 has (8.6, 8.9, 12.0)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to write kernels for."""

    capability: int = 90
    """One of CAPABILITIES."""
    product: Tiles | None = None
    """The tile of every matrix product, instead of the table's."""
    attention: Tiles | None = None
    """The tile of every attention: queries a block, keys a step."""


def table_of(capability: int, shared_bytes: int) -> int:
    """Of CAPABILITIES, the latest that a GPU of `capability` with this much shared memory a program can run; 80 at least."""
    return max((c for c in CAPABILITIES if c <= capability and SHARED_LIMIT[c] <= shared_bytes), default=CAPABILITIES[0])
