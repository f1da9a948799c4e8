"""From a job to Triton kernels that are ready to launch.

In: a job. Out: a kernel whose call checks its tensors, allocates nothing and launches. A gather from the host is a copy on every backend:
that of on_torch/host_gather.py. No kernel can raise, so indices that depend on data are checked beforehand by the torch
definition of the index expressions: by the call itself where the tensors are on the CPU, by the device from host copies elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, assert_never

from torch import Tensor

from einpage.einsum_front.algebra.expr import Expr
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, OverflowJob, PairsJob, View, results_of
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.launch.bound_launch import BoundLaunch, bound_launch
from einpage.kernels.launch.build import build
from einpage.kernels.launch.index_check import IndexCheck, index_checks
from einpage.kernels.launch.this_gpu import current_target
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.on_torch.host_gather import GatherKernel, prepare_gather
from einpage.kernels.on_triton.attention import attention_launches
from einpage.kernels.on_triton.contract import contract_launches
from einpage.kernels.on_triton.map import clear_flag_launch, map_launches, overflow_launches
from einpage.kernels.on_triton.pairs import added_rows, pairs_launches
from einpage.kernels.tiles.target import Target
from einpage.kernels.writer.descriptor import ALIGNED
from einpage.kernels.writer.launch import RESULT, Descriptor, Launch


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A prepared job: called with packed tiles, it launches its kernels."""

    reads: tuple[View, ...]
    result: View
    launches: tuple[tuple[Any, Launch], ...]
    """(function, its launch)."""
    check: IndexCheck | None
    """For a device to call with host copies once its inputs are known, before what uses them runs; None where nothing is to check."""
    ways: tuple[str, ...] = ()
    """How its products and attentions are written, for people."""
    scratch_bytes: int = 0
    others: tuple[View, ...] = ()
    """Of the results beside the first."""
    _compiled: dict[tuple[int, tuple[bool, ...]], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By launch, and which of its pointers are aligned."""

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None, *others: Tensor) -> None:
        """Launch. On the CPU indices are checked first; elsewhere that would wait for the device, so it is for the device to have done."""
        if self.check is not None and result.device.type == "cpu":
            self.check(operands)
        self.bind(operands, result, None, *others)()

    def bind(self, operands: Operands, result: Tensor, stream: int | None = None, *others: Tensor) -> BoundLaunch:
        """The launches for these tensors, which are verified now and not again; no index is checked. They go on the current stream, or on
        that of the handle `stream`, whatever is current: then the caller holds the tensors."""
        self._verify(operands, result, *others)
        found = [self._bound(i, *self._arguments(launch, operands, result, *others), stream) for i, (_, launch) in enumerate(self.launches)]
        if len(found) == 1:
            return found[0]
        calls = tuple(bound.call for bound in found)

        def launch_all() -> None:
            for call in calls:
                call()

        return BoundLaunch(launch_all, next((bound.why_slow for bound in found if bound.why_slow is not None), None))

    def _bound(self, i: int, arguments: tuple[object, ...], options: dict[str, int], stream: int | None) -> BoundLaunch:
        """The launch number i. What is compiled depends on where pointers are aligned; else it is the same for all tensors."""
        function, launch = self.launches[i]
        compiled = None
        if stream is not None:
            key = i, tuple(a.data_ptr() % ALIGNED == 0 for a in arguments if isinstance(a, Tensor))
            if key not in self._compiled:
                self._compiled[key] = function.warmup(*arguments, grid=(launch.programs,), **options)
            compiled = self._compiled[key]
        if compiled is None or stream is None:
            return BoundLaunch(partial(function[(launch.programs,)], *arguments, **options))
        return bound_launch(compiled, launch.programs, stream, arguments)

    def warm(self, operands: Operands, result: Tensor, *others: Tensor) -> None:
        """Compile for such tensors and load the code onto their device, without running anything; nothing where Triton interprets."""
        self._verify(operands, result, *others)
        for function, launch in self.launches:
            arguments, options = self._arguments(launch, operands, result, *others)
            compiled = function.warmup(*arguments, grid=(launch.programs,), **options)
            if compiled is not None:
                _ = compiled.run  # loads the code, which a recorded graph or a timed launch must not have to do

    def _arguments(self, launch: Launch, operands: Operands, result: Tensor, *others: Tensor) -> tuple[tuple[object, ...], dict[str, int]]:
        pointers: list[Any] = [operands[i][j].view(-1)[offset:] if offset else operands[i][j] for i, j, offset in launch.pointers]
        pointers += [_tensor_descriptor(d, result if d.operand == RESULT else operands[d.operand][d.tile]) for d in launch.descriptors]
        return (*pointers, result, *others, *launch.starts), {"num_warps": launch.tiles.warps, "num_stages": launch.tiles.stages}

    def _verify(self, operands: Operands, result: Tensor, *others: Tensor) -> None:
        """Our own contract: packed tiles of the boxes' shapes and dtypes, on one device."""
        pairs = [(v, j, t) for v, tiles in zip(self.reads, operands, strict=True) for j, t in enumerate(tiles)]
        pairs += [(v, 0, t) for v, t in zip((self.result, *self.others), (result, *others), strict=True)]
        for view, j, tile in pairs:
            assert tuple(tile.shape) == view.boxes[j].shape, (
                f"tile {j} of {view.name} has shape {tuple(tile.shape)}, its box {view.boxes[j].shape}"
            )
            assert tile.dtype is TORCH_DTYPE[view.dtype], f"tile {j} of {view.name} is {tile.dtype}, its view {view.dtype.value}"
            assert tile.is_contiguous(), f"tile {j} of {view.name} is not packed"
            assert tile.device == result.device, f"tile {j} of {view.name} is on {tile.device}, the result on {result.device}"


def _tensor_descriptor(d: Descriptor, tile: Tensor) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tile.view(-1)[d.offset :], list(d.shape), list(d.strides), list(d.block))


def triton_kernel(job: Job, target: Target | None = None) -> TritonKernel | GatherKernel:
    """The Triton kernels of `job` for the GPU at hand, or for `target`. Raises Unsupported where they cannot be written, saying why."""
    match job:
        case GatherJob():
            return prepare_gather(job)
        case MapJob() | ContractJob() | AttentionJob() | PairsJob() | OverflowJob():
            launches = launches_of(job, target or current_target())
        case _:
            assert_never(job)
    word = {ContractJob: "product", AttentionJob: "attention", PairsJob: "pairs"}.get(type(job))
    return TritonKernel(
        job.reads,
        job.result,
        tuple((build(launch.text), launch) for launch in launches),
        index_checks(job, _expressions(job)),
        () if word is None else (f"{word} by {launches[-1].way}",),  # before it, its flag may be lowered
        others=results_of(job)[1:],
    )


OnDevice: TypeAlias = "MapJob | ContractJob | AttentionJob | PairsJob | OverflowJob"
"""Jobs that kernels do."""


def launches_of(job: OnDevice, target: Target) -> list[Launch]:
    """The sources of a job and how to launch them, one after the other; a result's flag is lowered first. Raises Unsupported."""
    launches = _launches(job, target)
    return [clear_flag_launch(job), *launches] if job.result.is_checked else launches


def _launches(job: OnDevice, target: Target) -> list[Launch]:
    match job:
        case MapJob():
            return map_launches(job)
        case ContractJob():
            return contract_launches(job, target)
        case AttentionJob():
            return attention_launches(job, target)
        case PairsJob():
            return pairs_launches(job, target) if job.products else map_launches(added_rows(job))
        case OverflowJob():
            return overflow_launches(job)
    assert_never(job)


def _expressions(job: OnDevice) -> tuple[Expr, ...]:
    match job:
        case MapJob():
            return tuple(p.expr for p in job.parts)
        case ContractJob():
            return (job.epilogue,)
        case AttentionJob():
            return (job.score, job.epilogue)
        case PairsJob():
            return (job.weight, job.epilogue)
        case OverflowJob():
            return ()
    assert_never(job)


def kernel_sources(job: Job, target: Target | None = None) -> tuple[str, ...]:
    """The Triton source of `job`, for people to read; none for a gather from the host."""
    return () if isinstance(job, GatherJob) else tuple(launch.text for launch in launches_of(job, target or current_target()))
