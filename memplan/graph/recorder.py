"""The MemGraph as it grows: nodes in a valid execution order, residencies, and the edges that each node implies.

In: calls in the order of a simulated execution. Invariant: a node's edges come only from nodes appended before it, so that running the
nodes one after the other, or each queue first in first out, can never deadlock.

    DATA    creator → reader;  last readers (or the creator, if nobody read) → Free
    MEMORY  whoever used these bytes last → the node that writes them next

Edges are recorded in any order of targets, with duplicates, and returned sorted by (target, source), each pair once; DATA wins over
MEMORY, since it says more. A pair is one 64-bit key, so numpy sorts and removes duplicates: 0.1 µs an edge.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from einpage.einsum_front.base.columns import Int64s, UInt8s
from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId, TensorId
from einpage.memplan.graph.arena import Piece
from einpage.memplan.graph.memgraph import EdgeKind, Edges, NodeId, ResidencyId
from einpage.memplan.graph.packed import NodeList, ResidencyList
from einpage.memplan.machine.places import Place

AT_START = NodeId(-1)
"""Stands for the creator of what is present before the first node."""
NO_RESIDENCY = ResidencyId(-1)
"""Stands for a residency."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A result of a task beside its first."""

    tensor: TensorId
    offset: int
    donated: ResidencyId | None
    """The operand that it is written in place of."""


class Recorder:
    """Each method appends a node, the residency it creates and the edges that it implies."""

    __slots__ = ("_creator", "_nbytes", "_readers", "edges", "nodes", "residencies")

    def __init__(self, graph: TaskGraph) -> None:
        self.nodes, self.residencies = NodeList(), ResidencyList()
        self.edges = EdgeList()
        self._nbytes = [t.nbytes for t in graph.tensors]
        self._creator: list[NodeId] = []
        self._readers: list[list[NodeId]] = []

    def residency(self, t: TensorId, place: Place, offset: int, creator: NodeId = AT_START) -> ResidencyId:
        """A new residency; without a creator it is present at the start."""
        self._creator.append(creator)
        self._readers.append([])
        return self.residencies.append_one(t, place, offset, self._nbytes[t])

    def move(self, source: ResidencyId, place: Place, offset: int, after: Iterable[Piece]) -> ResidencyId:
        """Copy `source` to bytes whose last users the pieces `after` name; answers the copy."""
        node = NodeId(len(self.nodes))
        target = self.residency(TensorId(self.residencies.tensor[source]), place, offset, node)
        self.nodes.move(source, target)
        self._read(source, node)
        self._write(after, node)
        return target

    def gather(
        self, task: TaskId, operands: tuple[tuple[ResidencyId, ...], ...], t: TensorId, place: Place, offset: int, after: Iterable[Piece]
    ) -> ResidencyId:
        """Run a gathering task into `t`."""
        node = NodeId(len(self.nodes))
        created = self.residency(t, place, offset, node)
        self.nodes.gather(task, operands, created)
        for operand in operands:
            for r in operand:
                self._read(r, node)
        self._write(after, node)
        return created

    def compute(
        self,
        task: TaskId,
        operands: tuple[tuple[ResidencyId, ...], ...],
        t: TensorId,
        place: Place,
        offset: int,
        after: Iterable[Piece],
        donated: ResidencyId | None,
        workspace: tuple[int, int] | None,
        others: Sequence[Beside] = (),
    ) -> tuple[NodeId, ResidencyId]:
        """Run a task into `t`, in place of the operand `donated` if there is one; `workspace` is (offset, bytes). Answers the node and the
        residency of `t`; those of `others` are numbered after it, in order."""
        node = NodeId(len(self.nodes))
        created = self.residency(t, place, offset, node)
        beside = [self.residency(other.tensor, place, other.offset, node) for other in others]
        self.nodes.compute(task, operands, created, workspace, beside)
        for given in (donated, *(other.donated for other in others)):
            for reader in () if given is None else self._readers[given]:
                self.edges.memory(reader, node)
        for operand in operands:
            for r in operand:
                self._read(r, node)
        self._write(after, node)
        return node, created

    def free(self, r: ResidencyId) -> NodeId:
        """The contents of `r` end here."""
        node = NodeId(len(self.nodes))
        self.nodes.free(r)
        readers: Sequence[NodeId] = self._readers[r] or (self._creator[r],)
        for reader in readers:
            self.edges.data(reader, node)
        return node

    def _read(self, r: ResidencyId, node: NodeId) -> None:
        self.edges.data(self._creator[r], node)
        readers = self._readers[r]
        if not readers or readers[-1] != node:
            readers.append(node)

    def _write(self, after: Iterable[Piece], node: NodeId) -> None:
        for _, _, last in after:
            self.edges.memory(last, node)


_NODE_BITS = 31
_DATA, _MEMORY = int(EdgeKind.DATA), int(EdgeKind.MEMORY)


class EdgeList:
    """Grows by `data` and `memory`, then becomes Edges. Sources below 0 (bytes never used before) are left out."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = array("q")
        """(target, source, kind) packed, most significant first."""

    def data(self, source: int, target: int) -> None:
        """An edge from a producer to its consumer, or from the last reader of a residency to its Free."""
        if source >= 0:
            self._key.append(((target << _NODE_BITS) | source) << 1 | _DATA)

    def memory(self, source: int, target: int) -> None:
        """An edge from the Free (or other last user) of some bytes to the node that writes them next."""
        if source >= 0:
            self._key.append(((target << _NODE_BITS) | source) << 1 | _MEMORY)

    def finish(self) -> Edges:
        """The edges so far, sorted by target, then source. A pair with both kinds has one edge, DATA."""
        return _sorted(np.frombuffer(self._key, np.int64) if self._key else np.empty(0, np.int64))


def edges_of(source: Int64s, target: Int64s, kind: UInt8s) -> Edges:
    """Edges in any order, some of them perhaps twice, as an EdgeList's are."""
    return _sorted(((target << _NODE_BITS) | source) << 1 | kind)


def _sorted(keys: Int64s) -> Edges:
    key = np.sort(keys)
    pair = key >> 1
    first = np.ones(len(key), bool)
    first[1:] = pair[1:] != pair[:-1]
    pair = pair[first]
    source = (pair & ((1 << _NODE_BITS) - 1)).astype(np.int32)
    target = (pair >> _NODE_BITS).astype(np.int32)
    assert bool((source < target).all()), "an edge points backwards"
    return Edges(source, target, (key[first] & 1).astype(np.uint8))
