"""What a person sees while a plan runs: progress, and which engine is stuck on what.

The main thread polls; the engines never wait for it. Progress and queue heads are read from the table of finish times that the engines
write anyway. When nothing has finished for a while, the head of each engine's queue (its first unfinished node, what it is and what it
waits for) is handed to a callback. Nothing is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

import numpy as np
from numpy.typing import NDArray

from einpage.exec.device.device import Device
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.packed import GATHER, Nodes
from einpage.memplan.graph.simulate import NO_QUEUE, queue_numbers, queues_of
from einpage.memplan.machine.places import Queue


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Bytes, by link, are counted by the engines; `plan_bytes` is where they will end."""

    seconds: float
    tasks_done: int
    tasks: int
    moved_bytes: Mapping[Queue, int]
    plan_bytes: Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The first unfinished node of an engine."""

    engine: Queue
    node: NodeId
    what: str
    running: bool
    waits_for: tuple[tuple[NodeId, str], ...]
    """Unfinished predecessors, lowest first."""

    def text(self) -> str:
        """One line for a person: the engine, its node, and whether it runs or what it waits for."""
        if self.running:
            state = "running"
        elif self.waits_for:
            state = "waits for " + ", ".join(f"node {n} ({what})" for n, what in self.waits_for)
        else:
            state = "ready, not started"
        return f"{self.engine.name}: node {self.node} ({self.what}) {state}"


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks, all called on the thread that started the run."""

    progress: Callable[[Progress], None] | None = None
    """Called once every `interval_s`, and once at the end."""
    stuck: Callable[[tuple[QueueHead, ...]], None] | None = None
    """Called whenever no node has finished for `stuck_after_s`."""
    stuck_after_s: float = 30.0
    interval_s: float = 0.1


SILENT = Hooks()
"""No callbacks."""


def queue_heads(memgraph: MemGraph, started: Sequence[float], finished: Sequence[float]) -> tuple[QueueHead, ...]:
    """The queue head of every engine that has one. Times are NaN for what has not happened."""
    first: dict[Queue, NodeId] = {}
    numbers, engines = queue_numbers(memgraph), queues_of(memgraph)
    for i in np.flatnonzero(np.isnan(finished)).tolist():
        if numbers[i] != NO_QUEUE:
            first.setdefault(engines[numbers[i]], NodeId(i))
    return tuple(_queue_head(memgraph, engine, first[engine], started, finished) for engine in engines if engine in first)


def _queue_head(memgraph: MemGraph, engine: Queue, node: NodeId, started: Sequence[float], finished: Sequence[float]) -> QueueHead:
    edges = memgraph.edges
    sources = edges.source[edges.target == node].tolist()
    waits = tuple((NodeId(s), describe(memgraph, NodeId(s))) for s in sources if isnan(finished[s]))
    return QueueHead(engine, node, describe(memgraph, node), not isnan(started[node]), waits)


class Monitor:
    """Observes a run from outside. `update` is called every `hooks.interval_s` with the seconds since the start."""

    def __init__(
        self,
        memgraph: MemGraph,
        plan_bytes: Mapping[Queue, int],
        device: Device,
        hooks: Hooks,
        started: Sequence[float],
        finished: Sequence[float],
    ) -> None:
        self._memgraph, self._plan_bytes, self._device, self._hooks = memgraph, plan_bytes, device, hooks
        self._started, self._finished = started, finished
        self._done = 0
        self._since = 0.0
        """When the number of finished nodes last changed, or the queue heads were last reported."""

    @cached_property
    def _tasks(self) -> NDArray[np.intp]:
        """The nodes that run a task."""
        return np.flatnonzero(Nodes.of(self._memgraph.nodes).kind <= GATHER)

    def update(self, seconds: float) -> None:
        """Call the progress hook, and the stuck hook where no node has finished for `hooks.stuck_after_s`."""
        self.progress(seconds)
        done = len(self._finished) - int(np.isnan(self._finished).sum())
        if done != self._done:
            self._done, self._since = done, seconds
        elif seconds - self._since >= self._hooks.stuck_after_s:
            self._since = seconds
            if self._hooks.stuck is not None:
                self._hooks.stuck(queue_heads(self._memgraph, self._started, self._finished))

    def progress(self, seconds: float) -> None:
        """Call the progress hook."""
        if self._hooks.progress is None:
            return
        done = len(self._tasks) - int(np.isnan(np.asarray(self._finished)[self._tasks]).sum())
        self._hooks.progress(Progress(seconds, done, len(self._tasks), self._device.moved_bytes, self._plan_bytes))
