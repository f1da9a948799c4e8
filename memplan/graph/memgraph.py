"""The MemGraph: where every byte lives and when it moves.

A residency is one tensor at one place in one extent of bytes, from the node that creates it to the node that frees it. Nodes stand in the
order the planner made them, which is a valid execution order; the edges say which other orders are. Any order that respects the
edges is correct.

    offset
      512 ┤        ┌── w1 (residency 5) ──┐┌─ w2 (9) ───
      256 ┤ ┌── x (residency 3) ──────────────┐
        0 └─┴──────┴──────────────────────┴┴──┴────────► nodes
            Move→3  Move→5   Compute(3,5)  Free(5) Move→9     Free(5) → Move→9 is a memory edge
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NewType, TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.units import ALIGNMENT, Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import TaskGraph, TaskId, TensorId
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Place, Queue

NodeId = NewType("NodeId", int)
"""Index into MemGraph.nodes."""
ResidencyId = NewType("ResidencyId", int)
"""Index into MemGraph.residencies."""
Offset = NewType("Offset", int)
"""Bytes from the start of an arena."""


Copy: TypeAlias = "tuple[ResidencyId, ResidencyId]"
"""Of a tensor: where it is read, and where it is written."""


@dataclass(frozen=True, slots=True)
class Extent:
    offset: Offset
    nbytes: Nbytes
    """What the tensor uses, not rounded."""

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Residency:
    id: ResidencyId
    tensor: TensorId
    place: Place
    extents: tuple[Extent, ...]
    """In order; one, for now."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a task: reads residencies on the device, creates those of its results."""

    task: TaskId
    operands: tuple[tuple[ResidencyId, ...], ...]
    """Parallel to the task's operands."""
    creates: ResidencyId
    """May share its extent with a donated operand (which then has no Free)."""
    workspace: Extent | None
    others: tuple[ResidencyId, ...] = ()
    """Of the task's results beside the first, in order; each may share its extent with a donated operand of its own."""


@dataclass(frozen=True, slots=True)
class Move:
    """Copy tensors from one place to another, which name its queue: host → device is a reload, device → host an offload.

    Several go together for one latency: none begins before what any of them waits for, and who reads one waits for all."""

    source: ResidencyId
    target: ResidencyId
    others: tuple[Copy, ...] = ()
    """Tensors that go with the first, between the same two places."""

    @property
    def copies(self) -> tuple[Copy, ...]:
        """All, the first included."""
        return ((self.source, self.target), *self.others)


@dataclass(frozen=True, slots=True)
class HostGather:
    """A gathering task: min(rows, table) bytes over the link to where `creates` is: the device, or the host, for rows of a table on a disk,
    which a Move then copies on."""

    task: TaskId
    operands: tuple[tuple[ResidencyId, ...], ...]
    """Residencies on the host; of a table also on a disk, where the rows are created on the host."""
    creates: ResidencyId


@dataclass(frozen=True, slots=True)
class Free:
    """The residency's contents end here; whoever next uses its bytes comes after this node."""

    residency: ResidencyId


Node: TypeAlias = "Compute | Move | HostGather | Free"


class EdgeKind(IntEnum):
    DATA = 0
    """Producer → consumer, and last reader → Free."""
    MEMORY = 1
    """Free (or, for a donated operand, every other user) → the first who writes these bytes next."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Flat, sorted by (target, source), without duplicates; source < target always."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class MemGraph:
    graph: TaskGraph
    arenas: tuple[tuple[Place, Nbytes], ...]
    """Size of the arena at each place. The host's holds copies of weights and inputs, spill slots and outputs, at the planned offsets.

    With an arena on a disk it is the host's budget, and of the weights it holds only what is on its way or resident; on the disk are all
    weights from the start, and what is spilled from the host lies after them."""
    residencies: Sequence[Residency]
    nodes: Sequence[Node]
    """Immutable, both: tuples, or the columns of packed.py, which a large graph wants."""
    edges: Edges
    start: tuple[ResidencyId, ...]
    """What is there before the first node: host copies of weights and inputs (and, for a warm plan, device residencies)."""
    end: tuple[ResidencyId, ...]
    """What is there after the last node: the outputs on the host, besides those copies; after a loop, what it began with on the device."""
    alignment: int = ALIGNMENT
    """Every offset is a multiple of this, and every extent's length is rounded up to it when footprints are counted. In a plan with a disk
    this is so on the device; on the host and the disk an extent may begin anywhere, and the sectors that it touches are its alone."""
    loops: bool = False
    """Whether it ends as it began: the same tensors at the same places of the device, so that it can run again where it has run."""
    carried: tuple[tuple[TensorId, TensorId], ...] = ()
    """Tiles of states, at the start and at the end: the second is at the end where the first was at the start, and is the first of the
    next run."""

    def arena_bytes(self, place: Place) -> Nbytes | None:
        """Size of the arena at `place`; None where the plan knows no such place."""
        return next((nbytes for known, nbytes in self.arenas if known == place), None)

    def with_arena(self, place: Place, nbytes: int) -> MemGraph:
        """The same plan with an arena of another size."""
        return replace(self, arenas=tuple({**dict(self.arenas), place: Nbytes(nbytes)}.items()))

    @property
    def budget_bytes(self) -> Nbytes:
        """Size of the device's arena."""
        return self.arena_bytes(DEVICE) or Nbytes(0)

    @property
    def host_bytes(self) -> Nbytes:
        """Size of the host's arena."""
        return self.arena_bytes(HOST) or Nbytes(0)

    @property
    def has_disk(self) -> bool:
        """Whether the host is a tier between the device and a disk."""
        return self.arena_bytes(DISK) is not None

    @property
    def stored_bytes(self) -> Nbytes:
        """Of the disk's arena, what is there from the start, in whole sectors: spilled tensors lie after it."""
        stored = (extent.end for r in map(self.residencies.__getitem__, self.start) if r.place == DISK for extent in r.extents)
        return aligned(max(stored, default=0), SECTOR)

    @property
    def resident(self) -> frozenset[TensorId]:
        """What is on the device before the first node."""
        there = (self.residencies[r] for r in self.start)
        return frozenset(r.tensor for r in there if r.place == DEVICE)

    def queue(self, node: NodeId) -> Queue | None:
        """The engine that runs `node`; None for a Free, which occupies none."""
        match self.nodes[node]:
            case Compute():
                return Queue.COMPUTE
            case HostGather(creates=target):
                return Queue.H2D if self.residencies[target].place == DEVICE else Queue.READ
            case Move(source=source, target=target):
                return Queue(self.residencies[source].place, self.residencies[target].place)
            case Free():
                return None

    def moved_bytes(self, node: NodeId) -> Nbytes:
        """Bytes `node` sends over a link; 0 for computes and frees."""
        match self.nodes[node]:
            case Move() as move:
                return Nbytes(sum(self._nbytes(target) for _, target in move.copies))
            case HostGather(_, _, target):
                return self._nbytes(target)
            case _:
                return Nbytes(0)

    def _nbytes(self, residency: ResidencyId) -> Nbytes:
        return self.graph.tensors[self.residencies[residency].tensor].nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A plan, and the positions of a generation at which it runs: a pass takes those from some `at` in past … past + extra on."""

    past: int
    """Positions that stand before every pass."""
    extra: int
    tokens: int
    """Positions that a pass takes, of each sequence."""
    reads: bool
    """Whether its passes read prompts. Where it loops, its first pass is another plan (memplan/residency/loading.py)."""
    memgraph: MemGraph


@dataclass(frozen=True, slots=True, eq=False)
class PlanSet:
    """Plans that run one after the other on the same arenas: what a phase leaves on the host, and what of the weights is resident, is
    where the next one has it."""

    phases: tuple[Phase, ...]
    """Those that read prompts, at once or in chunks; then loops that do not, which take a token a pass. Of both, each is for the positions
    after those of the one before; what reads may follow what does not again."""
    shortest: int
    """Tokens of the shortest prompt: where its first pass after the prompts' is."""
    longest: int
    """Tokens of the longest prompt; where a pass reads fewer, prompts are read in chunks, and loops read what is left of them."""
    positions: int
    """Of the longest text."""
    spread: int = 0
    """By how many positions sequences of one batch may be apart."""
