"""Static dispatch on streams: everything is issued ahead, with a wait only where `schedule` says that an edge needs one.

The host takes no part in any edge: it enqueues the nodes in the plan's order, which is that of every stream, then watches the events
pass. A run of computes that comes a second time (another pass) is captured once and enqueued at once, as a CUDA graph.

    h2d      m0 ─event┐    m1 ─event┐               compute waits for the event after m0, not for the host to see it
    compute           └► c0 ─event  └► c1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep

from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event, Stream
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.static import QueueItem, Schedule, schedule
from einpage.exec.dispatch.stream_common import PAUSE_S, DeviceClock, StreamRun, on_streams
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.machine.places import ENGINES

GROUPS_PER_CHECK = 32
"""Groups enqueued between two checks of what has passed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Items of one stream that may be enqueued at once: only the first waits, and no item waits for any but the last."""

    stream: int
    items: tuple[QueueItem, ...]


def groups(plan: Schedule) -> Iterator[Group]:
    """Every item once: computes in groups as long as possible, all others one by one."""
    awaited = {count for items in plan.engines for item in items for engine, count in item.waits if engine == COMPUTE}
    group: list[QueueItem] = []
    for stream, items in enumerate(plan.engines):
        for number, item in enumerate(items):
            if group and (stream != COMPUTE or item.waits or number in awaited):
                yield Group(COMPUTE, tuple(group))
                group = []
            if stream == COMPUTE:
                group.append(item)
            else:
                yield Group(stream, (item,))
    if group:
        yield Group(COMPUTE, tuple(group))


class StreamStaticDispatcher(Dispatcher):
    """Enqueues every node on its stream, with the waits that the edges need, then watches the events pass."""

    def __init__(self, memgraph: MemGraph) -> None:
        super().__init__(memgraph)
        self.lists = schedule(memgraph)
        self.groups = sorted(groups(self.lists), key=lambda group: group.items[0].node)
        """In node order."""

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)
        return supervise(run, {"static": _StreamStaticRun(self, run, on_streams(device)).body})


class _StreamStaticRun(StreamRun):
    def __init__(self, plan: StreamStaticDispatcher, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        self._plan = plan.lists
        self._groups = [(g, len(g.items) > 1 and device.can_replay([item.node for item in g.items])) for g in plan.groups]
        """In node order, with whether it is replayed."""
        self._events: list[list[Event]] = [[] for _ in ENGINES]
        self._passed = [0] * len(ENGINES)
        """Per stream: how many of its events are known to have passed."""
        self._missing = list(self._plan.arrivals)
        self._freed: dict[NodeId, float] = {}
        """When the last finished predecessor of a Free ended."""

    def body(self) -> None:
        for free in self._plan.initial_frees:
            self.run.started[free] = self.run.finished[free] = 0.0
        self._clock = DeviceClock(self.run, self.device)
        driver = self.device.driver
        for count, (group, replayed) in enumerate(self._groups, 1):
            first, stream = group.items[0], group.stream
            for other, done in first.waits:
                driver.wait(Stream(stream), self._events[other][done - 1])
            nodes = [item.node for item in group.items]
            if replayed:
                self._events[stream] += [self.replay(nodes)] * len(nodes)
            else:
                for node in nodes:
                    for chunk in range(self.device.chunks(node)):
                        event = self.enqueue(node, chunk)
                    self._events[stream].append(event)
            if count % GROUPS_PER_CHECK == 0:
                self._collect()
        while any(seen < len(items) for seen, items in zip(self._passed, self._plan.engines, strict=True)):
            if not self._collect():
                sleep(PAUSE_S)

    def _collect(self) -> bool:
        """Record the nodes whose events have passed since the last check; whether there were any."""
        found_any = False
        for stream, events in enumerate(self._events):
            items = self._plan.engines[stream]
            while self._passed[stream] < len(events) and self.passed(items[self._passed[stream]].node, events[self._passed[stream]]):
                self._arrived(stream, items[self._passed[stream]], self._clock.at(events[self._passed[stream]]))
                self._passed[stream] += 1
                found_any = True
        return found_any

    def _arrived(self, stream: int, item: QueueItem, end_s: float) -> None:
        after = [self._clock.at(self._events[other][count - 1]) for other, count in item.waits]
        self.record_times(stream, item.node, max(after, default=0.0), end_s)
        for free in item.frees:
            self._missing[free] -= 1
            self._freed[free] = max(self._freed.get(free, 0.0), end_s)
            if self._missing[free] == 0:
                self.run.started[free] = self.run.finished[free] = self._freed.pop(free)
