"""Compulsory traffic: bytes that cross each link at least once, whatever the order and the split.

In: a TaskGraph and what the device holds at the start. Out: bytes. Tiles of one value may overlap when it is split in two ways, so distinct
elements are counted, not tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, OpId, TaskGraph, Tensor, TensorId


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
