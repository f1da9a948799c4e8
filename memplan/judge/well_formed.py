"""What a plan has to be before anybody asks about order: its edges, references, extents and tasks are what they must be, each by itself.

In: a MemGraph. Out: None, or the first Fault. A part of the judge, which goes on from here with entries it may use as indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from einpage.memplan.graph.memgraph import Compute, MemGraph, NodeId, PlaceKind
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, Nodes, Residencies
from einpage.memplan.judge.reachability import Bools, Ints
from einpage.memplan.judge.reason import Fault, Pair, Reason, fault_of

MOST = int(np.iinfo(np.int64).max)
"""Stands for an arena larger than any offset."""


def form_fault(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Fault | None:
    """The first thing wrong with the form of `plan`, whose nodes and residencies are given as columns."""
    return (
        _edges(plan)
        or _references(plan, nodes, residencies)
        or _extents(plan, residencies)
        or _workspaces(plan, nodes)
        or _tasks(plan, nodes, residencies)
    )


def readers(nodes: Nodes) -> Ints:
    """[entry of nodes.reads] the node it is of."""
    operands = np.repeat(np.arange(len(nodes)), np.diff(nodes.operand_row))
    return np.repeat(operands, np.diff(nodes.tile_row))


def _edges(plan: MemGraph) -> Fault | None:
    """Edges lie in range, point forward, are sorted, and none stands there twice."""
    source, target, kind = plan.edges.source.astype(np.int64), plan.edges.target.astype(np.int64), plan.edges.kind
    if not len(source) == len(target) == len(kind):
        return fault_of(Reason.EDGE_OUT_OF_RANGE, None, None, f"{len(source)} sources, {len(target)} targets, {len(kind)} kinds")
    key = target * len(plan.nodes) + source
    checks = (
        (Reason.EDGE_OUT_OF_RANGE, (source < 0) | (target < 0) | (source >= len(plan.nodes)) | (target >= len(plan.nodes)) | (kind > 1)),
        (Reason.EDGE_BACKWARD, source >= target),
        (Reason.EDGES_UNSORTED, np.diff(key, prepend=-1) <= 0),
    )
    for reason, wrong in checks:
        if wrong.any():
            at = int(np.argmax(wrong))
            return fault_of(reason, source[at], target[at], f"edge {at}, {source[at]} -> {target[at]}")
    return None


def _references(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Fault | None:
    """Every residency, tensor and task that is named exists."""
    count, tensors, tasks = len(residencies), len(plan.graph.tensors), len(plan.graph.tasks)
    wrong = (residencies.id != np.arange(count)) | (residencies.tensor < 0) | (residencies.tensor >= tensors)
    if wrong.any():
        r = residencies[int(np.argmax(wrong))]
        return fault_of(Reason.BAD_REFERENCE, None, None, f"residency {np.argmax(wrong)} is numbered {r.id} and holds tensor {r.tensor}")
    for listed in (*plan.start, *plan.end):
        if not 0 <= listed < count:
            return fault_of(Reason.BAD_REFERENCE, None, None, f"the start or the end lists residency {listed} of {count}")
    runs, makes = nodes.kind <= GATHER, nodes.kind != FREE
    unknown = runs & ((nodes.subject < 0) | (nodes.subject >= tasks))
    wrong = makes & ((nodes.result < 0) | (nodes.result >= count)) | ~runs & ((nodes.subject < 0) | (nodes.subject >= count))
    wrong[readers(nodes)[(nodes.reads < 0) | (nodes.reads >= count)]] = True
    if not (unknown | wrong).any():
        return None
    n = int(np.argmax(unknown | wrong))
    what = f"task {nodes.subject[n]} of {tasks}" if unknown[n] else f"{nodes[n]} names one of {count} residencies that is not there"
    return fault_of(Reason.BAD_REFERENCE, n, n, what)


def _first(checks: Sequence[tuple[Reason, Bools]]) -> tuple[Reason, int] | None:
    """The first entry with anything wrong, and the first of `checks` that says so."""
    wrong = np.logical_or.reduce([found for _, found in checks])
    at = int(np.argmax(wrong)) if wrong.any() else None
    return None if at is None else (next(reason for reason, found in checks if found[at]), at)


def _extents(plan: MemGraph, residencies: Residencies) -> Fault | None:
    """Every residency is aligned, of the right size, and inside its arena."""
    known = [place.index == 0 and place.kind in (PlaceKind.DEVICE, PlaceKind.HOST) for place in residencies.places]
    size_by_tensor = np.array([t.nbytes for t in plan.graph.tensors], np.int64)
    one = np.diff(residencies.extent_row) == 1
    # A residency without extents gets those of another: it is wrong whatever they are.
    at = np.minimum(residencies.extent_row[:-1], max(0, len(residencies.offset) - 1))
    offset, nbytes = (column[at] if len(column) else np.zeros_like(at) for column in (residencies.offset, residencies.nbytes))
    on_device = residencies.on_device
    room = np.where(on_device, min(plan.budget_bytes, MOST), min(plan.host_bytes, MOST))
    outside = (offset < 0) | (offset > room - nbytes)
    found = _first((
        (Reason.UNKNOWN_PLACE, ~np.array(known)[residencies.place]),
        (Reason.WRONG_SIZE, ~one | (nbytes != size_by_tensor[residencies.tensor])),
        (Reason.MISALIGNED, offset % plan.alignment != 0),
        (Reason.DEVICE_CAPACITY, outside & on_device),
        (Reason.HOST_CAPACITY, outside & ~on_device),
    ))  # fmt: skip
    if found is None:
        return None
    reason, r = found
    place, extents = residencies[r].place, residencies[r].extents
    where = f"at {place}" if reason is Reason.UNKNOWN_PLACE else f"in {', '.join(map(str, extents)) or 'no bytes'}"
    return fault_of(reason, *_creator(plan, r), f"{plan.graph.tensors[residencies[r].tensor].name} {where}")


def _workspaces(plan: MemGraph, nodes: Nodes) -> Fault | None:
    """Every workspace is aligned, large enough, and inside the device's arena."""
    wanted_by_task = np.array([t.workspace_bytes for t in plan.graph.tasks], np.int64)
    has, short, crooked, outside = (np.zeros(len(nodes), t) for t in (np.int64, bool, bool, bool))
    has[nodes.scratch_node] = nodes.scratch_nbytes
    runs = np.flatnonzero(nodes.kind == COMPUTE)
    short[runs] = has[runs] < wanted_by_task[nodes.subject[runs]]
    crooked[nodes.scratch_node] = nodes.scratch_offset % plan.alignment != 0
    room = min(plan.budget_bytes, MOST) - np.maximum(nodes.scratch_nbytes, 0)
    outside[nodes.scratch_node] = (nodes.scratch_offset < 0) | (nodes.scratch_offset > room)
    found = _first(((Reason.WORKSPACE_SIZE, short), (Reason.MISALIGNED, crooked), (Reason.DEVICE_CAPACITY, outside)))
    if found is None:
        return None
    reason, n = found
    task, node = plan.graph.tasks[nodes.subject[n]], nodes[n]
    assert isinstance(node, Compute)
    return fault_of(reason, n, n, f"{task.name} wants {task.workspace_bytes} bytes to work in, has {node.workspace}")


def _creator(plan: MemGraph, residency: int) -> Pair:
    """The node that creates a residency, twice; (None, None) where there is none."""
    nodes = Nodes.of(plan.nodes)
    made = np.flatnonzero((nodes.result == residency) & (nodes.kind != FREE))
    return (None, None) if len(made) == 0 else (NodeId(int(made[0])), NodeId(int(made[0])))


def _tasks(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Fault | None:
    """Every task runs once, as what it is, on exactly its operands, into exactly its result."""
    ran_at: dict[int, int] = {}
    runs = np.flatnonzero(nodes.kind <= GATHER)
    read: list[int] = residencies.tensor[nodes.reads].tolist()
    columns = nodes.subject[runs], residencies.tensor[nodes.result[runs]], nodes.kind[runs] == GATHER
    rows, tiles = nodes.operand_row.tolist(), nodes.tile_row.tolist()
    for n, number, made, gathers in zip(runs.tolist(), *(c.tolist() for c in columns), strict=True):
        task = plan.graph.tasks[number]
        if task.id in ran_at:
            return fault_of(Reason.TASK_TWICE, ran_at[task.id], n, task.name)
        ran_at[task.id] = n
        if task.gathers != gathers:
            return fault_of(Reason.WRONG_NODE, n, n, task.name)
        operands = tuple(tuple(read[a:b]) for a, b in pairwise(tiles[rows[n] : rows[n + 1] + 1]))
        if operands != task.operands:
            return fault_of(Reason.WRONG_OPERANDS, n, n, f"{task.name} reads tensors {operands}")
        if made != task.result:
            return fault_of(Reason.WRONG_RESULT, n, n, f"{task.name} creates residency {nodes.result[n]}")
    for task in plan.graph.tasks:
        if task.id not in ran_at:
            return fault_of(Reason.TASK_MISSING, None, None, task.name)
    return None
