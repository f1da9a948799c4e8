"""What a plan costs and what limits it: a Report, its figures as JSON for scripts, and a short table for people.

In: a MemGraph with its Timeline and Bounds. Out: `report`, whose fields are named as the keys of `plan --json`; `Report.facts`, that JSON;
`render`, the same in a dozen lines. All sizes are bytes and all times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType, Stored, as_run
from einpage.einsum_front.base.units import aligned, format_bytes, format_rate, format_seconds
from einpage.einsum_front.graph.taskgraph import Kind, TaskId
from einpage.memplan.bounds.bounds import Bounds
from einpage.memplan.bounds.compulsory import DiskBound
from einpage.memplan.bounds.limit import Cause, Limit, Method, limit_name
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import COMPUTE, GATHER, Nodes, Residencies
from einpage.memplan.graph.simulate import (
    NO_SECOND_RUN,
    SecondRunFigures,
    Timeline,
    moved_bytes_by_queue,
    once_bytes,
    second_run_figures,
    sector_bytes,
    simulate,
)
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, ENGINES, Queue
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.pace import Ended, Pace
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.schedule.static_plans import Policy
from einpage.memplan.tiers.prologue import prologue

NEAR = (Queue.H2D, Queue.D2H)
"""The links of the device."""
BUSY_ENOUGH = 0.85
"""An engine that works this share of the makespan is what limits the plan."""
AGAIN_TOO_MUCH = 1.02
"""Traffic above this multiple of what must be moved anyway is due to the small budget."""


def tasks_in_order(memgraph: MemGraph) -> tuple[TaskId, ...]:
    """Tasks and gathers in the order of their nodes, the first time that each runs, for the bounds of that order."""
    nodes = Nodes.of(memgraph.nodes)
    return tuple(dict.fromkeys(nodes.subject[nodes.kind <= GATHER].tolist()))


def in_written_order(memgraph: MemGraph) -> bool:
    """Whether the tasks on the device run in the graph's own order; gathers run wherever their rows are needed."""
    nodes = Nodes.of(memgraph.nodes)
    first_runs = list(dict.fromkeys(nodes.subject[nodes.kind == COMPUTE].tolist()))
    return first_runs == sorted(first_runs)


def peak_bytes(memgraph: MemGraph) -> int:
    """The smallest arena these very offsets would fit: the highest byte ever used, rounded up to the alignment."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    extents = np.repeat(residencies.at(DEVICE), np.diff(residencies.extent_row))
    tops = (residencies.offset + residencies.nbytes)[extents], nodes.scratch_offset + nodes.scratch_nbytes
    return min(aligned(max(int(top.max(initial=0)) for top in tops), memgraph.alignment), memgraph.budget_bytes)


class TaskOrder(Enum):
    """Whether the tasks on the device run as the graph lists them."""

    AS_WRITTEN = "as_written"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link that is not between the host and the device."""

    queue: Queue
    nbytes: int
    seconds: float
    """How long it is busy."""


@dataclass(frozen=True, slots=True)
class PassesReport:
    """A loop run several times in a row."""

    passes: int
    prologue_s: float
    """To preload its resident tensors."""
    passes_s: float
    """All passes and the prologue."""


@dataclass(frozen=True, slots=True)
class TiersReport:
    """What a plan with a disk moves over each link behind the device, in parts of the least."""

    device_bytes_ratio: float | None
    """Bytes between device and host, over those of `bytes_bound_order`."""
    disk_bytes: int
    """Read and written, in whole sectors, gathered rows not counted."""
    disk_bytes_bound: int
    """Of every plan."""
    disk_bytes_bound_order: int
    """For the copies of the device at hand."""
    disk_bytes_ratio: float | None
    """Over `disk_bytes_bound_order`."""
    disk_bound_by: Method


@dataclass(frozen=True, slots=True)
class Report:
    """A field's name is its key in the JSON; `_bytes` are bytes, `_s` seconds, a ratio is None where its bound is zero."""

    spec: str
    machine: str
    policy: Policy
    plan_steps: int
    """Of the search for a better plan; 0 where there was none."""
    plan_ended: Ended | None
    """Why that search ended."""
    order: TaskOrder
    dtype: DType
    split: tuple[tuple[Letter, int], ...]
    """Pieces of each letter."""
    weight_bytes: int
    """Of all weights that the tasks read, in the form in which they wait and travel."""
    weight_bytes_as_run: int
    """As numbers of the run's dtype."""
    weight_formats: tuple[str, ...]
    """In which some are kept as their checkpoint stores them; empty where all are numbers of the run's dtype."""
    budget_bytes: int
    peak_bytes: int
    """The smallest arena that these very offsets fit."""
    largest_working_set_bytes: int
    largest_working_set_task: str
    """Empty for a graph without tasks."""
    host_bytes: int
    start: Start
    resident_bytes: int
    """On the device before the first task."""
    tasks: int
    nodes: int
    edges: int
    h2d_bytes: int
    d2h_bytes: int
    disk_read_bytes: int
    bytes_bound_h2d: int
    bytes_bound_d2h: int
    compute_s: float
    """Seconds the engine is busy; likewise below."""
    h2d_s: float
    d2h_s: float
    makespan_s: float
    """By the simulator, with the times that kernels and copies usually take on the machine, as far as these are known."""
    predicted_s: float
    """The makespan: what a run is compared with."""
    bound_s: float
    """For every order and split."""
    bound_ratio: float | None
    bound_limit: Limit
    bound_order_s: float
    """For these tasks in this order."""
    bound_order_ratio: float | None
    bound_order_limit: Limit
    bound_order_by: Method
    bytes_bound_order: int
    bytes_bound_order_by: Method
    limited_by: Limit
    over_device_bytes: int
    """By how much the budget exceeds the machine's device."""
    plan_s: float
    """From the spec to the judged plan."""
    verified: bool
    """Whether the judge has passed the plan."""
    other_links: tuple[LinkUse, ...] = ()
    """In the JSON as `disk_to_host_bytes`, `disk_to_host_s` and the like."""
    passes: PassesReport | None = None
    tiers: TiersReport | None = None
    """Where there is a disk."""
    again: SecondRunFigures = NO_SECOND_RUN

    def facts(self) -> dict[str, Any]:
        """What `plan --json` prints: plain JSON values in the order of the fields."""
        out = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in ("passes", "other_links", "tiers", "again")}
        for use in self.other_links:
            out |= {f"{use.queue.name}_bytes": use.nbytes, f"{use.queue.name}_s": use.seconds}
        if self.tiers is not None:
            out |= {f.name: _plain(getattr(self.tiers, f.name)) for f in fields(self.tiers)}
        out |= asdict(self.again)
        out["split"] = {str(letter): pieces for letter, pieces in self.split}
        return out if self.passes is None else {**out, **asdict(self.passes)}

    def __getitem__(self, key: str) -> Any:
        """A figure by its key in the JSON."""
        return self.facts()[key]


def _plain(value: object) -> object:
    """As JSON has it."""
    if isinstance(value, Queue):
        return value.name
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value


def report(
    memgraph: MemGraph, machine: Machine, timeline: Timeline, bounds: Bounds, *, plan_s: float, verified: bool, spec: str,
    policy: Policy = Policy.AUTO, pace: Pace | None = None, disk: DiskBound | None = None,
) -> Report:  # fmt: skip
    """The report of a plan. `plan_s` is the time from spec to judged plan, `verified` the judge's verdict, `policy` and `pace` say how
    the plan was made, `disk` is the bound of a plan with one."""
    graph = memgraph.graph
    moved = moved_bytes_by_queue(memgraph)
    largest_task, largest_bytes = largest_footprint(graph, memgraph.alignment)
    weights = [t for t in graph.tensors if t.kind is Kind.WEIGHT]
    return Report(
        spec=spec,
        machine=machine.name,
        policy=policy,
        plan_steps=0 if pace is None else pace.steps,
        plan_ended=None if pace is None else pace.ended,
        order=TaskOrder.AS_WRITTEN if in_written_order(memgraph) else TaskOrder.REORDERED,
        dtype=graph.dtype,
        split=graph.split,
        weight_bytes=sum(t.nbytes for t in weights),
        weight_bytes_as_run=sum(as_run(t.element_type).bytes_of(t.box.size) for t in weights),
        weight_formats=tuple(sorted({t.element_type.format.value for t in weights if isinstance(t.element_type, Stored)})),
        budget_bytes=int(memgraph.budget_bytes),
        peak_bytes=int(peak_bytes(memgraph)),
        largest_working_set_bytes=int(largest_bytes),
        largest_working_set_task=graph.tasks[largest_task].name if graph.tasks else "",
        host_bytes=int(memgraph.host_bytes),
        start=Start.LOOP if memgraph.loops else Start.WARM if memgraph.resident else Start.COLD,
        resident_bytes=sum(graph.tensors[t].nbytes for t in memgraph.resident),
        tasks=len(graph.tasks),
        nodes=len(memgraph.nodes),
        edges=len(memgraph.edges),
        h2d_bytes=moved[Queue.H2D],
        d2h_bytes=moved[Queue.D2H],
        disk_read_bytes=sector_bytes(memgraph, Queue.READ),
        bytes_bound_h2d=int(bounds.compulsory(Queue.H2D)),
        bytes_bound_d2h=int(bounds.compulsory(Queue.D2H)),
        compute_s=timeline.busy(Queue.COMPUTE),
        h2d_s=timeline.busy(Queue.H2D),
        d2h_s=timeline.busy(Queue.D2H),
        makespan_s=timeline.makespan_s,
        predicted_s=timeline.makespan_s,
        bound_s=bounds.bound_s,
        bound_ratio=_ratio(timeline.makespan_s, bounds.bound_s),
        bound_limit=bounds.limit,
        bound_order_s=bounds.bound_order_s,
        bound_order_ratio=_ratio(timeline.makespan_s, bounds.bound_order_s),
        bound_order_limit=bounds.limit_order,
        bound_order_by=bounds.order_by,
        bytes_bound_order=int(bounds.bytes_bound_order),
        bytes_bound_order_by=bounds.bytes_order_by,
        limited_by=limited_by(timeline, sum(moved[queue] for queue in NEAR), once_bytes(memgraph)),
        over_device_bytes=max(0, int(memgraph.budget_bytes) - machine.device_bytes),
        plan_s=plan_s,
        verified=verified,
        other_links=tuple(LinkUse(q, nbytes, timeline.busy(q)) for q, nbytes in moved.items() if q not in ENGINES),
        tiers=None if disk is None else _tiers(memgraph, moved, bounds, disk),
        again=second_run_figures(memgraph, timeline),
    )


def _tiers(memgraph: MemGraph, moved: Mapping[Queue, int], bounds: Bounds, disk: DiskBound) -> TiersReport:
    nbytes = sum(sector_bytes(memgraph, queue) for queue in (Queue.READ, Queue.WRITE))
    near = sum(moved[queue] for queue in NEAR)
    return TiersReport(
        _ratio(near, bounds.bytes_bound_order), nbytes, int(disk.for_all), int(disk.here), _ratio(nbytes, disk.here), disk.by
    )


def passes_report(memgraph: MemGraph, machine: Machine, timeline: Timeline, passes: int) -> PassesReport:
    """What `plan --passes N --json` adds: the time of a first, cold pass and all of them, resident tensors preloaded before it starts."""
    if memgraph.has_disk:
        prologue_s = simulate(prologue(memgraph), machine).makespan_s
        return PassesReport(passes, prologue_s, prologue_s + passes * timeline.makespan_s)
    tensors = memgraph.graph.tensors
    prologue_s = sum(machine.link(Queue.H2D).seconds(tensors[t].nbytes) for t in sorted(memgraph.resident))
    return PassesReport(passes, prologue_s, prologue_s + passes * timeline.makespan_s)


def _ratio(seconds: float, bound: float) -> float | None:
    return seconds / bound if bound > 0 else None


def limited_by(timeline: Timeline, moved: int, once: int) -> Limit:
    """What would have to be faster or larger.

    `moved` and `once` are the bytes over all links, in this plan and if it moved nothing twice. A busy link counts as memory
    when it carries the same bytes more than once; so do idle engines when bytes are carried more than once.
    """
    busiest = max(timeline.busy_s, key=lambda entry: entry[1])
    again = moved > AGAIN_TOO_MUCH * once
    if busiest[0] != Queue.COMPUTE and again:
        return Cause.MEMORY
    if timeline.makespan_s > 0 and busiest[1] < BUSY_ENOUGH * timeline.makespan_s:
        return Cause.MEMORY if again else Cause.LATENCY
    return busiest[0]


_BYTES_BY = {
    Method.STEADY: "what cannot be resident",
    Method.COMPULSORY: "each byte once",
    Method.INTERVAL_LP: "in this order and budget; by the interval LP",
}
_CURES: dict[Limit, str] = {
    Queue.COMPUTE: "arithmetic; more memory or a faster link would not help",
    Queue.H2D: "the link to the device carries each byte once; more tokens at once, or a faster link",
    Queue.D2H: "the link to the host carries each byte once; fewer or smaller outputs, or a faster link",
    Cause.MEMORY: "bytes cross a link more than once, or wait for memory; a larger budget helps",
    Cause.LATENCY: "no engine is busy: loads, tasks and stores wait for one another; a coarser split, or more work at once",
}


def render(r: Report, advice: str | None = None) -> str:
    """The report for a person, a dozen lines of plain text, no trailing newline; `advice`, where there is some, comes last."""
    makespan = r.makespan_s
    order_holds_for = f"these tasks; by the {r.bound_order_by.value}"
    moved = r.h2d_bytes + r.d2h_bytes
    least = r.bytes_bound_order
    bytes_text = f"{format_bytes(moved)} over both links, {format_bytes(least)} at the least ({_BYTES_BY[r.bytes_bound_order_by]})"
    rows = [
        ("plan", f"{r.spec}, {r.dtype.value}, on {r.machine}: {r.tasks} tasks, {r.nodes} nodes"),
        ("split", " ".join(f"{letter}={pieces}" for letter, pieces in r.split) or "none"),
        *([("weights", stored_text(r))] if r.weight_formats else []),
        ("budget", f"{format_bytes(r.budget_bytes)}, {format_bytes(r.peak_bytes)} of it used"),
        ("largest task", f"{r.largest_working_set_task}, {format_bytes(r.largest_working_set_bytes)}"),
        *([("at start", f"{format_bytes(r.resident_bytes)} of weights on the device")] if r.resident_bytes else []),
        ("host", format_bytes(r.host_bytes)),
        ("compute", _engine(r.compute_s, makespan)),
        ("to device", _engine(r.h2d_s, makespan, r.h2d_bytes, r.bytes_bound_h2d)),
        ("to host", _engine(r.d2h_s, makespan, r.d2h_bytes, r.bytes_bound_d2h)),
        *((use.queue.title, _engine(use.seconds, makespan, use.nbytes)) for use in r.other_links),
        *([("recompute", r.again.text)] if r.again.second_runs else []),
        ("predicted", format_seconds(makespan) + (" a pass" if r.start is Start.LOOP else "")),
        *([("passes", _passes(r.passes))] if r.passes else []),
        ("plan / bound", _over(r.bound_ratio, r.bound_s, limit_name(r.bound_limit), "any order and split")),
        ("", _over(r.bound_order_ratio, r.bound_order_s, limit_name(r.bound_order_limit), order_holds_for)),
        ("bytes", bytes_text),
        *([("", _disk_text(r.tiers))] if r.tiers else []),
        *([("search", f"{r.plan_steps:,} steps; it ended: {r.plan_ended.value}")] if r.plan_ended else []),
        ("judge", ("passed" if r.verified else "not asked") + f"; planned in {format_seconds(r.plan_s)}"),
    ]
    if r.order is TaskOrder.REORDERED:
        rows.insert(1, ("order", "not as written: tasks that share operands are next to each other"))
    if r.policy is not Policy.AUTO:
        rows.insert(1, ("policy", f"{r.policy.value}, as asked"))
    if r.over_device_bytes:
        rows.append(("warning", f"the budget exceeds the device of {r.machine} by {format_bytes(r.over_device_bytes)}"))
    cure = _CURES.get(r.limited_by, "that link carries each byte once; a faster one would help")
    rows.append(("limited by", f"{limit_name(r.limited_by)}: {cure}"))
    if advice is not None:
        rows.append(("would help", advice))
    return "\n".join(f"{name:<13} {text}" for name, text in rows)


def _disk_text(t: TiersReport) -> str:
    """The disk's bytes, as the line before has those of the device: both in parts of their bounds."""
    near, far = ("no bound" if ratio is None else f"{ratio:.3f} x" for ratio in (t.device_bytes_ratio, t.disk_bytes_ratio))
    least = f"{format_bytes(t.disk_bytes_bound_order)} at the least (for these copies; by the {t.disk_bound_by.value})"
    return f"{format_bytes(t.disk_bytes)} of the disk, {least}; plan / bound by tier: device {near}, host {far}"


def stored_text(r: Report) -> str:
    """In which form weights are kept: `92.1MiB as stored (q4_1, q8_0), 513.1MiB in fp32`."""
    formats, as_run_text = ", ".join(r.weight_formats), format_bytes(r.weight_bytes_as_run)
    return f"{format_bytes(r.weight_bytes)} as stored ({formats}), {as_run_text} in {r.dtype.value}"


def _passes(p: PassesReport) -> str:
    first = f"{format_seconds(p.prologue_s)} to load what is resident"
    return f"{p.passes} from a cold start in {format_seconds(p.passes_s)}, {first}"


def _engine(seconds: float, makespan: float, moved: int | None = None, least: int | None = None) -> str:
    share = f"{100 * seconds / makespan:.0f} %" if makespan > 0 else "0 %"
    text = f"{format_seconds(seconds)} busy, {share}"
    if moved is None:
        return text
    rate = f" at {format_rate(moved / seconds)}" if seconds > 0 else ""
    at_least = "" if least is None else f", {format_bytes(least)} at the least"
    return f"{text}; {format_bytes(moved)}{rate}{at_least}"


def _over(ratio: float | None, seconds: float, limit: str, holds_for: str) -> str:
    return "no bound" if ratio is None else f"{ratio:.3f} x {format_seconds(seconds)} ({limit}; holds for {holds_for})"
