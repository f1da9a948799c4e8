"""From a spec to a judged plan: the stages in a row, with nothing run and torch not imported.

    open_model ──► Model ──► build_graph ──► Built (ops, tasks) ──► make_plan ──► Planned (MemGraph, time line, bounds, report)
    read_trace ─────────────────────────────► TaskGraph ──────────► plan_graph ──► Planned

Sizes come from the spec, then from the checkpoint's own metadata, then from the tokens at hand, then from `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.choose.best_first import coarsened, smallest_first
from einpage.einsum_front.choose.coarsest_first import candidates
from einpage.einsum_front.choose.working_set import Choice
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.tied_weights import tie
from einpage.einsum_front.fuse.fuse import fuse, leaving
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.document import load_document
from einpage.einsum_front.tile.split import split
from einpage.exec.load.inputs import TokenLists, token_sizes
from einpage.exec.load.resolve import Resolved, check_assumptions, open_weights, present_names, resolve, spec_settings
from einpage.exec.load.tokenizer import Tokenizer
from einpage.memplan.bounds.bounds import GOOD_ENOUGH, Bounds, Effort, Reached, bounds
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph, Queue
from einpage.memplan.graph.simulate import Timeline, moved_bytes, simulate
from einpage.memplan.judge.reason import Fault
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.machine import Machine
from einpage.memplan.report import passes_figures, report, tasks_in_order
from einpage.memplan.residency.resident_sets import Start


@dataclass(frozen=True, slots=True)
class Model:
    """A spec with all its sizes known, and the checkpoint it was opened with."""

    program: Program
    resolved: Resolved | None
    """None where no weights were given: enough to plan, not to run."""
    tokens: TokenLists | None = None
    """The token lists at hand, which gave `batch` and `seq` where nothing else did."""
    tokenizer: Tokenizer | None = None
    """Turns token ids into text, where the checkpoint has one."""


@dataclass(frozen=True, slots=True)
class Built:
    opgraph: OpGraph
    choice: Choice
    graph: TaskGraph


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
    """The judge found a fault in a plan: our bug, never the user's."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the judge rejects this plan: {fault.reason.name}: {fault.message} (nodes {fault.nodes})")


def open_model(
    spec: str | Path,
    settings: Mapping[str, str | int | float] | None = None,
    weights: str | None = None,
    tokens: TokenLists | None = None,
    tokenizer: Tokenizer | None = None,
) -> Model:
    """Read a spec and give every size its value. `weights` as in `--weights`.

    Raises SpecError, UsageError, WeightError, InputError: each before anything runs.
    """
    document = load_document(Path(spec))
    settings = dict(settings or {})
    checkpoint = open_weights(weights) if weights is not None else None
    if checkpoint is not None:
        check_assumptions(document.assume, checkpoint)
    sizes = {entry.name for entry in document.sizes}
    found = spec_settings(document.config, checkpoint, sizes) if checkpoint is not None else {}
    implied = token_sizes(tokens, _whole_numbers(settings)) if tokens is not None else {}
    implied = {name: n for name, n in implied.items() if name in sizes}
    program = elaborate(document, {**found, **implied, **settings})
    if tokens is not None:  # again, for settings that are expressions
        token_sizes(tokens, {name: program.sizes[name] for name in ("batch", "seq") if name in settings and name in sizes})
    if checkpoint is None:
        return Model(program, None, tokens, tokenizer)
    program = tie(program, present_names(program, checkpoint))
    return Model(program, resolve(program, checkpoint), tokens, tokenizer)


def _whole_numbers(settings: Mapping[str, str | int | float]) -> dict[str, int]:
    """Those settings that are whole numbers as they stand; `elaborate` judges the rest."""
    return {name: int(value) for name, value in settings.items() if str(value).strip().isdecimal()}


def build_graph(
    program: Program,
    dtype: DType,
    budget_bytes: int,
    outputs: Sequence[str] | None = None,
    pieces: Mapping[Letter, int] | None = None,
    no_fuse: Sequence[str] = (),
) -> Built:
    """Fuse (all but `no_fuse`), choose a split for the budget (letters in `pieces` are fixed), and cut.

    Raises DoesNotFit where the smallest working set is larger than the budget, UsageError for an unknown output or fusion
    or an impossible split.
    """
    opgraph = fuse(program, outputs, leaving(no_fuse))
    for choice in candidates(opgraph, dtype, budget_bytes, pieces):
        found = Built(opgraph, choice, split(opgraph, choice.by_letter, dtype))
        if largest_footprint(found.graph)[1] <= budget_bytes:
            return found
    found, at_least = smallest(opgraph, dtype, budget_bytes, pieces)
    if largest_footprint(found.graph)[1] > budget_bytes:
        raise DoesNotFit(_too_small(found.graph, budget_bytes, at_least))
    return found


def cut_graph(program: Program, dtype: DType, pieces: Mapping[Letter, int], outputs: Sequence[str], no_fuse: Sequence[str]) -> TaskGraph:
    """The tasks of `program` with each letter of `pieces` in so many, and no other letter cut. Raises UsageError as build_graph."""
    return split(fuse(program, outputs, leaving(no_fuse)), pieces, dtype)


def smallest(opgraph: OpGraph, dtype: DType, enough: int, pieces: Mapping[Letter, int] | None = None) -> tuple[Built, int]:
    """Cut so that the largest working set is as small as any split allows (letters in `pieces` are fixed), or no more than `enough`
    bytes; and what any split needs at least, which is less than that only where the search was too long to end.

    A choice states its working set from a sample of tasks, so the graphs themselves are counted while one may still be smaller.
    """
    best: tuple[int, Built] | None = None
    for choice, at_least in smallest_first(opgraph, dtype, pieces):
        if best is not None and at_least >= best[0]:
            break
        limit = max(choice.largest_bytes, enough)
        for tried in (coarsened(opgraph, dtype, choice, limit, pieces), choice):
            found = Built(opgraph, tried, split(opgraph, tried.by_letter, dtype))
            nbytes = largest_footprint(found.graph)[1]
            if best is None or nbytes < best[0]:
                best = nbytes, found
            if nbytes <= limit:
                return found, min(at_least, nbytes)
    assert best is not None, "there is always a split to try"
    return best[1], best[0]


def _too_small(graph: TaskGraph, budget_bytes: int, at_least: int) -> Misfit:
    task, nbytes = largest_footprint(graph)
    return Misfit(
        task=graph.tasks[task].name,
        place="device",
        wanted=nbytes,
        free=budget_bytes,
        largest_hole=budget_bytes,
        budget=budget_bytes,
        pinned=(),
        smallest_budget=nbytes,
        at_least=at_least,
    )


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

    Raises DoesNotFit; UsageError where the machine has no figure for a task; RejectedPlan where the judge finds a fault.
    """
    began = perf_counter() if since is None else since
    if graph.dtype not in dict(machine.flops_per_s) and any(task.seconds is None for task in graph.tasks):
        raise UsageError(f"machine {machine.name} has no figure for {graph.dtype.value}")
    options = options or PlanOptions()
    memgraph = plan(graph, machine, budget_bytes, options)
    fault = judge(memgraph)
    if fault is not None:
        raise RejectedPlan(fault)
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
