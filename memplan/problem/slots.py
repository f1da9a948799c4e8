"""A Problem as the arena sees it: aligned bytes, which results are written in place, how long each copy takes.

In: a Problem. Out: Slots, which the policies of residency/ and the offline planner share. One slot a task on the device; a gather has
none: its rows are a load like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Task, TensorId
from einpage.memplan.machine.machine import all_task_seconds
from einpage.memplan.machine.places import Queue
from einpage.memplan.problem.accesses import Accesses, from_lists
from einpage.memplan.problem.footprint import donated_operands
from einpage.memplan.problem.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The tasks on the device in their order, with all that the offline planner asks about them."""

    problem: Problem
    tasks: tuple[Task, ...]
    """[slot]"""
    accesses: Accesses
    """In aligned bytes; footprints are exactly what the planner's arena needs."""
    donated: tuple[Mapping[TensorId, TensorId], ...]
    """[slot] by result, the operand whose buffer is donated to it."""
    workspace: tuple[int, ...]
    """[slot] aligned bytes."""
    gather_by_result: dict[TensorId, Task]
    load_s: list[float]
    """[tensor] seconds of its copy to the device."""
    store_s: list[float]
    """[tensor] seconds of its copy to the host."""
    nbytes: list[int]
    """[tensor] what crosses a link, not aligned."""


def slots_of(problem: Problem) -> Slots | None:
    """None for what the offline planner does not cover: no tasks, gathered rows that no task reads, gathers of what tasks write."""
    graph, machine, size, tasks = problem.graph, problem.machine, problem.sizes, problem.tasks
    on_device = tuple(t for t in tasks if not t.gathers)
    gathers = {t.result: t for t in tasks if t.gathers}
    written = {t for task in tasks for t in task.results}
    read = {t for task in on_device for t in task.reads()}
    if not on_device or not read.issuperset(gathers) or any(written.intersection(g.reads()) for g in gathers.values()):
        return None
    last_use = {t: task.id for task in on_device for t in task.reads()}
    donated = tuple(donated_operands(graph, task, last_use) for task in on_device)
    workspace = tuple(aligned(t.workspace_bytes, problem.alignment) for t in on_device)
    seconds = all_task_seconds(machine, graph)
    accesses = from_lists(
        reads=[t.reads() for t in on_device],
        writes=[t.results for t in on_device],
        seconds=[seconds[t.id] for t in on_device],
        extra_bytes=[w - sum(size[t] for t in over) for over, w in zip(donated, workspace, strict=True)],
        nbytes=size,
        clean=[t.kind in HOST_AT_START for t in graph.tensors],
        output=[t.kind is Kind.OUTPUT for t in graph.tensors],
        gathered=list(gathers),
    )
    nbytes = [int(t.nbytes) for t in graph.tensors]
    loads, stores = machine.usual_link(Queue.H2D), machine.usual_link(Queue.D2H)
    load_s = [loads.seconds(n) for n in nbytes]
    for result, task in gathers.items():
        load_s[result] = seconds[task.id]
    store_s = [stores.seconds(n) for n in nbytes]
    return Slots(problem, on_device, accesses, donated, workspace, gathers, load_s, store_s, nbytes)
