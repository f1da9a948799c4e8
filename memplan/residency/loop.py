"""A loop is a plan without its residents, and the residents: whatever plans a graph plans its loops too.

In: a Problem and Residents that are never freed. `without` takes them out of what tasks read; that problem is planned in the arena below
them; `with_residents` puts them back at the arena's top. They are never moved either, so they add no node and no edge.

    bytes   |  [ w1 ][ w3 ][ w6 ]   residents, the same before and after    |
            |  ---------------------------------------------------------    |
            |       a plan of the tasks, which read w2, w4, w5 only         |
            +----------------------------------------------------------> nodes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph, TensorId
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset, Residency, ResidencyId
from einpage.memplan.graph.packed import GATHER, NOTHING, Nodes, Residencies
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.resident_sets import Residents


def without(problem: Problem, residents: Residents) -> Problem:
    """`problem` with tasks that do not read `residents` on the device, in the bytes of the arena below them. Its tasks move what they did,
    and no longer compute what they did."""
    resident = frozenset(residents.tensors)
    tasks = (
        task
        if task.gathers or resident.isdisjoint(task.reads())
        else replace(task, operands=tuple(tuple(t for t in operand if t not in resident) for operand in task.operands))
        for task in problem.graph.tasks
    )
    below = problem.capacity - sum(problem.sizes[t] for t in residents.tensors)
    return replace(problem, graph=replace(problem.graph, tasks=tuple(tasks)), budget_bytes=Nbytes(below))


def with_residents(plan: MemGraph, problem: Problem, residents: Residents) -> MemGraph:
    """The plan of `problem` that `plan`, one of `without(problem, residents)`, and `residents` make together: a loop."""
    graph, top = problem.graph, problem.capacity
    at_top: list[Residency] = []
    for t in residents.tensors:
        top = Nbytes(top - problem.sizes[t])
        number = ResidencyId(len(plan.residencies) + len(at_top))
        at_top.append(Residency(number, t, DEVICE, (Extent(Offset(top), graph.tensors[t].nbytes),)))
    residency_by_tensor = {r.tensor: r.id for r in at_top}
    return replace(
        plan.with_arena(DEVICE, problem.budget_bytes),
        graph=graph,
        residencies=Residencies.of(plan.residencies).and_more(at_top),
        nodes=_reading(Nodes.of(plan.nodes), graph, residency_by_tensor),
        start=(*plan.start, *residency_by_tensor.values()),
        end=(*plan.end, *residency_by_tensor.values()),
        loops=True,
    )


def _reading(nodes: Nodes, graph: TaskGraph, residency_by_tensor: Mapping[TensorId, ResidencyId]) -> Nodes:
    """`nodes`, of which computes read residents where their tasks do; what else they read stays, in its order."""
    resident = np.full(len(graph.tensors), NOTHING)
    for t, residency in residency_by_tensor.items():
        resident[t] = residency
    runs = np.flatnonzero(nodes.kind <= GATHER)
    tasks = [graph.tasks[t] for t in nodes.subject[runs].tolist()]
    operands = [operand for task in tasks for operand in task.operands]
    tiles = [len(operand) for operand in operands]
    reads = resident[np.array([t for operand in operands for t in operand], np.int64)]
    on_host = np.repeat([task.gathers for task in tasks], [sum(map(len, task.operands)) for task in tasks]).astype(bool)
    others = on_host | (reads == NOTHING)
    reads[others] = nodes.reads
    return replace(nodes, tile_row=np.concatenate(([0], np.cumsum(tiles))).astype(np.int32), reads=reads.astype(np.int32))
