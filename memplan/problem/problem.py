"""A planning problem: one graph, in one order of its tasks, on one machine, within a budget of device bytes.

In: the five figures that every part of the planner works on. Out: a frozen Problem, in which bytes are aligned once: the arena's capacity
down to a multiple of the alignment, every tensor's bytes up to one. Invariant: `order` names every task of the graph once, producers first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from einpage.einsum_front.base.units import ALIGNMENT, Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import Task, TaskGraph, TaskId
from einpage.memplan.machine.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One planning problem; bytes of the arena and of tensors are aligned."""

    graph: TaskGraph
    machine: Machine
    order: tuple[TaskId, ...]
    budget_bytes: Nbytes
    """Size of the device's arena, as it was asked for."""
    alignment: int = ALIGNMENT
    """What every offset is a multiple of."""
    capacity: Nbytes = field(init=False)
    """Bytes of the arena that aligned tensors can use."""
    sizes: tuple[int, ...] = field(init=False, repr=False)
    """[tensor] aligned bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", Nbytes(max(self.budget_bytes, 0) // self.alignment * self.alignment))
        object.__setattr__(self, "sizes", tuple(aligned(t.nbytes, self.alignment) for t in self.graph.tensors))

    @property
    def tasks(self) -> list[Task]:
        """In the order at hand."""
        return [self.graph.tasks[t] for t in self.order]


def problem_of(
    graph: TaskGraph, machine: Machine, budget_bytes: int, order: tuple[TaskId, ...] | None = None, alignment: int = ALIGNMENT
) -> Problem:
    """The Problem of `graph` in `budget_bytes`; its tasks in graph order unless another is given."""
    return Problem(graph, machine, tuple(task.id for task in graph.tasks) if order is None else order, Nbytes(budget_bytes), alignment)
