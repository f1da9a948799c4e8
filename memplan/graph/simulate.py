"""The clock: when each node of a plan would start and finish on a machine.

In: a MemGraph and a Machine. Out: a Timeline. One compute queue, one H2D and one D2H queue, each first in, first out in node order:

    start  = max(end of the node before it on its queue, latest end of its predecessors)        finish = start + duration

A Free takes no time and no queue. Durations are what was given for a task, else launch + roofline; latency + bytes / rate for a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.memplan.graph.memgraph import MemGraph, Queue
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, MOVE, Nodes, Residencies
from einpage.memplan.problem.machine import Machine, task_seconds

QUEUES = (Queue.COMPUTE, Queue.H2D, Queue.D2H, Queue.NONE)
"""A queue's position here is its number in flat arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    start_s: NDArray[np.float64]
    """[node]"""
    finish_s: NDArray[np.float64]
    """[node]"""
    busy_s: tuple[tuple[Queue, float], ...]
    """How long each engine works, in the order of Queue; no entry for Queue.NONE."""
    makespan_s: float
    """When the last node finishes."""

    def busy(self, queue: Queue) -> float:
        return dict(self.busy_s)[queue]


def queue_numbers(memgraph: MemGraph) -> NDArray[np.int8]:
    """[node] the engine of each node, as a position in QUEUES."""
    compute, h2d, d2h, none = range(4)
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    by_kind = {COMPUTE: compute, GATHER: h2d, MOVE: h2d, FREE: none}
    numbers = np.array([by_kind[kind] for kind in range(len(by_kind))], np.int8)[nodes.kind]
    moves = np.flatnonzero(nodes.kind == MOVE)
    numbers[moves[residencies.on_device[nodes.subject[moves]]]] = d2h
    return numbers


def durations(memgraph: MemGraph, machine: Machine) -> NDArray[np.float64]:
    """[node] seconds each node keeps its engine."""
    graph = memgraph.graph
    seconds_by_task = [task_seconds(machine, graph, task) for task in graph.tasks]
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    seconds = np.zeros(len(nodes))
    runs = nodes.kind <= GATHER
    seconds[runs] = np.array(seconds_by_task)[nodes.subject[runs]]
    moves = np.flatnonzero(nodes.kind == MOVE)
    tensors = residencies.tensor[nodes.subject[moves]]
    stores = residencies.on_device[nodes.subject[moves]]
    nbytes = [t.nbytes for t in graph.tensors]
    for copy_seconds, which in ((machine.h2d_seconds, ~stores), (machine.d2h_seconds, stores)):
        seconds[moves[which]] = [copy_seconds(nbytes[t]) for t in tensors[which].tolist()]
    return seconds


def simulate(memgraph: MemGraph, machine: Machine, noise: NDArray[np.float64] | None = None) -> Timeline:
    """Run the clock. `noise` [node], if given, multiplies durations: what happens when a kernel is slower than its roofline."""
    seconds = durations(memgraph, machine)
    if noise is not None:
        assert noise.shape == seconds.shape, f"noise has shape {noise.shape}, the plan {len(seconds)} nodes"
        seconds = seconds * noise
    queues = queue_numbers(memgraph)
    row = np.searchsorted(memgraph.edges.target, np.arange(len(seconds) + 1)).tolist()
    sources = memgraph.edges.source.tolist()
    start, finish, free_at = [0.0] * len(seconds), [0.0] * len(seconds), [0.0] * len(QUEUES)
    none = QUEUES.index(Queue.NONE)
    for n, (queue, duration) in enumerate(zip(queues.tolist(), seconds.tolist(), strict=True)):
        at = free_at[queue]
        for before in sources[row[n] : row[n + 1]]:
            if finish[before] > at:
                at = finish[before]
        start[n] = at
        finish[n] = at + duration
        if queue != none:
            free_at[queue] = finish[n]
    busy = np.bincount(queues, weights=seconds, minlength=len(QUEUES))
    by_queue = tuple((queue, float(busy[i])) for i, queue in enumerate(QUEUES) if i != none)
    return Timeline(np.array(start), np.array(finish), by_queue, max(finish, default=0.0))


def moved_bytes(memgraph: MemGraph, queue: Queue) -> int:
    """Bytes that cross a link, Queue.H2D or Queue.D2H, in the whole plan."""
    made = Nodes.of(memgraph.nodes).result[queue_numbers(memgraph) == QUEUES.index(queue)]
    tensors = memgraph.graph.tensors
    moved: list[TensorId] = Residencies.of(memgraph.residencies).tensor[made].tolist()
    return sum((tensors[t].nbytes for t in moved), 0)
