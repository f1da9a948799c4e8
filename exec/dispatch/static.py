"""Static dispatch: everything is issued ahead. Each engine has its list, in node order, and counters to wait for.

`schedule` turns edges into waits the way streams and events do: an item waits until other engines have finished so many of their items,
and waits already implied by earlier ones are left out. There is no ready queue. A Free is attached to the last item before it of
each engine; the engine that finishes last runs it, before it publishes its progress.

    compute  c0  c1(h2d ≥ 2)  c2             c1 waits until two reloads are done; c2 needs no wait for the first of them
    h2d      m0  m1  m2(compute ≥ 1)         m2 writes where c0 read: a memory edge through c0's Free
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, predecessors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import NO_QUEUE, queue_numbers, queues_of

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


def schedule(memgraph: MemGraph) -> Schedule:
    """The lists of each engine. Cannot deadlock: the order of nodes is itself a valid execution."""
    before = predecessors(memgraph)
    engines = len(queues_of(memgraph))
    none_done: VectorClock = (0,) * engines
    nodes_by_engine: list[list[NodeId]] = [[] for _ in range(engines)]
    known: list[list[VectorClock]] = [[] for _ in range(engines)]
    """Per engine and item: what is done once that item is."""
    waits: dict[NodeId, tuple[tuple[int, int], ...]] = {}
    frees: dict[NodeId, list[NodeId]] = {}
    first: list[NodeId] = []
    arrivals = [0] * len(memgraph.nodes)
    needs: list[VectorClock] = []
    """Per node: what to wait for, so that it is done."""
    queues = queue_numbers(memgraph).tolist()
    for node in map(NodeId, range(len(memgraph.nodes))):
        need = _needed(_latest((none_done, *(needs[p] for p in before[node]))), known)
        engine = queues[node]
        if engine == NO_QUEUE:
            attached = [nodes_by_engine[e][count - 1] for e, count in enumerate(need) if count]
            for item in attached:
                frees[item].append(node)
            first.extend(() if attached else (node,))
            arrivals[node] = len(attached)
            needs.append(need)
            continue
        now = known[engine][-1] if known[engine] else none_done
        waits[node] = tuple((e, count) for e, count in enumerate(need) if count > now[e])
        implied = (known[e][count - 1] for e, count in waits[node])
        nodes_by_engine[engine].append(node)
        frees[node] = []
        done = tuple(len(nodes_by_engine[e]) if e == engine else 0 for e in range(engines))
        known[engine].append(_latest((now, *implied, done)))
        needs.append(done)
    lists = tuple(tuple(QueueItem(n, waits[n], tuple(frees[n])) for n in nodes) for nodes in nodes_by_engine)
    return Schedule(lists, tuple(first), tuple(arrivals))


def _latest(clocks: Iterable[VectorClock]) -> VectorClock:
    """What is done once all of `clocks` are."""
    return tuple(map(max, zip(*clocks, strict=True)))


def _needed(need: VectorClock, known: Sequence[Sequence[VectorClock]]) -> VectorClock:
    """`need` without the counts that another of its counts implies."""
    items = [(e, known[e][count - 1]) for e, count in enumerate(need) if count]
    return tuple(0 if any(i != e and clock[e] >= count for i, clock in items) else count for e, count in enumerate(need))


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

    def engine(self, engine: int) -> None:
        """The body of one engine thread."""
        run, done, advanced = self._run, self._done, self._advanced[engine]
        for item in self._plan.engines[engine]:
            for other, count in item.waits:
                if done[other] < count:
                    self._wait(other, count)
            run.execute(item.node)
            for free in item.frees:
                if self._arrives_last(free):
                    run.execute(free)
            with advanced:
                done[engine] += 1
                advanced.notify_all()

    def run_initial_frees(self) -> None:
        """Frees that no node precedes."""
        for free in self._plan.initial_frees:
            self._run.execute(free)

    def _wait(self, engine: int, count: int) -> None:
        advanced = self._advanced[engine]
        with advanced:
            while self._done[engine] < count and not self._run.stopped:
                advanced.wait()

    def _arrives_last(self, free: NodeId) -> bool:
        with self._run.lock:
            self._missing[free] -= 1
            return self._missing[free] == 0
