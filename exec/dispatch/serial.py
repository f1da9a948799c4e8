"""The plain loop: one node after the other. Slow, obvious, and what the other dispatchers are compared with.

Any order that respects the edges is correct, so the order may be given; `random_order` makes one for tests. On streams the host is a few
nodes ahead of the device, and each node lies between two events: what it took holds no launch and no wakeup of the host.

    compute    e c0 e ────► wait  e c1 e
    h2d              wait e m0 e ─┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event, Stream
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, Stopped, predecessor_counts, successors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.stream_common import DeviceClock, StreamRun, on_streams
from einpage.memplan.graph.memgraph import MemGraph, NodeId

AHEAD = 8
"""Nodes enqueued and not known to be done: enough to hide the host, few enough to say soon which one failed."""


class SerialDispatcher(Dispatcher):
    """Runs one node after the other, on one thread."""

    def __init__(self, memgraph: MemGraph, order: Sequence[NodeId] | None = None) -> None:
        """The order of the plan, or `order`, a permutation of the nodes that respects the edges (asserted)."""
        super().__init__(memgraph)
        self._order = [NodeId(i) for i in range(len(memgraph.nodes))] if order is None else order
        _assert_order(memgraph, self._order)

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)

        def loop() -> None:
            for node in self._order:
                run.execute(node)

        return supervise(run, {"serial": loop})


def random_order(memgraph: MemGraph, seed: int) -> tuple[NodeId, ...]:
    """Some order of all nodes that respects the edges; the same one for the same seed."""
    random = Random(seed)
    after = successors(memgraph)
    unfinished = predecessor_counts(memgraph)
    ready = [NodeId(i) for i, count in enumerate(unfinished) if count == 0]
    order: list[NodeId] = []
    while ready:
        pick = random.randrange(len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        node = ready.pop()
        order.append(node)
        for target in after[node]:
            unfinished[target] -= 1
            if unfinished[target] == 0:
                ready.append(target)
    return tuple(order)


def _assert_order(memgraph: MemGraph, order: Sequence[NodeId]) -> None:
    position = {node: i for i, node in enumerate(order)}
    assert len(order) == len(position) == len(memgraph.nodes), "an order names every node once"
    for source, target in zip(memgraph.edges.source.tolist(), memgraph.edges.target.tolist(), strict=True):
        assert position[source] < position[target], f"the order has node {target} before node {source}, against an edge"


class StreamSerialDispatcher(Dispatcher):
    """Runs one node after the other, in the order of the plan."""

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)
        return supervise(run, {"serial": _StreamSerialRun(run, on_streams(device)).body})


@dataclass(frozen=True, slots=True)
class _Awaited:
    node: NodeId
    around: tuple[Event, Event] | None
    """The events before and after it; None for a Free, which is done when what is before it is."""


class _StreamSerialRun(StreamRun):
    def __init__(self, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        self._in_flight: deque[_Awaited] = deque()
        self._before: tuple[Stream, Event] | None = None
        """Where the last node was enqueued, and the event after it."""
        self._ended_s = 0.0

    def body(self) -> None:
        self._clock = DeviceClock(self.run, self.device)
        for node in map(NodeId, range(len(self.run.memgraph.nodes))):
            if self.run.stopped:
                raise Stopped
            stream = self.device.stream(node)
            self._in_flight.append(_Awaited(node, None if stream is None else self._enqueue(node, stream)))
            while len(self._in_flight) > AHEAD:
                self._retire(self._in_flight.popleft())
        while self._in_flight:
            self._retire(self._in_flight.popleft())

    def _enqueue(self, node: NodeId, stream: Stream) -> tuple[Event, Event]:
        driver = self.device.driver
        try:
            if self._before is not None and self._before[0] != stream:
                driver.wait(stream, self._before[1])
            first = driver.record(stream)
            for chunk in range(self.device.chunks(node)):
                self.device.enqueue(node, chunk)
            last = driver.record(stream)
        except BaseException as error:
            raise self.named(node, error) from error
        self._before = stream, last
        return first, last

    def _retire(self, oldest: _Awaited) -> None:
        """Wait for it, and record when it ran."""
        if oldest.around is None:
            self.run.started[oldest.node] = self.run.finished[oldest.node] = self._ended_s
            return
        try:
            self.device.driver.synchronize(oldest.around[1])
        except RuntimeError as error:
            raise self.named(oldest.node, error) from error
        start_s, self._ended_s = map(self._clock.at, oldest.around)
        self.run.started[oldest.node], self.run.finished[oldest.node] = start_s, self._ended_s
        self.device.recycle(oldest.around)
