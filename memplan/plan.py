"""From a TaskGraph to a MemGraph: which planner makes the plan, and whose plan is taken.

In: a TaskGraph, a Machine, a budget in bytes. Out: a MemGraph, the same bytes for the same input; or DoesNotFit, which is raised exactly
where some task's footprint exceeds the budget (or the host is full).

    order ──► horizons (effort 0) ──► resident sets (warm, loop) ──► offline search (effort 1 to 3) ──► the best by the simulator
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import ALIGNMENT, Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph, Queue
from einpage.memplan.graph.simulate import moved_bytes, simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.order import FREE_ORDERS, ORDER_BY_POLICY, OrderPolicy
from einpage.memplan.problem.problem import Problem
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.loop import with_residents, without
from einpage.memplan.residency.resident_sets import Residents, Start, resident_sets
from einpage.memplan.schedule.search import better_plan
from einpage.memplan.schedule.static_plans import Policy, static_plans

HARDLY_SLOWER = 1.002
"""A plan within this multiple of the fastest is as good."""
NEAR = 1.005
"""With a plan within this multiple of its bound, no more sets of residents are tried."""
LARGER = 3
"""Effort makes do with less room than the horizons: it is also spent on so many sets with more bytes than the best has."""


@dataclass(frozen=True, slots=True)
class PlanOptions(HorizonOptions):
    """Each can be switched alone; every combination gives a correct plan."""

    order: OrderPolicy = OrderPolicy.AS_WRITTEN
    alignment: int = ALIGNMENT
    """What every offset is a multiple of; kernels want the default, a trace's bytes may lie anywhere."""
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
    order = ORDER_BY_POLICY[options.order](graph, options.seed)
    problem = Problem(graph, machine, order, Nbytes(budget_bytes), options.alignment)
    _refuse_too_small(problem)
    if options.free_order:
        return _in_best_order(problem, options)
    if options.policy is not Policy.AUTO:
        return _by_policy(problem, options)
    if options.start is Start.COLD:
        return _from_empty(problem, options)
    return _from_residents(problem, options)


def _in_best_order(problem: Problem, options: PlanOptions) -> MemGraph:
    """An order in which only the host is too small has no plan; DoesNotFit where that holds of all."""
    found: list[tuple[float, int, MemGraph, OrderPolicy]] = []
    refused: list[DoesNotFit] = []

    def planned(order: OrderPolicy, effort: int) -> MemGraph:
        chosen = replace(options, free_order=False, order=order, effort=effort)
        return plan(problem.graph, problem.machine, problem.budget_bytes, chosen)

    for order in FREE_ORDERS:
        try:
            memgraph = planned(order, 0)
        except DoesNotFit as misfit:
            refused.append(misfit)
        else:
            found.append((simulate(memgraph, problem.machine).makespan_s, _moved_bytes(memgraph), memgraph, order))
    if not found:
        raise refused[0]
    *_, memgraph, order = min(found, key=lambda f: f[:2])
    return planned(order, options.effort) if options.effort else memgraph


def _from_empty(problem: Problem, options: PlanOptions) -> MemGraph:
    found = plan_by_horizons(problem, options)
    slots = slots_of(problem) if options.effort else None
    if slots is not None:
        bound_s = bounds(problem.graph, problem.machine, problem.budget_bytes, problem.order).bound_order_s
        found = better_plan(slots, options.effort, found, bound_s).memgraph
    return found


def _by_policy(problem: Problem, options: PlanOptions) -> MemGraph:
    what = f"--policy {options.policy.value}"
    if options.effort:
        raise UsageError(f"{what}: a static plan is not searched for; leave out --effort {options.effort}")
    if options.start is not Start.COLD:
        raise UsageError(f"{what}: a static plan starts with an empty device, not {options.start.value}")
    slots = slots_of(problem)
    if slots is None:
        raise UsageError(
            f"{what}: a graph without tasks, with gathered rows that no task reads, or that gathers results, has no static plan"
        )
    found = static_plans(slots, (options.policy,))
    if not found:
        nbytes = problem.budget_bytes
        raise UsageError(f"{what}: even where nothing stays some tensor finds no place in {nbytes} bytes; give a larger --budget")
    return found[options.policy].memgraph


def _from_residents(problem: Problem, options: PlanOptions) -> MemGraph:
    """Of the plans from the sets of residents there are, those hardly slower than the fastest, the one that moves least.

    Sets are tried until a plan comes as near to its bound as makes no difference; effort is spent on the best set and on LARGER more.
    """
    plans: list[tuple[float, MemGraph]] = []

    def is_near_bound(found: MemGraph) -> bool:
        plans.append((simulate(found, problem.machine).makespan_s, found))
        return plans[-1][0] <= NEAR * _bound_s(found, problem)

    tried: list[Residents] = []
    for residents in resident_sets(problem, options.start):
        tried.append(residents)
        if is_near_bound(_with(problem, replace(options, effort=0), residents)):
            break
    else:
        best = min(range(len(plans)), key=lambda i: plans[i][0])
        for residents in tried[max(0, best - LARGER) : best + 1] if options.effort else ():
            if is_near_bound(_with(problem, options, residents)):
                break
    enough = HARDLY_SLOWER * min(seconds for seconds, _ in plans)
    return min((found for seconds, found in plans if seconds <= enough), key=_moved_bytes)


def _with(problem: Problem, options: PlanOptions, residents: Residents) -> MemGraph:
    if not residents.for_good:
        return plan_by_horizons(problem, options, residents)
    return with_residents(_from_empty(without(problem, residents), options), problem, residents)


def _bound_s(found: MemGraph, problem: Problem) -> float:
    if found.loops:
        return steady_bounds(problem.graph, problem.machine, problem.budget_bytes).bound_order_s
    return bounds(problem.graph, problem.machine, None, problem.order, resident=found.resident).bound_order_s


def _moved_bytes(found: MemGraph) -> int:
    return moved_bytes(found, Queue.H2D) + moved_bytes(found, Queue.D2H)


def _refuse_too_small(problem: Problem) -> None:
    """Raise DoesNotFit if the largest task does not fit an empty arena, with its operands laid out as far as they go."""
    graph, capacity = problem.graph, problem.capacity
    task_id, least = largest_footprint(graph, problem.alignment)
    if least <= capacity:
        return
    task = graph.tasks[task_id]
    sizes = [(graph.tensors[t].name, problem.sizes[t]) for t in (() if task.gathers else task.reads())]
    operands = sum(nbytes for _, nbytes in sizes)
    pinned: list[tuple[str, int]] = []
    free, wanted = int(capacity), least - operands
    for name, nbytes in sizes:
        if nbytes > free:
            wanted = nbytes
            break
        pinned.append((name, nbytes))
        free -= nbytes
    raise DoesNotFit(Misfit(task.name, "device", wanted, free, free, problem.budget_bytes, tuple(pinned), int(least)))
