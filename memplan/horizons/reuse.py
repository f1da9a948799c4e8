"""Reuse distances along one order of tasks: the next step that needs each tensor on the device.

In: a TaskGraph and an order. Out: for each tensor the steps (positions in the order) that read it, in one flat list with a cursor a
tensor. The cursor moves as the execution horizon passes a step, so each query costs O(1). Gathers read on the host: they do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NewType

from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId, TensorId

Step = NewType("Step", int)
"""A position in the order of tasks."""


class Reuse:
    """All device uses of all tensors. `reads[step]` are the distinct operands that the task at `step` reads on the device."""

    __slots__ = ("_cursor", "_end", "_steps", "reads")

    def __init__(self, graph: TaskGraph, order: Sequence[TaskId]) -> None:
        self.reads: list[tuple[TensorId, ...]] = []
        for task_id in order:
            task = graph.tasks[task_id]
            self.reads.append(() if task.gathers else task.reads())
        uses = [0] * len(graph.tensors)
        for tensors in self.reads:
            for t in tensors:
                uses[t] += 1
        self._end = list(accumulate(uses))
        self._cursor = [end - n for end, n in zip(self._end, uses, strict=True)]
        self._steps = [0] * (self._end[-1] if self._end else 0)
        at = list(self._cursor)
        for step, tensors in enumerate(self.reads):
            for t in tensors:
                self._steps[at[t]] = step
                at[t] += 1

    def next_use(self, t: TensorId) -> Step:
        """The first step not yet executed that reads `t`; `t` must not be dead."""
        return Step(self._steps[self._cursor[t]])

    def is_last(self, t: TensorId, step: Step) -> bool:
        """Whether no step after `step` reads `t`."""
        return self._steps[self._end[t] - 1] <= step

    def is_dead(self, t: TensorId) -> bool:
        """Whether no step that is not yet executed reads `t`."""
        return self._cursor[t] == self._end[t]

    def execute(self, t: TensorId) -> None:
        """The step of the next use of `t` has been executed."""
        self._cursor[t] += 1
