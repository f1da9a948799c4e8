"""What kernels are written for: the GPU's compute capability, and choices that a measurement wants to force."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from einpage.kernels.triton_tiles import Tiles

CAPABILITIES = (80, 90)
"""Compute capabilities that the tables speak of."""


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
    return Target(max(c for c in CAPABILITIES if c <= max(10 * major + minor, CAPABILITIES[0])))
