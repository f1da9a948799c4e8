"""The window bound: what one order of tasks needs under a budget, because a stretch of it touches more than the device holds.

In: a TaskGraph, a Machine, a budget, an order. Out: seconds, by dynamic programming over stretches. A solver is not needed, so it serves
large graphs and plans without scipy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId, TensorId
from einpage.memplan.machine.machine import Machine, task_seconds
from einpage.memplan.machine.places import Queue

WINDOWS = 96
"""The window bound looks at stretches between this many evenly spaced places: time grows with its square at worst."""


def window_bound(
    graph: TaskGraph, machine: Machine, budget_bytes: int, order: Sequence[TaskId], resident: Collection[TensorId] = frozenset()
) -> float:
    """The time of this order of tasks under this budget: the best way to cut it into windows, each at least as long as
    its tasks, and as the loads of what it touches beyond what the device can hold when it begins (for the first, what is `resident`).

    A load is of a tensor touched in the window and not computed in it. O(WINDOWS * operands).
    """
    tasks = [graph.tasks[t] for t in order if not graph.tasks[t].gathers]
    if not tasks:
        return 0.0
    reads = [t.reads() for t in tasks]
    at, nbytes, previous = _touches(graph, reads, [t.results for t in tasks])
    there = np.array([t in resident for operands in reads for t in operands], bool)
    seconds = [task_seconds(machine, graph, t) for t in tasks]
    elapsed = np.concatenate(([0.0], np.cumsum(seconds)))
    cuts = np.array(sorted(set(np.linspace(0, len(tasks), min(WINDOWS, len(tasks)) + 1).astype(np.int64).tolist())), np.int64)
    best = np.zeros(len(cuts))
    for i, start in enumerate(cuts[:-1].tolist()):
        first = int(np.searchsorted(at, start))
        fresh = np.where(previous[first:] < start, nbytes[first:], 0) if i else np.where((previous < 0) & ~there, nbytes, 0)
        touched = np.concatenate(([0], np.cumsum(fresh)))[np.searchsorted(at[first:], cuts[i + 1 :])]
        loads = np.maximum(touched - (budget_bytes if i else 0), 0) / machine.link(Queue.H2D).bytes_per_s
        window = np.maximum(loads, elapsed[cuts[i + 1 :]] - elapsed[start])
        best[i + 1 :] = np.maximum(best[i + 1 :], best[i] + window)
    return float(best[-1])


def _touches(
    graph: TaskGraph, reads: Sequence[tuple[TensorId, ...]], results: Sequence[tuple[TensorId, ...]]
) -> tuple[Int64s, Int64s, Int64s]:
    """For every read in order: its position, its bytes, and the position at which its tensor was last read or made (-1: never)."""
    last = [-1] * len(graph.tensors)
    at: list[int] = []
    nbytes: list[int] = []
    previous: list[int] = []
    for position, (operands, made) in enumerate(zip(reads, results, strict=True)):
        for t in operands:
            at.append(position)
            nbytes.append(graph.tensors[t].nbytes)
            previous.append(last[t])
            last[t] = position
        for t in made:
            last[t] = position
    return np.array(at, np.int64), np.array(nbytes, np.int64), np.array(previous, np.int64)
