"""Tasks that work on the same elements become one: what reads, element by element, what another makes of the same tile makes that too.

In: a TaskGraph. Out: one of the same tensors, in which some tasks have several results: each operand of theirs is read once, and what one
statement made another reads from a register.

    m' = f(m, g)    v' = h(v, g)    w' = k(w, m', v')              (m', v', w') = one pass over m, v, w, g
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einpage.einsum_front.algebra.expr import Axis, Expr, Load, Reduce, loads, substitute, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.fuse.inline import MOST_NODES
from einpage.einsum_front.graph.job import MapJob, Part, View, results_of
from einpage.einsum_front.graph.program import fresh_name
from einpage.einsum_front.graph.taskgraph import Op, OpId, Task, TaskGraph, TaskId, TensorId, Written


def joined_tasks(graph: TaskGraph) -> TaskGraph:
    """`graph` with pointwise tasks joined to the only task that reads their results before any other does."""
    return _JoinedTasks(graph).run()


class _JoinedTasks:
    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.tasks: dict[TaskId, Task] = {task.id: task for task in graph.tasks}
        """In order, those that are left."""
        self.writer = {t: task.id for task in graph.tasks for t in task.results}
        self.readers: dict[TensorId, list[TaskId]] = {}
        for task in graph.tasks:
            for t in task.reads():
                self.readers.setdefault(t, []).append(task.id)
        self.joined_to: dict[TaskId, TaskId] = {}
        """By task that is no more, the one that does its work."""
        self.unread_bytes: dict[OpId, int] = {}
        """By op that has joined others: what it no longer reads."""
        self.joined_ops: set[OpId] = set()
        """Of tasks that were joined to others."""

    def run(self) -> TaskGraph:
        for task in self.graph.tasks:
            while (found := self._joined(self.tasks[task.id])) is not None:
                self.tasks[task.id] = found
        if not self.joined_ops:
            return self.graph
        tasks = tuple(replace(task, id=TaskId(n)) for n, task in enumerate(self.tasks.values()))
        return replace(self.graph, tasks=tasks, ops=tuple(map(self._cost, self.graph.ops)))

    def _joined(self, task: Task) -> Task | None:
        """`task`, and one of those whose results it reads, as one; None where there is none."""
        for t in task.reads() if _is_pointwise(task) else ():
            producer = self.tasks.get(self.writer[t]) if t in self.writer else None
            if producer is None or not _is_pointwise(producer) or not self._may_join(producer, task):
                continue
            found = _as_one(producer, task)
            if found is None:
                continue
            del self.tasks[producer.id]
            self.joined_to[producer.id] = task.id
            self.writer.update(dict.fromkeys(found.results, task.id))
            self.joined_ops.add(producer.op)
            inner = [r for r in producer.results if r in task.reads()]
            self.unread_bytes[task.op] = self.unread_bytes.get(task.op, 0) + sum(self.graph.tensors[r].nbytes for r in inner)
            shared = {*inner, *(r for r in producer.reads() if r in task.reads())}
            twice = sum(self.graph.tensors[r].nbytes for r in shared)
            return replace(found, bytes_touched=Nbytes(max(0, found.bytes_touched - twice)))
        return None

    def _may_join(self, producer: Task, task: Task) -> bool:
        """Whether whoever else reads what `producer` makes comes after `task`."""
        readers = {self._doer(reader) for t in producer.results for reader in self.readers.get(t, ())}
        return all(reader >= task.id or reader == producer.id for reader in readers)

    def _doer(self, task: TaskId) -> TaskId:
        while task in self.joined_to:
            task = self.joined_to[task]
        return task

    def _cost(self, op: Op) -> Op:
        """A lower bound, however many of its tasks were joined: what others do for it is counted nowhere."""
        if op.id in self.joined_ops:
            return replace(op, flops=0, bytes_touched=Nbytes(0))
        return replace(op, bytes_touched=Nbytes(max(0, op.bytes_touched - self.unread_bytes.get(op.id, 0))))


def _is_pointwise(task: Task) -> bool:
    """Whether each result is one statement over its whole tile, at the same letters, without reductions and more than a copy; and is kept
    as a register has it, neither rounded nor with a flag behind it: what reads it from there has the same bits as from memory."""
    job = task.job
    if not isinstance(job, MapJob) or task.seconds is not None or len(job.parts) != len(results_of(job)):
        return False
    if any(view.element_type is not DType.FP32 for view in results_of(job)):
        return False
    target = job.parts[0].target
    if not target or not all(isinstance(i, Axis) for i in target) or len(set(target)) < len(target):
        return False
    return all(
        part.target == target and not isinstance(part.expr, Load) and not any(isinstance(node, Reduce) for node in walk(part.expr))
        for part in job.parts
    )


def _as_one(producer: Task, task: Task) -> Task | None:
    """What does both, with `task`'s name and place in the order; None where they are not of the same elements, or too long together."""
    first, then = producer.job, task.job
    assert isinstance(first, MapJob) and isinstance(then, MapJob)
    target = then.parts[0].target
    if first.parts[0].target != target or {*first.ranges} != {*then.ranges} or first.result.boxes != then.result.boxes:
        return None
    position = {t: n for n, t in enumerate(producer.results)}
    made_by_name = {view.name: position[operand[0]] for view, operand in _operands(task) if len(operand) == 1 and operand[0] in position}
    at_target = [load.indices == target for part in then.parts for load in loads(part.expr) if load.name in made_by_name]
    if not all(at_target) or any(t in position for view, operand in _operands(task) if view.name not in made_by_name for t in operand):
        return None
    kept = [(view, operand) for view, operand in _operands(task) if view.name not in made_by_name]
    word_by_operand = {operand: view.name for view, operand in kept}
    words = {*word_by_operand.values()}
    word_by_name: dict[str, str] = {}
    for view, operand in _operands(producer):
        if operand not in word_by_operand:
            word_by_operand[operand] = fresh_name(view.name, words)
            kept.append((replace(view, name=word_by_operand[operand]), operand))
        word_by_name[view.name] = word_by_operand[operand]
    made = [replace(part, expr=_renamed(part.expr, word_by_name)) for part in first.parts]
    by_result = {part.result: part.expr for part in made}
    parts = [replace(part, expr=_with_made(part.expr, made_by_name, by_result)) for part in then.parts]
    count = len(results_of(then))
    parts += [Part(part.target, part.expr, count + part.result) for part in made]
    if sum(1 for part in parts for _ in walk(part.expr)) > MOST_NODES:
        return None
    names: set[str] = set()
    views = [replace(view, name=fresh_name(view.name, names)) for view in (*results_of(then), *results_of(first))]
    reads, operands = (tuple(column) for column in zip(*kept, strict=True))
    alone, elsewhere = set[TensorId](), set[TensorId]()
    for view, operand in kept:
        (alone if view.boxes == then.result.boxes and _at(target, view, parts) else elsewhere).update(operand)
    over = alone - elsewhere
    result, *others = (Written(one.tensor, tuple(t for t in one.inplace if t in over)) for one in (*task.written, *producer.written))
    return replace(
        task,
        operands=operands,
        result=result.tensor,
        inplace=result.inplace,
        flops=task.flops + producer.flops,
        bytes_touched=Nbytes(task.bytes_touched + producer.bytes_touched),
        workspace_bytes=Nbytes(max(task.workspace_bytes, producer.workspace_bytes)),
        job=MapJob(then.ranges, reads, views[0], tuple(parts), tuple(views[1:])),
        others=tuple(others),
    )


def _operands(task: Task) -> Sequence[tuple[View, tuple[TensorId, ...]]]:
    assert task.job is not None
    return list(zip(task.job.reads, task.operands, strict=True))


def _at(target: tuple[Expr, ...], view: View, parts: Sequence[Part]) -> bool:
    """Whether each element of an operand is read for that of the results alone."""
    return all(load.indices == target for part in parts for load in loads(part.expr) if load.name == view.name)


def _renamed(e: Expr, word_by_name: Mapping[str, str]) -> Expr:
    def step(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        return Load(word_by_name[node.name], tuple(_renamed(i, word_by_name) for i in node.indices))

    return substitute(e, step)


def _with_made(e: Expr, made_by_name: Mapping[str, int], by_result: Mapping[int, Expr]) -> Expr:
    """`e` with statements in place of loads of what they make."""
    return substitute(e, lambda node: by_result[made_by_name[node.name]] if isinstance(node, Load) and node.name in made_by_name else None)
