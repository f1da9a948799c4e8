"""A graph in which some tasks run twice: what a planner of such plans plans, and the plan of the graph itself that this is.

In: a TaskGraph and tensors that are dropped after some task. Out: a TaskGraph in which whoever reads a dropped tensor later reads a copy of
it, which the task that made it makes again just before the first of these; what that task reads, if it was dropped too, is made again
before. Where that would be after a task that overwrites what is read again, nothing is made: the tensor is not dropped. Tensors stay
single-assignment and tasks in a valid order, so every planner, bound and clock takes the graph as it takes others.

    a = f(x); b = g(a); ...; y = h(a, b)        b dropped         a = f(x); b = g(a); ...; b' = g(a);             y = h(a, b')
                                                a, b dropped      a = f(x); b = g(a); ...; a' = f(x); b' = g(a'); y = h(a', b')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from einpage.einsum_front.graph.taskgraph import Kind, Task, TaskGraph, TaskId, Tensor, TensorId, Value, Written


@dataclass(frozen=True, slots=True, order=True)
class Dropped:
    """A tensor that is gone after a task, and made again for whoever reads it later."""

    tensor: TensorId
    after: TaskId


AgainBefore: TypeAlias = Mapping[TaskId, TaskId]
"""By a task, the one before which all its runs stand, in the graph's order: the first that writes in place over what it reads, in bytes
that the graph itself knows nothing of. A task that is not there may run again anywhere."""


@dataclass(frozen=True, slots=True)
class SecondRuns:
    """A graph in which tasks run twice."""

    graph: TaskGraph
    task_of: tuple[TaskId, ...]
    """[task] the task of the graph it was made of."""
    tensor_of: tuple[TensorId, ...]
    """[tensor] likewise."""


ANYWHERE: AgainBefore = MappingProxyType({})
"""Nothing is written over."""


def with_second_runs(graph: TaskGraph, dropped: Iterable[Dropped], again_before: AgainBefore = ANYWHERE) -> SecondRuns:
    """`graph` without `dropped`, which tasks on the device write, each alone, and which are no outputs."""
    return _Rewriter(graph, dropped, again_before).run()


def may_run_again(task: Task) -> bool:
    """Not a gather, whose rows cross the link anyway, nor what makes several tensors, of which some may be there."""
    return not task.gathers and not task.others


class _Rewriter:
    def __init__(self, graph: TaskGraph, dropped: Iterable[Dropped], again_before: AgainBefore) -> None:
        self.graph, self.again_before = graph, again_before
        self.after = {d.tensor: d.after for d in sorted(dropped)}
        self.maker = {task.result: task for task in graph.tasks if may_run_again(task)}
        self.tensors: list[Tensor] = list(graph.tensors)
        self.tensor_of = [t.id for t in graph.tensors]
        self.values: dict[str, Value] = {}
        self.current: dict[TensorId, TensorId] = {}
        """By dropped tensor, its copy."""
        self.tasks: list[Task] = []
        self.task_of: list[TaskId] = []
        value_by_name = {v.name: v for v in graph.values}
        for t in self.after:
            tensor = graph.tensors[t]
            assert tensor.kind is Kind.ACTIVATION and t in self.maker, f"{tensor.name} cannot be made again"
            name = f"{tensor.value}~again"
            self.values[name] = replace(value_by_name[tensor.value], name=name)

    def run(self) -> SecondRuns:
        for task in self.graph.tasks:
            self.append(task, task.result, task.id, "")
        graph = replace(
            self.graph, values=(*self.graph.values, *self.values.values()), tensors=tuple(self.tensors), tasks=tuple(self.tasks)
        )
        return SecondRuns(graph, tuple(self.task_of), tuple(self.tensor_of))

    def append(self, task: Task, result: TensorId, at: TaskId, name: str) -> None:
        """`task` as it runs at the time of task `at`, after what it reads was made again where it was dropped."""
        known = {t: self.there(t, at) for t in task.reads()}
        operands = tuple(tuple(known[t] for t in operand) for operand in task.operands)
        in_place = tuple(known[t] for t in task.inplace)
        number = TaskId(len(self.tasks))
        others = tuple(Written(one.tensor, tuple(known[t] for t in one.inplace)) for one in task.others)
        again = replace(task, operands=operands, result=result, inplace=in_place, others=others)
        self.tasks.append(replace(again, id=number, name=f"{task.name}{name}"))
        self.task_of.append(task.id)

    def there(self, t: TensorId, at: TaskId) -> TensorId:
        """What holds `t` for a reader at the time of task `at`."""
        if t not in self.after or at <= self.after[t]:
            return t
        if t not in self.current:
            if at > self.again_before.get(self.maker[t].id, at):
                return t
            tensor, number = self.graph.tensors[t], TensorId(len(self.tensors))
            self.current[t] = number
            self.tensors.append(replace(tensor, id=number, name=f"{tensor.name}~again", value=f"{tensor.value}~again"))
            self.tensor_of.append(t)
            self.append(self.maker[t], number, at, "~again")
        return self.current[t]
