"""A plan on a device of streams: nodes are enqueued on the stream of their engine, and run when the stream comes to them.

`enqueue` returns at once; the dispatcher orders nodes of different streams with events. A Move is copied in chunks, so that an urgent one
may be enqueued between two of them. A host gather reads its rows on the host, a block at a time, into one of two pinned staging buffers,
and copies that. The Device methods (`compute`, `copy`, `gather`) enqueue a node and wait for it: enough for the serial loop. Everything
slow (views, kernels, pinning) is done when the device is made, and what a driver can bind to a stream is bound then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, assert_never

from torch import Tensor

from einpage.einsum_front.graph.job import GatherJob, View
from einpage.einsum_front.graph.taskgraph import TaskId
from einpage.exec.device.arena import MappedArena, residency_view
from einpage.exec.device.device import MovedBytes, Rested, extents_beside
from einpage.exec.device.driver import DirectDriver, Driver, Event, Stream
from einpage.exec.device.stream_memory import StreamMemory, copy_cuts
from einpage.exec.errors import NodeError
from einpage.kernels.errors import DivisorIsZero, IndexOutOfRange, Unsupported
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import Backend, Kernel, Launches, prepare, prepare_gathers, prepare_launches
from einpage.kernels.tiles.target import AS_IT_IS, Choices
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move, NodeId, Residency, ResidencyId
from einpage.memplan.graph.simulate import NO_QUEUE, queue_numbers
from einpage.memplan.machine.places import ENGINES, PlaceKind, Queue

COPY_BYTES = 32 << 20
"""Of one chunk of a Move at most: what an urgent copy may have to wait for."""
STAGING_BYTES = 8 << 20
"""Of a staging buffer for gathered rows; two take turns."""

COMPUTE, H2D, D2H = map(Stream, range(len(ENGINES)))
KernelCall: TypeAlias = Callable[[], object]
StreamAction: TypeAlias = Callable[[], object]


@dataclass(slots=True)
class _StagingBuffer:
    """Pinned host memory."""

    memory: Tensor
    copied: Event | None = None
    """Passes when the last copy from it is done."""


class StreamDevice:
    """Runs `memgraph` through the driver of `memory`, whose host arena holds the weights and inputs, or will before the run starts."""

    name = "cuda"

    def __init__(
        self,
        memgraph: MemGraph,
        memory: StreamMemory,
        *,
        backend: str = "triton",
        poison: bool = False,
        choices: Choices = AS_IT_IS,
    ) -> None:
        assert memory.nbytes == memgraph.budget_bytes, f"an arena of {memory.nbytes} bytes for {memgraph.budget_bytes}"
        self.memgraph, self.memory, self.driver = memgraph, memory, memory.driver
        self._direct = memory.driver if isinstance(memory.driver, DirectDriver) else None
        self.arena_bytes: int = memgraph.budget_bytes
        self._backend, self._poison, self._choices = Backend(backend), poison, choices
        self.ways: Counter[str] = Counter()
        """How the products and attentions of its tasks are computed: (`product by TMA`, tasks), in the order in which they first occur."""
        self._view_by_residency: dict[int, Tensor] = {}
        self._staging: list[_StagingBuffer] = []
        self._turn = 0
        self._used = 0
        at_start = (memgraph.residencies[r] for r in memgraph.start)
        self._host_copies = {r.tensor: r.id for r in at_start if r.place.kind is PlaceKind.HOST}
        self._checks: list[tuple[NodeId, KernelCall]] = []
        self._loaded: dict[int, Launches] = {}
        """Kernels that are compiled and loaded, by identity."""
        self._calls: dict[NodeId, KernelCall] = {}
        self._asked: set[NodeId] = set()
        self._slow: set[str] = set()
        self._captured: dict[NodeId, KernelCall] = {}
        """Runs of computes that are enqueued at once, by their first node."""
        self._chunks: list[tuple[StreamAction, ...]] = []
        self._streams = [None if number == NO_QUEUE else Stream(number) for number in queue_numbers(memgraph).tolist()]
        self._counted = MovedBytes(memgraph)
        try:
            if memory.ran is None:
                self._poison_beside(frozenset())
            self._chunks += [self._prepared(NodeId(i), node) for i, node in enumerate(memgraph.nodes)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unpin its own host memory when the streams are done with it. The device is of no use afterwards."""
        for stream in (COMPUTE, H2D, D2H):
            with suppress(RuntimeError):  # a device that failed copies no more
                self.driver.synchronize(self.driver.record(stream))
        for staging in self._staging:
            self.driver.unpin(staging.memory)
        self._chunks, self._staging, self._calls, self._captured = [], [], {}, {}

    @property
    def outside_arena_bytes(self) -> int:
        """Device memory in use beside the arena: the driver's own, compiled kernels, other processes. A run frees nothing, so after one
        this is its peak; read before and after, the larger of the two."""
        self._used = max(self._used, self.driver.used_bytes())
        return max(0, self._used - self.arena_bytes)

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        """By link, in the order of queues_of: bytes whose copies were enqueued since `start_run`."""
        return self._counted.by_link()

    @property
    def slower(self) -> tuple[str, ...]:
        """What the host does in a slower manner than it could, and why."""
        copies = None if self._direct is None else self._direct.slow_copies
        return (*([] if copies is None else [f"copies go through torch's current stream: {copies}"]), *sorted(self._slow))

    def start_run(self, rested: Rested) -> None:
        """Reset the counters. Raises NodeError where an index that a kernel will use is out of range, or divides by 0: no kernel can."""
        self.memory.start_run(rested)
        self._counted.clear()
        for node, check in self._checks:
            try:
                check()
            except (DivisorIsZero, IndexOutOfRange, Unsupported) as error:
                raise NodeError(node, describe(self.memgraph, node), Queue.COMPUTE, error) from error

    def end_run(self) -> None:
        """What the plan leaves on the device is there now."""
        self.memory.ran = self.memgraph

    def init_thread(self) -> None:
        """The driver's own settings of a thread."""
        if self._direct is not None:
            self._direct.init_thread()

    def recycle(self, events: Sequence[Event]) -> None:
        """Nobody asks about `events` any more: a driver may record them again."""
        if self._direct is not None:
            self._direct.recycle(events)

    def preload(self) -> int:
        """Copy the tensors that are resident at the start to their offsets, but for those that are there, and wait for the copies. Answers
        the bytes, which count as no pass's."""
        self.init_thread()
        there, loaded = self.memory.prepare_for(self.memgraph), 0
        self._poison_beside(there)
        for r in (self.memgraph.residencies[r] for r in self.memgraph.start):
            if r.place.kind is PlaceKind.DEVICE and r.id not in there:
                for target, source in self._cut(self.memgraph.residencies[self._host_copies[r.tensor]], r):
                    self.driver.copy(H2D, target, source)
                    loaded += target.nbytes
        self.driver.synchronize(self.driver.record(H2D))
        return loaded

    def stream(self, node: NodeId) -> Stream | None:
        """The stream of `node`; None for a Free, which has none."""
        return self._streams[node]

    def chunks(self, node: NodeId) -> int:
        """In how many chunks `node` is enqueued, one after the other; 0 for a Free."""
        return len(self._chunks[node])

    def enqueue(self, node: NodeId, chunk: int = 0) -> None:
        """Enqueue a chunk of `node` on its stream. Raises IndexOutOfRange where a gather's indices are wrong."""
        self._chunks[node][chunk]()

    def can_replay(self, nodes: Sequence[NodeId]) -> bool:
        """Whether these computes are enqueued at once: whether they were asked about before. A single pass captures nothing.

        Captured now, before the run: CUDA waits for the whole device before each capture.
        """
        first = nodes[0]
        if first in self._asked and first not in self._captured:
            self._captured[first] = self.driver.capture(COMPUTE, [self._calls[node] for node in nodes])
        self._asked.add(first)
        return first in self._captured

    def replay(self, nodes: Sequence[NodeId]) -> None:
        """Enqueue these computes, for which `can_replay` was true, in order and at once."""
        self.driver.launch(COMPUTE, self._captured[nodes[0]])

    def compute(self, node: NodeId) -> None:
        """Enqueue a Compute and wait for it."""
        self._run(node)

    def copy(self, node: NodeId) -> None:
        """Enqueue a Move and wait for it."""
        self._run(node)

    def gather(self, node: NodeId) -> None:
        """Enqueue a HostGather and wait for it. Raises IndexOutOfRange where its indices are wrong."""
        self._run(node)

    def free(self, node: NodeId) -> None:
        """Nothing: a Free has no stream, and the arena is one allocation."""

    def contents(self, residency: ResidencyId) -> Tensor:
        """The bytes of `residency`, which no stream is writing, as its tensor, copied to the host."""
        return self._view(residency).cpu()

    def _poison_beside(self, there: Collection[ResidencyId]) -> None:
        if self._poison:
            for extent in extents_beside(self.memgraph, there):
                _poison(self.driver, self.memory.device[extent.offset : extent.end])

    def _run(self, node: NodeId) -> None:
        stream = self._streams[node]
        assert stream is not None
        for chunk in self._chunks[node]:
            chunk()
        self.driver.synchronize(self.driver.record(stream))

    def _prepared(self, i: NodeId, node: Compute | Move | HostGather | Free) -> tuple[StreamAction, ...]:
        match node:
            case Compute():
                self._calls[i], is_bound = self._call(i, node)
                return (self._calls[i] if is_bound else partial(self.driver.launch, COMPUTE, self._calls[i]),)
            case Move() as move:
                return tuple(action for source, target in move.copies for action in self._copies(i, source, target))
            case HostGather(task, operands, creates):
                return tuple(self._gathers(i, task, operands, creates))
            case Free():
                return ()
        assert_never(node)

    def _call(self, i: NodeId, node: Compute) -> tuple[KernelCall, bool]:
        """What runs a Compute, and whether it does so on the compute stream whatever stream is the current one."""
        job = self.memgraph.graph.tasks[node.task].job
        assert job is not None, "a plan read back from a file has no jobs to run"
        tiles = tuple(tuple(self._view(r) for r in operand) for operand in node.operands)
        result, others = self._view(node.creates), tuple(map(self._view, node.others))
        if self._backend is Backend.TORCH:
            scratch = None if node.workspace is None else self.memory.device[node.workspace.offset : node.workspace.end]
            return partial(prepare(job, self._backend), tiles, result, scratch, *others), False
        kernel = prepare_launches(job, self._choices)
        self.ways.update(kernel.ways)
        if id(kernel) not in self._loaded:
            kernel.warm(tiles, result, *others)
            self._loaded[id(kernel)] = kernel
        if kernel.check is not None:
            self._checks.append((i, partial(kernel.check, [self._on_host(operand) for operand in node.operands])))
        bound = kernel.bind(tiles, result, None if self._direct is None else self._direct.handle(COMPUTE), *others)
        if self._direct is not None and bound.why_slow is not None:
            self._slow.add(f"kernels are launched through Triton's Python: {bound.why_slow}")
        return bound.call, self._direct is not None

    def _on_host(self, operand: Sequence[ResidencyId]) -> tuple[Tensor, ...] | None:
        """The host copies of an operand's tiles; None where one is computed."""
        tensors = [self.memgraph.residencies[r].tensor for r in operand]
        copies = [self._host_copies.get(t) for t in tensors]
        return None if None in copies else tuple(self._view(r) for r in copies if r is not None)

    def _copies(self, node: NodeId, source: ResidencyId, target: ResidencyId) -> list[StreamAction]:
        stream = self._streams[node]
        assert stream is not None, "a move has an engine"
        found: list[StreamAction] = []
        for written, read in self._cut(self.memgraph.residencies[source], self.memgraph.residencies[target]):
            if self._direct is None:
                call: Callable[[], object] = partial(self.driver.copy, stream, written, read)
            else:
                call = self._direct.bound_copy(stream, written, read)
            found.append(partial(self._copy, node, call, written.nbytes))
        return found

    def _copy(self, node: NodeId, call: Callable[[], object], nbytes: int) -> None:
        call()
        self._counted.add(node, nbytes)

    def _cut(self, source: Residency, target: Residency) -> Iterator[tuple[Tensor, Tensor]]:
        """(written, read) of each copy between two residencies: none is large, and none crosses two registrations of host memory."""
        written, read = self._bytes(target), self._bytes(source)
        on_host = source if source.place.kind is PlaceKind.HOST else target
        for start, end in copy_cuts(on_host.extents[0].offset, written.nbytes, COPY_BYTES):
            yield written[start:end], read[start:end]

    def _gathers(self, node: NodeId, task: TaskId, operands: Sequence[Sequence[ResidencyId]], creates: ResidencyId) -> list[StreamAction]:
        job = self.memgraph.graph.tasks[task].job
        assert isinstance(job, GatherJob), "a plan read back from a file has no jobs to run"
        tables = tuple(tuple(self._view(r) for r in operand) for operand in operands)
        target = self._bytes(self.memgraph.residencies[creates])
        chunks: list[StreamAction] = []
        start = 0
        for part, kernel in prepare_gathers(job, STAGING_BYTES):
            view = part.result
            nbytes = view.boxes[0].size * view.dtype.nbytes
            chunks.append(partial(self._gather, node, kernel, view, tables, target[start : start + nbytes]))
            start += nbytes
        assert start == target.nbytes, "the parts of a gather lie one after the other in its result"
        return chunks

    def _gather(self, node: NodeId, kernel: Kernel, view: View, tables: tuple[tuple[Tensor, ...], ...], target: Tensor) -> None:
        staging = self._staging_buffer(target.nbytes)
        if staging.copied is not None:
            self.driver.synchronize(staging.copied)
            self.recycle((staging.copied,))
        rows = staging.memory[: target.nbytes]
        kernel(tables, rows.view(TORCH_DTYPE[view.dtype]).view(view.boxes[0].shape), None)
        self.driver.copy(H2D, target, rows)
        staging.copied = self.driver.record(H2D)
        self._counted.add(node, target.nbytes)

    def _staging_buffer(self, nbytes: int) -> _StagingBuffer:
        """The one used before the last, made when it is first needed."""
        self._turn = 1 - self._turn
        while len(self._staging) <= self._turn:
            memory = MappedArena(STAGING_BYTES).whole()
            self.driver.pin(memory)
            self._staging.append(_StagingBuffer(memory))
        assert nbytes <= self._staging[self._turn].memory.nbytes
        return self._staging[self._turn]

    def _view(self, residency: ResidencyId) -> Tensor:
        if residency not in self._view_by_residency:
            found = self.memgraph.residencies[residency]
            if found.place.kind is PlaceKind.HOST:
                view = residency_view(self.memgraph, found, self.memory.host)
            else:
                tensor = self.memgraph.graph.tensors[found.tensor]
                assert tensor.nbytes == found.extents[0].nbytes
                numbers = self._bytes(found)[: tensor.dtype.bytes_of(tensor.box.size)]  # what is behind them is a flag
                view = numbers.view(TORCH_DTYPE[tensor.dtype]).view(tensor.shape)
            self._view_by_residency[residency] = view
        return self._view_by_residency[residency]

    def _bytes(self, residency: Residency) -> Tensor:
        (extent,) = residency.extents
        whole = self.memory.host_bytes if residency.place.kind is PlaceKind.HOST else self.memory.device
        return whole[extent.offset : extent.end]


def _poison(driver: Driver, arena: Tensor) -> None:
    """NaN, whatever the dtype, over memory that is not written yet."""
    if not arena.nbytes:
        return
    pattern = MappedArena(arena.nbytes)
    pattern.poison()
    driver.copy(COMPUTE, arena, pattern.whole())
    driver.synchronize(driver.record(COMPUTE))
