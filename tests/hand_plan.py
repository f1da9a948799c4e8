"""One small plan written by hand, with a bit of everything: a host gather, reloads, a spill, two donated operands, host bytes reused.

offset                                                    tasks   0  e = table[rows]   (on the host link)
 1536 ┤      ┌wsp┐        ┌── e (9) ────────┐                     1  a = e * w         (100 bytes of workspace)
 1280 ┤ ┌────┴───┴┬───────┴┬───────┬────────┴──┐                  2  b = a + w         (in place of a)
  768 ┤ │         │ a (5)  │ b (7) │ c (10)    │                  3  c = e + b         (in place of b)
  512 ┤ │ w (4) ──────────────┐
    0 └─┴ e (3) ───────┐       outputs: b, c
"""

from __future__ import annotations

import numpy as np

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.graph.memgraph import (
    Compute,
    EdgeKind,
    Edges,
    Extent,
    Free,
    HostGather,
    MemGraph,
    Move,
    Node,
    Offset,
    Residency,
    ResidencyId,
)
from einpage.memplan.machine.places import DEVICE, HOST

TENSORS = (
    ("table", (4, 64), DType.FP32, Kind.WEIGHT),
    ("rows", (2,), DType.INT32, Kind.INPUT),
    ("w", (64,), DType.FP32, Kind.WEIGHT),
    ("e", (2, 64), DType.FP32, Kind.ACTIVATION),
    ("a", (2, 64), DType.FP32, Kind.ACTIVATION),
    ("b", (2, 64), DType.FP32, Kind.OUTPUT),
    ("c", (2, 64), DType.FP32, Kind.OUTPUT),
)
TASKS = (
    ("e", ("table", "rows"), (), 0, True),
    ("a", ("e", "w"), ("e",), 100, False),
    ("b", ("a", "w"), ("a",), 0, False),
    ("c", ("e", "b"), ("e", "b"), 0, False),
)
RESIDENCIES = (
    ("table", HOST, 0), ("rows", HOST, 1024), ("w", HOST, 1280),
    ("e", DEVICE, 0), ("w", DEVICE, 512), ("a", DEVICE, 768), ("e", HOST, 1536), ("b", DEVICE, 768), ("b", HOST, 2048),
    ("e", DEVICE, 1280), ("c", DEVICE, 768), ("c", HOST, 1536),
)  # fmt: skip
EDGES = (
    (0, 2), (1, 2), (0, 3), (0, 4), (2, 4), (3, 4), (1, 5), (2, 5), (1, 6), (2, 6), (5, 6), (5, 7), (2, 8), (3, 8), (3, 9), (8, 9),
    (5, 10), (7, 10), (8, 10), (9, 11), (10, 11), (8, 12), (10, 12), (10, 13), (11, 13),
)  # fmt: skip
MEMORY = frozenset(((2, 8), (7, 10), (9, 11)))


def hand_graph() -> TaskGraph:
    """The TaskGraph of the module's drawing, without jobs."""
    number = {name: TensorId(i) for i, (name, *_) in enumerate(TENSORS)}
    values = tuple(Value(name, name, shape, dtype, kind) for name, shape, dtype, kind in TENSORS)
    tensors = tuple(Tensor(number[n], n, n, Box((0,) * len(s), s), d, k) for n, s, d, k in TENSORS)
    tasks = tuple(_task(i, number) for i in range(len(TASKS)))
    ops = tuple(Op(OpId(i), t.name, "gather" if t.gathers else "map", t.flops, t.bytes_touched, "") for i, t in enumerate(tasks))
    graph = TaskGraph("hand", DType.FP32, (), values, tensors, tasks, ops, (("b", "b"), ("c", "c")))
    graph.verify()
    return graph


def _task(i: int, number: dict[str, TensorId]) -> Task:
    name, operands, inplace, workspace, gathers = TASKS[i]
    reads = tuple((number[o],) for o in operands)
    flops, touched = (0, Nbytes(512)) if gathers else (128, Nbytes(1280))
    return Task(
        TaskId(i),
        f"make {name}",
        OpId(i),
        reads,
        number[name],
        tuple(number[t] for t in inplace),
        flops,
        touched,
        Nbytes(workspace),
        None,
        gathers,
    )


def hand_plan() -> MemGraph:
    """The plan of the module's drawing: 14 nodes, 2048 bytes of device, 2560 of host."""
    graph = hand_graph()
    tensors = {t.name: t for t in graph.tensors}
    residencies = tuple(
        Residency(ResidencyId(i), tensors[name].id, place, (Extent(Offset(offset), tensors[name].nbytes),))
        for i, (name, place, offset) in enumerate(RESIDENCIES)
    )
    r = [x.id for x in residencies]
    nodes: tuple[Node, ...] = (
        HostGather(TaskId(0), ((r[0],), (r[1],)), r[3]),
        Move(r[2], r[4]),
        Compute(TaskId(1), ((r[3],), (r[4],)), r[5], Extent(Offset(1280), Nbytes(100))),
        Move(r[3], r[6]),
        Free(r[3]),
        Compute(TaskId(2), ((r[5],), (r[4],)), r[7], None),
        Free(r[4]),
        Move(r[7], r[8]),
        Move(r[6], r[9]),
        Free(r[6]),
        Compute(TaskId(3), ((r[9],), (r[7],)), r[10], None),
        Move(r[10], r[11]),
        Free(r[9]),
        Free(r[10]),
    )
    start, end = (r[0], r[1], r[2]), (r[0], r[1], r[2], r[8], r[11])
    return MemGraph(graph, ((DEVICE, Nbytes(2048)), (HOST, Nbytes(2560))), residencies, nodes, edges_of(EDGES, MEMORY), start, end)


def edges_of(pairs: tuple[tuple[int, int], ...], memory: frozenset[tuple[int, int]] = frozenset()) -> Edges:
    """Edges out of (source, target) pairs, sorted as they must be."""
    ordered = sorted(pairs, key=lambda pair: pair[::-1])
    kinds = [EdgeKind.MEMORY if pair in memory else EdgeKind.DATA for pair in ordered]
    columns = np.array(ordered, np.int32).reshape(-1, 2)
    return Edges(columns[:, 0].copy(), columns[:, 1].copy(), np.array(kinds, np.uint8))
