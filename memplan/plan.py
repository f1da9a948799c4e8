"""From a TaskGraph to a MemGraph: which planners are tried, and which plan is returned.

In: a TaskGraph, a Machine, a budget in bytes. Out: a MemGraph, the same bytes for the same input; or DoesNotFit, which is raised exactly
where some task's footprint exceeds the budget (or the host is full).

    for each order         as given; or the fastest of FREE_ORDERS
      for each resident set  nothing (cold); or as many as it takes to come near the bound (warm, loop)
        online planner         the two horizons
        offline planner        from the online plan on, while there is time
    the fastest by the simulator, fewest bytes among those hardly slower

With a host budget the device is planned so, and tiers/plan_tiers.py plans the host behind it; with `recompute`, horizons/recompute.py has
that done for the graph, and for the graph with second runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import ALIGNMENT, Nbytes
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.bounds.bounds import Effort, Reached, bounds
from einpage.memplan.bounds.engine_bounds import EngineBounds
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.horizons.recompute import Recompute, plan_with_second_runs
from einpage.memplan.machine.machine import Machine
from einpage.memplan.problem.footprint import refuse_too_small
from einpage.memplan.problem.order import FREE_ORDERS, ORDER_BY_POLICY, OrderPolicy
from einpage.memplan.problem.pace import Ended, Pace
from einpage.memplan.problem.problem import Problem
from einpage.memplan.problem.second_runs import AgainBefore
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.joined_loads import with_joined_loads
from einpage.memplan.residency.loop import with_residents, without
from einpage.memplan.residency.resident_sets import NO_RESIDENTS, LoopSets, Others, Residents, Start, warm_sets
from einpage.memplan.schedule.search import Begun, Bound, better_plan, better_plans
from einpage.memplan.schedule.static_plans import Policy, static_plans
from einpage.memplan.tiers.plan_tiers import AS_FAST, Pacing, plan_tiers

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
    policy: Policy = Policy.AUTO
    """Any but AUTO makes the whole plan, or raises an error; it is not searched for."""
    start: Start = Start.COLD
    """What is on the device before the first task; with WARM nothing is searched for."""
    free_order: bool = False
    """Instead of `order`: that of FREE_ORDERS whose online plan is fastest."""
    resident: tuple[str, ...] = ()
    """Of a loop: the names of weights that are resident whatever others are, from the arena's top downwards."""
    others: Others = Others.FASTEST
    resident_bytes: int | None = None
    """Of a loop, about, with those that are named: where a plan of the same model says how many are good."""
    even: bool = False
    """Of a loop: residents are spread evenly whatever their sizes; if not, small ones may come first, so that there are fewer copies."""
    as_fast: float = HARDLY_SLOWER
    """Of plans within this multiple of the fastest, that which moves fewest bytes is taken."""
    host_bytes: int | None = None
    """The host's budget, with a disk behind it; None: the host has whatever it takes."""
    host_resident: tuple[str, ...] = ()
    """Of a loop with a host budget: the names of weights that are resident on the host whatever others are, from its top downwards."""
    skew: Callable[[TaskGraph], Mapping[str, int]] | None = None
    """Of the graph that is planned: the byte of a sector that a tensor begins at on the disk, by name; None: 0 of all."""
    recompute: Recompute = Recompute.NEVER
    """Which tensors are dropped and made again, where that is faster than to offload them."""
    paced_by: Pacing | None = None
    """With a host budget: the links that the device is planned with; None: both, and the better plan is taken."""
    again_before: AgainBefore = field(default_factory=dict)
    """With `recompute`, of tasks in the order as written: which runs again before which other alone."""


def plan(graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions | None = None, pace: Pace | None = None) -> MemGraph:
    """Say where every byte of `graph` lives and when it moves, in a device arena of `budget_bytes`.

    The online planner's plan; with a `pace`, one that is no slower and was searched for until that ends. Raises DoesNotFit, with the task,
    the bytes and the smallest budget that works; UsageError for options that exclude each other, and where `options.policy` has no plan.
    """
    options = options or PlanOptions()
    if options.host_bytes is not None:
        of_device = replace(options, host_bytes=None, as_fast=AS_FAST)

        def plan_device(of: Machine, even: bool) -> MemGraph:
            return plan(graph, of, budget_bytes, replace(of_device, even=even), pace)

        skew = None if options.skew is None else options.skew(graph)
        return plan_tiers(graph, machine, options.host_bytes, plan_device, skew, options.host_resident, options.paced_by)
    assert not options.resident or options.start is Start.LOOP, "residents are named for loops"
    if options.recompute is not Recompute.NEVER:
        once = replace(options, recompute=Recompute.NEVER)
        assert not (options.again_before and options.free_order), "what is overwritten says when, in the order as written"

        def plan_once(of: TaskGraph, pace: Pace | None) -> MemGraph:
            return plan(of, machine, budget_bytes, once, pace)

        return plan_with_second_runs(graph, machine, plan_once, options.recompute, pace, options.again_before)
    if pace is not None and options.start is Start.WARM:
        raise UsageError("a plan is searched for from an empty device, and a warm start is not empty")
    order = ORDER_BY_POLICY[options.order](graph, options.seed)
    problem = Problem(graph, machine, order, Nbytes(budget_bytes), options.alignment)
    refuse_too_small(problem)
    if options.free_order:
        return _in_fastest_order(problem, options, pace)
    if options.policy is not Policy.AUTO:
        return _by_policy(problem, options, pace)
    if options.start is Start.COLD:
        return _from_empty(problem, options, pace)
    return _from_residents(problem, options, pace)


def _in_fastest_order(problem: Problem, options: PlanOptions, pace: Pace | None) -> MemGraph:
    """The plan in that of FREE_ORDERS whose online plan is fastest, fewest bytes among equals.

    An order in which the host is too small has no plan; DoesNotFit where that holds of all.
    """
    planned: list[tuple[float, int, OrderPolicy, MemGraph]] = []
    refused: list[DoesNotFit] = []
    for order in FREE_ORDERS:
        try:
            memgraph = _in_order(problem, options, order)
        except DoesNotFit as misfit:
            refused.append(misfit)
        else:
            planned.append((_makespan_s(memgraph, problem), all_moved_bytes(memgraph), order, memgraph))
    if not planned:
        raise refused[0]
    _, _, order, memgraph = min(planned, key=lambda entry: entry[:2])
    return memgraph if pace is None else _in_order(problem, options, order, pace)


def _in_order(problem: Problem, options: PlanOptions, order: OrderPolicy, pace: Pace | None = None) -> MemGraph:
    fixed = replace(options, free_order=False, order=order)
    return plan(problem.graph, problem.machine, problem.budget_bytes, fixed, pace)


def _by_policy(problem: Problem, options: PlanOptions, pace: Pace | None) -> MemGraph:
    """The static plan of `options.policy`."""
    what = f"--policy {options.policy.value}"
    if pace is not None:
        raise UsageError(f"{what}: a static plan is not searched for; leave out --plan-seconds and --plan-steps")
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


def _from_empty(problem: Problem, options: PlanOptions, pace: Pace | None) -> MemGraph:
    """The online plan; with a pace, the offline planner's where that is better."""
    memgraph = plan_by_horizons(problem, options)
    if pace is None:
        return memgraph
    slots = slots_of(problem)
    if slots is None:
        pace.ended = Ended.NOT_COVERED
        return memgraph
    reached = Reached(_makespan_s(memgraph, problem), all_moved_bytes(memgraph))
    limits = bounds(problem.graph, problem.machine, problem.budget_bytes, problem.order, Effort.AUTO, reached)
    return better_plan(slots, memgraph, Bound(limits.bound_order_s, limits.bytes_bound_order), pace).memgraph


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """A set of residents and the plan from it."""

    residents: Residents
    memgraph: MemGraph
    seconds: float
    is_near_bound: bool

    @property
    def resident_bytes(self) -> int:
        """Of all residents."""
        return sum(self.memgraph.graph.tensors[t].nbytes for t in self.residents.tensors)


def _from_residents(problem: Problem, options: PlanOptions, pace: Pace | None) -> MemGraph:
    """The best plan that starts with some set of residents: of those as fast as the fastest, the one that moves fewest bytes.

    Sets are tried until a plan comes near its bound. With a pace, better plans are searched for from the best set and from LARGER more.
    Those that `options` names are in all of them.
    """
    tried = _tried(problem, options)
    if pace is not None:
        if tried[-1].is_near_bound:
            pace.ended = Ended.NEAR_BOUNDS
        else:
            tried += _searched(problem, options, tried, pace)
    enough = options.as_fast * min(t.seconds for t in tried)
    as_fast = [t for t in tried if t.seconds <= enough]
    if options.others is Others.FEWEST:
        return min(as_fast, key=lambda t: t.resident_bytes).memgraph
    return min((t.memgraph for t in as_fast), key=all_moved_bytes)


def _tried(problem: Problem, options: PlanOptions) -> list[_Tried]:
    """Plans from different sets: the last alone may be near the bound. Raises DoesNotFit where the residents that `options` names leave too
    little to some task."""
    tries = _Tries(problem, options)
    if options.start is Start.WARM:
        for residents in warm_sets(problem):
            tries.seconds_with(residents)
            if tries.plans[-1].is_near_bound:
                break
    elif options.others is Others.NONE:
        tries.seconds_with(NO_RESIDENTS)
    else:
        search = LoopSets(tries.rest, tries.good_bytes, options.even).search()
        with suppress(StopIteration):
            seconds = tries.seconds_with(next(search))
            while not tries.plans[-1].is_near_bound:
                seconds = tries.seconds_with(search.send(seconds))
    return tries.plans


class _Tries:
    """The plans tried, from different sets of residents beside those that `options` names."""

    def __init__(self, problem: Problem, options: PlanOptions) -> None:
        self._problem, self._options, self._is_loop = problem, options, options.start is Start.LOOP
        tensor_by_name = {t.name: t.id for t in problem.graph.tensors if t.kind is Kind.WEIGHT} if options.resident else {}
        self._named = tuple(tensor_by_name[name] for name in options.resident)
        self.rest = problem
        """What other residents are chosen for."""
        if self._named:
            self.rest = without(problem, Residents(self._named, self._is_loop))
            refuse_too_small(self.rest)
        self.good_bytes: int | None = None
        """Of the other residents, about."""
        if options.resident_bytes is not None:
            self.good_bytes = max(0, options.resident_bytes - (problem.capacity - self.rest.capacity))
        self._steady_s: float | None = None
        self._load_s: Mapping[TensorId, float] = {}
        if self._is_loop:
            self._steady_s = steady_bounds(problem.graph, problem.machine, problem.budget_bytes).bound_order_s
            self._load_s = EngineBounds(problem.graph, problem.machine.without_latency(), ()).load_s
        self._all_loads_s = sum(self._load_s.values())
        self.plans: list[_Tried] = []

    def seconds_with(self, others: Residents) -> float:
        """Of the plan with `others`; infinity, and no plan, where the link alone takes longer than another plan."""
        residents = Residents((*self._named, *others.tensors), self._is_loop)
        least_s = self._all_loads_s - sum(self._load_s.get(t, 0.0) for t in residents.tensors)
        if least_s > HARDLY_SLOWER * min((tried.seconds for tried in self.plans), default=inf):
            return inf
        self.plans.append(_try(self._problem, self._options, residents, self._steady_s))
        return self.plans[-1].seconds


def _try(problem: Problem, options: PlanOptions, residents: Residents, steady_s: float | None) -> _Tried:
    """Plan from `residents`; a loop, whose bound is `steady_s` whatever they are, is planned without them, in the arena below."""
    if residents.for_good:
        memgraph = with_residents(plan_by_horizons(without(problem, residents), options), problem, residents)
        memgraph, seconds = with_joined_loads(memgraph, problem.machine)
    else:
        memgraph = plan_by_horizons(problem, options, residents)
        seconds = _makespan_s(memgraph, problem)
    if steady_s is None:
        steady_s = bounds(problem.graph, problem.machine, None, problem.order, resident=memgraph.resident).bound_order_s
    return _Tried(residents, memgraph, seconds, seconds <= NEAR * steady_s)


def _searched(problem: Problem, options: PlanOptions, tried: list[_Tried], pace: Pace) -> list[_Tried]:
    """Plans of loops that were searched for: from the best set that was tried, and from LARGER more."""
    best = min(tried, key=lambda t: t.seconds)
    more = sorted((t for t in tried if t.resident_bytes > best.resident_bytes), key=lambda t: t.resident_bytes)
    steady = steady_bounds(problem.graph, problem.machine, problem.budget_bytes)
    bound = Bound(steady.bound_order_s, steady.bytes_bound_order)
    begun: list[tuple[Residents, Begun]] = []
    for residents in (t.residents for t in (best, *more[:LARGER])):
        rest = without(problem, residents)
        if (slots := slots_of(rest)) is not None:
            begun.append((residents, Begun(slots, plan_by_horizons(rest, options), bound)))
    if not begun:
        pace.ended = Ended.NOT_COVERED
        return []
    found = better_plans([it for _, it in begun], pace)
    memgraphs = [(residents, with_residents(it.memgraph, problem, residents)) for (residents, _), it in zip(begun, found, strict=True)]
    return [_Tried(residents, *with_joined_loads(memgraph, problem.machine), False) for residents, memgraph in memgraphs]


def _makespan_s(memgraph: MemGraph, problem: Problem) -> float:
    return simulate(memgraph, problem.machine).makespan_s
