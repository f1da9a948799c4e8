"""Dynamic dispatch on streams: every stream is a few nodes ahead, and gets more as events pass.

A node is enqueued when all its predecessors are done, or precede it on its own stream; of several the lowest-numbered goes first, even
between two chunks of a large copy. No stream ever waits for another: the host polls events, and enqueues a node only after all it needs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, predecessor_counts, successors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.stream_common import DeviceClock, Polling, StreamRun, on_streams
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.machine.places import ENGINES

AHEAD = 3
"""Chunks on a stream at once: one that runs, one to follow, and one in case the host is late."""


class StreamDynamicDispatcher(Dispatcher):
    """Enqueues what is ready, a few nodes ahead of what runs."""

    def __init__(self, memgraph: MemGraph) -> None:
        super().__init__(memgraph)
        self.after, self.predecessor_counts = successors(memgraph), predecessor_counts(memgraph)

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)
        return supervise(run, {"dynamic": _StreamDynamicRun(self, run, on_streams(device)).body})


@dataclass(slots=True)
class _InFlight:
    node: NodeId
    event: Event
    last: bool
    """Whether this was its last chunk."""


class _StreamDynamicRun(StreamRun):
    def __init__(self, plan: StreamDynamicDispatcher, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        memgraph = plan.memgraph
        self._after, self._unfinished = plan.after, plan.predecessor_counts[:]
        self._ready: list[list[tuple[NodeId, int]]] = [[] for _ in ENGINES]
        """Per stream: (node, its next chunk), a heap."""
        self._in_flight: list[deque[_InFlight]] = [deque() for _ in ENGINES]
        self._can_start = [0.0] * len(memgraph.nodes)
        self._remaining = len(memgraph.nodes)

    def body(self) -> None:
        self._clock = DeviceClock(self.run, self.device)
        for i in [i for i, count in enumerate(self._unfinished) if count == 0]:
            self._push(NodeId(i), 0.0)
        polling = Polling()
        while self._remaining:
            enqueued, retired = self._fill(), self._retire()
            if enqueued or retired:
                polling.found()
            else:
                assert any(self._in_flight), "nothing is under way and nothing is ready"
                polling.pause()

    def _fill(self) -> bool:
        """Enqueue ready chunks on every stream with less than AHEAD in flight; whether there were any."""
        enqueued = False
        for stream, ready in enumerate(self._ready):
            while ready and len(self._in_flight[stream]) < AHEAD:
                node, chunk = heappop(ready)
                event = self.enqueue(node, chunk)
                last = chunk + 1 == self.device.chunks(node)
                if not last:
                    heappush(ready, (node, chunk + 1))
                self._in_flight[stream].append(_InFlight(node, event, last))
                if last:
                    for target in self._after[node]:
                        if self.device.stream(target) == stream:
                            self._release(target, 0.0)
                enqueued = True
        return enqueued

    def _retire(self) -> bool:
        """Record the nodes whose events have passed, and release their successors; whether there were any."""
        found = False
        for stream, in_flight in enumerate(self._in_flight):
            while in_flight and self.passed(in_flight[0].node, in_flight[0].event):
                flight = in_flight.popleft()
                if flight.last:
                    self._finish(stream, flight.node, self._clock.at(flight.event))
                self.device.recycle((flight.event,))
                found = True
        return found

    def _finish(self, stream: int, node: NodeId, end_s: float) -> None:
        self.record_times(stream, node, self._can_start[node], end_s)
        self._remaining -= 1
        for target in self._after[node]:
            if self.device.stream(target) != stream:
                self._release(target, end_s)

    def _release(self, target: NodeId, at_s: float) -> None:
        self._can_start[target] = max(self._can_start[target], at_s)
        self._unfinished[target] -= 1
        if self._unfinished[target] == 0:
            self._push(target, self._can_start[target])

    def _push(self, node: NodeId, at_s: float) -> None:
        """Make `node` ready on its stream; a Free is done at once."""
        stream = self.device.stream(node)
        if stream is not None:
            heappush(self._ready[stream], (node, 0))
            return
        self.run.started[node] = self.run.finished[node] = at_s
        self._remaining -= 1
        for target in self._after[node]:
            self._release(target, at_s)
