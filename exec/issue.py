"""Dispatch on a device of streams, from one thread: everything put on the streams beforehand, or what is ready as marks pass.

`run_issued` (static) goes through the nodes in the plan's order, which is that of every stream, and puts a wait where `schedule` says
one is needed: the host takes no part in any edge. `run_polled` (dynamic) keeps a few nodes on every stream and looks for marks that passed;
a node goes on its stream when all its predecessors are done, or lie before it on that stream; of several the lowest goes first, even
between two pieces of a large copy. Times are the device's own, read from the marks.

    h2d      m0 ─mark┐   m1 ─mark┐                 compute waits for the mark behind m0, not for the host to see it
    compute          └► c0 ─mark └► c1
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter, sleep

from einpage.exec.driver import Mark, Stream
from einpage.exec.engine import Measured, Run, Stopped, predecessors, successors, supervise
from einpage.exec.errors import NodeError
from einpage.exec.static import Item, schedule
from einpage.exec.streams import StreamDevice
from einpage.exec.watch import ENGINES, SILENT, Hooks, describe
from einpage.memplan.memgraph import MemGraph, NodeId

AHEAD = 3
"""Pieces on a stream at once under dynamic dispatch: one that runs, one to follow, and one for the host to be late with."""
PAUSE_S = 50e-6
"""How long the host rests where no mark has passed."""
GLANCE = 32
"""Nodes issued between two looks at what has passed."""


def run_issued(memgraph: MemGraph, device: StreamDevice, hooks: Hooks = SILENT) -> Measured:
    """Put every node on its stream, with the waits that the edges need, then see them pass."""
    run = Run(memgraph, device, hooks)
    return supervise(run, {"issue": _Issued(run, device).body})


def run_polled(memgraph: MemGraph, device: StreamDevice, hooks: Hooks = SILENT) -> Measured:
    """Put what is ready on the streams, a few nodes ahead of what runs."""
    run = Run(memgraph, device, hooks)
    return supervise(run, {"poll": _Polled(run, device).body})


class _Clock:
    """The device's time, as seconds of the run."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self._driver = device.driver
        self._first = device.driver.record(Stream(0))
        device.driver.synchronize(self._first)
        self._offset = perf_counter() - run.origin

    def at(self, mark: Mark) -> float:
        return self._offset + self._driver.seconds(self._first, mark)


class _Streams:
    """What both ways share: issuing a node with its errors named, and noting when it ran."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self.run, self.device = run, device
        self.ended = [0.0] * len(ENGINES)
        """Per stream: when the last node seen to pass did."""

    def put(self, node: NodeId, piece: int) -> Mark:
        """A piece of `node` on its stream, and a mark behind it. Raises NodeError; Stopped where the run was."""
        if self.run.stopped:
            raise Stopped
        stream = self.device.stream(node)
        assert stream is not None, "a Free goes on no stream"
        try:
            self.device.issue(node, piece)
            return self.device.driver.record(stream)
        except BaseException as error:
            raise self._named(node, error) from error

    def passed(self, node: NodeId, mark: Mark) -> bool:
        """Whether `mark`, behind a piece of `node`, has passed. Raises NodeError where the device failed; Stopped where the run was."""
        if self.run.stopped:
            raise Stopped
        try:
            return self.device.driver.passed(mark)
        except RuntimeError as error:
            raise self._named(node, error) from error

    def note(self, stream: int, node: NodeId, after_s: float, end_s: float) -> None:
        """`node` ended then, and began when its stream was free and what it waited for (`after_s`) had passed."""
        self.run.started[node] = min(end_s, max(after_s, self.ended[stream]))
        self.run.finished[node] = self.ended[stream] = end_s

    def _named(self, node: NodeId, error: BaseException) -> NodeError:
        memgraph = self.run.memgraph
        return NodeError(node, describe(memgraph, node), memgraph.queue(node), error)


class _Issued(_Streams):
    def __init__(self, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        self._plan = schedule(run.memgraph)
        self._items = sorted((item.node, e, item) for e, items in enumerate(self._plan.engines) for item in items)
        self._marks: list[list[Mark]] = [[] for _ in ENGINES]
        self._seen = [0] * len(ENGINES)
        """Per stream: how many of its marks were seen to pass."""
        self._missing = list(self._plan.arrivals)
        self._freed: dict[NodeId, float] = {}
        """When the last so far of what a Free comes after ended."""

    def body(self) -> None:
        for free in self._plan.first:
            self.run.started[free] = self.run.finished[free] = 0.0
        self._clock = _Clock(self.run, self.device)
        driver = self.device.driver
        for count, (node, stream, item) in enumerate(self._items, 1):
            for other, marks in item.waits:
                driver.wait(Stream(stream), self._marks[other][marks - 1])
            for piece in range(self.device.pieces(node)):
                mark = self.put(node, piece)
            self._marks[stream].append(mark)
            if count % GLANCE == 0:
                self._look()
        while any(seen < len(items) for seen, items in zip(self._seen, self._plan.engines, strict=True)):
            if not self._look():
                sleep(PAUSE_S)

    def _look(self) -> bool:
        """Note what has passed since the last look; whether anything has."""
        news = False
        for stream, marks in enumerate(self._marks):
            items = self._plan.engines[stream]
            while self._seen[stream] < len(marks) and self.passed(items[self._seen[stream]].node, marks[self._seen[stream]]):
                self._arrived(stream, items[self._seen[stream]], self._clock.at(marks[self._seen[stream]]))
                self._seen[stream] += 1
                news = True
        return news

    def _arrived(self, stream: int, item: Item, end_s: float) -> None:
        after = [self._clock.at(self._marks[other][count - 1]) for other, count in item.waits]
        self.note(stream, item.node, max(after, default=0.0), end_s)
        for free in item.frees:
            self._missing[free] -= 1
            self._freed[free] = max(self._freed.get(free, 0.0), end_s)
            if self._missing[free] == 0:
                self.run.started[free] = self.run.finished[free] = self._freed.pop(free)


@dataclass(slots=True)
class _Flight:
    node: NodeId
    mark: Mark
    last: bool
    """Whether this was its last piece."""


class _Polled(_Streams):
    def __init__(self, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        memgraph = run.memgraph
        self._after, self._waits = successors(memgraph), predecessors(memgraph).counts()
        self._ready: list[list[tuple[NodeId, int]]] = [[] for _ in ENGINES]
        """Per stream: (node, its next piece), a heap."""
        self._flying: list[deque[_Flight]] = [deque() for _ in ENGINES]
        self._can_start = [0.0] * len(memgraph.nodes)
        self._left = len(memgraph.nodes)

    def body(self) -> None:
        self._clock = _Clock(self.run, self.device)
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
