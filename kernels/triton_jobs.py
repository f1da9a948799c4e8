"""From a job to Triton kernels that are ready to launch.

In: a job. Out: a kernel whose call checks its tensors, allocates nothing and launches. A gather from the host is no kernel on any
backend: it is handed to the host gather. Indices that depend on data are checked by the torch definition of the index expressions first,
as no kernel can raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from torch import Tensor

from einpage.einsum_front.expr import Expr
from einpage.einsum_front.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, View
from einpage.kernels.access import TORCH_DTYPE
from einpage.kernels.gather import HostGather, prepare_gather
from einpage.kernels.index_check import index_checks
from einpage.kernels.program import Operands
from einpage.kernels.triton_attention import attention_launches
from einpage.kernels.triton_build import build
from einpage.kernels.triton_contract import contract_launches
from einpage.kernels.triton_launch import Launch
from einpage.kernels.triton_map import map_launches
from einpage.kernels.triton_target import Target, here


@dataclass(frozen=True, slots=True)
class TritonKernel:
    reads: tuple[View, ...]
    result: View
    launches: tuple[tuple[Any, Launch], ...]
    """(function, its launch)."""
    check: Callable[[Operands], None] | None
    """Raises IndexOutOfRange before anything is launched."""
    scratch_bytes: int = 0

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None) -> None:
        self._verify(operands, result)
        if self.check is not None:
            self.check(operands)
        for function, launch in self.launches:
            pointers = (operands[i][j].view(-1)[first:] if first else operands[i][j] for i, j, first in launch.pointers)
            function[(launch.programs,)](*pointers, result, *launch.starts, num_warps=launch.tiles.warps, num_stages=launch.tiles.stages)

    def _verify(self, operands: Operands, result: Tensor) -> None:
        """Our own contract: packed tiles of the boxes' shapes and dtypes, on one device."""
        pairs = [(v, j, t) for v, tiles in zip(self.reads, operands, strict=True) for j, t in enumerate(tiles)]
        for view, j, tile in [*pairs, (self.result, 0, result)]:
            assert tuple(tile.shape) == view.boxes[j].shape, (
                f"tile {j} of {view.name} has shape {tuple(tile.shape)}, its box {view.boxes[j].shape}"
            )
            assert tile.dtype is TORCH_DTYPE[view.dtype], f"tile {j} of {view.name} is {tile.dtype}, its view {view.dtype.value}"
            assert tile.is_contiguous(), f"tile {j} of {view.name} is not packed"
            assert tile.device == result.device, f"tile {j} of {view.name} is on {tile.device}, the result on {result.device}"


def triton_kernel(job: Job, target: Target | None = None) -> TritonKernel | HostGather:
    """The Triton kernels of `job` for the GPU at hand, or for `target`. Raises Unsupported where they cannot be written, saying why."""
    match job:
        case GatherJob():
            return prepare_gather(job)
        case MapJob() | ContractJob() | AttentionJob():
            launches = launches_of(job, target or here())
        case _:
            assert_never(job)
    return TritonKernel(
        job.reads, job.result, tuple((build(launch.text), launch) for launch in launches), index_checks(job, _expressions(job))
    )


def launches_of(job: MapJob | ContractJob | AttentionJob, target: Target) -> list[Launch]:
    """The sources of a job and how to launch them. Raises Unsupported."""
    match job:
        case MapJob():
            return map_launches(job)
        case ContractJob():
            return contract_launches(job, target)
        case AttentionJob():
            return attention_launches(job)
    assert_never(job)


def _expressions(job: MapJob | ContractJob | AttentionJob) -> tuple[Expr, ...]:
    match job:
        case MapJob():
            return tuple(p.expr for p in job.parts)
        case ContractJob():
            return (job.epilogue,)
        case AttentionJob():
            return (job.score, job.epilogue)
    assert_never(job)


def kernel_sources(job: Job, target: Target | None = None) -> tuple[str, ...]:
    """The Triton source of `job`, for people to read; none for a gather from the host."""
    return () if isinstance(job, GatherJob) else tuple(launch.text for launch in launches_of(job, target or here()))
