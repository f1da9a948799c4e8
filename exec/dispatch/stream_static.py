"""Static dispatch on streams: everything put beforehand, with a wait only where `schedule` says that an edge needs one.

The host takes no part in any edge: it goes through the nodes in the plan's order, which is that of every stream, then sees the marks
pass. A stretch of computes that is met a second time (another pass) is recorded once and put at once, as a CUDA graph.

    h2d      m0 ─mark┐   m1 ─mark┐                 compute waits for the mark behind m0, not for the host to see it
    compute          └► c0 ─mark └► c1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep

from einpage.exec.device.driver import Mark, Stream
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Measured, Run, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.static import Item, Schedule, schedule
from einpage.exec.dispatch.stream_common import PAUSE_S, Clock, StreamRun
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.problem.places import ENGINES

GLANCE = 32
"""Groups put between two looks at what has passed."""


def run_issued(memgraph: MemGraph, device: StreamDevice, hooks: Hooks = SILENT) -> Measured:
    """Put every node on its stream, with the waits that the edges need, then see them pass."""
    run = Run(memgraph, device, hooks)
    return supervise(run, {"issue": _Issued(run, device).body})


@dataclass(frozen=True, slots=True)
class Group:
    """Items of one stream that may be put at once: only the first waits, and nobody waits for any but the last."""

    stream: int
    items: tuple[Item, ...]


def groups(plan: Schedule) -> Iterator[Group]:
    """Every item once: computes in stretches as long as can be, everything else alone."""
    awaited = {count for items in plan.engines for item in items for engine, count in item.waits if engine == COMPUTE}
    stretch: list[Item] = []
    for stream, items in enumerate(plan.engines):
        for number, item in enumerate(items):
            if stretch and (stream != COMPUTE or item.waits or number in awaited):
                yield Group(COMPUTE, tuple(stretch))
                stretch = []
            if stream == COMPUTE:
                stretch.append(item)
            else:
                yield Group(stream, (item,))
    if stretch:
        yield Group(COMPUTE, tuple(stretch))


class _Issued(StreamRun):
    def __init__(self, run: Run, device: StreamDevice) -> None:
        super().__init__(run, device)
        self._plan = schedule(run.memgraph)
        found = sorted(groups(self._plan), key=lambda group: group.items[0].node)
        self._groups = [(g, len(g.items) > 1 and device.replays([item.node for item in g.items])) for g in found]
        """And whether it is replayed."""
        self._marks: list[list[Mark]] = [[] for _ in ENGINES]
        self._seen = [0] * len(ENGINES)
        """Per stream: how many of its marks were seen to pass."""
        self._missing = list(self._plan.arrivals)
        self._freed: dict[NodeId, float] = {}
        """When the last so far of what a Free comes after ended."""

    def body(self) -> None:
        for free in self._plan.first:
            self.run.started[free] = self.run.finished[free] = 0.0
        self._clock = Clock(self.run, self.device)
        driver = self.device.driver
        for count, (group, replayed) in enumerate(self._groups, 1):
            first, stream = group.items[0], group.stream
            for other, marks in first.waits:
                driver.wait(Stream(stream), self._marks[other][marks - 1])
            nodes = [item.node for item in group.items]
            if replayed:
                self._marks[stream] += [self.replay(nodes)] * len(nodes)
            else:
                for node in nodes:
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
