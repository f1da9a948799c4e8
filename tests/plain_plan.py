"""The dumbest plan that works: load a task's operands, run it, write its result out, drop everything, go on.

It is the feasibility argument made flesh, a baseline to beat, and an independent source of right MemGraphs for tests of the judge, the
simulator and the bounds. With a budget of twice the largest footprint or more it lays tasks alternately into two halves of the
arena, so that a task's loads may run under the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from einpage.einsum_front.base.units import ALIGNMENT, Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Task, TaskGraph, TensorId
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
    NodeId,
    Offset,
    Residency,
    ResidencyId,
)
from einpage.memplan.machine.places import DEVICE, HOST, Place
from einpage.memplan.problem.footprint import donated_operands, footprint, largest_footprint, last_use_by_tensor


class _Writer:
    """Nodes, residencies and edges as they are made; memory edges from the last frees of each unit of ALIGNMENT bytes."""

    def __init__(self, graph: TaskGraph, budget: int) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.residencies: list[Residency] = []
        self.edges: dict[tuple[int, int], EdgeKind] = {}
        self.maker: dict[ResidencyId, int] = {}
        self.users: dict[ResidencyId, list[int]] = {}
        self.last_free = np.full(-(-budget // ALIGNMENT), -1, np.int64)
        self.host_top = 0

    def residency(self, tensor: TensorId, place: Place, offset: int) -> ResidencyId:
        extent = Extent(Offset(offset), self.graph.tensors[tensor].nbytes)
        self.residencies.append(Residency(ResidencyId(len(self.residencies)), tensor, place, (extent,)))
        return self.residencies[-1].id

    def on_host(self, tensor: TensorId) -> ResidencyId:
        self.host_top += aligned(self.graph.tensors[tensor].nbytes)
        return self.residency(tensor, HOST, self.host_top - aligned(self.graph.tensors[tensor].nbytes))

    def units(self, extent: Extent) -> slice:
        return slice(extent.offset // ALIGNMENT, -(-extent.end // ALIGNMENT))

    def node(self, node: Node, reads: list[ResidencyId], creates: list[ResidencyId], workspace: Extent | None = None) -> int:
        n = len(self.nodes)
        self.nodes.append(node)
        for r in reads:
            if r in self.maker:
                self.edges[n, self.maker[r]] = EdgeKind.DATA
            self.users.setdefault(r, []).append(n)
        claimed = [workspace] if workspace else []
        for made in creates:
            self.maker[made] = n
            self.users.setdefault(made, []).append(n)
            if self.residencies[made].place == DEVICE:
                claimed.append(self.residencies[made].extents[0])
        for extent in claimed:
            for before in np.unique(self.last_free[self.units(extent)]).tolist():
                if before >= 0:
                    self.edges.setdefault((n, before), EdgeKind.MEMORY)
            if extent is workspace:
                self.last_free[self.units(extent)] = n
        return n

    def free(self, r: ResidencyId) -> None:
        n = len(self.nodes)
        self.nodes.append(Free(r))
        for user in self.users[r]:
            self.edges[n, user] = EdgeKind.DATA
        self.last_free[self.units(self.residencies[r].extents[0])] = n

    def finish(self, budget: int, start: list[ResidencyId], end: list[ResidencyId]) -> MemGraph:
        keys = sorted(self.edges)
        edges = Edges(
            np.array([source for _, source in keys], np.int32),
            np.array([target for target, _ in keys], np.int32),
            np.array([self.edges[key] for key in keys], np.uint8),
        )
        residencies, nodes = tuple(self.residencies), tuple(self.nodes)
        arenas = (DEVICE, Nbytes(budget)), (HOST, Nbytes(self.host_top))
        return MemGraph(self.graph, arenas, residencies, nodes, edges, tuple(start), tuple(end))


def plain_plan(graph: TaskGraph, budget: int | None = None) -> MemGraph:
    """A right plan of `graph`. The budget is the smallest one unless given; it must be at least that."""
    least = largest_footprint(graph)[1]
    budget = least if budget is None else budget
    assert budget >= least
    w = _Writer(graph, budget)
    host = {t.id: w.on_host(t.id) for t in graph.tensors if t.kind in HOST_AT_START}
    start = list(host.values())
    last_use = last_use_by_tensor(graph)
    half = budget // 2 // ALIGNMENT * ALIGNMENT
    for task in graph.tasks:
        base = half * (task.id % 2) if half >= least else 0
        _one_task(w, task, base, host, donated_operands(graph, task, last_use))
        assert footprint(graph, task, last_use) <= budget - base
    return w.finish(budget, start, sorted(host.values()))


def _one_task(w: _Writer, task: Task, top: int, host: dict[TensorId, ResidencyId], donated: Mapping[TensorId, TensorId]) -> None:
    here: dict[TensorId, ResidencyId] = {}
    for t in () if task.gathers else task.reads():
        here[t] = w.residency(t, DEVICE, top)
        top += aligned(w.graph.tensors[t].nbytes)
        w.node(Move(host[t], here[t]), [host[t]], [here[t]])
    results: list[ResidencyId] = []
    for t in task.results:
        offset = w.residencies[here[donated[t]]].extents[0].offset if t in donated else top
        results.append(w.residency(t, DEVICE, offset))
        top += 0 if t in donated else aligned(w.graph.tensors[t].nbytes)
    if task.gathers:
        rows = tuple(tuple(host[t] for t in operand) for operand in task.operands)
        w.node(HostGather(task.id, rows, results[0]), [host[t] for t in task.reads()], results)
    else:
        workspace = Extent(Offset(top), task.workspace_bytes) if task.workspace_bytes else None
        operands = tuple(tuple(here[t] for t in operand) for operand in task.operands)
        w.node(Compute(task.id, operands, results[0], workspace, tuple(results[1:])), list(here.values()), results, workspace)
    for t in donated.values():
        del here[t]
    for t, result in zip(task.results, results, strict=True):
        host[t] = w.on_host(t)
        w.node(Move(result, host[t]), [result], [host[t]])
    for r in (*here.values(), *results):
        w.free(r)


def random_order(plan: MemGraph, seed: int) -> list[NodeId]:
    """A random order of the nodes that respects the edges."""
    rng = np.random.default_rng(seed)
    after: list[list[int]] = [[] for _ in plan.nodes]
    waiting = [0] * len(plan.nodes)
    for source, target in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True):
        after[source].append(target)
        waiting[target] += 1
    ready = [n for n, count in enumerate(waiting) if count == 0]
    order: list[NodeId] = []
    while ready:
        n = ready.pop(int(rng.integers(len(ready))))
        order.append(NodeId(n))
        for target in after[n]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return order
