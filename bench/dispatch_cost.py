"""What static dispatch on streams costs the host, without a GPU: microseconds of Python a node, and how long a plan takes to schedule.

    python -m bench.dispatch_cost [--nodes 100000]

The plan is a chain of tasks, each with a weight that is copied in and two buffers that end: four nodes a task, as in plans that stream
their weights. The driver does nothing but hand out events; kernels do nothing. So what is measured is einpage's own Python; a GPU adds what
CUDA's calls take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from unittest.mock import patch

import numpy as np
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box, MapJob, View
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.exec.device import streams
from einpage.exec.device.arena import HostArena
from einpage.exec.device.driver import Event, Stream
from einpage.exec.device.stream_memory import StreamMemory
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.stream_static import StreamStaticDispatcher
from einpage.kernels.launch.bound_launch import BoundLaunch
from einpage.memplan.graph.memgraph import Compute, EdgeKind, Edges, Extent, Free, MemGraph, Move, Node, Offset, Residency, ResidencyId
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.machine.places import DEVICE, HOST

TILE = 256
"""Bytes of every tensor."""
PASSES = 5


def long_plan(tasks: int) -> MemGraph:
    """x[i+1] = f(x[i], w[i]) for so many tasks, two buffers for weights and two for activations on the device: four nodes a task."""
    graph = _graph(tasks)
    x = [ResidencyId(2 * tasks + 1 + i) for i in range(tasks + 1)]
    on_host = [(i, HOST, i * TILE) for i in range(tasks + 1)]
    weights = [(i, DEVICE, i % 2 * TILE) for i in range(tasks)]
    activations = [(tasks + i, DEVICE, (2 + i % 2) * TILE) for i in range(tasks + 1)]
    places = [*on_host, *weights, *activations, (2 * tasks, HOST, (tasks + 1) * TILE)]
    residencies = tuple(
        Residency(ResidencyId(r), TensorId(tensor), place, (Extent(Offset(offset), Nbytes(TILE)),))
        for r, (tensor, place, offset) in enumerate(places)
    )
    nodes: list[Node] = [Move(ResidencyId(tasks), x[0])]
    pairs: list[tuple[int, int]] = []
    for i in range(tasks):
        weight, copied = ResidencyId(tasks + 1 + i), len(nodes)
        nodes += [Move(ResidencyId(i), weight), Compute(TaskId(i), ((x[i],), (weight,)), x[i + 1], None), Free(weight), Free(x[i])]
        pairs += [(copied, copied + 1), (max(0, copied - 3), copied + 1), (copied + 1, copied + 2), (copied + 1, copied + 3)]
        if i > 1:
            pairs.append((copied - 8 + 2, copied))
        if i > 0:
            pairs.append((copied - 4 + 3, copied + 1))
    pairs.append((len(nodes) - 3, len(nodes)))
    nodes.append(Move(x[-1], ResidencyId(len(residencies) - 1)))
    columns = np.array(sorted(set(pairs), key=lambda pair: pair[::-1]), np.int32)
    edges = Edges(columns[:, 0].copy(), columns[:, 1].copy(), np.full(len(columns), EdgeKind.DATA, np.uint8))
    start = tuple(ResidencyId(r) for r in range(tasks + 1))
    arenas = ((DEVICE, Nbytes(4 * TILE)), (HOST, Nbytes((tasks + 2) * TILE)))
    return MemGraph(graph, arenas, Residencies.of(residencies), Nodes.of(nodes), edges, start, (*start, ResidencyId(len(residencies) - 1)))


def _graph(tasks: int) -> TaskGraph:
    box, shape = Box((0,), (TILE // 4,)), (TILE // 4,)
    names = [*(f"w{i}" for i in range(tasks)), *(f"x{i}" for i in range(tasks + 1))]
    kinds = [*[Kind.WEIGHT] * tasks, Kind.INPUT, *[Kind.ACTIVATION] * (tasks - 1), Kind.OUTPUT]
    tiles = tuple(Tensor(TensorId(i), n, n, box, DType.FP32, k) for i, (n, k) in enumerate(zip(names, kinds, strict=True)))
    values = tuple(Value(n, n, shape, DType.FP32, k) for n, k in zip(names, kinds, strict=True))
    job = MapJob((), (), View("y", DType.FP32, (box,)), ())
    zero = Nbytes(0)
    numbered = [(i, ((TensorId(tasks + i),), (TensorId(i),)), TensorId(tasks + i + 1)) for i in range(tasks)]
    done = tuple(Task(TaskId(i), f"t{i}", OpId(i), reads, result, (), 0, zero, zero, job, False) for i, reads, result in numbered)
    ops = tuple(Op(OpId(i), f"t{i}", "map", 0, zero, "") for i in range(tasks))
    return TaskGraph("long", DType.FP32, (), values, tiles, done, ops, ((names[-1], names[-1]),))


class QuietDriver:
    """Does nothing at once. It hands out events, and keeps those of a pass for the next, as CUDA's does."""

    name = "quiet"
    slow_copies: str | None = None

    def __init__(self) -> None:
        self._free: list[Event] = []

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def pin(self, memory: torch.Tensor) -> None: ...

    def unpin(self, memory: torch.Tensor) -> None: ...

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        call()

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        return nothing

    def record(self, stream: Stream) -> Event:
        return self._free.pop() if self._free else object()

    def wait(self, stream: Stream, event: Event) -> None: ...

    def passed(self, event: Event) -> bool:
        return True

    def synchronize(self, event: Event) -> None: ...

    def seconds(self, first: Event, last: Event) -> float:
        return 0.0

    def used_bytes(self) -> int:
        return 0

    def init_thread(self) -> None: ...

    def handle(self, stream: Stream) -> int:
        return 1 + stream

    def bound_copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        return nothing

    def recycle(self, events: Iterable[Event]) -> None:
        self._free += events


def nothing() -> None:
    """A kernel, or a copy, that takes no time."""


class _NoKernel:
    """What launches nothing."""

    check = None

    def warm(self, operands: object, result: object) -> None: ...

    def bind(self, operands: object, result: object, stream: int | None = None) -> BoundLaunch:
        return BoundLaunch(nothing)


@dataclass(frozen=True, slots=True)
class DispatchCost:
    nodes: int
    """Frees among them."""
    enqueued: int
    """Nodes on streams."""
    schedule_cpu_s: float
    """As below, of the processor's time: what it takes where nobody else is."""
    schedule_s: float
    """Once, before the first pass: the median of three dispatchers."""
    pass_s: float
    """The median of the passes after the first: from the first node enqueued to the last seen to have ended."""
    pass_cpu_s: float
    """Of the processor's time, with reading the times after it."""
    read_s: float
    """After a pass: reading its times."""

    @property
    def node_s(self) -> float:
        """A pass's Python for each node on a stream."""
        return self.pass_s / self.enqueued


def dispatch_cost(tasks: int, passes: int = PASSES) -> DispatchCost:
    """Of a plan of so many tasks."""
    plan = long_plan(tasks)
    schedules, of_cpu = [], []
    for _ in range(3):
        began, cpu = perf_counter(), process_time()
        dispatcher = StreamStaticDispatcher(plan)
        schedules.append(perf_counter() - began)
        of_cpu.append(process_time() - cpu)
    with closing(dispatcher), patch.object(streams, "prepare_launches", lambda job: _NoKernel()):
        memory = StreamMemory(HostArena(plan.host_bytes), QuietDriver(), plan.budget_bytes)
        device = StreamDevice(plan, memory)
        walls, reads, passes_cpu = [], [], []
        for _ in range(passes + 1):
            began, cpu = perf_counter(), process_time()
            walls.append(dispatcher.run(device).wall_s)
            reads.append(perf_counter() - began - walls[-1])
            passes_cpu.append(process_time() - cpu)
        device.close()
        memory.close()
    enqueued = sum(not isinstance(node, Free) for node in plan.nodes)
    return DispatchCost(
        len(plan.nodes), enqueued, median(of_cpu), median(schedules), median(walls[1:]), median(passes_cpu[1:]), median(reads[1:])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    cost = dispatch_cost(parser.parse_args().nodes // 4)
    print(f"{cost.nodes} nodes, {cost.enqueued} of them on streams, one thread of Python, a driver and kernels that do nothing")
    schedule_us, pass_us = cost.schedule_cpu_s / cost.nodes * 1e6, cost.pass_cpu_s / cost.enqueued * 1e6
    print(f"scheduled once      {cost.schedule_s:.3f} s, {cost.schedule_cpu_s:.3f} s of a processor ({schedule_us:.1f} µs a node)")
    print(f"host in a pass      {cost.node_s * 1e6:.2f} µs a node on a stream; {pass_us:.2f} µs of a processor, reading times included")
    print(f"after a pass        {cost.read_s:.3f} s to read its times and check it")


if __name__ == "__main__":
    main()
