"""Static dispatch: everything is issued ahead. Each engine has its list, in node order, and counters to wait for.

`schedule` turns edges into waits the way streams and events do: an item waits until other engines have finished so many of their items,
and waits already implied by earlier ones are left out. There is no ready queue. A Free is attached to the last item before it of
each engine; the engine that finishes last runs it, before it publishes its progress.

    compute  c0  c1(h2d ≥ 2)  c2             c1 waits until two reloads are done; c2 needs no wait for the first of them
    h2d      m0  m1  m2(compute ≥ 1)         m2 writes where c0 read: a memory edge through c0's Free
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, predecessors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import NO_QUEUE, queue_numbers, queues_of
from einpage.memplan.machine.places import Queue

VectorClock: TypeAlias = "tuple[int, ...]"
"""Per engine: how many of its items are done (Lamport 1978, Mattern 1989)."""


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One node on an engine's list. Engines are numbered as in queues_of."""

    node: NodeId
    waits: tuple[tuple[int, int], ...]
    """(engine, how many of its items must be done)."""
    frees: tuple[NodeId, ...]
    """Frees attached to this item, in node order."""


@dataclass(frozen=True, slots=True)
class Schedule:
    engines: tuple[tuple[QueueItem, ...], ...]
    initial_frees: tuple[NodeId, ...]
    """Frees that come after none_done."""
    arrivals: tuple[int, ...]
    """For each node: for a Free, to how many engines it is attached."""


@garbage_collection_paused()
def schedule(memgraph: MemGraph) -> Schedule:
    """The lists of each engine. Cannot deadlock: the order of nodes is itself a valid execution. One pass over the edges."""
    before, engines = predecessors(memgraph), len(queues_of(memgraph))
    queues = queue_numbers(memgraph).tolist()
    number = [0] * len(queues)
    """[node] how many items of its engine are done once it is."""
    nodes_by_engine: list[list[NodeId]] = [[] for _ in range(engines)]
    waits: list[list[tuple[tuple[int, int], ...]]] = [[] for _ in range(engines)]
    frees: list[list[list[NodeId]]] = [[] for _ in range(engines)]
    known: list[list[VectorClock]] = [[(0,) * engines] for _ in range(engines)]
    """Per engine and number: what is done once so many of its items are."""
    begun = [(0,) * engines for _ in range(engines)]
    """Per engine: what is done when its next item begins. The items of an engine that reads a disk overlap: of its own it knows only those
    that it waits for."""
    overlapping = [queue == Queue.READ for queue in queues_of(memgraph)]
    counts_by_free: dict[int, list[tuple[int, int]]] = {}
    """What to wait for, so that a Free is done."""
    first: list[NodeId] = []
    arrivals = [0] * len(queues)
    for node, engine in enumerate(queues):
        need = [0] * engines
        for p in before[NodeId(node)]:
            if (other := queues[p]) != NO_QUEUE:
                if number[p] > need[other]:
                    need[other] = number[p]
            else:
                for other, count in counts_by_free[p]:
                    if count > need[other]:
                        need[other] = count
        if engine == NO_QUEUE:
            counts_by_free[node] = attached = _needed([(e, count) for e, count in enumerate(need) if count], known)
            for e, count in attached:
                frees[e][count - 1].append(NodeId(node))
            if not attached:
                first.append(NodeId(node))
            arrivals[node] = len(attached)
            continue
        now = begun[engine]
        unknown = [(e, count) for e, count in enumerate(need) if count > now[e]]
        if unknown:
            unknown = _needed(unknown, known)
            for e, count in unknown:
                now = tuple(map(max, now, known[e][count]))
        nodes_by_engine[engine].append(NodeId(node))
        waits[engine].append(tuple(unknown))
        frees[engine].append([])
        number[node] = len(nodes_by_engine[engine])
        ended = tuple(map(max, now, known[engine][-1])) if overlapping[engine] else now
        known[engine].append((*ended[:engine], number[node], *ended[engine + 1 :]))
        begun[engine] = now if overlapping[engine] else known[engine][-1]
    lists = (tuple(map(QueueItem, *columns)) for columns in zip(nodes_by_engine, waits, (map(tuple, f) for f in frees), strict=True))
    return Schedule(tuple(lists), tuple(first), tuple(arrivals))


def _needed(counts: list[tuple[int, int]], known: Sequence[Sequence[VectorClock]]) -> list[tuple[int, int]]:
    """(engine, count) without those that another of them implies."""
    if len(counts) < 2:
        return counts
    return [(e, count) for e, count in counts if not any(i != e and known[i][n][e] >= count for i, n in counts)]


class StaticDispatcher(Dispatcher):
    """Runs every engine's list, in order, waiting only where the schedule says so."""

    def __init__(self, memgraph: MemGraph) -> None:
        super().__init__(memgraph)
        self._lists = schedule(memgraph)

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)
        dispatch = _StaticRun(run, self._lists)
        return supervise(run, self.by_engine(dispatch.engine), dispatch.run_initial_frees)


class _StaticRun:
    def __init__(self, run: Run, plan: Schedule) -> None:
        self._run, self._plan = run, plan
        self._done = [0] * len(plan.engines)
        self._advanced = [run.condition() for _ in plan.engines]
        self._missing = list(plan.arrivals)
        self._awaited: Sequence[tuple[int, int]] = ()
        """What the next item of an engine waits for that would begin it beside those under way."""

    def engine(self, engine: int) -> None:
        """The body of one engine thread."""
        run, done = self._run, self._done
        if run.overlaps(engine):
            reads = _OverlappingItems(self, engine)
            run.execute_overlapping(reads.take, reads.finish)
            return
        for item in self._plan.engines[engine]:
            for other, count in item.waits:
                if done[other] < count:
                    self.wait(other, count)
            run.execute(item.node)
            self.finish(engine, item)

    def finish(self, engine: int, item: QueueItem) -> None:
        """One more item of an engine is done."""
        for free in item.frees:
            if self._arrives_last(free):
                self._run.execute(free)
        with self._advanced[engine]:
            self._done[engine] += 1
            self._advanced[engine].notify_all()
            if self._awaited and self.may_begin(self._awaited):
                self._awaited = ()
                self._run.wake_reads()

    def items(self, engine: int) -> tuple[QueueItem, ...]:
        """The list of an engine."""
        return self._plan.engines[engine]

    def may_begin(self, waits: Sequence[tuple[int, int]]) -> bool:
        """Whether so many items of these engines are done."""
        return all(self._done[engine] >= count for engine, count in waits)

    def begins_or_wakes(self, waits: Sequence[tuple[int, int]]) -> bool:
        """Whether so many items of these engines are done; where not, the device is woken when they are."""
        with self._run.lock:
            self._awaited = () if self.may_begin(waits) else waits
            return not self._awaited

    def run_initial_frees(self) -> None:
        """Frees that no node precedes."""
        for free in self._plan.initial_frees:
            self._run.execute(free)

    def wait(self, engine: int, count: int) -> None:
        """Until so many items of an engine are done, or the run is stopped."""
        advanced = self._advanced[engine]
        with advanced:
            while self._done[engine] < count and not self._run.stopped:
                advanced.wait()

    def _arrives_last(self, free: NodeId) -> bool:
        with self._run.lock:
            self._missing[free] -= 1
            return self._missing[free] == 0


class _OverlappingItems:
    """The list of an engine whose items overlap: they begin in its order, and count as done in its order."""

    def __init__(self, run: _StaticRun, engine: int) -> None:
        self._run, self._engine, self._items = run, engine, run.items(engine)
        self._begun = self._done = 0
        self._ended = set[NodeId]()
        """Of those that are not done."""

    def take(self, most: int, waits: bool) -> list[NodeId]:
        """The next nodes, up to so many, of which nothing has to be waited for; with `waits`, the first after waiting."""
        found: list[NodeId] = []
        while self._begun < len(self._items) and len(found) < most:
            item = self._items[self._begun]
            for other, count in item.waits:
                if waits and not found:
                    self._run.wait(other, count)
            if (found or not waits) and not self._run.begins_or_wakes(item.waits):
                break
            found.append(item.node)
            self._begun += 1
        return found

    def finish(self, nodes: Sequence[NodeId]) -> None:
        """These have ended."""
        self._ended.update(nodes)
        while self._done < self._begun and (item := self._items[self._done]).node in self._ended:
            self._ended.remove(item.node)
            self._run.finish(self._engine, item)
            self._done += 1
