"""A graph in one order as the arena sees it: aligned bytes, which result takes over whose bytes, what each copy takes.

In: a Problem. Out: Slots, what the policies of keep.py, the timetable and assemble.py share. One slot
a task on the device; a gather has none: its rows are a load like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Task, TensorId
from einpage.memplan.problem.accesses import NEVER, Accesses, from_lists
from einpage.memplan.problem.footprint import takeover
from einpage.memplan.problem.machine import task_seconds
from einpage.memplan.problem.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    problem: Problem
    tasks: tuple[Task, ...]
    """[slot]"""
    accesses: Accesses
    """In aligned bytes; footprints are exactly what the planner's arena needs."""
    taken: tuple[int, ...]
    """[slot] the tensor whose bytes the result takes over, or NEVER."""
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
    """None for what timetables cannot say: no tasks, gathered rows that no task reads, gathers of what tasks make."""
    graph, machine, size, tasks = problem.graph, problem.machine, problem.sizes, problem.tasks
    on_device = tuple(t for t in tasks if not t.gathers)
    gathers = {t.result: t for t in tasks if t.gathers}
    made = {t.result for t in tasks}
    read = {t for task in on_device for t in task.reads()}
    if not on_device or not read.issuperset(gathers) or any(made.intersection(g.reads()) for g in gathers.values()):
        return None
    last_use = {t: task.id for task in on_device for t in task.reads()}
    taken = tuple(NEVER if (t := takeover(graph, task, last_use)) is None else t for task in on_device)
    workspace = tuple(aligned(t.workspace_bytes, problem.alignment) for t in on_device)
    accesses = from_lists(
        reads=[t.reads() for t in on_device],
        writes=[(t.result,) for t in on_device],
        seconds=[task_seconds(machine, graph, t) for t in on_device],
        besides=[w - (0 if t == NEVER else size[task.result]) for task, t, w in zip(on_device, taken, workspace, strict=True)],
        nbytes=size,
        clean=[t.kind in HOST_AT_START for t in graph.tensors],
        sink=[t.kind is Kind.OUTPUT for t in graph.tensors],
        gathered=list(gathers),
    )
    nbytes = [int(t.nbytes) for t in graph.tensors]
    load_s = [machine.h2d_seconds(n) for n in nbytes]
    for result, task in gathers.items():
        load_s[result] = task_seconds(machine, graph, task)
    store_s = [machine.d2h_seconds(n) for n in nbytes]
    return Slots(problem, on_device, accesses, taken, workspace, gathers, load_s, store_s, nbytes)
