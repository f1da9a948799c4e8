"""Where every tensor is during the simulated execution, and what a task in flight has reserved.

In: reservations, evictions and executions, in the order of the simulation. Out: nodes in the Recorder. Invariants: what a task in flight
touches is pinned and not evicted, nor are residents; a tensor is at one offset of the device or at none; a clean tensor is evicted without
a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import Kind, Task, TensorId
from einpage.memplan.graph.arena import HOLE, Arena, Piece
from einpage.memplan.graph.host_slots import HostSlots
from einpage.memplan.graph.memgraph import NodeId, ResidencyId
from einpage.memplan.graph.recorder import NO_RESIDENCY, Beside, Recorder
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.horizons.victim import FAR, HOLE_TRAFFIC, LARGE, Column, traffic
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.resident_sets import NO_RESIDENTS, Residents

NOWHERE = -1
"""Stands for an offset."""
WORKSPACE = TensorId(-1)
"""Stands for the workspace where a tensor is expected."""
NO_STEP = -1
"""Stands for a step."""


@dataclass(slots=True)
class Reservation:
    """A task in flight, between the horizons: what it has reserved."""

    step: Step
    task: Task
    reads: tuple[TensorId, ...]
    donated: dict[TensorId, TensorId]
    """By result, the operand in whose place it is written."""
    result_after: dict[TensorId, list[Piece]] = field(default_factory=dict)
    """By result, the last users of the bytes that it will overwrite; of those that are reserved, and not written in place."""
    workspace_at: int = NOWHERE
    workspace_after: list[Piece] = field(default_factory=list)
    prefetched_bytes: int = 0
    """Bytes loaded or gathered for it."""
    runs_at_once: bool = False
    """Whether something donated is read again by later tasks, which find it absent only once this one has run."""


class Memory:
    """Device and host. Flat lists by tensor; sizes are aligned bytes."""

    def __init__(self, problem: Problem, reuse: Reuse, recorder: Recorder, residents: Residents = NO_RESIDENTS) -> None:
        graph = problem.graph
        n = len(graph.tensors)
        self.graph, self.reuse, self.recorder = graph, reuse, recorder
        self.alignment, self.size = problem.alignment, problem.sizes
        self.is_output = [t.kind is Kind.OUTPUT for t in graph.tensors]
        self.device = Arena(problem.capacity, problem.alignment)
        self.host = HostSlots(problem, recorder)
        self.offset = [NOWHERE] * n
        """[tensor] on the device, from its reservation on."""
        self.on_device = [NO_RESIDENCY] * n
        """[tensor] its residency, from the node that creates it on."""
        self.pins = [0] * n
        """[tensor] how many tasks in flight touch it, and one more of a resident."""
        self.evictable_bytes = 0
        """On the device and not pinned."""
        self.evictable_until: Int64s = np.full(n - HOLE, NO_STEP)
        """[tensor] the next use of what is evictable, NO_STEP of the rest; WORKSPACE and HOLE count from the end."""
        self.evictable_until[HOLE] = FAR
        self.evictable_traffic: Column = np.full(n - HOLE, HOLE_TRAFFIC, object if self.device.capacity >= LARGE else np.int64)
        """[tensor] the traffic of what is evictable."""
        self.pinned_residents: set[TensorId] = set()
        """Residents that a later task reads: each has a pin of its own."""
        self.bytes_below_residents = self.device.capacity
        """The arena up to the lowest pinned resident."""
        for t in residents.tensors:
            self._place_resident(t)
        self.start = (*self.host.start, *(self.on_device[t] for t in residents.tensors))
        """What is present before the first node."""

    def _place_resident(self, t: TensorId) -> None:
        """`t` lies directly below the residents before it, from the start on."""
        self.bytes_below_residents -= self.size[t]
        self.offset[t] = self.bytes_below_residents
        self.device.allocate_at(self.offset[t], self.size[t], t)
        self.on_device[t] = self.recorder.residency(t, DEVICE, self.offset[t])
        self.pinned_residents.add(t)
        self.pins[t] += 1

    # The allocation horizon.

    def admit(self, step: Step, task: Task) -> Reservation:
        """Pin what the task touches; no bytes are reserved yet."""
        reads = self.reuse.reads[step]
        for t in reads:
            if not self.pins[t] and self.offset[t] != NOWHERE:
                self._remove_evictable(t)
            self.pins[t] += 1
        for t in task.results:
            self.pins[t] += 1
        donated: dict[TensorId, TensorId] = {}
        for one in () if task.gathers else task.written:
            for t in one.inplace:
                if self.reuse.is_last(t, step) and not self.is_output[t] and t not in donated.values():
                    donated[one.tensor] = t
                    break
        return Reservation(step, task, reads, donated)

    def needs(self, reservation: Reservation) -> list[TensorId]:
        """What has to be reserved for the task: absent operands, the results, the workspace, in this order."""
        needed = [t for t in reservation.reads if self.offset[t] == NOWHERE]
        needed += reservation.task.results
        if reservation.task.workspace_bytes:
            needed.append(WORKSPACE)
        return needed

    def size_of(self, reservation: Reservation, needed: TensorId) -> int:
        """Bytes of the arena to be found for `needed`; none for a result in place."""
        if needed == WORKSPACE:
            return aligned(reservation.task.workspace_bytes, self.alignment)
        return 0 if needed in reservation.donated else self.size[needed]

    def footprint(self, reservation: Reservation) -> int:
        """Bytes that the task needs below the residents."""
        operands = sum(self.size[t] for t in reservation.reads if t not in self.pinned_residents)
        return operands + sum(self.size_of(reservation, t) for t in (*reservation.task.results, WORKSPACE))

    def reserve(self, reservation: Reservation, needed: TensorId, start: int) -> None:
        """Allocate from the hole at `start`; a reload or a gather is issued now, for the link waits for no task.

        A result in place has its bytes already, and `start` is not used.
        """
        task = reservation.task
        if (donated := reservation.donated.get(needed)) is not None:
            self.offset[needed] = self.offset[donated]
            return
        after = self.device.allocate(start, self.size_of(reservation, needed), needed)
        if needed == WORKSPACE:
            reservation.workspace_at, reservation.workspace_after = start, after
            return
        self.offset[needed] = start
        if needed not in task.results:
            source = self.host.copy[needed]
            assert source != NO_RESIDENCY, f"{self.graph.tensors[needed].name} is nowhere"
            self.on_device[needed] = self.recorder.move(source, DEVICE, start, after)
        elif task.gathers:
            operands = tuple(tuple(self.host.copy[t] for t in operand) for operand in task.operands)
            self.on_device[needed] = self.recorder.gather(task.id, operands, needed, DEVICE, start, after)
        else:
            reservation.result_after[needed] = after
            return
        reservation.prefetched_bytes += self.size[needed]

    def cancel(self, reservation: Reservation) -> None:
        """Undo the reservations of what the task itself will write: as if they had never been made."""
        for after in reservation.result_after.values():
            self.device.undo(after)
        reservation.result_after.clear()
        if reservation.workspace_after:
            self.device.undo(reservation.workspace_after)
            reservation.workspace_at, reservation.workspace_after = NOWHERE, []
        for t in () if reservation.task.gathers else reservation.task.results:
            self.offset[t] = NOWHERE

    # Eviction.

    def spill(self, t: TensorId, reservation: Reservation) -> None:
        """Make sure of a copy on the host; where there is no space for one, the error names the task of `reservation`."""
        self.host.spill(t, self.on_device[t], reservation.task.name)

    def evict(self, t: TensorId) -> None:
        """Free the device's copy of what is not dead."""
        if not self.pins[t]:
            self._remove_evictable(t)
        self._free(t)

    def _free(self, t: TensorId) -> None:
        self.device.release(self.offset[t], self.recorder.free(self.on_device[t]))
        self._set_absent(t)

    def _set_absent(self, t: TensorId) -> None:
        self.on_device[t] = NO_RESIDENCY
        self.offset[t] = NOWHERE

    def _remove_evictable(self, t: TensorId) -> None:
        """`t`, which is evictable, is about to be pinned or evicted."""
        self.evictable_bytes -= self.size[t]
        self.evictable_until[t] = NO_STEP

    def _add_evictable(self, t: TensorId) -> None:
        self.evictable_bytes += self.size[t]
        self.evictable_until[t] = self.reuse.next_use(t)
        self.evictable_traffic[t] = self.traffic(t)

    def traffic(self, t: TensorId) -> int:
        """What moving `t` out and in again costs, as a Price is given it."""
        return traffic(self.size[t], self.host.copy[t] == NO_RESIDENCY)

    # The execution horizon.

    def execute(self, reservation: Reservation) -> None:
        """The task runs: its results exist, and what no later task reads is freed."""
        if not reservation.task.gathers:
            node = self._compute(reservation)
            if reservation.workspace_at != NOWHERE:
                self.device.release(reservation.workspace_at, node)
        for t in reservation.reads:
            self.reuse.execute(t)
            if t in self.pinned_residents and self.reuse.is_dead(t):
                self._unpin_resident(t)
            self._unpin(t)
        for result in reservation.task.results:
            if self.is_output[result]:
                self.host.write_output(result, self.on_device[result])
            self._unpin(result)

    def _compute(self, reservation: Reservation) -> NodeId:
        task, donated = reservation.task, reservation.donated
        operands = tuple(tuple(self.on_device[t] for t in operand) for operand in task.operands)
        in_place = {result: self.on_device[t] for result, t in donated.items()}
        workspace = None if reservation.workspace_at == NOWHERE else (reservation.workspace_at, task.workspace_bytes)
        after = [piece for pieces in reservation.result_after.values() for piece in pieces] + reservation.workspace_after
        result, *beside = task.results
        others = [Beside(t, self.offset[t], in_place.get(t)) for t in beside]
        node, made = self.recorder.compute(
            task.id, operands, result, DEVICE, self.offset[result], after, in_place.get(result), workspace, others
        )
        for n, t in enumerate(task.results):
            self.on_device[t] = ResidencyId(made + n)
            if t in donated:
                self.device.rename(self.offset[t], t)
                self._set_absent(donated[t])
        return node

    def _unpin_resident(self, t: TensorId) -> None:
        """`t` is no longer a resident."""
        self.pinned_residents.remove(t)
        self.bytes_below_residents += self.size[t]
        self._unpin(t)

    def _unpin(self, t: TensorId) -> None:
        self.pins[t] -= 1
        if self.pins[t]:
            return
        present = self.offset[t] != NOWHERE
        if self.reuse.is_dead(t):
            if present:
                self._free(t)
            self.host.drop(t)
        elif present:
            self._add_evictable(t)

    def end(self) -> tuple[ResidencyId, ...]:
        """The outputs on the host. Asserts that nothing else is left anywhere."""
        assert self.device.free_bytes == self.device.capacity, "something is left on the device"
        assert self.host.is_tidy(), "a spill slot is left on the host"
        return tuple(self.host.copy[t] for t in self.host.outputs)
