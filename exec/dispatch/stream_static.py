"""Static dispatch on streams: everything is issued ahead, with a wait only where `schedule` says that an edge needs one.

The host takes no part in any edge: it goes through a list that was made once (EnqueueList), in the plan's order, then watches the events
pass; when the last has passed the run is over, and only then are times read from them. A run of computes that comes a second time (another
pass) is captured once and enqueued at once, as a CUDA graph.

    h2d      m0 ─event┐    m1 ─event┐               compute waits for the event after m0, not for the host to see it
    compute           └► c0 ─event  └► c1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event, Stream
from einpage.exec.device.streams import COMPUTE, StreamAction, StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, Stopped, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.static import QueueItem, Schedule, schedule
from einpage.exec.dispatch.stream_common import DeviceClock, Polling, StreamRun, on_streams
from einpage.memplan.graph.memgraph import MemGraph, NodeId

EnqueueStep: TypeAlias = "tuple[Stream, tuple[int, ...], tuple[StreamAction, ...], int, int]"
"""(stream, the events it waits for first, what is called then, the first item, how many items: one event after all of them)."""
STEPS_PER_CHECK = 32
"""Steps between two looks at whether the run was stopped."""
PROGRESS_S = 0.05
"""How long the host enqueues without a look at what has passed: for progress alone, as no edge needs it."""


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


@dataclass(frozen=True, slots=True, eq=False)
class EnqueueList:
    device: StreamDevice
    steps: tuple[EnqueueStep, ...]
    """In the plan's order, which is that of every stream."""
    items_by_stream: tuple[range, ...]
    nodes: tuple[NodeId, ...]
    """[item]"""
    waits: tuple[tuple[int, ...], ...]
    """[item] the items of other streams whose events it waits for."""
    frees: tuple[tuple[NodeId, ...], ...]
    """[item] Frees that come after it, and perhaps after others."""
    wait_pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
    """`waits`, flat: items, and those that they wait for."""
    free_pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
    """`frees`, flat: Frees, and the items before them."""
    is_final: bool
    """Whether every group is replayed that can be: another list would be the same."""


@garbage_collection_paused()
def enqueue_list(device: StreamDevice, plan: Schedule, in_order: Sequence[Group]) -> EnqueueList:
    """The list of `plan`, whose groups are given in node order. Groups that come a second time are captured now, before the pass."""
    first = [0, *accumulate(map(len, plan.engines))]
    items = [item for engine in plan.engines for item in engine]
    waits = tuple(tuple(first[engine] + count - 1 for engine, count in item.waits) for item in items)
    steps: list[EnqueueStep] = []
    reached = first[:-1]
    is_final = True
    for group in in_order:
        stream, number, count = Stream(group.stream), reached[group.stream], len(group.items)
        reached[group.stream] += count
        nodes = [item.node for item in group.items]
        if count > 1 and device.can_replay(nodes):
            steps.append((stream, waits[number], (partial(device.replay, nodes),), number, count))
            continue
        is_final = is_final and count == 1
        for node in nodes:
            chunks = tuple(partial(device.enqueue, node, chunk) for chunk in range(device.chunks(node)))
            steps.append((stream, waits[number], chunks, number, 1))
            number += 1
    ranges = tuple(range(start, start + len(engine)) for start, engine in zip(first, plan.engines, strict=False))
    frees = tuple(item.frees for item in items)
    wait_pairs, free_pairs = _flat(waits), _flat(frees)[::-1]
    return EnqueueList(device, tuple(steps), ranges, tuple(item.node for item in items), waits, frees, wait_pairs, free_pairs, is_final)


def _flat(lists: Sequence[Sequence[int]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(i, j) for every j in lists[i]."""
    counts = [len(found) for found in lists]
    return np.repeat(np.arange(len(lists)), counts), np.fromiter(chain.from_iterable(lists), np.intp, sum(counts))


class StreamStaticDispatcher(Dispatcher):
    """Enqueues every node on its stream, with the waits that the edges need, then watches the events pass."""

    def __init__(self, memgraph: MemGraph) -> None:
        super().__init__(memgraph)
        with garbage_collection_paused():
            self.schedule = schedule(memgraph)
            self._groups = sorted(groups(self.schedule), key=lambda group: group.items[0].node)
        self._list: EnqueueList | None = None

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        listed = self._enqueue_list(on_streams(device))
        run = Run(self, device, hooks)
        return supervise(run, {"static": _StreamStaticRun(run, listed, self.schedule).body})

    def close(self) -> None:
        self._list = None
        super().close()

    def _enqueue_list(self, device: StreamDevice) -> EnqueueList:
        """That of the pass before where it is the same."""
        if self._list is None or self._list.device is not device or not self._list.is_final:
            self._list = enqueue_list(device, self.schedule, self._groups)
        return self._list


class _StreamStaticRun(StreamRun):
    def __init__(self, run: Run, listed: EnqueueList, plan: Schedule) -> None:
        super().__init__(run, listed.device)
        self._list, self._initial_frees = listed, plan.initial_frees
        self._events: list[Event | None] = [None] * len(listed.nodes)
        """[item]; None for one that is not enqueued yet."""
        self._seen = [items.start for items in listed.items_by_stream]
        """Per stream: the first item that is not known to be done."""
        self._missing = list(plan.arrivals)

    def body(self) -> None:
        for free in self._initial_frees:
            self.run.started[free] = self.run.finished[free] = 0.0
        self._clock = DeviceClock(self.run, self.device)
        self._enqueue_all()
        polling = Polling()
        while any(seen < items.stop for seen, items in zip(self._seen, self._list.items_by_stream, strict=True)):
            if self._collect():
                polling.found()
            else:
                polling.pause()
        self.run.ended_s = perf_counter() - self.run.origin
        self._read_times()
        self.device.recycle([*self._events, self._clock.first])

    def _enqueue_all(self) -> None:
        steps, events, wait, record = self._list.steps, self._events, self.device.driver.wait, self.device.driver.record
        looked_s = perf_counter()
        for start in range(0, len(steps), STEPS_PER_CHECK):
            if self.run.stopped:
                raise Stopped
            try:
                for stream, waits, calls, item, count in steps[start : start + STEPS_PER_CHECK]:
                    for awaited in waits:
                        wait(stream, events[awaited])
                    for call in calls:
                        call()
                    events[item] = event = record(stream)
                    if count > 1:
                        events[item + 1 : item + count] = [event] * (count - 1)
            except BaseException as error:
                raise self.named(self._list.nodes[item], error) from error
            if (now := perf_counter()) - looked_s >= PROGRESS_S:
                self._collect()
                looked_s = now

    def _collect(self) -> bool:
        """Look which events have passed since the last time; whether there were any. Until times are read, their nodes ended now."""
        started, finished, events, nodes = self.run.started, self.run.finished, self._events, self._list.nodes
        found, now_s = False, perf_counter() - self.run.origin
        for stream, items in enumerate(self._list.items_by_stream):
            item, passed = self._seen[stream], None
            while item < items.stop and (event := events[item]) is not None and (event is passed or self.passed(nodes[item], event)):
                started[nodes[item]] = finished[nodes[item]] = now_s
                for free in self._list.frees[item]:
                    self._missing[free] -= 1
                    if self._missing[free] == 0:
                        started[free] = finished[free] = now_s
                item, passed = item + 1, event
            found = found or item > self._seen[stream]
            self._seen[stream] = item
        return found

    def _read_times(self) -> None:
        """When each node really ran: it started when its stream was free and what it waited for had passed. A Free came when the last node
        before it had ended."""
        listed, at_event = self._list, self._clock.at
        event_by_id = {id(event): event for event in self._events}  # that of a captured group is its items' own
        seconds_by_id = {number: at_event(event) for number, event in event_by_id.items()}
        end_s = np.array([seconds_by_id[id(event)] for event in self._events])
        start_s = np.zeros_like(end_s)
        for items in listed.items_by_stream:
            start_s[items.start + 1 : items.stop] = end_s[items.start : items.stop - 1]
        np.maximum.at(start_s, listed.wait_pairs[0], end_s[listed.wait_pairs[1]])
        started, finished = np.asarray(self.run.started), np.asarray(self.run.finished)
        nodes = np.array(listed.nodes, np.intp)
        started[nodes], finished[nodes] = np.minimum(start_s, end_s), end_s
        free, last = listed.free_pairs
        finished[free] = 0.0
        np.maximum.at(finished, free, end_s[last])
        started[free] = finished[free]
