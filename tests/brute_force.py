"""The best that whole tensors can do on small graphs, by trying everything: fewest bytes over the links, least time.

Tasks run in graph order; a result is written in place of any operand its task may donate, or of none. Nothing is aligned and there are no
offsets, so what is found is at most what any plan reaches, and what a lower bound must not exceed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import combinations, count

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Task, TaskGraph, TensorId
from einpage.memplan.machine.machine import Machine, task_seconds
from einpage.memplan.machine.places import Queue

Tensors = frozenset[TensorId]


class TooMany(Exception):
    """More states than asked for."""


class Small:
    """What both searches need to know of a graph. Gathers are loads of their results, each once."""

    def __init__(self, graph: TaskGraph, capacity: int) -> None:
        self.graph, self.capacity = graph, capacity
        self.tasks = [t for t in graph.tasks if not t.gathers]
        self.size = [int(t.nbytes) for t in graph.tensors]
        self.gathered: Tensors = frozenset(t.result for t in graph.tasks if t.gathers)
        self.outputs: Tensors = frozenset(t.id for t in graph.tensors if t.kind is Kind.OUTPUT)
        self.host_at_start: Tensors = frozenset(t.id for t in graph.tensors if t.kind in HOST_AT_START)
        self.read_from = [frozenset(t for task in self.tasks[k:] for t in task.reads()) for k in range(len(self.tasks) + 1)]

    def bytes_of(self, tensors: Tensors) -> int:
        return sum(self.size[t] for t in tensors)

    def evictable(self, there: Tensors, host: Tensors, pinned: Tensors, k: int) -> Tensors:
        """What may be evicted when the tasks before `k` have started: the host has it, or no task needs it."""
        needed = self.read_from[k] | self.outputs
        return frozenset(t for t in there - pinned if t in host or t not in needed)

    def after_evictions(self, there: Tensors, need: int, evictable: Tensors) -> Iterator[Tensors]:
        """What remains when no more is evicted than `need` bytes take: every such choice."""
        over = self.bytes_of(there) + need - self.capacity
        tried: list[Tensors] = []
        for n in range(len(evictable) + 1):
            for victims in map(frozenset, combinations(sorted(evictable), n)):
                if self.bytes_of(victims) >= over and not any(smaller <= victims for smaller in tried):
                    tried.append(victims)
                    yield there - victims

    def variants(self, task: Task) -> list[tuple[int, Tensors]]:
        """(bytes it needs beyond its operands while it runs, the operands donated)."""
        found: list[tuple[int, Tensors]] = [(int(task.workspace_bytes), frozenset())]
        for one in task.written:
            found = [
                *((need + self.size[one.tensor], donated) for need, donated in found),
                *((need, donated | {t}) for need, donated in found for t in one.inplace if t not in donated),
            ]
        return found


def fewest_bytes(graph: TaskGraph, capacity: int, most_states: int = 50_000) -> int:
    """H2D + D2H bytes of the best plan. Raises TooMany."""
    s = Small(graph, capacity)
    heap: list[tuple[int, int, int, Tensors, Tensors, Tensors]] = [(0, 0, 0, frozenset(), s.host_at_start, s.gathered)]
    done: set[tuple[int, Tensors, Tensors, Tensors]] = set()
    tie = count(1)
    while heap:
        moved, _, k, there, host, to_gather = heappop(heap)
        if (k, there, host, to_gather) in done:
            continue
        done.add((k, there, host, to_gather))
        if len(done) > most_states:
            raise TooMany
        if k == len(s.tasks) and s.outputs <= host and not to_gather:
            return moved
        after: list[tuple[int, int, Tensors, Tensors, Tensors]] = [
            (moved + s.size[t], k, there, host | {t}, to_gather) for t in there - host if t in s.read_from[k] | s.outputs
        ]
        evictable = s.evictable(there, host, frozenset(), k)
        for t in (host & s.read_from[k] | to_gather) - there:
            after += [(moved + s.size[t], k, kept | {t}, host, to_gather - {t}) for kept in s.after_evictions(there, s.size[t], evictable)]
        if k < len(s.tasks) and there.issuperset(s.tasks[k].reads()):
            task = s.tasks[k]
            for need, donated in s.variants(task):
                if not donated <= s.evictable(there, host, frozenset(), k + 1):
                    continue
                for kept in s.after_evictions(there, need, evictable - frozenset(task.reads())):
                    after.append((moved, k + 1, kept - donated | {*task.results}, host, to_gather))
        for state in after:
            heappush(heap, (state[0], next(tie), *state[1:]))
    raise AssertionError("no plan")


@dataclass(frozen=True, slots=True)
class Now:
    """What is where, and what runs. Engines: None is idle, else (seconds to go, tensor)."""

    started: int
    there: Tensors
    """On the device, reserved bytes included."""
    ready: Tensors
    """Of those, what has been loaded or written."""
    host: Tensors
    to_gather: Tensors
    task: tuple[float, Tensors] | None = None
    load: tuple[float, TensorId] | None = None
    store: tuple[float, TensorId] | None = None
    pinned: Tensors = frozenset()
    """Operands and result of the running task."""
    workspace: int = 0


def least_seconds(graph: TaskGraph, machine: Machine, capacity: int, most_states: int = 50_000) -> float:
    """The makespan of the best plan: engines start when something ends, and everything that can be started is tried. Raises TooMany."""
    s = Small(graph, capacity)
    heap: list[tuple[float, int, Now]] = [(0.0, 0, Now(0, frozenset(), frozenset(), s.host_at_start, s.gathered))]
    done: set[Now] = set()
    tie = count(1)
    while heap:
        time, _, now = heappop(heap)
        if now in done:
            continue
        done.add(now)
        if len(done) > most_states:
            raise TooMany
        running = [x[0] for x in (now.task, now.load, now.store) if x is not None]
        if not running and now.started == len(s.tasks) and s.outputs <= now.host and not now.to_gather:
            return time
        for state in (*_starts(s, now, machine), *([_passed(s, now, min(running))] if running else [])):
            heappush(heap, (time + (0.0 if len(state) == 1 else state[1]), next(tie), state[0]))
    raise AssertionError("no plan")


def _starts(s: Small, now: Now, machine: Machine) -> Iterator[tuple[Now]]:
    loads, stores = machine.link(Queue.H2D), machine.link(Queue.D2H)
    busy = now.pinned | frozenset(x[1] for x in (now.load, now.store) if x is not None)
    needed = s.read_from[now.started] | s.outputs
    evictable = s.evictable(now.there, now.host, busy, now.started)
    if now.store is None:
        for t in now.ready - now.host:
            if t in needed and (now.task is None or t not in now.task[1]):
                yield (replace(now, store=(stores.seconds(s.size[t]), t)),)
    if now.load is None:
        for t in (now.host & s.read_from[now.started] | now.to_gather) - now.there:
            for kept in s.after_evictions(now.there, s.size[t] + now.workspace, evictable):
                left = now.to_gather - {t}
                load = loads.seconds(s.size[t]), t
                yield (replace(now, there=kept | {t}, ready=now.ready & kept, to_gather=left, load=load),)
    if now.task is None and now.started < len(s.tasks) and now.ready.issuperset(s.tasks[now.started].reads()):
        task = s.tasks[now.started]
        reads = frozenset(task.reads())
        for need, donated in s.variants(task):
            if not donated <= s.evictable(now.there, now.host, busy, now.started + 1):
                continue
            for kept in s.after_evictions(now.there, need, evictable - reads):
                there = kept - donated | {*task.results}
                pinned = reads - donated | {*task.results}
                seconds = task_seconds(machine, s.graph, task)
                yield (
                    replace(
                        now, started=now.started + 1, there=there, ready=now.ready & there, pinned=pinned,
                        task=(seconds, frozenset(task.results)), workspace=int(task.workspace_bytes),
                    ),
                )  # fmt: skip


def _passed(s: Small, now: Now, seconds: float) -> tuple[Now, float]:
    """`seconds` later, when at least one engine is done."""
    task = None if now.task is None else (now.task[0] - seconds, now.task[1])
    load, store = ((x[0] - seconds, x[1]) if x is not None else None for x in (now.load, now.store))
    after = replace(now, task=task, load=load, store=store)
    if task is not None and task[0] <= 1e-12:
        after = replace(after, task=None, ready=after.ready | task[1], pinned=frozenset(), workspace=0)
    if load is not None and load[0] <= 1e-12:
        after = replace(after, load=None, ready=after.ready | {load[1]})
    if store is not None and store[0] <= 1e-12:
        after = replace(after, store=None, host=after.host | {store[1]})
    return after, seconds
