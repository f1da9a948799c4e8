"""Bytes that one task needs in the arena when it runs alone: the feasibility rule of the whole planner.

In: a TaskGraph, or a Problem. Out: bytes, or DoesNotFit. Spill or drop everything, lay out one task, run it: this always works, so a plan
exists exactly where the largest footprint fits the budget (host permitting).

    footprint = aligned distinct device operands + aligned result + aligned workspace

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


def donated_operand(graph: TaskGraph, task: Task, last_use: Mapping[TensorId, TaskId]) -> TensorId | None:
    """The operand whose buffer may be donated to the result, with last uses `last_use` [tensor]: the first such in `task.inplace`.

    It must be dead on the device after `task`, and not an output, whose bytes have still to reach the host. A device copy
    of a weight or an input qualifies: the host copy remains.
    """
    if task.gathers:
        return None
    for t in task.inplace:
        if last_use[t] == task.id and graph.tensors[t].kind is not Kind.OUTPUT:
            return t
    return None


def footprint(graph: TaskGraph, task: Task, last_use: Mapping[TensorId, TaskId] | None = None, alignment: int = ALIGNMENT) -> Nbytes:
    """Bytes of the arena that `task` needs by itself. Pass `last_use_by_tensor(graph)` when asking for many tasks."""
    if last_use is None:
        last_use = last_use_by_tensor(graph)
    result = 0 if donated_operand(graph, task, last_use) is not None else aligned(graph.tensors[task.result].nbytes, alignment)
    operands = 0 if task.gathers else sum(aligned(graph.tensors[t].nbytes, alignment) for t in task.reads())
    return Nbytes(operands + result + aligned(task.workspace_bytes, alignment))


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
