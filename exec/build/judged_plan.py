"""Third stage: a TaskGraph becomes a plan that the judge has passed, with its predicted time line, its bounds and its report.

    open_model ──► Model ──► build_graph ──► Built (ops, tasks) ──► make_plan ──► Planned (MemGraph, time line, bounds, report)
    read_trace ─────────────────────────────► TaskGraph ──────────► plan_graph ──► Planned

Nothing is run, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.build.task_graph import Built, build_graph
from einpage.memplan.bounds.bounds import GOOD_ENOUGH, Bounds, Effort, Reached, bounds
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph, Queue
from einpage.memplan.graph.simulate import Timeline, moved_bytes, simulate
from einpage.memplan.judge.reason import Violation
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.machine import Machine
from einpage.memplan.report import passes_figures, report, tasks_in_order
from einpage.memplan.residency.resident_sets import Start


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that the judge has passed, and everything there is to say about it."""

    graph: TaskGraph
    memgraph: MemGraph
    machine: Machine
    timeline: Timeline
    bounds: Bounds
    report: dict[str, object]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The spec's, by name, where they are known."""

    @property
    def predicted_s(self) -> float:
        """What a run usually takes."""
        return self.timeline.makespan_s * self.machine.usual_slowdown


LOOP_SPLITS = (1, 4, 8, 16)
"""A loop is planned with the splits that these parts of its budget would get."""
MOST_TASKS = 4000
"""Finer splits than the budget's own are not tried beyond this."""


class RejectedPlan(AssertionError):
    """The judge found a violation in a plan: our bug, never the user's."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"the judge rejects this plan: {violation.reason.name}: {violation.message} (nodes {violation.nodes})")


def make_plan(
    built: Built, machine: Machine, budget_bytes: int, options: PlanOptions | None = None, since: float | None = None,
    effort: Effort = Effort.FAST,
) -> Planned:  # fmt: skip
    """Plan, judge, predict, bound what was built: as plan_graph."""
    return plan_graph(built.graph, machine, budget_bytes, options, since, effort)


def make_loop(
    program: Program, dtype: DType, budget_bytes: int, machine: Machine, passes: int, outputs: Sequence[str] | None = None,
    pieces: Mapping[Letter, int] | None = None, no_fuse: Sequence[str] = (), since: float | None = None, effort: int = 0,
) -> Planned:  # fmt: skip
    """Plan a pass that ends as it began, to run `passes` times; with the best of a few splits, for what streams wants small pieces.

    Raises as build_graph and make_plan.
    """
    began = perf_counter() if since is None else since
    best: Planned | None = None
    options = PlanOptions(start=Start.LOOP)
    for share in LOOP_SPLITS:
        try:
            built = build_graph(program, dtype, budget_bytes // share, outputs, pieces, no_fuse)
        except DoesNotFit:
            if best is None:
                raise
            break
        if best is not None:
            if built.graph.split == best.graph.split:
                continue
            if len(built.graph.tasks) > MOST_TASKS:
                break
        found = make_plan(built, machine, budget_bytes, options, began)
        if best is not None and found.timeline.makespan_s >= best.timeline.makespan_s:
            break
        best = found
        if best.timeline.makespan_s <= GOOD_ENOUGH * best.bounds.bound_s:
            break
    assert best is not None, "the first split fits or raises"
    if effort and best.timeline.makespan_s > GOOD_ENOUGH * best.bounds.bound_s:
        best = plan_graph(best.graph, machine, budget_bytes, replace(options, effort=effort), began)
    return with_passes(best, passes, perf_counter() - began)


def with_passes(planned: Planned, passes: int, plan_s: float) -> Planned:
    """A loop, and what so many passes take."""
    figures = passes_figures(planned.memgraph, planned.machine, planned.timeline, passes)
    return replace(planned, report={**planned.report, **figures, "plan_s": plan_s})


def plan_graph(
    graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions | None = None, since: float | None = None,
    effort: Effort = Effort.FAST,
) -> Planned:  # fmt: skip
    """Plan, judge, predict, bound. `since` is when the caller began (perf_counter), for `plan_s`; `effort` is what bounds may cost.

    Raises DoesNotFit; UsageError where the machine has no figure for a task; RejectedPlan where the judge finds a violation.
    """
    began = perf_counter() if since is None else since
    if graph.dtype not in dict(machine.flops_per_s) and any(task.seconds is None for task in graph.tasks):
        raise UsageError(f"machine {machine.name} has no figure for {graph.dtype.value}")
    options = options or PlanOptions()
    memgraph = plan(graph, machine, budget_bytes, options)
    violation = judge(memgraph)
    if violation is not None:
        raise RejectedPlan(violation)
    plan_s = perf_counter() - began
    timeline = simulate(memgraph, machine)
    reached = Reached(timeline.makespan_s, moved_bytes(memgraph, Queue.H2D) + moved_bytes(memgraph, Queue.D2H))
    if memgraph.loops:
        limits = steady_bounds(graph, machine, budget_bytes)
    else:
        limits = bounds(graph, machine, budget_bytes, tasks_in_order(memgraph), effort, reached, memgraph.resident)
    facts = report(
        memgraph,
        machine,
        timeline,
        limits,
        plan_s=plan_s,
        verified=True,
        spec=graph.name,
        policy=options.policy.value,
        effort=options.effort,
    )
    return Planned(graph, memgraph, machine, timeline, limits, facts)


def start_for(warm: bool, passes: int | None, effort: int) -> Start:
    """As start_of."""
    if warm and passes is not None:
        raise UsageError("--warm and --passes exclude each other: a pass begins with what the one before left on the device")
    if passes is not None and passes < 1:
        raise UsageError(f"--passes {passes} is not at least 1")
    start = Start.LOOP if passes is not None else Start.WARM if warm else Start.COLD
    if effort and warm:
        raise UsageError(f"--warm is planned at --effort 0 only; leave --effort {effort} out")
    return start
