"""What a plan costs and what limits it, as figures for scripts and as a short table for people.

In: a MemGraph with its Timeline and Bounds. Out: `report`, the dictionary behind `plan --json`; `render`, the same in a dozen lines.
All sizes are bytes and all times seconds in the dictionary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einpage.einsum_front.base.units import aligned, format_bytes, format_rate, format_seconds
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskId, TensorId
from einpage.memplan.bounds.bounds import Bounds
from einpage.memplan.graph.memgraph import MemGraph, Queue
from einpage.memplan.graph.packed import COMPUTE, GATHER, MOVE, Nodes, Residencies
from einpage.memplan.graph.simulate import Timeline, moved_bytes
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.machine import Machine

BUSY_ENOUGH = 0.85
"""An engine that works this share of the makespan is what limits the plan."""
AGAIN_TOO_MUCH = 1.02
"""Traffic above this multiple of what must come in anyway is put down to the small budget."""


def tasks_in_order(memgraph: MemGraph) -> tuple[TaskId, ...]:
    """Tasks and gathers in the order of their nodes: what the window bound wants to know."""
    nodes = Nodes.of(memgraph.nodes)
    return tuple(nodes.subject[nodes.kind <= GATHER].tolist())


def in_written_order(memgraph: MemGraph) -> bool:
    """Whether the tasks on the device run in the graph's own order; gathers go wherever their rows are wanted."""
    nodes = Nodes.of(memgraph.nodes)
    return bool((np.diff(nodes.subject[nodes.kind == COMPUTE]) >= 0).all())


def peak_bytes(memgraph: MemGraph) -> int:
    """The smallest arena these very offsets would fit: the highest byte ever used, rounded up to the alignment."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    extents = np.repeat(residencies.on_device, np.diff(residencies.extent_row))
    tops = (residencies.offset + residencies.nbytes)[extents], nodes.scratch_offset + nodes.scratch_nbytes
    return min(aligned(max(int(top.max(initial=0)) for top in tops), memgraph.alignment), memgraph.budget_bytes)


def once_bytes(memgraph: MemGraph) -> int:
    """What this plan would move if every tensor that comes from the host came once, gathered rows too, and only outputs went back."""
    nodes, tensor = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies).tensor
    came: set[TensorId] = set(tensor[nodes.subject[nodes.kind == MOVE]].tolist())
    gathered: set[TensorId] = set(tensor[nodes.result[nodes.kind == GATHER]].tolist())
    tensors = memgraph.graph.tensors
    first = {t for t in came if tensors[t].kind in HOST_AT_START or tensors[t].kind is Kind.OUTPUT}
    return sum(tensors[t].nbytes for t in first) + sum(tensors[t].nbytes for t in gathered)


def report(
    memgraph: MemGraph, machine: Machine, timeline: Timeline, bounds: Bounds, *, plan_s: float, verified: bool, spec: str,
    policy: str = "auto", effort: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Everything `plan --json` prints. `plan_s` is the time from spec to judged plan; `verified` is the judge's word; `policy` says who
    made the plan."""
    graph = memgraph.graph
    h2d_bytes, d2h_bytes = moved_bytes(memgraph, Queue.H2D), moved_bytes(memgraph, Queue.D2H)
    largest_task, largest_bytes = largest_footprint(graph, memgraph.alignment)
    return {
        "spec": spec,
        "machine": machine.name,
        "policy": policy,
        "effort": effort,
        "order": "as_written" if in_written_order(memgraph) else "reordered",
        "dtype": graph.dtype.value,
        "split": {str(letter): pieces for letter, pieces in graph.split},
        "budget_bytes": int(memgraph.budget_bytes),
        "peak_bytes": int(peak_bytes(memgraph)),
        "largest_working_set_bytes": int(largest_bytes),
        "largest_working_set_task": graph.tasks[largest_task].name if graph.tasks else "",
        "host_bytes": int(memgraph.host_bytes),
        "start": "loop" if memgraph.loops else "warm" if memgraph.resident else "cold",
        "resident_bytes": sum(graph.tensors[t].nbytes for t in memgraph.resident),
        "tasks": len(graph.tasks),
        "nodes": len(memgraph.nodes),
        "edges": len(memgraph.edges),
        "h2d_bytes": h2d_bytes,
        "d2h_bytes": d2h_bytes,
        "disk_read_bytes": 0,
        "bytes_bound_h2d": int(bounds.bytes_bound_h2d),
        "bytes_bound_d2h": int(bounds.bytes_bound_d2h),
        "compute_s": timeline.busy(Queue.COMPUTE),
        "h2d_s": timeline.busy(Queue.H2D),
        "d2h_s": timeline.busy(Queue.D2H),
        "makespan_s": timeline.makespan_s,
        "predicted_s": timeline.makespan_s * machine.usual_slowdown,
        "bound_s": bounds.bound_s,
        "bound_ratio": _ratio(timeline.makespan_s, bounds.bound_s),
        "bound_limit": bounds.limit.value,
        "bound_order_s": bounds.bound_order_s,
        "bound_order_ratio": _ratio(timeline.makespan_s, bounds.bound_order_s),
        "bound_order_limit": bounds.limit_order.value,
        "bound_order_by": bounds.order_by.value,
        "bytes_bound_order": int(bounds.bytes_bound_order),
        "bytes_bound_order_by": bounds.bytes_order_by.value,
        "limited_by": limited_by(timeline, h2d_bytes + d2h_bytes, once_bytes(memgraph)),
        "over_device_bytes": max(0, int(memgraph.budget_bytes) - machine.device_bytes),
        "plan_s": plan_s,
        "verified": verified,
    }


def _ratio(seconds: float, bound: float) -> float | None:
    return seconds / bound if bound > 0 else None


def limited_by(timeline: Timeline, moved: int, once: int) -> str:
    """What would have to be faster or larger: `compute`, `h2d`, `d2h`, or `memory`; `latency` where nothing is busy.

    `moved` and `once` are the bytes over both links, in this plan and if it moved nothing twice. A busy link counts as memory
    when it carries the same bytes more than once; so do idle engines when bytes are carried more than once.
    """
    busiest = max(timeline.busy_s, key=lambda entry: entry[1])
    again = moved > AGAIN_TOO_MUCH * once
    if busiest[0] is not Queue.COMPUTE and again:
        return "memory"
    if timeline.makespan_s > 0 and busiest[1] < BUSY_ENOUGH * timeline.makespan_s:
        return "memory" if again else "latency"
    return busiest[0].value


_BYTES_BY = {
    "steady state": "what cannot stay",
    "compulsory": "each byte once",
    "interval LP": "in this order and budget; by the interval LP",
}
_CURES = {
    "compute": "arithmetic; more memory or a faster link would not help",
    "h2d": "the link to the device carries each byte once; more tokens at once, or a faster link",
    "d2h": "the link to the host carries each byte once; fewer or smaller outputs, or a faster link",
    "memory": "bytes cross a link more than once, or wait for room; a larger budget helps",
    "latency": "no engine is busy: loads, tasks and stores wait for one another; a coarser split, or more work at once",
}


def render(figures: dict[str, Any]) -> str:
    """The report for a person, a dozen lines of plain text, no trailing newline; `advice`, where there is some, comes last."""
    makespan = figures["makespan_s"]
    order_holds_for = f"these tasks; by the {figures['bound_order_by']}"
    moved, least = figures["h2d_bytes"] + figures["d2h_bytes"], figures["bytes_bound_order"]
    bytes_text = f"{format_bytes(moved)} over both links, {format_bytes(least)} at the least ({_BYTES_BY[figures['bytes_bound_order_by']]})"
    rows = [
        ("plan", f"{figures['spec']}, {figures['dtype']}, on {figures['machine']}: {figures['tasks']} tasks, {figures['nodes']} nodes"),
        ("split", " ".join(f"{letter}={pieces}" for letter, pieces in figures["split"].items()) or "none"),
        ("budget", f"{format_bytes(figures['budget_bytes'])}, {format_bytes(figures['peak_bytes'])} of it used"),
        ("largest task", f"{figures['largest_working_set_task']}, {format_bytes(figures['largest_working_set_bytes'])}"),
        *([("at start", f"{format_bytes(figures['resident_bytes'])} of weights on the device")] if figures["resident_bytes"] else []),
        ("host", format_bytes(figures["host_bytes"])),
        ("compute", _engine(figures["compute_s"], makespan)),
        ("to device", _engine(figures["h2d_s"], makespan, figures["h2d_bytes"], figures["bytes_bound_h2d"])),
        ("to host", _engine(figures["d2h_s"], makespan, figures["d2h_bytes"], figures["bytes_bound_d2h"])),
        ("predicted", _predicted(makespan, figures["predicted_s"]) + (" a pass" if figures["start"] == "loop" else "")),
        *([("passes", _passes(figures))] if "passes" in figures else []),
        ("plan / bound", _over(figures["bound_ratio"], figures["bound_s"], figures["bound_limit"], "any order and split")),
        ("", _over(figures["bound_order_ratio"], figures["bound_order_s"], figures["bound_order_limit"], order_holds_for)),
        ("bytes", bytes_text),
        ("judge", ("passed" if figures["verified"] else "not asked") + f"; planned in {format_seconds(figures['plan_s'])}"),
    ]
    if figures["order"] != "as_written":
        rows.insert(1, ("order", "not as written: tasks that share what they read stand together"))
    if figures["policy"] != "auto":
        rows.insert(1, ("policy", f"{figures['policy']}, as asked"))
    if figures["over_device_bytes"]:
        rows.append(("warning", f"the budget exceeds the device of {figures['machine']} by {format_bytes(figures['over_device_bytes'])}"))
    rows.append(("limited by", f"{figures['limited_by']}: {_CURES[figures['limited_by']]}"))
    if figures.get("advice"):
        rows.append(("would help", figures["advice"]["text"]))
    return "\n".join(f"{name:<13} {text}" for name, text in rows)


def _predicted(makespan_s: float, predicted_s: float) -> str:
    usual = f", {format_seconds(predicted_s)} as runs on this machine usually go" if predicted_s > makespan_s else ""
    return format_seconds(makespan_s) + usual


def passes_figures(memgraph: MemGraph, machine: Machine, timeline: Timeline, passes: int) -> dict[str, Any]:
    """What `plan --passes N --json` adds: the time of a first, cold pass and all of them, its residents brought in before it starts."""
    tensors = memgraph.graph.tensors
    prologue_s = sum(machine.h2d_seconds(tensors[t].nbytes) for t in sorted(memgraph.resident))
    return {"passes": passes, "prologue_s": prologue_s, "passes_s": prologue_s + passes * timeline.makespan_s}


def _passes(figures: dict[str, Any]) -> str:
    first = f"{format_seconds(figures['prologue_s'])} to bring in what stays"
    return f"{figures['passes']} from a cold start in {format_seconds(figures['passes_s'])}, {first}"


def _engine(seconds: float, makespan: float, moved: int | None = None, least: int | None = None) -> str:
    share = f"{100 * seconds / makespan:.0f} %" if makespan > 0 else "0 %"
    text = f"{format_seconds(seconds)} busy, {share}"
    if moved is None or least is None:
        return text
    rate = f" at {format_rate(moved / seconds)}" if seconds > 0 else ""
    return f"{text}; {format_bytes(moved)}{rate}, {format_bytes(least)} at the least"


def _over(ratio: float | None, seconds: float, limit: str, holds_for: str) -> str:
    return "no bound" if ratio is None else f"{ratio:.3f} x {format_seconds(seconds)} ({limit}; holds for {holds_for})"
