"""The host's side of the simulation: weights, inputs, output slots and spill slots in one arena with planned offsets.

In: tensors that have to be on the host. Out: Moves in the Recorder. Invariant: a tensor is written to the host at most once, and never if
the host has a copy from the start; a copy is valid until the tensor is dead. Weights are first, by name: plans of other sizes of one model
in the same pieces find them at the same offsets.

    0     from the start     outputs          spill slots, used again and again       host_bytes
    | weights and inputs | out.0 | out.1 | h.3 | q.7 |  hole  | h.9 |      never used          |
"""

from __future__ import annotations

from typing import NoReturn

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TensorId
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.arena import Arena
from einpage.memplan.graph.memgraph import ResidencyId
from einpage.memplan.graph.recorder import NO_RESIDENCY, Recorder
from einpage.memplan.machine.places import HOST
from einpage.memplan.problem.problem import Problem

MOST_NAMED = 8
"""How many spilled tensors an error lists."""


class HostSlots:
    """`copy[t]` is the residency of tensor t on the host, or NO_RESIDENCY."""

    def __init__(self, problem: Problem, recorder: Recorder) -> None:
        graph, sizes = problem.graph, problem.sizes
        self.graph, self.sizes, self.recorder, self.total = graph, sizes, recorder, problem.machine.host_bytes
        self.copy = [NO_RESIDENCY] * len(graph.tensors)
        self._is_permanent = [t.kind in HOST_AT_START or t.kind is Kind.OUTPUT for t in graph.tensors]
        self._slot_at: dict[TensorId, int] = {}
        top = 0
        weights = sorted((t for t in graph.tensors if t.kind is Kind.WEIGHT), key=lambda t: t.name)
        for t in (*weights, *(t for t in graph.tensors if t.kind in HOST_AT_START and t.kind is not Kind.WEIGHT)):
            self.copy[t.id] = recorder.residency(t.id, HOST, top)
            top += sizes[t.id]
        present = top
        self.start = tuple(r for r in self.copy if r != NO_RESIDENCY)
        for t in graph.tensors:
            if t.kind is Kind.OUTPUT:
                self._slot_at[t.id] = top
                top += sizes[t.id]
        self.outputs = tuple(self._slot_at)
        self._base = top
        if top > self.total:
            self._refuse_start(present, top)
        self._spills = Arena(self.total - top, problem.alignment)

    @property
    def nbytes(self) -> Nbytes:
        """The host bytes that the plan needs."""
        return Nbytes(self._base + self._spills.high_water)

    def write_output(self, t: TensorId, source: ResidencyId) -> None:
        """Copy an output to its slot as soon as it exists."""
        self.copy[t] = self.recorder.move(source, HOST, self._slot_at[t], ())

    def spill(self, t: TensorId, source: ResidencyId, task: str) -> None:
        """Copy `t` to a free slot, unless the host has it. Raises DoesNotFit, in the name of `task`, where no slot is large enough."""
        if self.copy[t] != NO_RESIDENCY:
            return
        start = self._spills.find(self.sizes[t])
        if start is None:
            self._refuse_spill(t, task)
        after = self._spills.allocate(start, self.sizes[t], t)
        self._slot_at[t] = start
        self.copy[t] = self.recorder.move(source, HOST, self._base + start, after)

    def drop(self, t: TensorId) -> None:
        """`t` is dead: its spill slot, if it has one, may be used again. Other copies are permanent."""
        if self._is_permanent[t] or self.copy[t] == NO_RESIDENCY:
            return
        self._spills.release(self._slot_at[t], self.recorder.free(self.copy[t]))
        self.copy[t] = NO_RESIDENCY

    def is_tidy(self) -> bool:
        """Whether no spill slot is in use."""
        return self._spills.free_bytes == self._spills.capacity

    def _refuse_start(self, present: int, top: int) -> NoReturn:
        placed = present if present <= self.total else 0
        pinned = (("weights and inputs", present),) if placed else ()
        free = self.total - placed
        raise DoesNotFit(Misfit("(before the first)", "host", top - placed, free, free, self.total, pinned, None))

    def _refuse_spill(self, t: TensorId, task: str) -> NoReturn:
        spilled = sorted(((start - end, owner) for start, end, owner in self._spills.segments() if owner is not None))
        named = tuple((self.graph.tensors[owner].name, -negative) for negative, owner in spilled[:MOST_NAMED])
        pinned = (("weights, inputs and outputs", self._base), *named)
        raise DoesNotFit(
            Misfit(task, "host", self.sizes[t], self._spills.free_bytes, self._spills.largest_hole(), self.total, pinned, None)
        )
