"""Dynamic dispatch on streams: a few nodes ahead on every stream, more as marks pass.

A node goes on its stream when all its predecessors are done, or lie before it on that stream; of several the lowest goes first, even
between two pieces of a large copy. No stream ever waits for another: the host has seen what a node needs before it puts it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from time import sleep

from einpage.exec.device.driver import Mark
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Measured, Run, successors, supervise, waits
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.stream_common import PAUSE_S, Clock, StreamRun
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.problem.places import ENGINES

AHEAD = 3
"""Pieces on a stream at once: one that runs, one to follow, and one for the host to be late with."""


def run_polled(memgraph: MemGraph, device: StreamDevice, hooks: Hooks = SILENT) -> Measured:
    """Put what is ready on the streams, a few nodes ahead of what runs."""
    run = Run(memgraph, device, hooks)
    return supervise(run, {"poll": _Polled(run, device).body})


@dataclass(slots=True)
class _Flight:
    node: NodeId
    mark: Mark
    last: bool
    """Whether this was its last piece."""


class _Polled(StreamRun):
    def __init__(self, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        memgraph = run.memgraph
        self._after, self._waits = successors(memgraph), waits(memgraph)
        self._ready: list[list[tuple[NodeId, int]]] = [[] for _ in ENGINES]
        """Per stream: (node, its next piece), a heap."""
        self._flying: list[deque[_Flight]] = [deque() for _ in ENGINES]
        self._can_start = [0.0] * len(memgraph.nodes)
        self._left = len(memgraph.nodes)

    def body(self) -> None:
        self._clock = Clock(self.run, self.device)
        for i in [i for i, count in enumerate(self._waits) if count == 0]:
            self._push(NodeId(i), 0.0)
        while self._left:
            put, landed = self._fill(), self._land()
            if not put and not landed:
                assert any(self._flying), "nothing is under way and nothing is ready"
                sleep(PAUSE_S)

    def _fill(self) -> bool:
        """Put ready pieces on every stream that has room; whether any was."""
        put = False
        for stream, ready in enumerate(self._ready):
            while ready and len(self._flying[stream]) < AHEAD:
                node, piece = heappop(ready)
                mark = self.put(node, piece)
                last = piece + 1 == self.device.pieces(node)
                if not last:
                    heappush(ready, (node, piece + 1))
                self._flying[stream].append(_Flight(node, mark, last))
                if last:
                    for target in self._after[node]:
                        if self.device.stream(target) == stream:
                            self._release(target, 0.0)
                put = True
        return put

    def _land(self) -> bool:
        """Note what has passed, and release what waited for it; whether anything has."""
        news = False
        for stream, flying in enumerate(self._flying):
            while flying and self.passed(flying[0].node, flying[0].mark):
                flight = flying.popleft()
                if flight.last:
                    self._finish(stream, flight.node, self._clock.at(flight.mark))
                news = True
        return news

    def _finish(self, stream: int, node: NodeId, end_s: float) -> None:
        self.note(stream, node, self._can_start[node], end_s)
        self._left -= 1
        for target in self._after[node]:
            if self.device.stream(target) != stream:
                self._release(target, end_s)

    def _release(self, target: NodeId, at_s: float) -> None:
        self._can_start[target] = max(self._can_start[target], at_s)
        self._waits[target] -= 1
        if self._waits[target] == 0:
            self._push(target, self._can_start[target])

    def _push(self, node: NodeId, at_s: float) -> None:
        """`node` may go on its stream; a Free is done at once."""
        stream = self.device.stream(node)
        if stream is not None:
            heappush(self._ready[stream], (node, 0))
            return
        self.run.started[node] = self.run.finished[node] = at_s
        self._left -= 1
        for target in self._after[node]:
            self._release(target, at_s)
