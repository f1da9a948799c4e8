"""Bytes that one task needs in the arena when it runs alone: the feasibility rule of the whole planner.

In: a TaskGraph, or a Problem. Out: bytes, or DoesNotFit. Spill or drop everything, lay out one task, run it: this always works, so a plan
exists exactly where the largest footprint fits the budget (host permitting).

    footprint = aligned distinct device operands + aligned results + aligned workspace

A host gather's operands are on the host and count nothing. A result that may be written in place of an operand adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.base.units import ALIGNMENT, Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import Kind, Task, TaskGraph, TaskId, TensorId
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.problem.problem import Problem


def last_use_by_tensor(graph: TaskGraph) -> dict[TensorId, TaskId]:
    """The last task in graph order that reads each tensor on the device; a tensor no device task reads is absent."""
    last: dict[TensorId, TaskId] = {}
    for task in graph.tasks:
        if not task.gathers:
            last.update(dict.fromkeys(task.reads(), task.id))
    return last


def donated_operands(graph: TaskGraph, task: Task, last_use: Mapping[TensorId, TaskId]) -> Mapping[TensorId, TensorId]:
    """By result, the operand whose buffer may be donated to it, with last uses `last_use` [tensor]: the first that its `inplace` names and
    that no result before it has.

    It must be dead on the device after `task`, and not an output, whose bytes have still to reach the host. A device copy
    of a weight or an input qualifies: the host copy remains.
    """
    found: dict[TensorId, TensorId] = {}
    for one in () if task.gathers else task.written:
        for t in one.inplace:
            if last_use[t] == task.id and graph.tensors[t].kind is not Kind.OUTPUT and t not in found.values():
                found[one.tensor] = t
                break
    return found


def footprint(graph: TaskGraph, task: Task, last_use: Mapping[TensorId, TaskId] | None = None, alignment: int = ALIGNMENT) -> Nbytes:
    """Bytes of the arena that `task` needs by itself. Pass `last_use_by_tensor(graph)` when asking for many tasks."""
    if last_use is None:
        last_use = last_use_by_tensor(graph)
    donated = donated_operands(graph, task, last_use)
    results = sum(aligned(graph.tensors[t].nbytes, alignment) for t in task.results if t not in donated)
    operands = 0 if task.gathers else sum(aligned(graph.tensors[t].nbytes, alignment) for t in task.reads())
    return Nbytes(operands + results + aligned(task.workspace_bytes, alignment))


def largest_footprint(graph: TaskGraph, alignment: int = ALIGNMENT) -> tuple[TaskId, Nbytes]:
    """The task with the largest footprint (the first such) and that footprint: the smallest budget of this graph.

    A graph without tasks needs no device: (TaskId(-1), 0).
    """
    last_use = last_use_by_tensor(graph)
    best, most = TaskId(-1), Nbytes(0)
    for task in graph.tasks:
        nbytes = footprint(graph, task, last_use, alignment)
        if nbytes > most:
            best, most = task.id, nbytes
    return best, most


def refuse_too_small(problem: Problem) -> None:
    """Raise DoesNotFit if the largest task does not fit an empty arena, with its operands laid out as far as they fit."""
    graph, capacity = problem.graph, problem.capacity
    task_id, least = largest_footprint(graph, problem.alignment)
    if least <= capacity:
        return
    task = graph.tasks[task_id]
    sizes = [(graph.tensors[t].name, problem.sizes[t]) for t in (() if task.gathers else task.reads())]
    pinned: list[tuple[str, int]] = []
    free, wanted = int(capacity), least - sum(nbytes for _, nbytes in sizes)
    for name, nbytes in sizes:
        if nbytes > free:
            wanted = nbytes
            break
        pinned.append((name, nbytes))
        free -= nbytes
    raise DoesNotFit(Misfit(task.name, "device", wanted, free, free, problem.budget_bytes, tuple(pinned), int(least)))
