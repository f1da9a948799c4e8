"""The clock: when each node of a plan would start and finish on a machine.

In: a MemGraph and a Machine. Out: a Timeline. One queue for computes and one a link, each first in, first out in node order:

    start  = max(end of the node before it on its queue, latest end of its predecessors)        finish = start + duration

A Free takes no time and no queue. Durations are what was given for a task, else what such kernels usually take, else launch + roofline;
latency + bytes / rate for a move, of whatever it copies together; longer, where that is known, the longer ago its target was written. Where
it is known how kernels and copies slow each other down, they do (shared_clock.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.columns import Bools, Floats, Int64s, UInt8s
from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TensorId
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, MOVE, Nodes, Residencies
from einpage.memplan.graph.shared_clock import COMPUTE_QUEUE, NO_QUEUE, Sharing, shared_clock
from einpage.memplan.machine.kernel_times import KernelTimes
from einpage.memplan.machine.machine import Machine, all_task_seconds, all_task_sharing
from einpage.memplan.machine.places import DEVICE, DISK, ENGINES, HOST, SECTOR, Link, Queue

__all__ = ["COMPUTE_QUEUE", "NO_QUEUE"]

ARENA_PARTS = 512
"""In which it is known when each was written."""
MOST_DISTANCE = 1 << 40
"""Bytes; no cache holds so many."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    start_s: Floats
    """[node]"""
    finish_s: Floats
    """[node]"""
    busy_s: tuple[tuple[Queue, float], ...]
    """How long each engine works, in the order of queues_of."""
    makespan_s: float
    """When the last node finishes."""

    def busy(self, queue: Queue) -> float:
        """Seconds for which `queue` works. Raises KeyError for one that the plan does not have."""
        return dict(self.busy_s)[queue]


@dataclass(frozen=True, slots=True)
class SecondRunFigures:
    """Tasks that run again, and what they stand in for; a field's name is its key in the JSON of a report."""

    second_runs: int
    second_runs_s: float
    """Of their kernels."""
    second_runs_spared_bytes: int
    """That the links do not carry: a load for each of their results, and an offload of what is never copied to the host."""

    @property
    def text(self) -> str:
        """`32 second runs in 1.35 ms, for 58.5KiB that no link carries`."""
        times = "1 second run" if self.second_runs == 1 else f"{self.second_runs} second runs"
        return f"{times} in {format_seconds(self.second_runs_s)}, for {format_bytes(self.second_runs_spared_bytes)} that no link carries"


NO_SECOND_RUN = SecondRunFigures(0, 0.0, 0)


def queues_of(memgraph: MemGraph) -> tuple[Queue, ...]:
    """The engines of a plan: ENGINES, and one for every other pair of places between which it moves, in the order of their names."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    if len(residencies.places) <= len((DEVICE, HOST)):
        return ENGINES
    source, target = _move_places(nodes, residencies)
    pairs = {Queue(residencies.places[a], residencies.places[b]) for a, b in set(zip(source.tolist(), target.tolist(), strict=True))}
    if _from_disk(nodes, residencies).any():
        pairs.add(Queue.READ)
    return (*ENGINES, *sorted(pairs.difference(ENGINES), key=lambda queue: queue.name))


def queue_numbers(memgraph: MemGraph) -> NDArray[np.int8]:
    """[node] the engine of each node, as a position in queues_of; NO_QUEUE for a Free."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    number_by_queue = {queue: number for number, queue in enumerate(queues_of(memgraph))}
    by_kind = {COMPUTE: number_by_queue[Queue.COMPUTE], GATHER: number_by_queue[Queue.H2D], MOVE: NO_QUEUE, FREE: NO_QUEUE}
    numbers = np.array([by_kind[kind] for kind in range(len(by_kind))], np.int8)[nodes.kind]
    places = residencies.places
    by_places = np.array([[number_by_queue.get(Queue(a, b), NO_QUEUE) for b in places] for a in places], np.int8)
    numbers[nodes.kind == MOVE] = by_places[_move_places(nodes, residencies)]
    numbers[_from_disk(nodes, residencies)] = number_by_queue.get(Queue.READ, NO_QUEUE)
    return numbers


def _from_disk(nodes: Nodes, residencies: Residencies) -> Bools:
    """[node] whether it gathers rows of a table on a disk, to the host."""
    gathers = np.flatnonzero(nodes.kind == GATHER)
    found = np.zeros(len(nodes), bool)
    found[gathers] = residencies.at(HOST)[nodes.result[gathers]]
    return found


def _move_places(nodes: Nodes, residencies: Residencies) -> tuple[UInt8s, UInt8s]:
    """[move] the places it copies from and to, as positions in `residencies.places`; those of its first copy."""
    moves = nodes.kind == MOVE
    return residencies.place[nodes.subject[moves]], residencies.place[nodes.result[moves]]


def durations(memgraph: MemGraph, machine: Machine) -> Floats:
    """[node] seconds each node keeps its engine; of copies from and to a disk, which overlap, after the end of the one before, without the
    latency. Raises UsageError where the machine has no link for a move."""
    nodes = Nodes.of(memgraph.nodes)
    seconds = np.zeros(len(nodes))
    runs = nodes.kind <= GATHER
    seconds[runs] = np.array(all_task_seconds(machine, memgraph.graph))[nodes.subject[runs]]
    queues, moves, nbytes = queue_numbers(memgraph), nodes.kind == MOVE, copied_bytes(memgraph)
    for number, queue in enumerate(queues_of(memgraph)):
        found = np.flatnonzero(moves & (queues == number))
        if len(found):
            link = machine.usual_link(queue)
            of = link.overlapped_seconds if link.overlaps else link.seconds
            seconds[found] = [of(n) for n in nbytes[found].tolist()]
        times = machine.kernel_times
        if len(found) and queue == Queue.H2D and times is not None and times.copies.at_distances:
            seconds[found] += (
                nbytes[found] / machine.usual_link(queue).bytes_per_s * (times.copies.times_longer(_distances(memgraph, found)) - 1)
            )
    rows = np.flatnonzero(_from_disk(nodes, Residencies.of(memgraph.residencies)))
    if len(rows):
        sizes = _residency_bytes(memgraph)[nodes.result[rows]]
        seconds[rows] = sizes / machine.usual_link(Queue.READ).bytes_per_s
    return seconds


def _distances(memgraph: MemGraph, moves: NDArray[np.intp]) -> Int64s:
    """[move] bytes that `moves`, ascending, copy from the last of them that went where it goes until its own end; MOST_DISTANCE for the
    first. Known to a part of the arena."""
    residencies, copies = Residencies.of(memgraph.residencies), Nodes.of(memgraph.nodes).copies()
    part = 1 + memgraph.budget_bytes // ARENA_PARTS
    nbytes, extents = copied_bytes(memgraph)[moves], residencies.extent_row
    written = np.full(ARENA_PARTS, -MOST_DISTANCE)
    """[part] bytes copied until it was written last"""
    found = nbytes.copy()
    for at, copied in enumerate(np.cumsum(nbytes).tolist()):
        for target in copies.target[slice(*np.searchsorted(copies.node, (moves[at], moves[at] + 1)))].tolist():
            for row in range(extents[target], extents[target + 1]):
                offset = residencies.offset[row]
                parts = slice(offset // part, 1 + (offset + residencies.nbytes[row] - 1) // part)
                found[at] = max(found[at], copied - int(written[parts].mean()))
                written[parts] = copied
    return np.minimum(found, MOST_DISTANCE)


def overlapping_latencies(memgraph: MemGraph, machine: Machine) -> list[float | None]:
    """[engine] seconds from where a copy begins to its first byte, in the order of queues_of: of disks, whose copies overlap, so that it
    passes while others are under way; None of other engines."""
    on_disk = ((DISK in (queue.source, queue.target), queue) for queue in queues_of(memgraph))
    return [machine.usual_link(queue).latency_s if there else None for there, queue in on_disk]


def moves_several(memgraph: MemGraph) -> bool:
    """Whether some move copies more than one tensor."""
    return len(Nodes.of(memgraph.nodes).other_node) > 0


def copied_bytes(memgraph: MemGraph) -> Int64s:
    """[node] bytes that a move copies, of all its tensors; 0 for other nodes."""
    copies = Nodes.of(memgraph.nodes).copies()
    nbytes = np.zeros(len(memgraph.nodes), np.int64)
    np.add.at(nbytes, copies.node, _residency_bytes(memgraph)[copies.target])
    return nbytes


def _residency_bytes(memgraph: MemGraph) -> Int64s:
    """[residency] bytes of its extents."""
    residencies = Residencies.of(memgraph.residencies)
    ends: Int64s = np.concatenate(([0], np.cumsum(residencies.nbytes)))
    return ends[residencies.extent_row[1:]] - ends[residencies.extent_row[:-1]]


def simulate(memgraph: MemGraph, machine: Machine, noise: Floats | None = None) -> Timeline:
    """Run the clock. `noise` [node], if given, multiplies durations: what happens when a kernel is slower than its roofline."""
    seconds = durations(memgraph, machine)
    if noise is not None:
        assert noise.shape == seconds.shape, f"noise has shape {noise.shape}, the plan {len(seconds)} nodes"
        seconds = seconds * noise
    queues, engines = queue_numbers(memgraph), queues_of(memgraph)
    latencies = overlapping_latencies(memgraph, machine)
    if machine.kernel_times is None:
        start, finish = _in_node_order(memgraph, queues, seconds, latencies)
    else:
        sharing = _sharing(memgraph, machine, machine.kernel_times)
        start, finish = shared_clock(memgraph.edges, queues, latencies, seconds, sharing)
    busy = np.bincount(queues + 1, weights=finish - start, minlength=len(engines) + 1)[1:].tolist()
    by_queue = tuple(zip(engines, busy, strict=True))
    return Timeline(start, finish, by_queue, float(finish.max(initial=0.0)))


def _in_node_order(
    memgraph: MemGraph, queues: NDArray[np.int8], seconds: Floats, latencies: Sequence[float | None]
) -> tuple[Floats, Floats]:
    """[node] start and finish where no engine slows another down."""
    row = np.searchsorted(memgraph.edges.target, np.arange(len(seconds) + 1)).tolist()
    sources = memgraph.edges.source.tolist()
    start, finish, free_at = [0.0] * len(seconds), [0.0] * len(seconds), [0.0] * len(latencies)
    begun_at = [0.0] * len(latencies)
    """[engine] where the last of its copies began that overlap; they begin in order."""
    for n, (queue, duration) in enumerate(zip(queues.tolist(), seconds.tolist(), strict=True)):
        latency_s = None if queue == NO_QUEUE else latencies[queue]
        at = 0.0 if queue == NO_QUEUE else free_at[queue] if latency_s is None else begun_at[queue]
        for before in sources[row[n] : row[n + 1]]:
            if finish[before] > at:
                at = finish[before]
        start[n] = at
        if latency_s is not None:
            begun_at[queue] = at
            start[n] = max(at, free_at[queue])
            at = max(at + latency_s, free_at[queue])
        finish[n] = at + duration
        if queue != NO_QUEUE:
            free_at[queue] = finish[n]
    return np.array(start), np.array(finish)


def _sharing(memgraph: MemGraph, machine: Machine, times: KernelTimes) -> Sharing:
    """How the nodes of a plan slow each other down on a machine."""
    nodes = Nodes.of(memgraph.nodes)
    by_task = np.array(all_task_sharing(machine, memgraph.graph)).reshape(-1, 2)
    factors, computes = np.ones((len(nodes), 2)), nodes.kind == COMPUTE
    factors[computes] = by_task[nodes.subject[computes]]
    return Sharing(times.start_s, times.wakeup_s, factors[:, 0], factors[:, 1], times.copies.together)


def moved_bytes(memgraph: MemGraph, queue: Queue) -> int:
    """Bytes that cross a link in the whole plan."""
    return moved_bytes_by_queue(memgraph).get(queue, 0)


def moved_bytes_by_queue(memgraph: MemGraph) -> dict[Queue, int]:
    """Bytes that cross each link in the whole plan, in the order of queues_of."""
    queues, nbytes = queue_numbers(memgraph), _residency_bytes(memgraph)
    node, made = Nodes.of(memgraph.nodes).made()
    return {
        queue: int(nbytes[made[queues[node] == number]].sum()) for number, queue in enumerate(queues_of(memgraph)) if queue != Queue.COMPUTE
    }


def sector_bytes(memgraph: MemGraph, queue: Queue) -> int:
    """Bytes that the moves of a disk's queue read or write, in whole sectors; gathered rows are not counted, for who knows them knows where
    they lie."""
    nodes, residencies, queues = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies), queues_of(memgraph)
    if queue not in queues:
        return 0
    copies = nodes.copies()
    moved = copies.target[queue_numbers(memgraph)[copies.node] == queues.index(queue)]
    first, last = residencies.offset[moved] // SECTOR, -(-(residencies.offset + residencies.nbytes)[moved] // SECTOR)
    return SECTOR * int((last - first).sum())


def read_cost_s(memgraph: MemGraph, link: Link, queue: Queue = Queue.READ) -> float:
    """Seconds of the moves of a queue that a disk with this `link` makes: those of their sectors, and `each_s` of every one. What a machine
    does for a read costs as much whatever its bytes, and is not free where the disk has something else to do meanwhile."""
    if queue not in (queues := queues_of(memgraph)):
        return 0.0
    moves = (Nodes.of(memgraph.nodes).kind == MOVE) & (queue_numbers(memgraph) == queues.index(queue))
    return sector_bytes(memgraph, queue) / link.bytes_per_s + int(moves.sum()) * link.each_s


def all_moved_bytes(memgraph: MemGraph) -> int:
    """Bytes that cross any link in the whole plan."""
    return sum(moved_bytes_by_queue(memgraph).values())


def once_bytes(memgraph: MemGraph) -> int:
    """Bytes this plan would move if every tensor it loads were loaded once, gathered rows too, and only outputs were copied back."""
    nodes, tensor = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies).tensor
    loaded: set[TensorId] = set(tensor[nodes.copies().source].tolist())
    gathered: set[TensorId] = set(tensor[nodes.result[nodes.kind == GATHER]].tolist())
    tensors = memgraph.graph.tensors
    once = {t for t in loaded if tensors[t].kind in HOST_AT_START or tensors[t].kind is Kind.OUTPUT}
    return sum(tensors[t].nbytes for t in once) + sum(tensors[t].nbytes for t in gathered)


def second_runs(memgraph: MemGraph) -> int:
    """How often a task runs that has run before."""
    return len(_run_again(memgraph))


def second_run_figures(memgraph: MemGraph, timeline: Timeline) -> SecondRunFigures:
    """How many tasks of a plan run again, what that costs by its timeline, and what it spares."""
    nodes, residencies, again = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies), _run_again(memgraph)
    node, made = nodes.made_by_tasks()
    copies, nbytes = nodes.copies(), _residency_bytes(memgraph)
    offloaded = residencies.tensor[copies.source[residencies.at(DEVICE)[copies.source]]]
    made = made[np.isin(node, again)]
    _, one_each = np.unique(residencies.tensor[made], return_index=True)
    not_offloaded = made[one_each][~np.isin(residencies.tensor[made[one_each]], offloaded)]
    spared = int(nbytes[made].sum()) + int(nbytes[not_offloaded].sum())
    return SecondRunFigures(len(again), float((timeline.finish_s - timeline.start_s)[again].sum()), spared)


def _run_again(memgraph: MemGraph) -> Int64s:
    """The nodes that run a task which has run before."""
    nodes = Nodes.of(memgraph.nodes)
    runs = np.flatnonzero(nodes.kind <= GATHER)
    _, first = np.unique(nodes.subject[runs], return_index=True)
    return np.delete(runs, first)
