"""What kernels are written for: the GPU's compute capability, and choices that a measurement wants to force."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles

CAPABILITIES = tuple(SHARED_LIMIT)
"""Compute capabilities that the tables speak of; 86 stands for all GPUs with less shared memory than 80 has (8.6, 8.9, 12.0)."""


@dataclass(frozen=True, slots=True)
class Target:
    capability: int = 90
    """One of CAPABILITIES."""
    product: Tiles | None = None
    """The tile of every matrix product, instead of the table's."""
    attention: Tiles | None = None
    """The tile of every attention: queries a block, keys a step."""


def here() -> Target:
    """The GPU at hand; what the interpreter stands in for, where there is none."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return Target()
    major, minor = torch.cuda.get_device_capability()
    return Target(table_of(10 * major + minor, shared_bytes()))


def table_of(capability: int, shared: int) -> int:
    """Of CAPABILITIES, the latest that a GPU of `capability` with `shared` bytes of shared memory a program can run; 80 at least."""
    return max((c for c in CAPABILITIES if c <= capability and SHARED_LIMIT[c] <= shared), default=CAPABILITIES[0])


def shared_bytes() -> int:
    """Of shared memory that one program may have on the GPU at hand. Raises whatever Triton does where it does not work."""
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"])
