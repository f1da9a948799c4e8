"""From a job to a kernel, once for every equal job.

In: a job and a backend. Out: a kernel, called as kernel(operands, result, workspace). The torch backend does every job; the Triton backend
says what it cannot do (Unsupported) and never does something else instead. Triton is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Protocol, assert_never

from torch import Tensor

from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob
from einpage.kernels.instructions.torch_kernel import Operands, Program
from einpage.kernels.on_torch.attention import attention_program
from einpage.kernels.on_torch.contract import contract_program
from einpage.kernels.on_torch.host_gather import HostGather, prepare_gather
from einpage.kernels.on_torch.map import map_program


class Backend(Enum):
    TORCH = "torch"
    TRITON = "triton"


class Kernel(Protocol):
    """A prepared job. `operands[i][j]` is the j-th tile of read i, packed, in its box's shape; `result` likewise.

    `result` may share memory with an operand of the same box that the job reads only element by element at the target's own letters.
    """

    @property
    def scratch_bytes(self) -> int:
        """Bytes it may hold at once besides its operands, result and workspace."""

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None) -> object: ...


@lru_cache(maxsize=4096)
def prepare(job: Job, backend: Backend = Backend.TORCH) -> Kernel:
    """The kernel of `job`. Raises Unsupported, with the reason, where the backend cannot do it."""
    if backend is Backend.TRITON:
        from einpage.kernels.launch.kernel import triton_kernel

        return triton_kernel(job)
    return _torch(job)


class Launches(Protocol):
    """What a device of streams wants of a kernel that launches: everything slow before the run."""

    @property
    def check(self) -> Callable[[Sequence[tuple[Tensor, ...] | None]], None] | None:
        """Raises IndexOutOfRange, given the operands that are on the host; None where every index is known beforehand."""

    def warm(self, operands: Operands, result: Tensor) -> None:
        """Compile and load, run nothing."""

    def bind(self, operands: Operands, result: Tensor) -> Callable[[], None]:
        """The launches for these tensors."""


def prepare_launches(job: Job) -> Launches:
    """The Triton kernels of `job`. Raises Unsupported, with the reason, where they cannot be written."""
    from einpage.kernels.launch.kernel import TritonKernel

    kernel = prepare(job, Backend.TRITON)
    assert isinstance(kernel, TritonKernel), "a gather from the host launches nothing"
    return kernel


def _torch(job: Job) -> Program | HostGather:
    match job:
        case MapJob():
            return map_program(job)
        case ContractJob():
            return contract_program(job)
        case AttentionJob():
            return attention_program(job)
        case GatherJob():
            return prepare_gather(job)
    assert_never(job)


def scratch_bytes(job: Job) -> int:
    """An upper bound on what the torch kernel of `job` allocates at once, in bytes."""
    return prepare(job, Backend.TORCH).scratch_bytes
