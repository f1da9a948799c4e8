"""The order of a TaskGraph's tasks: layer by layer, row tile by row tile, one slice of heads or channels after another.

In: tasks as they were cut, each with a sorting key. Out: the tasks that the outputs need, in topological order (Kahn 1962, a heap by key
for the ready ones); tensors renumbered to those still used. So an activation slice is consumed before the next is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Job
from einpage.einsum_front.graph.taskgraph import OpId, Task, TaskId, Tensor, TensorId


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has an id; fields as in `Task`."""

    name: str
    op: OpId
    operands: tuple[tuple[TensorId, ...], ...]
    result: TensorId
    inplace: tuple[TensorId, ...]
    flops: int
    bytes_touched: Nbytes
    job: Job
    gathers: bool
    order: tuple[int, tuple[int, ...], tuple[int, ...], int, int]
    """Sorting key: (segment of the spec, row tile, slice, op, position in its chain)."""


def in_tile_order(
    tensors: Sequence[Tensor], drafts: Sequence[Draft], outputs: Sequence[str]
) -> tuple[tuple[Tensor, ...], tuple[Task, ...]]:
    """Tensors and tasks with their final ids; `outputs` are names of values. What none of them depends on is left out."""
    needed = _needed(tensors, drafts, set(outputs))
    order = _sorted(needed)
    number: dict[TensorId, TensorId] = {}
    for draft in order:
        for t in (*(t for operand in draft.operands for t in operand), draft.result):
            number.setdefault(t, TensorId(len(number)))
    renumbered = tuple(replace(tensors[old], id=new) for old, new in number.items())
    tasks = tuple(
        Task(
            TaskId(i),
            d.name,
            d.op,
            tuple(tuple(number[t] for t in operand) for operand in d.operands),
            number[d.result],
            tuple(number[t] for t in d.inplace),
            d.flops,
            d.bytes_touched,
            Nbytes(0),
            d.job,
            d.gathers,
        )
        for i, d in enumerate(order)
    )
    return renumbered, tasks


def _needed(tensors: Sequence[Tensor], drafts: Sequence[Draft], outputs: set[str]) -> list[Draft]:
    """The drafts whose result some output depends on."""
    need = {t.id for t in tensors if t.value in outputs}
    found = []
    for draft in reversed(drafts):
        if draft.result in need:
            found.append(draft)
            need.update(t for operand in draft.operands for t in operand)
    return found[::-1]


def _sorted(drafts: list[Draft]) -> list[Draft]:
    """Topological order, the smallest key first among the drafts whose operands are all written, and whose result would be written in
    place of no tensor that an operation before them still reads."""
    writer = {d.result: i for i, d in enumerate(drafts)}
    pending = [0] * len(drafts)
    after: list[list[int]] = [[] for _ in drafts]
    readers: dict[TensorId, list[int]] = {t: [] for d in drafts for t in d.inplace}
    for i, d in enumerate(drafts):
        for t in {t for operand in d.operands for t in operand} & readers.keys():
            readers[t].append(i)
    for i, d in enumerate(drafts):
        before = {writer[t] for operand in d.operands for t in operand if t in writer}
        before |= {r for t in d.inplace for r in readers[t] if drafts[r].op < d.op}
        pending[i] = len(before)
        for b in before:
            after[b].append(i)
    heap = [(d.order, i) for i, d in enumerate(drafts) if not pending[i]]
    heapify(heap)
    out = []
    while heap:
        _, i = heappop(heap)
        out.append(drafts[i])
        for r in after[i]:
            pending[r] -= 1
            if not pending[r]:
                heappush(heap, (drafts[r].order, r))
    assert len(out) == len(drafts), "the tasks depend on each other in a cycle"
    return out
