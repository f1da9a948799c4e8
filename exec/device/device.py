"""A device: what turns the nodes of a MemGraph into actions.

A dispatcher decides when a node runs; the device runs it and counts the bytes it really moved. One engine thread at a time calls
`compute`, one each link's transfers; `free` is called on the thread that finished last. Everything slow (views, kernels) is made when the
device is made, before any clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind, Tensor
from einpage.exec.device.arena import HostArena
from einpage.exec.errors import EngineBusy
from einpage.memplan.graph.memgraph import Extent, MemGraph, NodeId, Offset, Residency, ResidencyId
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, MOVE, Residencies
from einpage.memplan.graph.simulate import queue_numbers, queues_of
from einpage.memplan.machine.places import DEVICE, HOST, Queue

Action: TypeAlias = Callable[[NodeId], None]
Rested: TypeAlias = Callable[[], bool]
"""Waits for engines, as a rule for nothing: whether none of them still does what an interrupted run gave it."""


class Device(Protocol):
    @property
    def name(self) -> str:
        """The kind of device: `cpu`, `cuda`, `null`."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of device memory under the plan's control."""

    @property
    def outside_arena_bytes(self) -> int:
        """The most bytes of device memory ever in use beside the arena: temporaries of kernels, the device's own buffers."""

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        """By link, in the order of queues_of: bytes moved since `start_run`."""

    def start_run(self, rested: Rested) -> None:
        """Called before each run, with what is asked of its engines before others use the same memory: reset the counters. Raises
        EngineBusy where an engine of a run before it is not done."""

    def end_run(self) -> None:
        """Called after each run that ended as planned."""

    def init_thread(self) -> None:
        """Called on each engine's thread before its first node: settings that hold for one thread only."""

    def preload(self) -> int:
        """Before the first pass, and where other plans ran in the same memory: copy the tensors that are resident at the start to their
        offsets, but for those that the last plan has left there. Answers the bytes, which count as no pass's."""

    def compute(self, node: NodeId) -> None:
        """Run a Compute."""

    def copy(self, node: NodeId) -> None:
        """Run a Move."""

    def gather(self, node: NodeId) -> None:
        """Run a HostGather."""

    def free(self, node: NodeId) -> None:
        """The contents of a residency have ended."""


@runtime_checkable
class OverlapsReads(Protocol):
    """A device whose reads of a disk overlap: the engine begins them one after the other, and they end in any order."""

    @property
    def most_reads(self) -> int:
        """How many under way keep the disk busy."""

    def begin(self, node: NodeId) -> bool:
        """Begin a node of the engine that reads; False where it is of a kind that has to be run instead."""

    def ended(self) -> Sequence[tuple[NodeId, Exception | None]]:
        """The nodes under way that have ended, each whole or with its error; waits for one where none has, or until it is woken."""

    def wake(self) -> None:
        """End the wait of `ended`, from any thread: another node may begin."""

    def drain(self) -> None:
        """End what is under way, which nobody asks for any more."""


def actions(device: Device) -> tuple[Action, ...]:
    """For each kind of node, as Nodes.kind says it, the method of `device` that runs it."""
    by_kind: dict[int, Action] = {COMPUTE: device.compute, GATHER: device.gather, MOVE: device.copy, FREE: device.free}
    return tuple(by_kind[kind] for kind in range(len(by_kind)))


def left_there(before: MemGraph, memgraph: MemGraph) -> frozenset[ResidencyId]:
    """Of the residents that `memgraph` begins with: weights that are at the same offsets of the same place when `before` ends."""
    left = {(tensor.name, r.place, r.extents) for r, tensor in _residents(before, before.end) if tensor.kind is Kind.WEIGHT}
    return frozenset(r.id for r, tensor in _residents(memgraph, memgraph.start) if (tensor.name, r.place, r.extents) in left)


def _residents(memgraph: MemGraph, listed: Collection[ResidencyId]) -> list[tuple[Residency, Tensor]]:
    """Those of the residencies `listed` that are on the device, and where the host is a tier weights on it; of which tensor."""
    residencies, tensors = Residencies.of(memgraph.residencies), memgraph.graph.tensors
    on_device, on_host = residencies.at(DEVICE), residencies.at(HOST)
    found = [memgraph.residencies[r] for r in listed if on_device[r] or (memgraph.has_disk and on_host[r])]
    return [(r, tensors[r.tensor]) for r in found if r.place == DEVICE or tensors[r.tensor].kind is Kind.WEIGHT]


class DeviceMemory:
    """The arenas in which plans run in turns, the host's and the device's, and the plan in whose end the latter is: None where no plan
    ran, or one did not end. What a plan leaves on the device is there for the next."""

    def __init__(self, host: HostArena, nbytes: int) -> None:
        self.host, self.nbytes = host, nbytes
        self.ran: MemGraph | None = None
        self._rested: Rested = lambda: True

    def wait_for_engines(self) -> None:
        """Wait for the engines that ran in it last: only then may something be written. Raises EngineBusy where one does not end."""
        if not self._rested():
            raise EngineBusy("an engine of a run that was interrupted is still in the middle of a node: begin anew when it has ended")

    def start_run(self, rested: Rested) -> None:
        """A run begins, of engines that are known by `rested`; what is there, nobody knows until it has ended. Raises EngineBusy."""
        self.wait_for_engines()
        self._rested, self.ran = rested, None

    def missing_bytes(self, memgraph: MemGraph) -> int:
        """Of the residents that `memgraph` begins with, those that would have to be loaded."""
        there = self._left_there(memgraph)
        return sum(tensor.nbytes for r, tensor in _residents(memgraph, memgraph.start) if r.id not in there)

    def prepare_for(self, memgraph: MemGraph) -> frozenset[ResidencyId]:
        """Of the residents that `memgraph` begins with, those that are there; what else is, nobody knows any more. Raises EngineBusy."""
        self.wait_for_engines()
        there = self._left_there(memgraph)
        self.ran = None
        return there

    def _left_there(self, memgraph: MemGraph) -> frozenset[ResidencyId]:
        return frozenset() if self.ran is None else left_there(self.ran, memgraph)

    def close(self) -> None:
        """Give back what the device holds of the host; nothing runs afterwards."""


def extents_beside(memgraph: MemGraph, there: Collection[ResidencyId]) -> Iterator[Extent]:
    """The device's arena without the bytes of the residencies `there`."""
    start = 0
    for extent in sorted((memgraph.residencies[r].extents[0] for r in there), key=lambda extent: extent.offset):
        yield Extent(Offset(start), Nbytes(extent.offset - start))
        start = extent.end
    yield Extent(Offset(start), Nbytes(memgraph.budget_bytes - start))


class MovedBytes:
    """Bytes that nodes really moved, by link. Each link is counted by its own engine, so no lock is needed."""

    __slots__ = ("_bytes", "_number", "_queues")

    def __init__(self, memgraph: MemGraph) -> None:
        self._queues = queues_of(memgraph)
        self._number = queue_numbers(memgraph).tobytes()
        """[node] a position in `_queues`"""
        self.clear()

    def clear(self) -> None:
        """Set all counts to 0."""
        self._bytes = [0] * len(self._queues)

    def add(self, node: NodeId, nbytes: int) -> None:
        """Count `nbytes` on the engine of `node`."""
        self._bytes[self._number[node]] += nbytes

    def by_link(self) -> Mapping[Queue, int]:
        """Bytes by link, in the order of queues_of; the compute engine is left out."""
        return {queue: nbytes for queue, nbytes in zip(self._queues, self._bytes, strict=True) if queue != Queue.COMPUTE}


def no_op() -> None:
    """Does nothing."""


class NullDevice:
    """Does nothing but record the nodes it was given, and count the bytes the plan names: for dry runs and tests of the dispatchers.

    `calls` are the nodes in the order in which they were dispatched."""

    name = "null"
    outside_arena_bytes = 0

    def __init__(self, memgraph: MemGraph) -> None:
        self._memgraph = memgraph
        self.arena_bytes: int = memgraph.budget_bytes
        self._counted = MovedBytes(memgraph)
        self.calls: list[NodeId] = []

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        return self._counted.by_link()

    def start_run(self, rested: Rested) -> None:
        self._counted.clear()
        self.calls = []

    def end_run(self) -> None:
        pass

    def init_thread(self) -> None:
        pass

    def preload(self) -> int:
        return 0

    def compute(self, node: NodeId) -> None:
        self.calls.append(node)

    def copy(self, node: NodeId) -> None:
        self._transfer(node)

    def gather(self, node: NodeId) -> None:
        self._transfer(node)

    def free(self, node: NodeId) -> None:
        self.calls.append(node)

    def _transfer(self, node: NodeId) -> None:
        self._counted.add(node, self._memgraph.moved_bytes(node))
        self.calls.append(node)
