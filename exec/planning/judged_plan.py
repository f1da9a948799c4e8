"""Third stage: a TaskGraph becomes a plan that the judge has passed, with its predicted time line, its bounds and its report.

    open_model ──► Model ──► build_graph ──► TaskGraph ──► plan_graph ──► Planned (MemGraph, time line, bounds, report)
                             read_trace ──► TaskGraph ────────┘

Nothing is run, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from time import perf_counter
from typing import TypeAlias

from einpage.einsum_front.base.dtype import BlockFormat, Stored
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.graph.packed import packed
from einpage.einsum_front.graph.program import Program, Weight, WeightsAs, needed
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.planning.common_pieces import all_pieces
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import fused, split_for
from einpage.memplan.bounds.bounds import GOOD_ENOUGH, Bounds, Effort, Reached, bounds, with_disk
from einpage.memplan.bounds.compulsory import disk_bound
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import Timeline, moved_bytes, moves_several, read_cost_s, second_runs, simulate
from einpage.memplan.judge.reason import Violation
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import HOST, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.pace import Pace
from einpage.memplan.report import Report, passes_report, report, tasks_in_order
from einpage.memplan.schedule.static_plans import Policy
from einpage.memplan.tiers.plan_tiers import AS_FAST, Pacing, best_paced, cheapest_reads

MachineSource: TypeAlias = "Callable[[], Machine]"
"""Gives a machine that is not at hand yet: to measure it takes seconds."""


def machine_now(machine: Machine | MachineSource) -> Machine:
    """The machine itself, measured now where it was not at hand."""
    return machine if isinstance(machine, Machine) else machine()


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that the judge has passed, with its predicted time line, its bounds and its report."""

    graph: TaskGraph
    memgraph: MemGraph
    machine: Machine
    timeline: Timeline
    bounds: Bounds
    report: Report
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The spec's, by name, where they are known."""
    warnings: tuple[str, ...] = ()
    """About the checkpoint that the sizes were taken from."""
    once_s: float | None = None
    """Predicted of the fastest plan of a step of training in which each task runs once; None where none fits, or none was made."""

    @property
    def facts(self) -> dict[str, object]:
        """The report as `plan --json` prints it."""
        return self.report.facts()


LOOP_SPLITS = (1, 2, 4, 8, 16)
"""A loop is planned with the splits that these parts of its budget would get."""
MOST_TASKS = 4000
"""Finer splits than the budget's own are not tried beyond this."""


class RejectedPlan(AssertionError):
    """The judge found a violation in a plan: our bug, never the user's."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"the judge rejects this plan: {violation.reason.name}: {violation.message} (nodes {violation.nodes})")


def plan_program(
    program: Program, machine: Machine | MachineSource, request: PlanRequest, since: float | None = None, pace: Pace | None = None,
    working_sets: WorkingSets | None = None, made: TaskGraph | None = None,
) -> Planned:  # fmt: skip
    """Split `program` for the budget and plan it. `since` is when the caller began (perf_counter), for `plan_s`; `pace` that of the
    request, where somebody watches it; `working_sets` its fused operations, where they are at hand; `made` its tasks in a split that fits
    the budget, which serve where that split is asked for. A function for a machine is called when all is refused that needs none.

    Raises as build_graph and plan_graph.
    """
    since = perf_counter() if since is None else since
    if isinstance(machine, Machine):
        refuse_full_host(program, machine, request)
    working_sets = working_sets or fused(program, request)
    is_made = made is not None and all_pieces(program, made).items() <= request.pieces.items()
    graph = made if made is not None and is_made else split_for(working_sets, program, request).graph
    if not isinstance(machine, Machine):
        asked_s = perf_counter()
        machine = machine()
        waited_s = perf_counter() - asked_s
        since += waited_s
        if pace is not None:
            pace.paused(waited_s)
        refuse_full_host(program, machine, request)
    pace = pace or request.pace()
    if request.passes is None and request.host_budget_bytes is not None:
        planned = _in_tiers(program, working_sets, graph, machine, request, since, pace)
    elif request.passes is not None:
        planned = _plan_loop(program, working_sets, graph, machine, request, request.passes, since, pace)
    else:
        planned = plan_tasks(graph, machine, request, since, pace)
    return replace(planned, sizes=dict(program.sizes))


class Planner:
    """Plans of one program, one after another: its operations are fused once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._working_sets: WorkingSets | None = None

    def plan(self, machine: Machine, request: PlanRequest, since: float | None = None, pace: Pace | None = None) -> Planned:
        """As plan_program; of `request` only the budget and what is searched for may be others than the last time."""
        refuse_full_host(self._program, machine, request)
        if self._working_sets is None:
            self._working_sets = fused(self._program, request)
        return plan_program(self._program, machine, request, since, pace, self._working_sets)


def compacted(planned: Planned) -> Planned:
    """`planned` with its graph in packed arrays: a run keeps it in memory beside the weights."""
    graph = packed(planned.graph)
    return replace(planned, graph=graph, memgraph=replace(planned.memgraph, graph=graph))


def stored_warnings(planned: Planned, weights_as: WeightsAs) -> tuple[str, ...]:
    """A warning where weights are to be kept as they are stored, and none is."""
    if weights_as is not WeightsAs.STORED or planned.report.weight_formats:
        return ()
    known = ", ".join(format.value for format in BlockFormat)
    return (f"--weights-as stored has no effect: no weight of this plan has a checkpoint's rows in blocks that are kept ({known})",)


def refuse_full_host(program: Program, machine: Machine, request: PlanRequest) -> None:
    """Raises DoesNotFit where weights and inputs alone are more than the host holds: known at once, before any graph is made."""
    total, free = least_host_bytes(program, request), machine.host_bytes
    if total > free and request.host_budget_bytes is None:
        raise DoesNotFit(Misfit("(before the first)", "host", total, free, free, free, (), None))


def least_host_bytes(program: Program, request: PlanRequest) -> int:
    """Bytes of the weights and inputs that the outputs asked for are computed from: every plan has them on the host."""
    value_by_output = {output.name: output.value for output in program.outputs}
    wanted = request.outputs or tuple(value_by_output)[:1]
    read = needed(program, [value_by_output[name] for name in wanted if name in value_by_output])
    weights = sum(_least_weight_bytes(weight, request) for weight in program.weights if weight.name in read)
    inputs = sum(prod(i.shape) * (i.dtype or request.dtype).nbytes for i in program.inputs if i.name in read)
    return weights + inputs


def _least_weight_bytes(weight: Weight, request: PlanRequest) -> int:
    """Of a weight that may be kept as it is stored: the fewer."""
    as_run = request.dtype.bytes_of(prod(weight.shape))
    if weight.stored is None or not request.weights_as.wants_stored(weight, request.dtype):
        return as_run
    return min(as_run, Stored(weight.stored.format, weight.stored.dims, request.dtype).bytes_of(prod(weight.shape)))


def _plan_loop(
    program: Program, working_sets: WorkingSets, coarsest: TaskGraph, machine: Machine, request: PlanRequest, passes: int, since: float,
    pace: Pace | None,
) -> Planned:  # fmt: skip
    """Plan a pass that ends as it began, with the best of a few splits, of which the first is `coarsest`: what is streamed wants small
    pieces."""
    if request.host_budget_bytes is not None:
        return _with_passes(_in_tiers(program, working_sets, coarsest, machine, request, since, pace), passes, since)
    best: Planned | None = None
    budget_bytes, options = request.budget_bytes, request.planner
    for share in LOOP_SPLITS:
        try:
            graph = coarsest if share == 1 else split_for(working_sets, program, replace(request, budget_bytes=budget_bytes // share)).graph
        except DoesNotFit:
            break
        if best is not None:
            if graph.split == best.graph.split:
                continue
            if len(graph.tasks) > MOST_TASKS:
                break
        found = plan_graph(graph, machine, budget_bytes, options, since)
        if best is not None and found.timeline.makespan_s >= best.timeline.makespan_s:
            break
        best = found
        if best.timeline.makespan_s <= GOOD_ENOUGH * best.bounds.bound_s or program.extents.keys() <= request.pieces.keys():
            break
    assert best is not None, "the first split fits"
    if pace is not None:
        best = plan_graph(best.graph, machine, budget_bytes, options, since, pace=pace)
    return _with_passes(best, passes, since)


def _in_tiers(
    program: Program, working_sets: WorkingSets, coarsest: TaskGraph, machine: Machine, request: PlanRequest, since: float,
    pace: Pace | None,
) -> Planned:  # fmt: skip
    """Plan with a disk behind the host: of a loop the split whose reads cost least among those as fast as the fastest, else the first with
    which every copy fits the host. Finer splits are planned while they gain; a better plan is searched for in the one that is taken."""
    budget_bytes, tried, refused = request.budget_bytes, list[Planned](), None
    pacings, near, took_s = tuple(Pacing), request, 0.0
    for share in LOOP_SPLITS:
        began_s = perf_counter()
        try:
            graph = coarsest if share == 1 else split_for(working_sets, program, replace(request, budget_bytes=budget_bytes // share)).graph
            if tried and (graph.split == tried[-1].graph.split or len(graph.tasks) > MOST_TASKS):
                break
            found, pacing = _best_paced(graph, machine, near, since, None, pacings)
        except DoesNotFit as error:
            if error.misfit.place != HOST.kind.value:
                break
            refused = error
            continue
        pacings, took_s = (pacing,), perf_counter() - began_s  # what limits one split limits the others
        tried.append(found)
        if request.passes is None or not _gains(found, tried[:-1]) or _is_good_enough(found):
            break
        near = _with_as_many_resident(request, found)
    if not tried:
        assert refused is not None, "the first split fits the device"
        raise refused
    best = _cheapest(tried)
    return best if pace is None else _searched_in_tiers(best, machine, request, since, pace, pacings, took_s)


def _searched_in_tiers(
    best: Planned, machine: Machine, request: PlanRequest, since: float, pace: Pace, pacings: Sequence[Pacing], needed_s: float
) -> Planned:
    """`best`, or a plan of its tasks that is searched for, if there is time for more than the `needed_s` that a plan takes: what the host
    does is planned for other copies then, and may be the worse for it."""
    found = [best]
    if not pace.is_over(needed_s):
        near = request if request.passes is None else _with_as_many_resident(request, best)
        with suppress(DoesNotFit):
            found.append(_best_paced(best.graph, machine, near, since, pace, pacings)[0])
    best = _cheapest(found)
    return replace(best, report=replace(best.report, plan_steps=pace.steps, plan_ended=pace.ended))


def _with_as_many_resident(request: PlanRequest, found: Planned) -> PlanRequest:
    """That of a loop in other pieces than `found`, another plan of it: about as many bytes are resident on the device."""
    if request.resident_bytes is not None:
        return request
    tensors = found.graph.tensors
    return replace(request, resident_bytes=sum(tensors[t].nbytes for t in found.memgraph.resident))


def _best_paced(
    graph: TaskGraph, machine: Machine, request: PlanRequest, since: float, pace: Pace | None, pacings: Sequence[Pacing]
) -> tuple[Planned, Pacing]:
    """The plan with the best of these pacings, and which that is. Raises as best_paced."""
    planned_by_pacing: dict[Pacing, Planned] = {}

    def plan_paced(pacing: Pacing) -> tuple[MemGraph, Timeline]:
        options = replace(request.planner, paced_by=pacing)
        planned_by_pacing[pacing] = found = plan_graph(graph, machine, request.budget_bytes, options, since, request.bound_effort, pace)
        return found.memgraph, found.timeline

    best = best_paced(plan_paced, machine, pacings)
    return planned_by_pacing[best], best


def _reads_s(found: Planned) -> float:
    """What its reads cost."""
    return read_cost_s(found.memgraph, found.machine.usual_link(Queue.READ))


def _is_good_enough(found: Planned) -> bool:
    """No split is much faster, or reads much less."""
    report, tiers = found.report, found.report.tiers
    assert tiers is not None, "a plan with a disk has figures of it"
    return (
        found.timeline.makespan_s <= GOOD_ENOUGH * found.bounds.bound_s and report.disk_read_bytes <= GOOD_ENOUGH * tiers.disk_bytes_bound
    )


def _gains(found: Planned, others: Sequence[Planned]) -> bool:
    """A hundredth over each of the others: of its time, or as much by what its reads cost where it is as fast."""
    return all(_gains_over(found, other) for other in others)


def _gains_over(found: Planned, other: Planned) -> bool:
    seconds, other_s = found.timeline.makespan_s, other.timeline.makespan_s
    saved_s = _reads_s(other) - _reads_s(found)
    return AS_FAST * seconds <= other_s or (seconds <= AS_FAST * other_s and saved_s >= (AS_FAST - 1) * seconds)


def _cheapest(tried: Sequence[Planned]) -> Planned:
    """The one whose reads cost least among those as fast as the fastest."""
    return cheapest_reads([(found.timeline.makespan_s, _reads_s(found), found) for found in tried])


def plan_tasks(graph: TaskGraph, machine: Machine, request: PlanRequest, since: float | None = None, pace: Pace | None = None) -> Planned:
    """Plan `graph` as it is split. Raises as plan_graph."""
    since = perf_counter() if since is None else since
    planned = plan_graph(graph, machine, request.budget_bytes, request.planner, since, request.bound_effort, pace or request.pace())
    return planned if request.passes is None else _with_passes(planned, request.passes, since)


def _with_passes(planned: Planned, passes: int, since: float) -> Planned:
    """A loop, and what so many passes take."""
    figures = passes_report(planned.memgraph, planned.machine, planned.timeline, passes)
    return replace(planned, report=replace(planned.report, passes=figures, plan_s=perf_counter() - since))


def plan_graph(
    graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions | None = None, since: float | None = None,
    bound_effort: Effort = Effort.FAST, pace: Pace | None = None,
) -> Planned:  # fmt: skip
    """Plan, judge, predict, bound. `since` as in plan_program; `bound_effort` is what the bounds may cost, `pace` that of
    the search for a better plan, where there is one.

    Raises DoesNotFit; UsageError where the machine has no figure for a task; RejectedPlan where the judge finds a violation.
    """
    began = perf_counter() if since is None else since
    refuse_no_rate(graph, machine)
    options = options or PlanOptions()
    memgraph = plan(graph, machine, budget_bytes, options, pace)
    return judged(memgraph, machine, began, bound_effort, options.policy, pace)


def refuse_no_rate(graph: TaskGraph, machine: Machine) -> None:
    """Raises UsageError where the machine has no figure for the tasks."""
    if graph.dtype not in dict(machine.flops_per_s) and any(task.seconds is None for task in graph.tasks):
        raise UsageError(f"machine {machine.name} has no figure for {graph.dtype.value}")


def judged(
    memgraph: MemGraph, machine: Machine, began: float, bound_effort: Effort = Effort.FAST, policy: Policy = Policy.AUTO,
    pace: Pace | None = None,
) -> Planned:  # fmt: skip
    """A plan that the judge has passed, predicted and bounded. `began` is when its making did; the others as plan_graph's.

    Raises RejectedPlan where the judge finds a violation.
    """
    graph, budget_bytes = memgraph.graph, memgraph.budget_bytes
    violation = judge(memgraph)
    if violation is not None:
        raise RejectedPlan(violation)
    plan_s = perf_counter() - began
    timeline = simulate(memgraph, machine)
    reached = Reached(timeline.makespan_s, moved_bytes(memgraph, Queue.H2D) + moved_bytes(memgraph, Queue.D2H))
    if memgraph.loops:
        limits = steady_bounds(graph, machine.at_best(), budget_bytes)
    else:
        best = machine.without_latency() if moves_several(memgraph) else machine.at_best()
        arena = None if second_runs(memgraph) else budget_bytes  # other bounds are of plans in which a task runs once
        limits = bounds(graph, best, arena, tasks_in_order(memgraph), bound_effort, reached, memgraph.resident)
    disk = disk_bound(memgraph) if memgraph.has_disk else None
    if disk is not None:
        limits = with_disk(limits, disk, machine.at_best())
    found = report(
        memgraph, machine, timeline, limits,
        plan_s=plan_s, verified=True, spec=graph.name, policy=policy, pace=pace, disk=disk,
    )  # fmt: skip
    return Planned(graph, memgraph, machine, timeline, limits, found)
