"""Well-formedness: what must hold of edges, references, extents and tasks, each by itself, before order is looked at.

In: a MemGraph. Out: None, or the first Violation. The judge begins here: every later rule may use all entries as indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from einpage.einsum_front.base.columns import Bools, Int64s
from einpage.memplan.graph.memgraph import Compute, MemGraph, NodeId
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, Nodes, Residencies
from einpage.memplan.judge.reason import NodePair, Reason, Violation, violation_at
from einpage.memplan.machine.places import DEVICE, SECTOR

MOST_BYTES = int(np.iinfo(np.int64).max)
"""No arena is larger: an offset is an int64."""


def first_ill_formed(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Violation | None:
    """The first thing ill-formed in `plan`, whose nodes and residencies are given as columns."""
    return (
        _edges(plan)
        or _references(plan, nodes, residencies)
        or _extents(plan, residencies)
        or _workspaces(plan, nodes)
        or _tasks(plan, nodes, residencies)
    )


def readers(nodes: Nodes) -> Int64s:
    """[entry of nodes.reads] the node that reads it."""
    operands = np.repeat(np.arange(len(nodes)), np.diff(nodes.operand_row))
    return np.repeat(operands, np.diff(nodes.tile_row))


def _edges(plan: MemGraph) -> Violation | None:
    """Proves: edges join nodes that exist, point forward, are sorted by (target, source), and none is listed twice."""
    source, target, kind = plan.edges.source.astype(np.int64), plan.edges.target.astype(np.int64), plan.edges.kind
    if not len(source) == len(target) == len(kind):
        return violation_at(Reason.EDGE_OUT_OF_RANGE, None, None, f"{len(source)} sources, {len(target)} targets, {len(kind)} kinds")
    key = target * len(plan.nodes) + source
    checks = (
        (Reason.EDGE_OUT_OF_RANGE, (source < 0) | (target < 0) | (source >= len(plan.nodes)) | (target >= len(plan.nodes)) | (kind > 1)),
        (Reason.EDGE_BACKWARD, source >= target),
        (Reason.EDGES_UNSORTED, np.diff(key, prepend=-1) <= 0),
    )
    for reason, wrong in checks:
        if wrong.any():
            at = int(np.argmax(wrong))
            return violation_at(reason, source[at], target[at], f"edge {at}, {source[at]} -> {target[at]}")
    return None


def _references(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Violation | None:
    """Proves: every residency, tensor and task that is referred to exists."""
    count, tensors, tasks = len(residencies), len(plan.graph.tensors), len(plan.graph.tasks)
    wrong = (residencies.id != np.arange(count)) | (residencies.tensor < 0) | (residencies.tensor >= tensors)
    if wrong.any():
        r = residencies[int(np.argmax(wrong))]
        return violation_at(
            Reason.BAD_REFERENCE, None, None, f"residency {np.argmax(wrong)} is numbered {r.id} and holds tensor {r.tensor}"
        )
    for listed in (*plan.start, *plan.end):
        if not 0 <= listed < count:
            return violation_at(Reason.BAD_REFERENCE, None, None, f"the start or the end lists residency {listed} of {count}")
    runs, makes = nodes.kind <= GATHER, nodes.kind != FREE
    unknown = runs & ((nodes.subject < 0) | (nodes.subject >= tasks))
    wrong = makes & ((nodes.result < 0) | (nodes.result >= count)) | ~runs & ((nodes.subject < 0) | (nodes.subject >= count))
    wrong[readers(nodes)[(nodes.reads < 0) | (nodes.reads >= count)]] = True
    for other in (nodes.other_source, nodes.other_target):
        wrong[nodes.other_node[(other < 0) | (other >= count)]] = True
    wrong[nodes.beside_node[(nodes.beside < 0) | (nodes.beside >= count)]] = True
    if not (unknown | wrong).any():
        return None
    n = int(np.argmax(unknown | wrong))
    what = f"task {nodes.subject[n]} of {tasks}" if unknown[n] else f"{nodes[n]} refers to one of {count} residencies that does not exist"
    return violation_at(Reason.BAD_REFERENCE, n, n, what)


def _first_wrong(checks: Sequence[tuple[Reason, Bools]]) -> tuple[Reason, int] | None:
    """The first entry with anything wrong, and the first of `checks` (reason, wrong entries) that holds of it."""
    wrong = np.logical_or.reduce([found for _, found in checks])
    at = int(np.argmax(wrong)) if wrong.any() else None
    return None if at is None else (next(reason for reason, found in checks if found[at]), at)


def _extents(plan: MemGraph, residencies: Residencies) -> Violation | None:
    """Proves: every residency is one aligned extent of its tensor's bytes, inside the arena of a known place; of a plan with a disk, all
    but those on the device are whole sectors inside it, wherever in a sector they begin."""
    arenas = [plan.arena_bytes(place) for place in residencies.places]
    size_by_tensor = np.array([t.nbytes for t in plan.graph.tensors], np.int64)
    one = np.diff(residencies.extent_row) == 1
    # A residency without extents gets those of another: it is wrong whatever they are.
    at = np.minimum(residencies.extent_row[:-1], max(0, len(residencies.offset) - 1))
    offset, nbytes = (column[at] if len(column) else np.zeros_like(at) for column in (residencies.offset, residencies.nbytes))
    arena = np.array([min(nbytes or 0, MOST_BYTES) for nbytes in arenas], np.int64)[residencies.place]
    in_sectors = np.full(len(offset), plan.has_disk) & ~residencies.at(DEVICE)
    outside = (offset < 0) | (offset > np.where(in_sectors, arena // SECTOR * SECTOR, arena) - nbytes)
    found = _first_wrong((
        (Reason.UNKNOWN_PLACE, np.array([nbytes is None for nbytes in arenas], bool)[residencies.place]),
        (Reason.WRONG_SIZE, ~one | (nbytes != size_by_tensor[residencies.tensor])),
        (Reason.MISALIGNED, ~in_sectors & (offset % plan.alignment != 0)),
        (Reason.OUTSIDE_ARENA, outside),
    ))  # fmt: skip
    if found is None:
        return None
    reason, r = found
    place, extents = residencies[r].place, residencies[r].extents
    where = f"at {place}" if reason is Reason.UNKNOWN_PLACE else f"in {', '.join(map(str, extents)) or 'no bytes'} of the {place}"
    return violation_at(reason, *_creator(plan, r), f"{plan.graph.tensors[residencies[r].tensor].name} {where}")


def _workspaces(plan: MemGraph, nodes: Nodes) -> Violation | None:
    """Proves: every workspace is aligned, large enough, and inside the device's arena."""
    wanted_by_task = np.array([t.workspace_bytes for t in plan.graph.tasks], np.int64)
    given, short, misaligned, outside = (np.zeros(len(nodes), t) for t in (np.int64, bool, bool, bool))
    given[nodes.scratch_node] = nodes.scratch_nbytes
    runs = np.flatnonzero(nodes.kind == COMPUTE)
    short[runs] = given[runs] < wanted_by_task[nodes.subject[runs]]
    misaligned[nodes.scratch_node] = nodes.scratch_offset % plan.alignment != 0
    last_start = min(plan.budget_bytes, MOST_BYTES) - np.maximum(nodes.scratch_nbytes, 0)
    outside[nodes.scratch_node] = (nodes.scratch_offset < 0) | (nodes.scratch_offset > last_start)
    found = _first_wrong(((Reason.WORKSPACE_SIZE, short), (Reason.MISALIGNED, misaligned), (Reason.OUTSIDE_ARENA, outside)))
    if found is None:
        return None
    reason, n = found
    task, node = plan.graph.tasks[nodes.subject[n]], nodes[n]
    assert isinstance(node, Compute)
    return violation_at(reason, n, n, f"{task.name} needs a workspace of {task.workspace_bytes} bytes, has {node.workspace}")


def _creator(plan: MemGraph, residency: int) -> NodePair:
    """The node that creates a residency, twice; (None, None) where there is none."""
    node, made = Nodes.of(plan.nodes).made()
    found = node[made == residency]
    return (None, None) if len(found) == 0 else (NodeId(int(found[0])), NodeId(int(found[0])))


def _tasks(plan: MemGraph, nodes: Nodes, residencies: Residencies) -> Violation | None:
    """Proves: every task runs, on its own kind of node, and whenever it does, it reads exactly its operands and creates its results.

    A tensor is written once, in every run to the same bytes: a task that reads the same tensors again makes the same again.
    """
    ran_at: dict[int, int] = {}
    runs = np.flatnonzero(nodes.kind <= GATHER)
    read: list[int] = residencies.tensor[nodes.reads].tolist()
    columns = nodes.subject[runs], residencies.tensor[nodes.result[runs]], nodes.kind[runs] == GATHER
    rows, tiles = nodes.operand_row.tolist(), nodes.tile_row.tolist()
    beside: dict[int, list[int]] = {}
    for n, r in zip(nodes.beside_node.tolist(), nodes.beside.tolist(), strict=True):
        beside.setdefault(n, []).append(r)
    for n, number, made, gathers in zip(runs.tolist(), *(c.tolist() for c in columns), strict=True):
        task = plan.graph.tasks[number]
        first = ran_at.setdefault(task.id, n)
        if task.gathers != gathers:
            return violation_at(Reason.WRONG_NODE, n, n, task.name)
        operands = tuple(tuple(read[a:b]) for a, b in pairwise(tiles[rows[n] : rows[n + 1] + 1]))
        if operands != task.operands:
            reason = Reason.WRONG_OPERANDS if first == n else Reason.OTHER_VERSION
            return violation_at(reason, first, n, f"{task.name} reads tensors {operands}")
        if (made, *(int(residencies.tensor[r]) for r in beside.get(n, ()))) != task.results:
            created = ", ".join(map(str, (nodes.result[n], *beside.get(n, ()))))
            return violation_at(Reason.WRONG_RESULT, n, n, f"{task.name} creates residency {created}")
    for task in plan.graph.tasks:
        if task.id not in ran_at:
            return violation_at(Reason.TASK_MISSING, None, None, task.name)
    return None
