"""From a TaskGraph to a MemGraph: an execution is simulated with two positions in one order of tasks.

In: a TaskGraph, a Machine, a budget in bytes. Out: a MemGraph, the same bytes for the same input; or DoesNotFit, which is raised exactly
where some task's footprint exceeds the budget (or the host is full).

    tasks   0   1   2   3   4   5   6   7
                    ▲           ▲
        execution horizon   allocation horizon: bytes are promised and reloads started up to here
        tasks up to here have run; the dead are freed; what lies between is pinned
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from einpage.einsum_front.errors import UsageError
from einpage.einsum_front.taskgraph import Nbytes, Task, TaskGraph, TaskId, TensorId
from einpage.memplan.arena import FIT_BY_POLICY, FitPolicy
from einpage.memplan.bounds import bounds
from einpage.memplan.decide import better_plan
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.footprint import largest_footprint
from einpage.memplan.loop import room_below, with_residents, without
from einpage.memplan.machine import Machine
from einpage.memplan.malloc import Allocator
from einpage.memplan.memgraph import ALIGNMENT, MemGraph, Queue, aligned
from einpage.memplan.memory import Memory, Reservation
from einpage.memplan.order import FREE_ORDERS, ORDER_BY_POLICY, OrderPolicy
from einpage.memplan.policies import Policy, static_plans
from einpage.memplan.record import Recorder
from einpage.memplan.report import moved_bytes
from einpage.memplan.residents import NOBODY, Residents, Start, resident_sets
from einpage.memplan.reuse import Reuse, Step
from einpage.memplan.simulate import simulate
from einpage.memplan.slots import slots_of
from einpage.memplan.steady import steady_bounds
from einpage.memplan.victim import VictimPolicy, price_of

HARDLY_SLOWER = 1.002
"""A plan within this multiple of the fastest is as good."""
NEAR = 1.005
"""With a plan within this multiple of its bound, no more sets of residents are tried."""
LARGER = 3
"""Effort makes do with less room than the horizons: it is also spent on so many sets with more bytes than the best has."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Each can be switched alone; every combination gives a correct plan."""

    order: OrderPolicy = OrderPolicy.AS_WRITTEN
    victim: VictimPolicy = VictimPolicy.WEIGHTED
    """Who leaves first when bytes are wanted."""
    fit: FitPolicy = FitPolicy.BEST
    """Which hole is used."""
    prefetch: bool = True
    """The allocation horizon runs ahead; without it each task's reloads start when the task before has run."""
    evict_ahead: bool = True
    """Tensors needed farther away leave for a reload before the horizons meet, when little has been brought in ahead."""
    ahead_bytes: Nbytes | None = None
    """What `evict_ahead` keeps brought in ahead; None: a sixteenth of the budget."""
    alignment: int = ALIGNMENT
    """What every offset is a multiple of; kernels want the default, a trace's bytes may lie anywhere."""
    seed: int = 0
    """Used by RANDOM policies only."""
    effort: int = 0
    """0: the horizons alone; 1 to 3: what decide.py finds is taken where it is better, at ten to a thousand times the time."""
    policy: Policy = Policy.AUTO
    """Another than AUTO makes the whole plan, or none is made; then `effort` has to be 0."""
    start: Start = Start.COLD
    """What is on the device before the first task; WARM wants effort 0."""
    free_order: bool = False
    """Instead of `order`: that of FREE_ORDERS whose plan of effort 0 is fastest."""


def plan(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions | None = None) -> MemGraph:
    """Say where every byte of `graph` lives and when it moves, in a device arena of `budget_bytes`.

    Raises DoesNotFit, with the task, the bytes and the smallest budget that works; UsageError for options that exclude each
    other, and where `options.policy` has no plan.
    """
    options = options or PlanOptions()
    if options.effort and options.start is Start.WARM:
        raise UsageError(f"effort {options.effort} plans from an empty device; a warm start wants effort 0")
    _refuse_too_small(graph, budget_bytes, options.alignment)
    if options.free_order:
        return _in_best_order(graph, machine, budget_bytes, options)
    order = ORDER_BY_POLICY[options.order](graph, options.seed)
    if options.policy is not Policy.AUTO:
        return _by_policy(graph, machine, budget_bytes, options, order)
    if options.start is Start.COLD:
        return _from_empty(graph, machine, budget_bytes, options, order)
    return _from_residents(graph, machine, budget_bytes, options, order)


def _in_best_order(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions) -> MemGraph:
    """An order in which only the host is too small has no plan; DoesNotFit where that holds of all."""
    found: list[tuple[float, int, MemGraph, OrderPolicy]] = []
    refused: list[DoesNotFit] = []
    for order in FREE_ORDERS:
        try:
            memgraph = plan(graph, machine, budget_bytes, replace(options, free_order=False, order=order, effort=0))
        except DoesNotFit as misfit:
            refused.append(misfit)
        else:
            found.append((simulate(memgraph, machine).makespan_s, _moved_bytes(memgraph), memgraph, order))
    if not found:
        raise refused[0]
    *_, memgraph, order = min(found, key=lambda f: f[:2])
    return plan(graph, machine, budget_bytes, replace(options, free_order=False, order=order)) if options.effort else memgraph


def _from_empty(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId]) -> MemGraph:
    found = _by_horizons(graph, machine, budget_bytes, options, order)
    slots = slots_of(graph, machine, order, options.alignment) if options.effort else None
    if slots is not None:
        bound_s = bounds(graph, machine, budget_bytes, order).bound_order_s
        found = better_plan(slots, budget_bytes, options.effort, found, bound_s).memgraph
    return found


def _by_policy(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId]) -> MemGraph:
    what = f"--policy {options.policy.value}"
    if options.effort:
        raise UsageError(f"{what}: a static plan is not searched for; leave out --effort {options.effort}")
    if options.start is not Start.COLD:
        raise UsageError(f"{what}: a static plan starts with an empty device, not {options.start.value}")
    slots = slots_of(graph, machine, order, options.alignment)
    if slots is None:
        raise UsageError(
            f"{what}: a graph without tasks, with gathered rows that no task reads, or that gathers results, has no static plan"
        )
    found = static_plans(slots, budget_bytes, (options.policy,))
    if not found:
        raise UsageError(f"{what}: even where nothing stays some tensor finds no place in {budget_bytes} bytes; give a larger --budget")
    return found[options.policy].memgraph


def _from_residents(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId]) -> MemGraph:
    """Of the plans from the sets of residents there are, those hardly slower than the fastest, the one that moves least.

    Sets are tried until a plan comes as near to its bound as makes no difference; effort is spent on the best set and on LARGER more.
    """
    plans: list[tuple[float, MemGraph]] = []

    def is_near_bound(found: MemGraph) -> bool:
        plans.append((simulate(found, machine).makespan_s, found))
        return plans[-1][0] <= NEAR * _bound_s(found, machine, order)

    tried: list[Residents] = []
    for residents in resident_sets(graph, machine, budget_bytes, order, options.alignment, options.start):
        tried.append(residents)
        if is_near_bound(_with(graph, machine, budget_bytes, replace(options, effort=0), order, residents)):
            break
    else:
        best = min(range(len(plans)), key=lambda i: plans[i][0])
        for residents in tried[max(0, best - LARGER) : best + 1] if options.effort else ():
            if is_near_bound(_with(graph, machine, budget_bytes, options, order, residents)):
                break
    enough = HARDLY_SLOWER * min(seconds for seconds, _ in plans)
    return min((found for seconds, found in plans if seconds <= enough), key=_moved_bytes)


def _with(
    graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId], residents: Residents
) -> MemGraph:
    if not residents.for_good:
        return _by_horizons(graph, machine, budget_bytes, options, order, residents)
    below = room_below(graph, residents, budget_bytes, options.alignment)
    rest = _from_empty(without(graph, residents), machine, below, options, order)
    return with_residents(rest, graph, residents, budget_bytes)


def _bound_s(found: MemGraph, machine: Machine, order: Sequence[TaskId]) -> float:
    if found.loops:
        return steady_bounds(found.graph, machine, found.budget_bytes).bound_order_s
    return bounds(found.graph, machine, None, order, resident=found.resident).bound_order_s


def _moved_bytes(found: MemGraph) -> int:
    return moved_bytes(found, Queue.H2D) + moved_bytes(found, Queue.D2H)


def _by_horizons(
    graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId], residents: Residents = NOBODY
) -> MemGraph:
    with collector_at_rest():
        horizons = Horizons(graph, machine, budget_bytes, options, order, residents)
        horizons.run()
    memory, recorder = horizons.memory, horizons.recorder
    return MemGraph(
        graph=graph,
        budget_bytes=Nbytes(budget_bytes),
        host_bytes=memory.host.nbytes,
        residencies=recorder.residencies.finish(),
        nodes=recorder.nodes.finish(),
        edges=recorder.edges.finish(),
        start=memory.start,
        end=memory.end(),
        alignment=options.alignment,
    )


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No search for cycles of garbage: the horizons make none, and each search looks at all objects of the graph."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()


class Horizons:
    """The two positions. Tasks in `between` have been promised their bytes and have not run."""

    def __init__(
        self, graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, order: Sequence[TaskId],
        residents: Residents = NOBODY,
    ) -> None:  # fmt: skip
        self.order: Sequence[Task] = [graph.tasks[t] for t in order]
        self.options = options
        self.recorder = Recorder(graph)
        self.memory = Memory(graph, machine, budget_bytes, Reuse(graph, order), self.recorder, options.alignment, residents)
        self.malloc = Allocator(self.memory, FIT_BY_POLICY[options.fit], price_of(options.victim, options.seed))
        self.between: deque[Reservation] = deque()
        self.ahead_bytes = 0
        """Bytes brought in for tasks in `between`."""
        self.ahead_wanted = budget_bytes // 16 if options.ahead_bytes is None else options.ahead_bytes

    def run(self) -> None:
        for step, task in enumerate(self.order):
            self.allocate(Step(step), task)
            if self.between[-1].runs_at_once or not self.options.prefetch:
                self.execute_one()
        while self.between:
            self.execute_one()

    def allocate(self, step: Step, task: Task) -> None:
        """The allocation horizon passes `task`."""
        it = self.memory.reserve(step, task)
        for want in self.memory.wants(it):
            if not self.find_bytes(it, want):
                self.malloc.sim_malloc_force_reload(it)
                break
        self.between.append(it)
        self.ahead_bytes += it.ahead_bytes

    def find_bytes(self, it: Reservation, want: TensorId) -> bool:
        """Find bytes: at once, by evicting ahead, by waiting, by evicting. False: the task's own operands are in the way."""
        if self.malloc.sim_malloc(it, want):
            return True
        if self.evicts_ahead_for(it, want) and self.malloc.sim_malloc_offload(it, want, farther_than=len(self.between)):
            return True
        while self.between:
            self.execute_one()
            if self.malloc.sim_malloc(it, want):
                return True
        return self.malloc.sim_malloc_offload(it, want)

    def evicts_ahead_for(self, it: Reservation, want: TensorId) -> bool:
        """Whether others should leave before the horizons meet: for a reload, where little has been brought in ahead."""
        return self.options.evict_ahead and self.ahead_bytes + it.ahead_bytes < self.ahead_wanted and want in it.reads

    def execute_one(self) -> None:
        """The execution horizon passes one task."""
        it = self.between.popleft()
        self.memory.execute(it)
        self.ahead_bytes -= it.ahead_bytes


def _refuse_too_small(graph: TaskGraph, budget_bytes: int, alignment: int) -> None:
    """Raise DoesNotFit if the largest task does not fit an empty arena, with its operands laid out as far as they go."""
    task_id, least = largest_footprint(graph, alignment)
    capacity = max(budget_bytes, 0) // alignment * alignment
    if least <= capacity:
        return
    task = graph.tasks[task_id]
    sizes = [(graph.tensors[t].name, aligned(graph.tensors[t].nbytes, alignment)) for t in (() if task.gathers else task.reads())]
    operands = sum(nbytes for _, nbytes in sizes)
    pinned: list[tuple[str, int]] = []
    free, wanted = capacity, least - operands
    for name, nbytes in sizes:
        if nbytes > free:
            wanted = nbytes
            break
        pinned.append((name, nbytes))
        free -= nbytes
    raise DoesNotFit(Misfit(task.name, "device", wanted, free, free, budget_bytes, tuple(pinned), int(least)))
