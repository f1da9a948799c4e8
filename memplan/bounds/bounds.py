"""Lower bounds: times nobody can beat, so that a plan can be judged by how far above them it is.

In: a TaskGraph and a Machine (and, for the window bound, a budget and the order of the tasks). Out: Bounds.

`bound_s` holds for every order and every split: arithmetic of the unsplit ops, and bytes that must cross each link at least once.
`bound_order_s` holds for these tasks (and, where an order is given, for it): launches and latencies count, nothing overlaps with what it
depends on, and whatever a stretch of tasks touches beyond the budget has to be loaded within that stretch (the window bound). Where it
can be afforded, two linear programmes say more, as if tensors could be cut anywhere: the slot LP of time, the interval LP of bytes.
It counts a latency a tensor: for a plan whose moves copy several, ask with a machine whose copies have none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil
from typing import TypeAlias

from einpage.einsum_front.base.columns import Floats
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId, TensorId
from einpage.memplan.bounds.compulsory import DiskBound, compulsory_load_bytes, compulsory_store_bytes
from einpage.memplan.bounds.engine_bounds import EngineBounds
from einpage.memplan.bounds.interval_lp import all_resident, bytes_bound
from einpage.memplan.bounds.limit import Cause, Limit, Method
from einpage.memplan.bounds.lp import Unsolved, has_solver
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.bounds.window import window_bound
from einpage.memplan.machine.machine import Machine, op_seconds
from einpage.memplan.machine.places import Queue
from einpage.memplan.problem.accesses import Accesses, accesses

Seconds: TypeAlias = Floats


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


def with_disk(found: Bounds, disk: DiskBound, machine: Machine) -> Bounds:
    """`found` of a plan whose host has a disk behind it, which takes its time too. It writes while it reads: both take equally long at
    best, where so much is written."""
    read, write = machine.link(Queue.READ).bytes_per_s, machine.link(Queue.WRITE).bytes_per_s
    written = min(disk.written, disk.here * write / (read + write))
    any_s = disk.for_all / read
    here_s = max(any_s, (disk.here - written) / read)
    limit = Queue.READ if any_s > found.bound_s else found.limit
    return replace(
        found,
        busy_s=(*found.busy_s, (Queue.READ, any_s)),
        bytes_bound=(*found.bytes_bound, (Queue.READ, disk.for_all)),
        bound_s=max(found.bound_s, any_s),
        bound_order_s=max(found.bound_order_s, here_s),
        limit=limit,
        limit_order=Queue.READ if here_s > found.bound_order_s else found.limit_order,
        order_by=disk.by if here_s > found.bound_order_s else found.order_by,
    )


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
    engines = EngineBounds(graph, machine, resident)
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
        if not all_resident(view, budget_bytes) and _is_worth(effort, view.slots, CHEAP_SLOTS_BYTES, seconds, bound):
            return bytes_bound(view, budget_bytes, omega=0.0).total / machine.link(Queue.H2D).bytes_per_s, Method.INTERVAL_LP
    except Unsolved:
        pass
    return 0.0, Method.SLOT_LP


def _interval_lp(view: Accesses, budget_bytes: int, bound: int, effort: Effort, reached: Reached | None) -> int:
    """Bytes; 0 where it is not solved, or nothing has to move twice. Tensors move whole, so part of a byte counts as one."""
    if all_resident(view, budget_bytes) or not _is_worth(effort, view.slots, CHEAP_SLOTS_BYTES, reached.nbytes if reached else None, bound):
        return 0
    try:
        return ceil(bytes_bound(view, budget_bytes).total * (1 - 1e-9))
    except Unsolved:
        return 0
