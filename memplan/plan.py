"""From a TaskGraph to a MemGraph: which planners are tried, and which plan is returned.

In: a TaskGraph, a Machine, a budget in bytes. Out: a MemGraph, the same bytes for the same input; or DoesNotFit, which is raised exactly
where some task's footprint exceeds the budget (or the host is full).

    for each order         as given; or the fastest of FREE_ORDERS
      for each resident set  nothing (cold); or as many as it takes to come near the bound (warm, loop)
        online planner         the two horizons
        offline planner        at effort 1 to 3, from the online plan on
    the fastest by the simulator, fewest bytes among those hardly slower
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import ALIGNMENT, Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.problem.footprint import refuse_too_small
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
"""The offline planner needs less headroom than the horizons: it is also tried on so many sets with more bytes than the best one."""


@dataclass(frozen=True, slots=True)
class PlanOptions(HorizonOptions):
    """Each can be switched alone; every combination gives a correct plan."""

    order: OrderPolicy = OrderPolicy.AS_WRITTEN
    alignment: int = ALIGNMENT
    """What every offset is a multiple of; kernels want the default, a trace's bytes may lie anywhere."""
    effort: int = 0
    """0: the online planner; 1 to 3: the offline planner's plan where it is better, at ten to a thousand times the time."""
    policy: Policy = Policy.AUTO
    """Any but AUTO makes the whole plan, or raises an error; then `effort` has to be 0."""
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
    refuse_too_small(problem)
    if options.free_order:
        return _in_fastest_order(problem, options)
    if options.policy is not Policy.AUTO:
        return _by_policy(problem, options)
    if options.start is Start.COLD:
        return _from_empty(problem, options)
    return _from_residents(problem, options)


def _in_fastest_order(problem: Problem, options: PlanOptions) -> MemGraph:
    """The plan in that of FREE_ORDERS whose plan of effort 0 is fastest, fewest bytes among equals.

    An order in which the host is too small has no plan; DoesNotFit where that holds of all.
    """
    planned: list[tuple[float, int, OrderPolicy, MemGraph]] = []
    refused: list[DoesNotFit] = []
    for order in FREE_ORDERS:
        try:
            memgraph = _in_order(problem, options, order, effort=0)
        except DoesNotFit as misfit:
            refused.append(misfit)
        else:
            planned.append((_makespan_s(memgraph, problem), all_moved_bytes(memgraph), order, memgraph))
    if not planned:
        raise refused[0]
    _, _, order, memgraph = min(planned, key=lambda entry: entry[:2])
    return _in_order(problem, options, order, options.effort) if options.effort else memgraph


def _in_order(problem: Problem, options: PlanOptions, order: OrderPolicy, effort: int) -> MemGraph:
    fixed = replace(options, free_order=False, order=order, effort=effort)
    return plan(problem.graph, problem.machine, problem.budget_bytes, fixed)


def _by_policy(problem: Problem, options: PlanOptions) -> MemGraph:
    """The static plan of `options.policy`."""
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
        raise UsageError(
            f"{what}: even with nothing resident between uses, some tensor is unplaced in {nbytes} bytes; give a larger --budget"
        )
    return found[options.policy].memgraph


def _from_empty(problem: Problem, options: PlanOptions) -> MemGraph:
    """The online plan; with effort, the offline planner's where that is better."""
    memgraph = plan_by_horizons(problem, options)
    slots = slots_of(problem) if options.effort else None
    if slots is None:
        return memgraph
    bound_s = bounds(problem.graph, problem.machine, problem.budget_bytes, problem.order).bound_order_s
    return better_plan(slots, options.effort, memgraph, bound_s).memgraph


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """A set of residents and the plan from it."""

    residents: Residents
    memgraph: MemGraph
    seconds: float
    is_near_bound: bool


def _from_residents(problem: Problem, options: PlanOptions) -> MemGraph:
    """The best plan that starts with some set of residents: of those hardly slower than the fastest, the one that moves fewest bytes.

    Sets are tried until a plan comes near its bound. Effort is spent on the best set and on LARGER more, until a plan comes near.
    """
    tried = _until_near_bound(problem, replace(options, effort=0), resident_sets(problem, options.start))
    if options.effort and not tried[-1].is_near_bound:
        best = min(range(len(tried)), key=lambda i: tried[i].seconds)
        tried += _until_near_bound(problem, options, [t.residents for t in tried[max(0, best - LARGER) : best + 1]])
    enough = HARDLY_SLOWER * min(t.seconds for t in tried)
    return min((t.memgraph for t in tried if t.seconds <= enough), key=all_moved_bytes)


def _until_near_bound(problem: Problem, options: PlanOptions, sets: Iterable[Residents]) -> list[_Tried]:
    """Plans from the sets in turn, up to the first that is near its bound."""
    tried: list[_Tried] = []
    for residents in sets:
        tried.append(_try(problem, options, residents))
        if tried[-1].is_near_bound:
            break
    return tried


def _try(problem: Problem, options: PlanOptions, residents: Residents) -> _Tried:
    """Plan from `residents`; a loop is planned without them, in the arena below."""
    if residents.for_good:
        memgraph = with_residents(_from_empty(without(problem, residents), options), problem, residents)
    else:
        memgraph = plan_by_horizons(problem, options, residents)
    seconds = _makespan_s(memgraph, problem)
    return _Tried(residents, memgraph, seconds, seconds <= NEAR * _bound_s(memgraph, problem))


def _makespan_s(memgraph: MemGraph, problem: Problem) -> float:
    return simulate(memgraph, problem.machine).makespan_s


def _bound_s(memgraph: MemGraph, problem: Problem) -> float:
    if memgraph.loops:
        return steady_bounds(problem.graph, problem.machine, problem.budget_bytes).bound_order_s
    return bounds(problem.graph, problem.machine, None, problem.order, resident=memgraph.resident).bound_order_s
