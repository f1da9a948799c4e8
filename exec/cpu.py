"""The CPU as a device: an arena of exactly the budget is its memory, the rest of the machine is the host.

What takes time is looked up when the device is made: kernels (once for equal jobs), tensor views of arena bytes. A node then costs
microseconds. Copies are single-threaded and release the interpreter's lock, so a copy engine runs beside kernels. With
`poison`, memory is overwritten wherever its contents are undefined: at the start, at every Free, and workspace after use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.taskgraph import TaskId
from einpage.exec.host import Arena, HostArena, residency_view
from einpage.kernels.dispatch import Backend, prepare
from einpage.memplan.memgraph import Compute, Extent, Free, HostGather, MemGraph, Move, NodeId, Place, PlaceKind, Residency


class CpuDevice:
    """Runs `memgraph` on real bytes. `host` holds the masters already, or will before the run starts."""

    name = "cpu"

    def __init__(
        self, memgraph: MemGraph, host: HostArena, *, backend: str = "torch", threads: int | None = None, poison: bool = False
    ) -> None:
        """`threads` is what torch may use for one kernel, a figure of the machine profile: results differ bitwise between thread counts,
        so it is the same for every dispatcher. None leaves torch as it is."""
        if threads is not None:
            torch.set_num_threads(threads)
        self._memgraph, self._backend, self._poison = memgraph, Backend(backend), poison
        self._device = Arena(memgraph.budget_bytes, touch=True)
        self._host = host
        if poison:
            self._device.poison()
        self._view_by_residency: dict[int, torch.Tensor] = {}
        self._calls: dict[NodeId, Callable[[], object]] = {}
        self._gathered: dict[NodeId, int] = {}
        self._workspaces: dict[NodeId, Extent] = {}
        self.arena_bytes: int = memgraph.budget_bytes
        self.outside_arena_bytes = 0
        for i, node in enumerate(memgraph.nodes):
            self._prepare(NodeId(i), node)
        self.begin()

    def close(self) -> None:
        pass

    def begin(self) -> None:
        self.h2d_bytes = 0
        self.d2h_bytes = 0

    def bring(self) -> None:
        masters = {r.tensor: r for r in self._at_start() if r.place.kind is PlaceKind.HOST}
        for r in self._at_start():
            if r.place.kind is PlaceKind.DEVICE:
                np.copyto(self._bytes(r), self._bytes(masters[r.tensor]))

    def _at_start(self) -> list[Residency]:
        return [self._memgraph.residencies[r] for r in self._memgraph.start]

    def compute(self, node: NodeId) -> None:
        self._calls[node]()
        if self._poison and node in self._workspaces:
            self._device.poison(self._workspaces[node])

    def copy(self, node: NodeId) -> None:
        move, residencies = self._memgraph.nodes[node], self._memgraph.residencies
        assert isinstance(move, Move)
        target = self._bytes(residencies[move.target])
        np.copyto(target, self._bytes(residencies[move.source]))
        if residencies[move.target].place.kind is PlaceKind.DEVICE:
            self.h2d_bytes += target.nbytes
        else:
            self.d2h_bytes += target.nbytes

    def gather(self, node: NodeId) -> None:
        self._calls[node]()
        self.h2d_bytes += self._gathered[node]

    def free(self, node: NodeId) -> None:
        if self._poison:
            freed = self._memgraph.nodes[node]
            assert isinstance(freed, Free)
            residency = self._memgraph.residencies[freed.residency]
            for extent in residency.extents:
                self._arena(residency.place).poison(extent)

    def _prepare(self, i: NodeId, node: Compute | Move | HostGather | Free) -> None:
        match node:
            case Compute(task, operands, creates, workspace):
                scratch = None
                if workspace is not None:
                    self._workspaces[i] = workspace
                    scratch = torch.from_numpy(self._device.bytes(workspace))
                self._calls[i] = self._call(task, operands, creates, scratch)
            case HostGather(task, operands, creates):
                self._calls[i] = self._call(task, operands, creates, None)
                self._gathered[i] = self._view(creates).nbytes
            case Move() | Free():
                pass

    def _call(
        self, task: TaskId, operands: tuple[tuple[int, ...], ...], creates: int, workspace: torch.Tensor | None
    ) -> Callable[[], object]:
        job = self._memgraph.graph.tasks[task].job
        assert job is not None, "a plan read back from a file has no jobs to run"
        kernel = prepare(job, self._backend)
        self.outside_arena_bytes = max(self.outside_arena_bytes, kernel.scratch_bytes)
        tiles = tuple(tuple(self._view(r) for r in operand) for operand in operands)
        return partial(kernel, tiles, self._view(creates), workspace)

    def _view(self, residency: int) -> torch.Tensor:
        if residency not in self._view_by_residency:
            found = self._memgraph.residencies[residency]
            self._view_by_residency[residency] = residency_view(self._memgraph, found, self._arena(found.place))
        return self._view_by_residency[residency]

    def _bytes(self, residency: Residency) -> NDArray[np.uint8]:
        (extent,) = residency.extents
        return self._arena(residency.place).bytes(extent)

    def _arena(self, place: Place) -> Arena:
        match place.kind:
            case PlaceKind.DEVICE:
                return self._device
            case PlaceKind.HOST:
                return self._host
            case PlaceKind.DISK:
                raise AssertionError("the CPU device has no disk")
