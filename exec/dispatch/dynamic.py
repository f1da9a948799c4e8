"""Dynamic dispatch: each engine takes the lowest-numbered node of its own whose predecessors are done.

A finished node counts down its successors; one that reaches zero becomes ready on its engine. Frees occupy no engine: the
thread that finishes their last predecessor runs them at once. After the published runtime's dispatch (Turnip), with an engine a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush

from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, predecessor_counts, successors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import NO_QUEUE


class DynamicDispatcher(Dispatcher):
    """Runs every node as soon as its edges and its engine allow."""

    def __init__(self, memgraph: MemGraph) -> None:
        super().__init__(memgraph)
        self.after, self.predecessor_counts = successors(memgraph), predecessor_counts(memgraph)
        self.queue_by_node = self.queue_numbers.tolist()
        """[node] a position in `engines`, or NO_QUEUE"""
        self.counts = [self.queue_by_node.count(engine) for engine in range(len(self.engines))]
        """[engine] how many nodes it has"""

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)
        dispatch = _DynamicRun(self, run)
        return supervise(run, self.by_engine(dispatch.engine), dispatch.run_initial_frees)


class _DynamicRun:
    def __init__(self, plan: DynamicDispatcher, run: Run) -> None:
        self._run = run
        self._queue, self._after = plan.queue_by_node, plan.after
        self._unfinished, self._remaining = plan.predecessor_counts[:], plan.counts[:]
        self._ready: list[list[NodeId]] = [[] for _ in plan.engines]
        self._pushed = [run.condition() for _ in plan.engines]
        self._wants_more = [False] * len(plan.engines)
        """[engine] whether it would begin more nodes beside those under way, and waits for these."""
        with run.lock:
            frees = (self._push(NodeId(i)) for i, count in enumerate(self._unfinished) if count == 0)
            self._initial_frees = [free for pushed in frees for free in pushed]

    def run_initial_frees(self) -> None:
        """Frees that no node precedes."""
        with self._run.lock:
            self._finish(self._initial_frees)

    def engine(self, queue: int) -> None:
        """The body of one engine thread: the lock is taken once a node, and let go while nothing is ready."""
        run = self._run
        if run.overlaps(queue):
            run.execute_overlapping(partial(self._take, queue), self._ended)
            return
        with run.lock:
            node = self._next(queue)
        while node is not None:
            run.execute(node)
            with run.lock:
                self._finish(self._release(node))
                node = self._next(queue)

    def _take(self, queue: int, most: int, waits: bool) -> list[NodeId]:
        """The lowest ready nodes, up to so many, where `waits` after waiting for one. Raises Stopped."""
        found: list[NodeId] = []
        with self._run.lock:
            while len(found) < most and (self._ready[queue] or (waits and not found)):
                node = self._next(queue)
                if node is None:
                    break
                found.append(node)
            self._wants_more[queue] = len(found) < most
        return found

    def _ended(self, nodes: Sequence[NodeId]) -> None:
        with self._run.lock:
            for node in nodes:
                self._finish(self._release(node))

    def _next(self, queue: int) -> NodeId | None:
        """The lowest ready node, waiting for one; None when the engine has no more to do or the run was stopped."""
        ready = self._ready[queue]
        while not ready and self._remaining[queue] and not self._run.stopped:
            self._pushed[queue].wait()
        if not ready or self._run.stopped:
            return None
        self._remaining[queue] -= 1
        return heappop(ready)

    def _release(self, node: NodeId) -> list[NodeId]:
        """Count down the successors of a finished node; the Frees among those now ready are the caller's to run."""
        frees: list[NodeId] = []
        for target in self._after[node]:
            self._unfinished[target] -= 1
            if self._unfinished[target] == 0:
                frees.extend(self._push(target))
        return frees

    def _push(self, node: NodeId) -> list[NodeId]:
        """Make a node ready on its engine; a Free has none, and is returned."""
        queue = self._queue[node]
        if queue == NO_QUEUE:
            return [node]
        heappush(self._ready[queue], node)
        self._pushed[queue].notify()
        if self._wants_more[queue]:
            self._wants_more[queue] = False
            self._run.wake_reads()
        return []

    def _finish(self, frees: list[NodeId]) -> None:
        """Run the Frees that became ready together, then count down all their successors at once, and so on."""
        while frees:
            for node in frees:
                self._run.execute(node)
            frees = [free for node in frees for free in self._release(node)]
