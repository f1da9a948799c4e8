"""From a job to a kernel, once for every equal job: what the other folders use of this one.

In: a job and a backend. Out: a kernel, called as kernel(operands, result, workspace, *other results). The torch backend does every job; the
Triton backend says what it cannot do (Unsupported) and never does something else instead. Triton is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import Protocol, assert_never

import torch
from torch import Tensor

from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, OverflowJob, PairsJob
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions.torch_kernel import Operands, TorchKernel
from einpage.kernels.launch import this_gpu
from einpage.kernels.launch.bound_launch import BoundLaunch
from einpage.kernels.layout.flags import any_flag
from einpage.kernels.multiply.products import ONLY_MM, Products
from einpage.kernels.multiply.unpack_steps import to_numbers
from einpage.kernels.on_torch.added_rows import prepare_added_rows
from einpage.kernels.on_torch.attention import prepare_attention
from einpage.kernels.on_torch.contract import prepare_contract
from einpage.kernels.on_torch.few_queries import prepare_few_queries
from einpage.kernels.on_torch.fused_attention import prepare_fused
from einpage.kernels.on_torch.host_gather import GatherKernel, prepare_gather, split_gather
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.on_torch.pairs import prepare_pairs
from einpage.kernels.on_torch.written_rows import prepare_written_rows
from einpage.kernels.tiles.target import AS_IT_IS, Choices


class Backend(Enum):
    """What computes: torch calls on the CPU, or generated Triton kernels."""

    TORCH = "torch"
    TRITON = "triton"


class Kernel(Protocol):
    """A prepared job. `operands[i][j]` is the j-th tile of read i, packed, in its box's shape; `result` likewise.

    A result may share memory with an operand of the same box that the job reads only element by element at the target's own letters.
    """

    @property
    def scratch_bytes(self) -> int:
        """The most it allocates at once, operands, result and workspace not counted."""

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None, *others: Tensor) -> object:
        """Fill `result`, and the job's `others`. `workspace` is the task's own in the arena, as uint8 [nbytes]; None where it has none."""


@lru_cache(maxsize=4096)
def prepare(job: Job, backend: Backend = Backend.TORCH, products: Products = ONLY_MM, choices: Choices = AS_IT_IS) -> Kernel:
    """The kernel of `job`; `products` says how torch's multiplies, `choices` how Triton's do. Raises Unsupported, with the reason, where
    the backend cannot do it."""
    job = _without_flags_read(job)
    if backend is Backend.TRITON:
        if stored := next((view.name for view in job.reads if isinstance(view.element_type, Stored)), None):
            raise Unsupported(f"{stored} is kept as it is stored, and Triton's kernels read numbers: say --weights-as run")
        from einpage.kernels.launch.kernel import triton_kernel

        return triton_kernel(job, this_gpu.current_target(choices))
    return _torch(job, products)


class PreparedKernels:
    """The kernels of one plan, one object for all that do the same: tiles of one shape differ in where they lie, which operands say."""

    def __init__(self, backend: Backend, products: Products = ONLY_MM) -> None:
        self._backend, self._products = backend, products
        self._kernel_by_job: dict[int, tuple[Job, Kernel]] = {}
        """By the job's id: layers share their jobs, and to compare two takes longer than to run one."""
        self._torch_kernels: dict[TorchKernel, TorchKernel] = {}
        self.scratch_elements = 0
        """fp32 elements that hold the scratch buffers of any kernel prepared so far."""
        self._beside_bytes = 0
        """The most that one of them allocates beside its scratch buffers."""

    @property
    def scratch_bytes(self) -> int:
        """The most that kernels prepared so far hold at once, one running at a time over scratch that all share."""
        return 4 * self.scratch_elements + self._beside_bytes

    def of(self, job: Job) -> Kernel:
        """As `prepare`."""
        if id(job) not in self._kernel_by_job:
            kernel = prepare(job, self._backend, self._products)
            beside_bytes = kernel.scratch_bytes
            if isinstance(kernel, TorchKernel):
                kernel = self._torch_kernels.setdefault(kernel, kernel)
                self.scratch_elements = max(self.scratch_elements, sum(kernel.scratch))
                beside_bytes = kernel.temporary_bytes
            self._beside_bytes = max(self._beside_bytes, beside_bytes)
            self._kernel_by_job[id(job)] = job, kernel
        return self._kernel_by_job[id(job)][1]


class Launches(Protocol):
    """What a device of streams needs of a kernel that launches: everything slow before the run."""

    @property
    def check(self) -> Callable[[Sequence[tuple[Tensor, ...] | None]], None] | None:
        """Raises IndexOutOfRange, given the operands that are on the host; None where every index is known beforehand."""

    @property
    def ways(self) -> tuple[str, ...]:
        """How its products and attentions are written, for people: `product by TMA, persistent`."""

    def warm(self, operands: Operands, result: Tensor, *others: Tensor) -> None:
        """Compile and load, run nothing."""

    def bind(self, operands: Operands, result: Tensor, stream: int | None = None, *others: Tensor) -> BoundLaunch:
        """The launches for these tensors, on the stream of that handle, or on the current one."""


def prepare_launches(job: Job, choices: Choices = AS_IT_IS) -> Launches:
    """The Triton kernels of `job`. Raises Unsupported, with the reason, where they cannot be written."""
    from einpage.kernels.launch.kernel import TritonKernel

    kernel = prepare(job, Backend.TRITON, choices=choices)
    assert isinstance(kernel, TritonKernel), "a gather from the host launches nothing"
    return kernel


def prepare_gathers(job: GatherJob, nbytes: int) -> Iterator[tuple[GatherJob, Kernel]]:
    """`job` as gathers of at most `nbytes` of its result each (one element at least), which lie one after the other in it."""
    for part in split_gather(job, nbytes):
        yield part, prepare(part)


def numbers_of(blocks: Tensor, stored: Stored, shape: tuple[int, ...]) -> Tensor:
    """The numbers of a tile that is kept as it is stored, bytes [nbytes], as kernels use them: fp32, of `shape`."""
    out = torch.empty(shape)
    to_numbers(blocks, out.view(-1), stored)()
    return out


def triton_version() -> str:
    """What times of the generated kernels depend on beside the GPU."""
    from einpage.kernels.tiles.kernels_version import triton_kernels_version

    return triton_kernels_version()


def why_not_triton() -> str | None:
    """Why compiled Triton kernels cannot run on the current CUDA device; None where they can."""
    return this_gpu.why_not_triton()


def _torch(job: Job, products: Products) -> TorchKernel | GatherKernel:
    match job:
        case MapJob():
            return prepare_written_rows(job) or prepare_map(job)
        case ContractJob():
            return prepare_contract(job, products=products)
        case AttentionJob():
            return prepare_few_queries(job) or prepare_fused(job, products) or prepare_attention(job, products=products)
        case PairsJob():
            return prepare_pairs(job, products=products) if job.products else prepare_added_rows(job)
        case GatherJob():
            return prepare_gather(job)
        case OverflowJob():
            return TorchKernel((any_flag(len(job.reads)),), (), 0)
    assert_never(job)


def _without_flags_read(job: Job) -> Job:
    """`job`, which reads numbers: flags behind tiles are for an OverflowJob alone."""
    if isinstance(job, OverflowJob) or not any(view.is_checked for view in job.reads):
        return job
    return replace(job, reads=tuple(replace(v, element_type=v.dtype) if v.is_checked else v for v in job.reads))


def scratch_bytes(job: Job) -> int:
    """An upper bound on what the torch kernel of `job` allocates at once, in bytes."""
    return prepare(job, Backend.TORCH).scratch_bytes
