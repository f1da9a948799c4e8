"""Compulsory traffic: bytes that cross each link at least once, whatever the order and the split.

In: a TaskGraph and what the device holds at the start; or a plan with a disk. Out: bytes. Tiles of one value may overlap when it is split
in two ways, so distinct elements are counted, not tiles.

From a disk, for every plan: what is read on the device, and of a loop what exceeds device and host together. For the copies of the device
at hand, which are accesses of the host: the interval LP in the host's budget, and of a loop, what the copies read less that budget.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, OpId, TaskGraph, Tensor, TensorId
from einpage.memplan.bounds.interval_lp import bytes_bound
from einpage.memplan.bounds.limit import Method
from einpage.memplan.bounds.lp import has_solver
from einpage.memplan.graph.memgraph import MemGraph, Move, NodeId
from einpage.memplan.machine.places import DISK, HOST, SECTOR, Queue
from einpage.memplan.problem.accesses import from_lists

MOST_LP_COPIES = 6000
"""Of a plan whose interval LP is solved: some tenths of a second."""


def compulsory_load_bytes(graph: TaskGraph, resident: Collection[TensorId] = frozenset()) -> Nbytes:
    """Bytes that must cross the H2D link at least once, whatever the order and the split, where the device has `resident` at the start."""
    used: dict[TensorId, None] = {}
    rows_by_op: dict[OpId, int] = {}
    tables_by_op: dict[OpId, dict[TensorId, None]] = {}
    for task in graph.tasks:
        if task.gathers:
            rows_by_op[task.op] = rows_by_op.get(task.op, 0) + graph.tensors[task.result].nbytes
            tables_by_op.setdefault(task.op, {}).update(dict.fromkeys(task.operands[0]))
        else:
            used.update((t, None) for t in task.reads() if graph.tensors[t].kind in HOST_AT_START)
    gathered = sum(min(rows, _distinct_bytes([graph.tensors[t] for t in tables_by_op[op]])) for op, rows in rows_by_op.items())
    used.update(dict.fromkeys(resident))
    absent = _distinct_bytes([graph.tensors[t] for t in used]) - _distinct_bytes([graph.tensors[t] for t in resident])
    return Nbytes(absent + gathered)


def compulsory_store_bytes(graph: TaskGraph) -> Nbytes:
    """Bytes that must cross the D2H link at least once: the outputs."""
    return Nbytes(sum(t.nbytes for t in graph.tensors if t.kind is Kind.OUTPUT))


@dataclass(frozen=True, slots=True)
class DiskBound:
    """Bytes over the links between host and disk, gathered rows not counted."""

    for_all: Nbytes
    """Of every plan."""
    here: Nbytes
    """Of every plan with these copies of the device, no less."""
    written: Nbytes
    """Of `here`, no more than this is written: what the device offloads."""
    by: Method
    """Where `here` comes from."""


def disk_bound(plan: MemGraph) -> DiskBound:
    """Lower bounds on what `plan`, one with a disk, reads and writes there."""
    graph = plan.graph
    read = {t for task in graph.tasks if not task.gathers for t in task.reads() if graph.tensors[t].kind is Kind.WEIGHT}
    once = _distinct_bytes([graph.tensors[t] for t in read])
    for_all = max(0, once - plan.budget_bytes - plan.host_bytes) if plan.loops else once
    slots, pinned = _copies_of_device(plan)
    capacity = plan.host_bytes - pinned
    sizes = [aligned(t.nbytes, SECTOR) for t in graph.tensors]
    clean = [t.kind is Kind.WEIGHT for t in graph.tensors]
    copied = sum(sizes[t] for t in {t for reads, _ in slots for t in reads} if clean[t])
    here, by = (max(0, copied - capacity), Method.STEADY) if plan.loops else (copied, Method.COMPULSORY)
    written = 0
    if not plan.loops and has_solver() and 0 < len(slots) <= MOST_LP_COPIES:
        reads, writes, zeros = [r for r, _ in slots], [w for _, w in slots], [0] * len(slots)
        a = from_lists(reads=reads, writes=writes, seconds=zeros, extra_bytes=zeros, nbytes=sizes, clean=clean, output=[False] * len(sizes))
        here, by = ceil(bytes_bound(a, capacity).total * (1 - 1e-9)), Method.INTERVAL_LP
        written = sum(sizes[t] for offloaded in writes for t in offloaded)
    return DiskBound(Nbytes(for_all), Nbytes(max(here, for_all)), Nbytes(written), by)


def _copies_of_device(plan: MemGraph) -> tuple[list[tuple[list[int], list[int]]], int]:
    """What each copy between host and device reads and writes on the host, in node order, and the bytes of what that has throughout."""
    stored = {plan.residencies[r].tensor for r in plan.start if plan.residencies[r].place == DISK}
    given = {plan.residencies[r].tensor for r in plan.start if plan.residencies[r].place == HOST} - stored
    pinned = given | {t.id for t in plan.graph.tensors if t.kind is Kind.OUTPUT}
    slots: list[tuple[list[int], list[int]]] = []
    written = set(stored)
    for n, node in enumerate(plan.nodes):
        for _, target in node.copies if isinstance(node, Move) else ():
            t, queue = plan.residencies[target].tensor, plan.queue(NodeId(n))
            if t in pinned or queue not in (Queue.H2D, Queue.D2H):
                continue
            if queue == Queue.D2H:
                written.add(t)
                slots.append(([], [t]))
            elif t in written:  # rows that were gathered are there for a moment only
                slots.append(([t], []))
    return slots, sum(aligned(plan.graph.tensors[t].nbytes, SECTOR) for t in pinned)


def _distinct_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the distinct elements of all `tensors`: tiles of one value may overlap when it is cut in two ways."""
    by_value: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_value.setdefault(tensor.value, []).append(tensor)
    return sum(tiles[0].element_type.bytes_of(_union([t.box for t in tiles])) for tiles in by_value.values())


def _union(boxes: Sequence[Box]) -> int:
    """How many elements lie in at least one of the boxes: marked on the grid of all their edges."""
    if len(boxes) == 1:
        return boxes[0].size
    edges = [np.array(sorted({x for b in boxes for x in (b.start[d], b.end[d])})) for d in range(len(boxes[0].start))]
    marked = np.zeros([len(e) - 1 for e in edges], bool)
    for b in boxes:
        marked[tuple(slice(*np.searchsorted(e, (lo, hi))) for e, lo, hi in zip(edges, b.start, b.end, strict=True))] = True
    sizes = marked.astype(np.int64)
    for d, e in enumerate(edges):
        sizes *= np.diff(e).reshape([-1 if i == d else 1 for i in range(len(edges))])
    return int(sizes.sum())
