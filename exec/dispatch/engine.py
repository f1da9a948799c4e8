"""What all dispatchers share: engine threads, the clock, the first error, and stopping.

A dispatcher is a plan made ready to be run as often as wanted: what its runs share is made once. For each run it gives one function per
engine thread; `supervise` starts them, watches from the calling thread (which so remains free for Ctrl-C), and returns what was
measured. Whatever ends a run early (a node that raises, an interrupt, a bug in a dispatcher) sets `stopped` and wakes every waiter, so
that no thread waits forever.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import nan
from time import perf_counter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from einpage.exec.device.device import Device, OverlapsReads, actions, no_op
from einpage.exec.dispatch.progress import SILENT, Hooks, Monitor
from einpage.exec.dispatch.threads import EngineThreads
from einpage.exec.errors import CountMismatch, NodeError
from einpage.exec.system.interrupt import told_of_interrupts
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.packed import Nodes
from einpage.memplan.graph.simulate import moved_bytes_by_queue, queue_numbers, queues_of
from einpage.memplan.machine.places import Queue


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a run did. Times are seconds since its start; one entry per node."""

    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    wall_s: float
    moved_bytes: Mapping[Queue, int]
    """By link."""
    busy_s: Mapping[Queue, float]
    """By engine, how long it worked."""


class Stopped(Exception):
    """Unwinds an engine thread of a run that was stopped."""


class Dispatcher(ABC):
    """Runs a plan, as often as wanted, one run at a time."""

    def __init__(self, memgraph: MemGraph) -> None:
        self.memgraph = memgraph
        self.engines = queues_of(memgraph)
        self.queue_numbers = queue_numbers(memgraph)
        self.planned_bytes = moved_bytes_by_queue(memgraph)
        self.kinds = Nodes.of(memgraph.nodes).kind.tobytes()

    @cached_property
    def threads(self) -> EngineThreads:
        """Those of its engines; made for the first run, when all tables are there and what was needed to make them is free."""
        return EngineThreads()

    @abstractmethod
    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        """Run every node on `device`, each after its predecessors.

        Raises NodeError where a node failed, CountMismatch where other bytes were moved than planned, and whatever interrupts the
        calling thread (KeyboardInterrupt); the engines have then stopped, or are in a node that takes longer than STOP_S."""

    def by_engine(self, body: Callable[[int], None]) -> Mapping[str, Callable[[], None]]:
        """For supervise: `body`, which is told its engine's position in `engines`, for each."""
        return {queue.name: partial(body, number) for number, queue in enumerate(self.engines)}

    def close(self) -> None:
        """End its threads."""
        self.threads.close()


class Run:
    """One run in progress: the table of times, the lock that dispatchers share, and whether it was stopped."""

    def __init__(self, dispatcher: Dispatcher, device: Device, hooks: Hooks) -> None:
        self.dispatcher, self.device, self.hooks = dispatcher, device, hooks
        self.memgraph = memgraph = dispatcher.memgraph
        self.lock = threading.Lock()
        self.stopped = False
        self.error: BaseException | None = None
        self.origin = 0.0
        self.ended_s: float | None = None
        """When the last node ended, where a dispatcher knows that before its threads have ended: they may have times to read."""
        self.started = array("d", [nan]) * len(memgraph.nodes)
        self.finished = array("d", [nan]) * len(memgraph.nodes)
        self._kinds, self._action_by_kind = dispatcher.kinds, actions(device)
        self.reads = device if isinstance(device, OverlapsReads) else None
        """What overlaps its reads."""
        self._conditions: list[threading.Condition] = []

    def condition(self) -> threading.Condition:
        """A condition on the run's lock that is also notified when the run stops: wait while `not stopped and …`."""
        self._conditions.append(threading.Condition(self.lock))
        return self._conditions[-1]

    def execute(self, node: NodeId) -> None:
        """Run one node and record when. Raises NodeError, or Stopped where the run was stopped before."""
        if self.stopped:
            raise Stopped
        self.started[node] = perf_counter() - self.origin
        try:
            self._action_by_kind[self._kinds[node]](node)
        except BaseException as error:
            raise self._named(node, error) from error
        self.finished[node] = perf_counter() - self.origin

    def overlaps(self, engine: int) -> bool:
        """Whether the nodes of that engine, a position in `engines`, overlap."""
        return self.reads is not None and self.dispatcher.engines[engine] == Queue.READ

    def execute_overlapping(self, take: Callable[[int, bool], Sequence[NodeId]], finish: Callable[[Sequence[NodeId]], None]) -> None:
        """The body of an engine whose nodes overlap. `take(most, waits)` gives the next nodes, up to so many, that may begin; with `waits`
        it waits for one, and gives none where there is no other. Where it gives fewer, who makes the next ready wakes the device. `finish`
        is told which have ended. Raises NodeError, Stopped."""
        assert self.reads is not None, "the device reads no disk"
        under_way = 0
        try:
            while (begun := take(self.reads.most_reads - under_way, not under_way)) or under_way:
                at_once = []
                for node in begun:
                    if self._begin(node):
                        under_way += 1
                    else:
                        self.execute(node)
                        at_once.append(node)
                finish(at_once)
                if under_way:
                    ended = self._ended()
                    under_way -= len(ended)
                    finish(ended)
        finally:
            self.reads.drain()

    def _begin(self, node: NodeId) -> bool:
        """Begin a node that overlaps others; False for one that does not."""
        assert self.reads is not None
        if self.stopped:
            raise Stopped
        self.started[node] = perf_counter() - self.origin
        try:
            return self.reads.begin(node)
        except BaseException as error:
            raise self._named(node, error) from error

    def wake_reads(self) -> None:
        """More reads may begin: the lock is held. Of a run that was stopped none may, and what its device reads with may be closed."""
        if self.reads is not None and not self.stopped:
            self.reads.wake()

    def _ended(self) -> list[NodeId]:
        """Nodes that were begun and have ended; none where more may begin. Raises NodeError, or Stopped where the run was stopped."""
        assert self.reads is not None
        found, now = self.reads.ended(), perf_counter() - self.origin
        if self.stopped:
            raise Stopped
        for node, error in found:
            if error is not None:
                raise self._named(node, error) from error
            self.finished[node] = now
        return [node for node, _ in found]

    def _named(self, node: NodeId, error: BaseException) -> NodeError:
        return NodeError(node, describe(self.memgraph, node), self.memgraph.queue(node), error)

    def stop(self, error: BaseException | None = None) -> None:
        """Let every engine end after its current node, or what is in flight of several; the first error given is the one that is
        reported."""
        with self.lock:
            was_stopped, self.stopped = self.stopped, True
            self.error = self.error or error
            for condition in self._conditions:
                condition.notify_all()
            if self.reads is not None and not was_stopped:
                self.reads.wake()


class Neighbours:
    """For each node, those at the other end of its edges, ascending; kept flat, four bytes an edge."""

    __slots__ = ("_nodes", "_row")

    def __init__(self, own: NDArray[np.int32], other: NDArray[np.int32], count: int) -> None:
        """`own` is sorted, and names the node of `count` that `other` is a neighbour of."""
        self._nodes, self._row = array("i"), array("i", (0,))
        self._nodes.frombytes(np.ascontiguousarray(other, np.intc).view(np.uint8).data)
        self._row.frombytes(np.cumsum(np.bincount(own, minlength=count), dtype=np.intc).view(np.uint8).data)

    def __len__(self) -> int:
        return len(self._row) - 1

    def __getitem__(self, node: NodeId) -> Sequence[NodeId]:
        return cast(Sequence[NodeId], self._nodes[self._row[node] : self._row[node + 1]])


def predecessors(memgraph: MemGraph) -> Neighbours:
    """For each node, the sources of its edges."""
    return Neighbours(memgraph.edges.target, memgraph.edges.source, len(memgraph.nodes))


def predecessor_counts(memgraph: MemGraph) -> array[int]:
    """For each node, how many predecessors it has."""
    return array("i", np.bincount(memgraph.edges.target, minlength=len(memgraph.nodes)).astype(np.intc).tobytes())


def successors(memgraph: MemGraph) -> Neighbours:
    """For each node, the targets of its edges."""
    source, target = memgraph.edges.source, memgraph.edges.target
    order = np.argsort(source, kind="stable")
    return Neighbours(source[order], target[order], len(memgraph.nodes))


def supervise(run: Run, bodies: Mapping[str, Callable[[], None]], before: Callable[[], None] = no_op) -> Measured:
    """Run `before` here, then each body on the engine thread of that name until all are done. Raises what Dispatcher.run does."""
    monitor = Monitor(run.memgraph, run.dispatcher.planned_bytes, run.device, run.hooks, run.started, run.finished)
    threads = run.dispatcher.threads

    def engine(body: Callable[[], None]) -> None:
        try:
            run.device.init_thread()
            body()
        except Stopped:
            pass
        except BaseException as error:
            run.stop(error)

    with told_of_interrupts(threads.wake) as interrupts:
        run.device.start_run(threads.rested)
        run.origin = perf_counter()
        try:
            before()
            for name, body in bodies.items():
                threads.give(name, partial(engine, body))
            while threads.busy and not run.stopped:
                interrupts.answer()
                if not threads.wait(run.hooks.interval_s):
                    monitor.update(perf_counter() - run.origin)
            wall_s = perf_counter() - run.origin if run.ended_s is None else run.ended_s
        except BaseException as error:
            run.stop(error)
            raise
        finally:
            threads.wait_for_all()
    if run.error is not None:
        raise run.error
    monitor.progress(wall_s)
    measured = _measured(run, wall_s)
    run.device.end_run()
    return measured


def _measured(run: Run, wall_s: float) -> Measured:
    start_s, finish_s = np.asarray(run.started), np.asarray(run.finished)
    left_out = np.flatnonzero(np.isnan(finish_s))
    assert len(left_out) == 0, f"the dispatcher never ran node {left_out[0]} ({describe(run.memgraph, NodeId(int(left_out[0])))})"
    moved, planned = run.device.moved_bytes, run.dispatcher.planned_bytes
    if moved != planned:
        counted, wanted = (", ".join(f"{queue.name} {nbytes}" for queue, nbytes in by.items()) for by in (moved, planned))
        raise CountMismatch(f"the engines moved other bytes than planned: {counted}; the plan says {wanted}")
    engines = run.dispatcher.engines
    numbers = run.dispatcher.queue_numbers
    busy = {queue: _busy_s(start_s[numbers == number], finish_s[numbers == number]) for number, queue in enumerate(engines)}
    return Measured(start_s, finish_s, wall_s, moved, busy)


def _busy_s(start_s: NDArray[np.float64], finish_s: NDArray[np.float64]) -> float:
    """How long at least one of these lasts, which may overlap."""
    order = np.argsort(start_s, kind="stable")
    start_s, reached = start_s[order], np.maximum.accumulate(finish_s[order])
    before = np.concatenate(([-np.inf], reached[:-1]))
    return float(np.maximum(reached - np.maximum(start_s, before), 0.0).sum())
