"""The order in which tasks run: pure functions from a TaskGraph to a permutation of its tasks that respects its dependencies.

The graph's own order is layer-major with chunks inside: a weight serves every chunk before the next layer's weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import TypeAlias

from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId

Order: TypeAlias = Callable[[TaskGraph, int], tuple[TaskId, ...]]
"""order(graph, seed): every task once, producers before readers."""


class OrderPolicy(Enum):
    AS_WRITTEN = "as_written"
    BY_DEPTH = "by_depth"
    """Tasks of one depth are neighbours, so that a weight serves all that share it: every micro-batch, every chunk."""
    RANDOM = "random"
    """Any valid order, drawn from the seed: for tests."""


def as_written(graph: TaskGraph, seed: int = 0) -> tuple[TaskId, ...]:
    """The graph's own order."""
    return tuple(task.id for task in graph.tasks)


def by_depth(graph: TaskGraph, seed: int = 0) -> tuple[TaskId, ...]:
    """By the longest chain of tasks that leads to each; as written among equals."""
    writer = {t: task.id for task in graph.tasks for t in task.results}
    depth = [0] * len(graph.tasks)
    for task in graph.tasks:
        depth[task.id] = 1 + max((depth[writer[t]] for t in task.reads() if t in writer), default=0)
    return tuple(sorted((task.id for task in graph.tasks), key=lambda k: (depth[k], k)))


def random_topological(graph: TaskGraph, seed: int) -> tuple[TaskId, ...]:
    """A valid order in which each next task is drawn uniformly from those that are ready."""
    writer = {t: task.id for task in graph.tasks for t in task.results}
    readers: list[list[TaskId]] = [[] for _ in graph.tasks]
    missing = [0] * len(graph.tasks)
    for task in graph.tasks:
        for t in task.reads():
            if t in writer:
                readers[writer[t]].append(task.id)
                missing[task.id] += 1
    random = Random(seed)
    ready = [task.id for task in graph.tasks if not missing[task.id]]
    order: list[TaskId] = []
    while ready:
        i = random.randrange(len(ready))
        ready[i], ready[-1] = ready[-1], ready[i]
        order.append(ready.pop())
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return tuple(order)


ORDER_BY_POLICY: dict[OrderPolicy, Order] = {
    OrderPolicy.AS_WRITTEN: as_written,
    OrderPolicy.BY_DEPTH: by_depth,
    OrderPolicy.RANDOM: random_topological,
}
FREE_ORDERS = (OrderPolicy.AS_WRITTEN, OrderPolicy.BY_DEPTH)
"""The orders that are tried with `--free-order`."""
