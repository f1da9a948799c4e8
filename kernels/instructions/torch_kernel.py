"""A job prepared for torch: a flat list of bound steps over the job's buffers, and the scratch they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from einpage.kernels.layout.window import BoundCall, BoundStep

Operands = tuple[tuple[Tensor, ...], ...]
"""[read][tile] the packed tiles of each of a job's reads."""


@dataclass(frozen=True, slots=True)
class TorchKernel:
    """A prepared job: called with packed tiles, it fills the result. Equal kernels do the same to their operands."""

    steps: tuple[BoundStep, ...]
    scratch: tuple[int, ...]
    """fp32 elements of each scratch buffer."""
    temporary_bytes: int
    """The most that the steps allocate for themselves, scratch not counted."""

    @property
    def scratch_bytes(self) -> int:
        """The most it allocates at once: scratch buffers in fp32, and the steps' temporaries."""
        return 4 * sum(self.scratch) + self.temporary_bytes

    def bind(self, operands: Operands, result: Tensor, scratch: Tensor, others: tuple[Tensor, ...] = ()) -> BoundCall:
        """What fills `result`, and `others`, from `operands`, as often as it is called. `scratch` is flat, fp32, and holds all buffers one
        behind the other; calls may share it that do not run at the same time."""
        calls = [step((*operands, (result, *others), _split(scratch, self.scratch))) for step in self.steps]
        if len(calls) == 1:
            return calls[0]

        def run() -> None:
            for call in calls:
                call()

        return run

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None, *others: Tensor) -> None:
        """Fill `result`, and `others`, from `operands`; both as in prepare.Kernel. `workspace` is not used: scratch is allocated anew."""
        buffers = (*operands, (result, *others), _split(torch.empty(sum(self.scratch)), self.scratch))
        for step in self.steps:
            step(buffers)()


def _split(scratch: Tensor, elements: Sequence[int]) -> list[Tensor]:
    """The first elements of `scratch` as buffers of these sizes."""
    return list(torch.split(scratch[: sum(elements)], list(elements))) if elements else []
