"""Lower bounds: times nobody can beat, so that a plan can be judged by how far above them it is.

In: a TaskGraph and a Machine (and, for the window bound, a budget and the order of the tasks). Out: Bounds.

`bound_s` holds for every order and every split: arithmetic of the unsplit ops, and bytes that must cross each link at least once.
`bound_order_s` holds for these tasks (and, where an order is given, for it): launches and latencies count, nothing overlaps with what it
depends on, and whatever a stretch of tasks touches beyond the budget has to be loaded within that stretch (the window bound). Where it
can be afforded, two linear programmes say more, as if tensors could be cut anywhere: the slot LP of time, the interval LP of bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, OpId, TaskGraph, TaskId, Tensor, TensorId
from einpage.memplan.bounds.interval_lp import bytes_bound, keeps_everything
from einpage.memplan.bounds.lp import Unsolved, has_solver
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.problem.accesses import Accesses, accesses
from einpage.memplan.problem.machine import Machine, op_seconds, task_seconds
from einpage.memplan.problem.places import Queue

Seconds: TypeAlias = NDArray[np.float64]

WINDOWS = 96
"""The window bound looks at stretches between this many evenly spaced places: time grows with its square at worst."""


GOOD_ENOUGH = 1.01
"""A plan within this multiple of a cheap bound needs no better bound."""
CHEAP_SLOTS_TIME, CHEAP_SLOTS_BYTES = 800, 6000
"""Up to how many tasks the slot LP and the interval LP take about 0.3 s at most."""


class Effort(Enum):
    """How much a bound for the tasks at hand may cost."""

    FAST = "fast"
    """No linear programme is solved."""
    AUTO = "auto"
    """Those that are cheap, and only where the plan at hand is not already known to be near the best."""
    LP = "lp"
    """Always solved, however long it takes."""


class Method(Enum):
    """Where a bound for the tasks at hand comes from."""

    SLOT_LP = "slot LP"
    WINDOW = "window"
    BUSIEST_ENGINE = "busiest engine"
    CRITICAL_PATH = "critical path"
    INTERVAL_LP = "interval LP"
    COMPULSORY = "compulsory"
    STEADY = "steady state"


class Cause(Enum):
    """What makes a bound where no single engine does."""

    CRITICAL_PATH = "critical path"
    MEMORY = "memory"
    """The window bound or the slot LP: bytes that come again, or wait for room, because the budget is small."""


Limit: TypeAlias = "Queue | Cause"
"""What a bound is made of: an engine that is always busy, or a cause that holds all of them up."""


def limit_name(limit: Limit) -> str:
    """As reports write it."""
    return limit.name if isinstance(limit, Queue) else limit.value


@dataclass(frozen=True, slots=True)
class Bounds:
    busy_s: tuple[tuple[Queue, float], ...]
    """By engine, for every order and split: roofline time of all unsplit ops, without launches (of an op whose time is given, that time);
    bytes that must cross a link, over its rate."""
    bytes_bound: tuple[tuple[Queue, Nbytes], ...]
    """By link, what must cross it: each element of a weight or input used on the device once, and gathered rows or the table, whichever is
    less; the outputs."""
    critical_path_s: float
    """The longest chain of loads, tasks and stores, for the tasks at hand."""
    bound_s: float
    """The largest of `busy_s`: for every order and split."""
    bound_order_s: float
    """For the tasks (and the order) at hand; at least bound_s."""
    limit: Limit
    """What makes bound_s."""
    limit_order: Limit
    """What makes bound_order_s."""
    order_by: Method
    """Where bound_order_s comes from; the interval LP where it is the least bytes to the device, over the link's rate."""
    bytes_bound_order: Nbytes
    """Bytes over all links, for these tasks and, where budget and order are given, for them; at least those of `bytes_bound` together."""
    bytes_order_by: Method
    """Where bytes_bound_order comes from."""

    def busy(self, queue: Queue) -> float:
        """Seconds that the engine works at least."""
        return dict(self.busy_s).get(queue, 0.0)

    def compulsory(self, queue: Queue) -> Nbytes:
        """Bytes that cross the link at least."""
        return dict(self.bytes_bound).get(queue, Nbytes(0))


@dataclass(frozen=True, slots=True)
class Reached:
    """What a plan at hand reaches: no bound within GOOD_ENOUGH of it needs to be improved."""

    seconds: float
    nbytes: int
    """Over both links."""


def bounds(
    graph: TaskGraph, machine: Machine, budget_bytes: int | None = None, order: Sequence[TaskId] | None = None,
    effort: Effort = Effort.FAST, reached: Reached | None = None, resident: Collection[TensorId] = frozenset(),
) -> Bounds:  # fmt: skip
    """Lower bounds on the makespan of any right plan of `graph` that starts with the `resident` tensors, and nothing else, on the device.

    With a budget and an order (device tasks and gathers, as the plan runs them), bound_order_s includes the window bound for that order
    and, as far as `effort` allows and scipy is installed, the slot LP, and bytes_bound_order the interval LP.
    """
    compulsory = {Queue.H2D: compulsory_load_bytes(graph, resident), Queue.D2H: compulsory_store_bytes(graph)}
    for_all: dict[Limit, float] = {Queue.COMPUTE: sum((op_seconds(machine, graph, op) for op in graph.ops), 0.0)}
    for_all |= {queue: nbytes / machine.link(queue).bytes_per_s for queue, nbytes in compulsory.items()}
    limit = max(for_all, key=lambda limit: for_all[limit])
    engines = _EngineBounds(graph, machine, resident)
    here: dict[Limit, float] = {queue: max(seconds, engines.bound(queue)) for queue, seconds in for_all.items()}
    here[Cause.CRITICAL_PATH] = engines.critical_path()
    if budget_bytes is not None and order is not None:
        here[Cause.MEMORY] = window_bound(graph, machine, budget_bytes, order, resident)
    longest = max(here.values())
    alike = [limit for limit in here if here[limit] >= longest * (1 - 1e-9)]
    limit_order = max(alike, key=engines.busy)
    method = _METHOD_BY_LIMIT.get(limit_order, Method.BUSIEST_ENGINE)
    nbytes, bytes_method = Nbytes(sum(graph.tensors[t].nbytes for t in engines.loaded) + compulsory[Queue.D2H]), Method.COMPULSORY
    if budget_bytes is not None and order is not None and effort is not Effort.FAST and has_solver():
        view = accesses(graph, machine, order, resident)
        seconds, by = _time_lp(view, machine, budget_bytes, longest, effort, reached)
        if seconds > longest:
            if seconds > GOOD_ENOUGH * longest:
                limit_order = Cause.MEMORY
            longest, method = seconds, by
        whole = _interval_lp(view, budget_bytes, nbytes, effort, reached)
        if whole > nbytes:
            nbytes, bytes_method = Nbytes(whole), Method.INTERVAL_LP
    return Bounds(
        busy_s=tuple((queue, seconds) for queue, seconds in for_all.items() if isinstance(queue, Queue)),
        bytes_bound=tuple(compulsory.items()),
        critical_path_s=here[Cause.CRITICAL_PATH],
        bound_s=for_all[limit],
        bound_order_s=longest,
        limit=limit,
        limit_order=limit_order,
        order_by=method,
        bytes_bound_order=nbytes,
        bytes_order_by=bytes_method,
    )


_METHOD_BY_LIMIT: dict[Limit, Method] = {Cause.MEMORY: Method.WINDOW, Cause.CRITICAL_PATH: Method.CRITICAL_PATH}


def _is_worth(effort: Effort, slots: int, cheap_slots: int, reached: float | None, bound: float) -> bool:
    """Whether to solve for a better bound."""
    return effort is Effort.LP or (slots <= cheap_slots and (reached is None or reached > GOOD_ENOUGH * bound))


def _time_lp(
    view: Accesses, machine: Machine, budget_bytes: int, bound: float, effort: Effort, reached: Reached | None
) -> tuple[float, Method]:
    """Seconds, by the slot LP or, where it is too dear, by the interval LP of bytes to the device; 0 where none is solved."""
    seconds = reached.seconds if reached else None
    try:
        if view.slots and _is_worth(effort, view.slots, CHEAP_SLOTS_TIME, seconds, bound):
            return time_bound(view, budget_bytes, machine.links).seconds, Method.SLOT_LP
        if not keeps_everything(view, budget_bytes) and _is_worth(effort, view.slots, CHEAP_SLOTS_BYTES, seconds, bound):
            return bytes_bound(view, budget_bytes, omega=0.0).total / machine.link(Queue.H2D).bytes_per_s, Method.INTERVAL_LP
    except Unsolved:
        pass
    return 0.0, Method.SLOT_LP


def _interval_lp(view: Accesses, budget_bytes: int, bound: int, effort: Effort, reached: Reached | None) -> int:
    """Bytes; 0 where it is not solved, or nothing has to move twice. Tensors move whole, so part of a byte counts as one."""
    if keeps_everything(view, budget_bytes) or not _is_worth(
        effort, view.slots, CHEAP_SLOTS_BYTES, reached.nbytes if reached else None, bound
    ):
        return 0
    try:
        return ceil(bytes_bound(view, budget_bytes).total * (1 - 1e-9))
    except Unsolved:
        return 0


def compulsory_load_bytes(graph: TaskGraph, resident: Collection[TensorId] = frozenset()) -> Nbytes:
    """Bytes that must cross the H2D link at least once, whatever the order and the split, where the device has `resident` at the start."""
    used: dict[TensorId, None] = {}
    rows_by_op: dict[OpId, int] = {}
    tables_by_op: dict[OpId, dict[TensorId, None]] = {}
    for task in graph.tasks:
        if task.gathers:
            rows_by_op[task.op] = rows_by_op.get(task.op, 0) + graph.tensors[task.result].nbytes
            tables_by_op.setdefault(task.op, {}).update(dict.fromkeys(task.operands[0]))
        else:
            used.update((t, None) for t in task.reads() if graph.tensors[t].kind in HOST_AT_START)
    gathered = sum(min(rows, _distinct_bytes([graph.tensors[t] for t in tables_by_op[op]])) for op, rows in rows_by_op.items())
    used.update(dict.fromkeys(resident))
    absent = _distinct_bytes([graph.tensors[t] for t in used]) - _distinct_bytes([graph.tensors[t] for t in resident])
    return Nbytes(absent + gathered)


def compulsory_store_bytes(graph: TaskGraph) -> Nbytes:
    """Bytes that must cross the D2H link at least once: the outputs."""
    return Nbytes(sum(t.nbytes for t in graph.tensors if t.kind is Kind.OUTPUT))


def _distinct_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the distinct elements of all `tensors`: tiles of one value may overlap when it is cut in two ways."""
    by_value: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_value.setdefault(tensor.value, []).append(tensor)
    return sum(_union([t.box for t in tiles]) * tiles[0].dtype.nbytes for tiles in by_value.values())


def _union(boxes: Sequence[Box]) -> int:
    """How many elements lie in at least one of the boxes: marked on the grid of all their edges."""
    if len(boxes) == 1:
        return boxes[0].size
    edges = [np.array(sorted({x for b in boxes for x in (b.start[d], b.end[d])})) for d in range(len(boxes[0].start))]
    marked = np.zeros([len(e) - 1 for e in edges], bool)
    for b in boxes:
        marked[tuple(slice(*np.searchsorted(e, (lo, hi))) for e, lo, hi in zip(edges, b.start, b.end, strict=True))] = True
    sizes = marked.astype(np.int64)
    for d, e in enumerate(edges):
        sizes *= np.diff(e).reshape([-1 if i == d else 1 for i in range(len(edges))])
    return int(sizes.sum())


class _EngineBounds:
    """Times for the tasks at hand: of each task and load, and of the longest chains before and after them."""

    def __init__(self, graph: TaskGraph, machine: Machine, resident: Collection[TensorId]) -> None:
        self.graph, self.machine = graph, machine
        self.seconds = [task_seconds(machine, graph, t) for t in graph.tasks]
        self.device_tasks = [t for t in graph.tasks if not t.gathers]
        self.gathers = [t for t in graph.tasks if t.gathers]
        self.loads = dict.fromkeys(t for task in self.device_tasks for t in task.reads() if graph.tensors[t].kind in HOST_AT_START)
        self.load_s = {t: 0.0 if t in resident else machine.link(Queue.H2D).seconds(graph.tensors[t].nbytes) for t in self.loads}
        self.load_s.update((t.result, self.seconds[t.id]) for t in self.gathers)
        self.loaded = [t for t in self.load_s if t not in resident]
        """What crosses the link to the device."""
        self.store_s = [machine.link(Queue.D2H).seconds(t.nbytes) if t.kind is Kind.OUTPUT else 0.0 for t in graph.tensors]
        self.down_s = self._down()

    def _down(self) -> list[float]:
        """[tensor] the longest chain of tasks and stores that starts once the tensor is on the device."""
        down = list(self.store_s)
        for task in reversed(self.device_tasks):
            after = self.seconds[task.id] + down[task.result]
            for t in task.reads():
                down[t] = max(down[t], after)
        return down

    def busy(self, limit: Limit) -> float:
        """How long the engine behind a limit works at least: what decides between limits of equal length."""
        if limit == Queue.COMPUTE:
            return sum(self.seconds[t.id] for t in self.device_tasks)
        if limit == Queue.H2D:
            return sum(self.load_s.values())
        return sum(self.store_s) if limit == Queue.D2H else 0.0

    def bound(self, limit: Limit) -> float:
        """How long the engine works at least, with what must come before its first node and after its last."""
        if limit == Queue.COMPUTE:
            return self._compute_bound()
        if limit == Queue.H2D:
            return self._load_bound()
        return self._store_bound() if limit == Queue.D2H else 0.0

    def critical_path(self) -> float:
        """The longest chain: a load, then tasks, then a store."""
        chains = [seconds + self.down_s[t] for t, seconds in self.load_s.items()]
        rootless = [self.seconds[t.id] + self.down_s[t.result] for t in self.device_tasks if not t.operands]
        return max(chains + rootless, default=0.0)

    def _compute_bound(self) -> float:
        """All tasks, after the loads of whichever comes first, before the store of whichever comes last."""
        read = {t for task in self.device_tasks for t in task.reads()}
        heads = [sum(self.load_s[t] for t in task.reads()) for task in self.device_tasks if all(t in self.load_s for t in task.reads())]
        tails = [self.store_s[task.result] for task in self.device_tasks if task.result not in read]
        return min(heads, default=0.0) + self.busy(Queue.COMPUTE) + min(tails, default=0.0)

    def _load_bound(self) -> float:
        """All first loads, before whatever must follow the last of them."""
        return self.busy(Queue.H2D) + min((self.down_s[t] for t in self.loaded), default=0.0)

    def _store_bound(self) -> float:
        """All stores of outputs, after whatever must come before the first of them."""
        ready = [0.0] * len(self.graph.tensors)
        for t in self.loads:
            ready[t] = self.load_s[t]
        for task in self.graph.tasks:
            ready[task.result] = self.seconds[task.id] + (0.0 if task.gathers else max((ready[t] for t in task.reads()), default=0.0))
        outputs = [t.id for t in self.graph.tensors if t.kind is Kind.OUTPUT]
        return self.busy(Queue.D2H) + min((ready[t] for t in outputs), default=0.0)


def window_bound(
    graph: TaskGraph, machine: Machine, budget_bytes: int, order: Sequence[TaskId], resident: Collection[TensorId] = frozenset()
) -> float:
    """The time of this order of tasks under this budget: the best way to cut it into windows, each at least as long as
    its tasks, and as the loads of what it touches beyond what the device can hold when it begins (for the first, what is `resident`).

    A load is of a tensor touched in the window and not computed in it. O(WINDOWS * operands).
    """
    tasks = [graph.tasks[t] for t in order if not graph.tasks[t].gathers]
    if not tasks:
        return 0.0
    reads = [t.reads() for t in tasks]
    at, nbytes, previous = _touches(graph, reads, [t.result for t in tasks])
    there = np.array([t in resident for operands in reads for t in operands], bool)
    seconds = [task_seconds(machine, graph, t) for t in tasks]
    elapsed = np.concatenate(([0.0], np.cumsum(seconds)))
    cuts = np.array(sorted(set(np.linspace(0, len(tasks), min(WINDOWS, len(tasks)) + 1).astype(np.int64).tolist())), np.int64)
    best = np.zeros(len(cuts))
    for i, begin in enumerate(cuts[:-1].tolist()):
        first = int(np.searchsorted(at, begin))
        fresh = np.where(previous[first:] < begin, nbytes[first:], 0) if i else np.where((previous < 0) & ~there, nbytes, 0)
        touched = np.concatenate(([0], np.cumsum(fresh)))[np.searchsorted(at[first:], cuts[i + 1 :])]
        loads = np.maximum(touched - (budget_bytes if i else 0), 0) / machine.link(Queue.H2D).bytes_per_s
        window = np.maximum(loads, elapsed[cuts[i + 1 :]] - elapsed[begin])
        best[i + 1 :] = np.maximum(best[i + 1 :], best[i] + window)
    return float(best[-1])


def _touches(
    graph: TaskGraph, reads: Sequence[tuple[TensorId, ...]], results: Sequence[TensorId]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For every read in order: its position, its bytes, and the position at which its tensor was last read or made (-1: never)."""
    last = [-1] * len(graph.tensors)
    at: list[int] = []
    nbytes: list[int] = []
    previous: list[int] = []
    for position, (operands, result) in enumerate(zip(reads, results, strict=True)):
        for t in operands:
            at.append(position)
            nbytes.append(graph.tensors[t].nbytes)
            previous.append(last[t])
            last[t] = position
        last[result] = position
    return np.array(at, np.int64), np.array(nbytes, np.int64), np.array(previous, np.int64)
