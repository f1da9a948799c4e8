"""Loads that would wait for nothing are joined: one latency for all that a move copies.

In: a MemGraph, a Machine. Out: the same plan with neighbours of the h2d queue joined, or itself where the simulator finds that no faster.
Bytes, offsets and the order of copies stay. A joined load begins when all of it may, and who reads a part waits for all: so it has no more
bytes than the largest load has alone, and nothing joins that would not have had its memory by then.

    h2d      before   |lat|q|lat|k|lat|v|lat| gate          |lat| up            |
             after    |lat|q|k|v|lat| gate          |lat| up            |
    compute                       q k v              gate               up
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.memplan.graph.memgraph import Edges, MemGraph
from einpage.memplan.graph.packed import MOVE, Nodes
from einpage.memplan.graph.recorder import edges_of
from einpage.memplan.graph.simulate import Timeline, copied_bytes, queue_numbers, queues_of, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue

SOON = 1e-9
"""Seconds: as good as at once."""


def with_joined_loads(memgraph: MemGraph, machine: Machine, most_bytes: int | None = None) -> tuple[MemGraph, float]:
    """`memgraph` with loads joined, of up to `most_bytes` together (None: as many as the largest load has), or of half as many, and so on,
    while that is faster; itself, where it never is. And the seconds that it takes."""
    timeline, link = simulate(memgraph, machine), machine.usual_link(Queue.H2D)
    best, best_s = memgraph, timeline.makespan_s
    if not link.latency_s:
        return best, best_s
    loads = _Loads.of(memgraph, timeline)
    limit = loads.largest_bytes if most_bytes is None else most_bytes
    while limit >= loads.two_smallest_bytes:
        found = _joined(memgraph, [*loads.joined(limit)])
        seconds = simulate(found, machine).makespan_s
        if seconds < best_s:
            best, best_s = found, seconds
        elif best is not memgraph:
            break
        limit //= 2
    return best, best_s


@dataclass(frozen=True, slots=True)
class _Joined:
    """Neighbours of the queue that become one load."""

    nodes: tuple[int, ...]
    after: int
    """The last node that any of them waits for."""


@dataclass(frozen=True, slots=True)
class _Loads:
    """The h2d queue, in order; an entry each."""

    node: list[int]
    is_move: list[bool]
    nbytes: list[int]
    after: list[int]
    """The last node that it waits for, -1 for none."""
    before: list[int]
    """The first node that waits for it."""
    may_start_s: list[float]
    """When all that it waits for is done, but for the queue."""
    start_s: list[float]

    @property
    def largest_bytes(self) -> int:
        """Of a single one."""
        return max(self.nbytes, default=0)

    @property
    def two_smallest_bytes(self) -> int:
        """Together; of fewer nothing is joined."""
        return max(1, sum(sorted(self.nbytes)[:2]))

    @staticmethod
    def of(memgraph: MemGraph, timeline: Timeline) -> _Loads:
        """Those of a plan that runs as the timeline says."""
        count, source, target = len(memgraph.nodes), memgraph.edges.source, memgraph.edges.target
        after, before, may_start_s = np.full(count, -1), np.full(count, count), np.zeros(count)
        np.maximum.at(after, target, source)
        np.minimum.at(before, source, target)
        np.maximum.at(may_start_s, target, timeline.finish_s[source])
        loads = np.flatnonzero(queue_numbers(memgraph) == queues_of(memgraph).index(Queue.H2D))
        columns = (Nodes.of(memgraph.nodes).kind == MOVE, copied_bytes(memgraph), after, before, may_start_s, timeline.start_s)
        return _Loads(loads.tolist(), *(column[loads].tolist() for column in columns))

    def joined(self, limit: int) -> Iterator[_Joined]:
        """Each load joins the one before where both have no more bytes than `limit`, it may start when that one does, and what it waits
        for is before any node that waits for that one."""
        begun: list[int] = []
        nbytes = after = before = 0
        may_start_s = 0.0
        for i in range(len(self.node)):
            joins = (
                begun
                and self.is_move[i]
                and self.is_move[begun[0]]
                and nbytes + self.nbytes[i] <= limit
                and self.after[i] < before
                and self.may_start_s[i] <= may_start_s + SOON
            )
            if not joins:
                if len(begun) > 1:
                    yield _Joined(tuple(self.node[j] for j in begun), after)
                begun, nbytes, after, before, may_start_s = [], 0, -1, self.before[i], self.start_s[i]
            begun.append(i)
            nbytes, after, before = nbytes + self.nbytes[i], max(after, self.after[i]), min(before, self.before[i])
        if len(begun) > 1:
            yield _Joined(tuple(self.node[j] for j in begun), after)


def _joined(memgraph: MemGraph, joined: Sequence[_Joined]) -> MemGraph:
    """`memgraph` with loads joined: each lies where the first did, or after what it waits for."""
    count = len(memgraph.nodes)
    place, into = np.arange(count, dtype=float), np.arange(count)
    for load in joined:
        first, *others = load.nodes
        into[others] = first
        place[first] = max(first, load.after + 0.5)
    kept = np.flatnonzero(into == np.arange(count))
    kept = kept[np.argsort(place[kept], kind="stable")]
    number = np.empty(count, np.int64)
    number[kept] = np.arange(len(kept))
    number = number[into]
    return replace(memgraph, nodes=_renumbered(Nodes.of(memgraph.nodes), kept, number), edges=_edges(memgraph.edges, number))


def _renumbered(nodes: Nodes, kept: Int64s, number: Int64s) -> Nodes:
    """`kept` [new node] the old one, `number` [old node] the new one. Moves alone change places, so what others read stays as it is."""
    operands = np.diff(nodes.operand_row)[kept]
    copies = nodes.copies()
    node = number[copies.node]
    is_other = copies.target != nodes.result[kept][node]
    order = np.flatnonzero(is_other)[np.argsort(node[is_other], kind="stable")]
    return replace(
        nodes,
        kind=nodes.kind[kept],
        subject=nodes.subject[kept],
        result=nodes.result[kept],
        operand_row=np.concatenate(([0], np.cumsum(operands))).astype(np.int32),
        scratch_node=number[nodes.scratch_node].astype(np.int32),
        beside_node=number[nodes.beside_node].astype(np.int32),
        other_node=node[order].astype(np.int32),
        other_source=copies.source[order],
        other_target=copies.target[order],
    )


def _edges(edges: Edges, number: Int64s) -> Edges:
    source, target = number[edges.source], number[edges.target]
    kept = source != target
    return edges_of(source[kept], target[kept], edges.kind[kept])
