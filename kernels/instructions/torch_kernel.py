"""A prepared job: a flat list of steps over the job's memory, and the scratch they need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from einpage.kernels.layout.window import Op

Operands = tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True, slots=True)
class Program:
    ops: tuple[Op, ...]
    scratch: tuple[int, ...]
    """fp32 elements of each scratch buffer."""
    temporary_bytes: int
    """What the steps allocate for themselves at most, besides."""

    @property
    def scratch_bytes(self) -> int:
        return 4 * sum(self.scratch) + self.temporary_bytes

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None) -> None:
        memory = (*operands, (result,), [torch.empty(n) for n in self.scratch])
        for op in self.ops:
            op(memory)
