"""The CPU as a device: an arena of exactly the budget is its memory, the rest of the machine is the host.

All that takes time is done when the device is made: kernels (once for equal jobs), tensor views of arena bytes. A node then costs
microseconds. Nodes on the same bytes share views and calls: in a small arena the same few offsets are used again and again. Copies are
single-threaded and release the interpreter's lock, so a copy engine runs beside kernels. With `poison`, memory is overwritten wherever
its contents are undefined: at the start, at every Free, and workspace after use.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import memmove
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.checkpoints.disk.block_store import DiskRead
from einpage.einsum_front.base.dtype import ElementType
from einpage.einsum_front.base.libraries import ONLY_TORCH, Libraries
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import GatherJob
from einpage.einsum_front.graph.taskgraph import TaskId
from einpage.exec.device.arena import HostArena, MappedArena, residency_view, used_extents
from einpage.exec.device.device import DeviceMemory, MovedBytes, Rested, extents_beside, no_op
from einpage.exec.device.disk import PlanDisk
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.exec.system.cache_folder import code_folder
from einpage.kernels.instructions.torch_kernel import Operands, TorchKernel
from einpage.kernels.multiply.products import Products
from einpage.kernels.on_llvm.compile import store_machine_code_in
from einpage.kernels.prepare import Backend, PreparedKernels
from einpage.memplan.graph.memgraph import Compute, Copy, Extent, Free, HostGather, MemGraph, Move, NodeId, Offset, ResidencyId
from einpage.memplan.graph.packed import Residencies
from einpage.memplan.machine.places import DEVICE, DISK, HOST, Place, PlaceKind, Queue

MOST_KEPT_STEPS = 8192
"""Steps of kernels that keep the views they look through, at about 1.5 kB each: those of larger plans look anew in every call."""


class CpuMemory(DeviceMemory):
    """Two arenas of this process, and where plans have a disk, what is there."""

    def __init__(self, host: HostArena, nbytes: int, disk: OpenDisk | None = None) -> None:
        """Raises MemoryError."""
        super().__init__(host, nbytes)
        self.disk = disk
        self.device = MappedArena(nbytes)
        self._is_backed = np.zeros(-(-nbytes // mmap.PAGESIZE), bool)
        """[page] of the device's arena."""

    def back(self, memgraph: MemGraph) -> None:
        """Back the pages that `memgraph` uses and no plan before did: the first write to a fresh page takes 20 times the second."""
        for extent in used_extents(memgraph):
            pages = np.arange(extent.offset // mmap.PAGESIZE, -(-extent.end // mmap.PAGESIZE))
            fresh = pages[~self._is_backed[pages]]
            self.device.touch(fresh)
            self._is_backed[fresh] = True


class CpuDevice:
    """Runs `memgraph` on real bytes. The host's arena of `memory` holds the weights and inputs, or will before the run starts."""

    name = "cpu"

    def __init__(
        self,
        memgraph: MemGraph,
        memory: CpuMemory,
        *,
        backend: str = "torch",
        threads: int | None = None,
        libraries: Libraries = ONLY_TORCH,
        poison: bool = False,
    ) -> None:
        """`libraries` are the figures of the machine profile that say how products are computed, and so their last bits.

        `threads` is what torch may use for one kernel, a figure of the machine profile: results differ bitwise between thread counts,
        so it is the same for every dispatcher. None: torch's own number."""
        if threads is not None:
            torch.set_num_threads(threads)
        self._threads = torch.get_num_threads()
        self._memgraph, self._backend, self._poison = memgraph, Backend(backend), poison
        assert memory.nbytes == memgraph.budget_bytes, f"an arena of {memory.nbytes} bytes for {memgraph.budget_bytes}"
        self._memory, self._device, self._host = memory, memory.device, memory.host
        memory.back(memgraph)
        if memory.ran is None:
            self._poison_beside(frozenset())
        self._residencies = Residencies.of(memgraph.residencies)
        self._arenas = [self._device if place == DEVICE else self._host for place in self._residencies.places]
        """[place] as the residencies number them; the disk has none"""
        self._counted = MovedBytes(memgraph)
        self._gathered: dict[NodeId, int] = {}
        self._copies: dict[NodeId, tuple[tuple[int, int, int], ...]] = {}
        """(address to copy to, address to copy from, bytes)"""
        self._disk_reads: dict[NodeId, DiskRead] = {}
        self._under_way: dict[DiskRead, NodeId] = {}
        self._disk_writes: dict[NodeId, Callable[[], None]] = {}
        self.arena_bytes: int = memgraph.budget_bytes
        store_machine_code_in(code_folder())
        calls = _KernelCalls(memgraph, self._arena, PreparedKernels(self._backend, Products(libraries, self._threads)))
        self._disk: PlanDisk | None = None
        if memgraph.has_disk:
            assert memory.disk is not None, "a plan with a disk runs where one is open"
            self._disk = PlanDisk(memgraph, memory.disk, memory.host)
        self._calls = [self._prepare(calls, NodeId(i), node) for i, node in enumerate(memgraph.nodes)]
        """[node] what a Compute or HostGather does."""
        calls.compile()
        self.outside_arena_bytes = calls.kernels.scratch_bytes

    def close(self) -> None:
        """Nothing to release."""

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        return self._counted.by_link()

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Read from the disk and written to it in the last run, in whole sectors."""
        return (0, 0) if self._disk is None else self._disk.moved_bytes

    def start_run(self, rested: Rested) -> None:
        self._memory.start_run(rested)
        self._counted.clear()
        if self._disk is not None:
            self._disk.start_run()

    def end_run(self) -> None:
        if self._disk is not None:
            self._disk.end_run()
        self._memory.ran = self._memgraph

    def init_thread(self) -> None:
        # A new thread uses OpenMP's own number of threads until it calls something in torch that consults torch's number. A product of few
        # rows does not, and would wake, for every call, a team whose members then spin on the cores that copies need. And since this
        # device was made, somebody may have set another number.
        torch.set_num_threads(self._threads)

    def preload(self) -> int:
        there = self._memory.prepare_for(self._memgraph)
        self._poison_beside(there)
        tensor, start, on_device, on_host = (
            self._residencies.tensor, self._memgraph.start, self._residencies.at(DEVICE), self._residencies.at(HOST),
        )  # fmt: skip
        host_copy_by_tensor = {int(tensor[r]): r for r in start if on_host[r]}
        loaded = 0
        for r in start:
            if on_device[r] and r not in there:
                assert not self._memgraph.has_disk, "what a loop over a disk begins with is loaded by a plan of its own"
                target = self._bytes(r)
                np.copyto(target, self._bytes(host_copy_by_tensor[int(tensor[r])]))
                loaded += target.nbytes
        return loaded

    def compute(self, node: NodeId) -> None:
        self._calls[node]()
        if self._poison:
            ran = self._memgraph.nodes[node]
            assert isinstance(ran, Compute)
            if ran.workspace is not None:
                self._device.poison(ran.workspace)

    def copy(self, node: NodeId) -> None:
        if self._disk is not None and (node in self._disk_reads or node in self._disk_writes):
            if node in self._disk_reads:
                self._disk.store.run(self._disk_reads[node])
            else:
                self._disk_writes[node]()
            self._counted.add(node, self._memgraph.moved_bytes(node))
            return
        for target, source, nbytes in self._copies[node]:
            memmove(target, source, nbytes)
            self._counted.add(node, nbytes)

    @property
    def most_reads(self) -> int:
        return 1 if self._disk is None else self._disk.store.depth

    def begin(self, node: NodeId) -> bool:
        if self._disk is None or node not in self._disk_reads:
            return False
        read = self._disk_reads[node]
        self._under_way[read] = node
        self._disk.store.begin(read)
        return True

    def ended(self) -> Sequence[tuple[NodeId, Exception | None]]:
        assert self._disk is not None, "what reads no disk has nothing under way"
        found = [(self._under_way.pop(read), read.error) for read in self._disk.store.ended()]
        for node, _ in found:
            self._counted.add(node, self._memgraph.moved_bytes(node))
        return found

    def wake(self) -> None:
        if self._disk is not None:
            self._disk.store.wake()

    def drain(self) -> None:
        if self._disk is not None:
            self._disk.store.drain()
        self._under_way.clear()

    def gather(self, node: NodeId) -> None:
        self._calls[node]()
        self._counted.add(node, self._gathered[node])

    def free(self, node: NodeId) -> None:
        if self._poison:
            freed = self._memgraph.nodes[node]
            assert isinstance(freed, Free)
            residency = self._memgraph.residencies[freed.residency]
            for extent in residency.extents if residency.place != DISK else ():
                self._arena(residency.place).poison(extent)

    def contents(self, residency: ResidencyId) -> torch.Tensor:
        """The bytes of `residency` as its tensor; no copy."""
        found = self._memgraph.residencies[residency]
        return residency_view(self._memgraph, found, self._arena(found.place))

    def _prepare(self, calls: _KernelCalls, i: NodeId, node: Compute | Move | HostGather | Free) -> Callable[[], object]:
        match node:
            case Compute(task, operands, creates, workspace, others):
                return calls.call(task, operands, (creates, *others), workspace)
            case HostGather(task, operands, creates):
                self._gathered[i] = calls.view(creates).nbytes
                if self._disk is not None and self._memgraph.queue(i) == Queue.READ:
                    return self._disk_gather(self._disk, task, operands, creates)
                return calls.call(task, operands, (creates,), None)
            case Move() as move:
                if self._disk is not None and self._memgraph.queue(i) in (Queue.READ, Queue.WRITE):
                    self._prepare_disk(self._disk, i, move)
                else:
                    self._copies[i] = tuple(map(self._addresses, move.copies))
                return no_op
            case Free():
                return no_op

    def _prepare_disk(self, disk: PlanDisk, i: NodeId, move: Move) -> None:
        """What a move from or to the disk does."""
        residencies = self._memgraph.residencies
        copies = [(residencies[source], residencies[target]) for source, target in move.copies]
        match self._memgraph.queue(i):
            case Queue.READ:
                self._disk_reads[i] = disk.prepared(copies)
            case Queue.WRITE:
                self._disk_writes[i] = partial(disk.write, copies)

    def _disk_gather(
        self, disk: PlanDisk, task: TaskId, operands: tuple[tuple[ResidencyId, ...], ...], creates: ResidencyId
    ) -> Callable[[], object]:
        job = self._memgraph.graph.tasks[task].job
        assert isinstance(job, GatherJob), "a plan read back from a file has no jobs to run"
        found = [[self._memgraph.residencies[r] for r in operand] for operand in operands]
        return disk.gather(job, found, lambda r: residency_view(self._memgraph, r, self._arena(r.place)), self.contents(creates))

    def _poison_beside(self, there: Collection[ResidencyId]) -> None:
        if self._poison:
            on_device = Residencies.of(self._memgraph.residencies).at(DEVICE)
            for extent in extents_beside(self._memgraph, [r for r in there if on_device[r]]):
                self._device.poison(extent)

    def _bytes(self, residency: int) -> NDArray[np.uint8]:
        found, at = self._residencies, self._residencies.extent_row[residency]
        extent = Extent(Offset(int(found.offset[at])), Nbytes(int(found.nbytes[at])))
        arena: MappedArena = self._arenas[found.place[residency]]
        return arena.bytes(extent)

    def _addresses(self, copy: Copy) -> tuple[int, int, int]:
        source, target = self._bytes(copy[0]), self._bytes(copy[1])
        assert source.nbytes == target.nbytes, f"a copy of {source.nbytes} bytes to {target.nbytes}"
        return target.ctypes.data, source.ctypes.data, target.nbytes

    def _arena(self, place: Place) -> MappedArena:
        match place.kind:
            case PlaceKind.DEVICE:
                return self._device
            case PlaceKind.HOST:
                return self._host
            case PlaceKind.DISK:
                raise AssertionError("what is on the disk is in no arena")


class _BoundKernel:
    """A kernel and the tensors it works on. It looks at them when it is told to or first called, and keeps its views while `kept` has
    room."""

    __slots__ = ("_call", "_kept", "_kernel", "_operands", "_results")

    def __init__(self, kernel: TorchKernel, operands: Operands, results: tuple[torch.Tensor, ...], kept: _KeptViews) -> None:
        self._kernel, self._operands, self._results, self._kept = kernel, operands, results, kept
        self._call: Callable[[], object] | None = None

    def __call__(self) -> None:
        (self._call or self.look())()

    def look(self) -> Callable[[], object]:
        """What the kernel does on its tensors. The first of a kernel's looks may compile machine code."""
        result, *others = self._results
        call = self._kernel.bind(self._operands, result, self._kept.scratch(), tuple(others))
        if self._kept.take(len(self._kernel.steps)):
            self._call = call
        return call


class _KeptViews:
    """What bound kernels share: scratch, and how many more of their steps may keep the views they look through."""

    def __init__(self, kernels: PreparedKernels) -> None:
        self._kernels, self._left = kernels, MOST_KEPT_STEPS
        self._scratch: torch.Tensor | None = None

    def scratch(self) -> torch.Tensor:
        """Scratch for any kernel prepared; one kernel runs at a time."""
        if self._scratch is None:
            self._scratch = torch.empty(self._kernels.scratch_elements)
        return self._scratch

    def take(self, steps: int) -> bool:
        """Whether so many more steps may keep their views."""
        if steps > self._left:
            return False
        self._left -= steps
        return True


class _KernelCalls:
    """Makes what nodes call: a kernel bound to the views it works on, one object for all nodes with the same ones."""

    def __init__(self, memgraph: MemGraph, arena: Callable[[Place], MappedArena], kernels: PreparedKernels) -> None:
        self._memgraph, self._arena, self.kernels = memgraph, arena, kernels
        self._kept = _KeptViews(kernels)
        self._residencies = Residencies.of(memgraph.residencies)
        self._jobs = [task.job for task in memgraph.graph.tasks]
        numbers: dict[tuple[tuple[int, ...], ElementType], int] = {}
        self._shape_and_dtype = [numbers.setdefault((tensor.shape, tensor.element_type), len(numbers)) for tensor in memgraph.graph.tensors]
        """[tensor] a number for its shape and element type"""
        self._views: dict[tuple[int, ...], torch.Tensor] = {}
        self._calls: dict[tuple[object, ...], Callable[[], object]] = {}
        self._first: dict[int, _BoundKernel] = {}
        """By the kernel's identity."""

    def compile(self) -> None:
        """Let each kernel look at its tensors once, so that what it compiles is not compiled in the first pass. All are prepared."""
        for bound in self._first.values():
            bound.look()

    def call(
        self, task: TaskId, operands: tuple[tuple[int, ...], ...], creates: tuple[int, ...], workspace: Extent | None
    ) -> Callable[[], object]:
        """What runs `task` on these residencies."""
        job = self._jobs[task]
        assert job is not None, "a plan read back from a file has no jobs to run"
        tiles, results = tuple(tuple(map(self.view, operand)) for operand in operands), tuple(map(self.view, creates))
        kernel = self.kernels.of(job)
        key = (id(kernel), tuple(tuple(map(id, operand)) for operand in tiles), tuple(map(id, results)), workspace)
        if key not in self._calls:
            if isinstance(kernel, TorchKernel):
                self._calls[key] = bound = _BoundKernel(kernel, tiles, results, self._kept)
                self._first.setdefault(id(kernel), bound)
            else:
                scratch = None if workspace is None else torch.from_numpy(self._arena(DEVICE).bytes(workspace))
                self._calls[key] = partial(kernel, tiles, results[0], scratch, *results[1:])
        return self._calls[key]

    def view(self, residency: int) -> torch.Tensor:
        """The bytes of a residency as its tensor."""
        found = self._residencies
        offset = found.offset[found.extent_row[residency]]
        key = int(found.place[residency]), int(offset), self._shape_and_dtype[found.tensor[residency]]
        if key not in self._views:
            self._views[key] = residency_view(self._memgraph, found[residency], self._arena(found[residency].place))
        return self._views[key]
