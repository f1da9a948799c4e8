"""What the judge reads of a plan: a well-formed MemGraph as columns, with the node that creates and the node that ends each residency.

In: the nodes and residencies of a MemGraph. Out: PlanColumns; its lifetimes are filled in by lifetimes.py, which proves that they exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from einpage.einsum_front.base.columns import Bools, Int64s
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.judge.well_formed import readers
from einpage.memplan.machine.places import DISK, Place

ALWAYS = -1
"""Stands for the creator of what is present at the start."""
NEVER = np.iinfo(np.int64).max
"""Stands for the end of what is still present at the end."""


@dataclass(slots=True)
class PlanColumns:
    """A well-formed MemGraph as columns, one entry a residency unless said otherwise."""

    memgraph: MemGraph
    nodes: Nodes
    tensor: list[int]
    offset: list[int]
    offset_end: list[int]
    residencies: Residencies
    place: list[int]
    """Which of `residencies.places`."""
    reader: Int64s
    """[read] the node, ascending; each residency once a node."""
    read: Int64s
    """[read] the residency."""
    created_at: list[int] = field(default_factory=list)
    """The creating node, or ALWAYS."""
    ended_at: list[int] = field(default_factory=list)
    """The Free, the Compute that the bytes are donated to, or NEVER."""
    donated: list[bool] = field(default_factory=list)
    """Whether `ended_at` writes its result in place of it."""

    @staticmethod
    def of(memgraph: MemGraph, nodes: Nodes, residencies: Residencies) -> PlanColumns:
        """Without lifetimes yet."""
        copies = nodes.copies()
        reader = np.concatenate((readers(nodes), copies.node)).astype(np.int64)
        read = np.concatenate((nodes.reads, copies.source)).astype(np.int64)
        _, first = np.unique(reader * len(residencies) + read, return_index=True)
        first = np.sort(first)  # an operand that is read twice is one read, where it occurs first
        first = first[np.argsort(reader[first], kind="stable")]
        return PlanColumns(
            memgraph,
            nodes,
            tensor=residencies.tensor.tolist(),
            offset=residencies.offset.tolist(),
            offset_end=(residencies.offset + residencies.nbytes).tolist(),
            residencies=residencies,
            place=residencies.place.tolist(),
            reader=reader[first],
            read=read[first],
        )

    def at(self, place: Place) -> list[bool]:
        """Whether each residency is there."""
        there: list[bool] = self.residencies.at(place).tolist()
        return there

    def stored(self) -> set[int]:
        """Tensors that are on a disk from the start."""
        on_disk = self.at(DISK)
        return {self.tensor[r] for r in self.memgraph.start if on_disk[r]}

    def creator(self, residency: int) -> int | None:
        """The creating node; None for what is present at the start."""
        node = self.created_at[residency]
        return None if node == ALWAYS else node

    def named(self, residency: int) -> str:
        """A residency for an error message: its tensor's name, number, place and byte offset."""
        place = self.residencies.places[self.place[residency]]
        return f"{self.memgraph.graph.tensors[self.tensor[residency]].name} (residency {residency}, {place} {self.offset[residency]})"

    def lifetimes(self) -> tuple[Int64s, Int64s, Bools]:
        """`created_at`, `ended_at` and `donated` as arrays."""
        return np.array(self.created_at, np.int64), np.array(self.ended_at, np.int64), np.array(self.donated, bool)
