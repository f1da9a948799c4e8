"""What is where during the simulated execution, and what a task between the horizons has been promised.

In: promises, evictions and executions, in the order of the simulation. Out: nodes in the Recorder. Invariants: what a task between the
horizons touches is pinned and stays, and so do residents; a tensor is at one place on the device or at none; a clean tensor leaves
without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import Kind, Task, TensorId
from einpage.memplan.graph.arena import HOLE, Arena, Piece
from einpage.memplan.graph.host_slots import Host
from einpage.memplan.graph.memgraph import DEVICE, NodeId, ResidencyId
from einpage.memplan.graph.recorder import NO_RESIDENCY, Recorder
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.horizons.victim import FAR, HOLE_LOAD, LARGE, Column, load
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.resident_sets import NOBODY, Residents

NOWHERE = -1
"""Stands for an offset."""
WORKSPACE = TensorId(-1)
"""Stands for the workspace where a tensor is wanted."""
NO_STEP = -1
"""Stands for a step."""


@dataclass(slots=True)
class Reservation:
    """A task between the horizons: what it has been promised."""

    step: Step
    task: Task
    reads: tuple[TensorId, ...]
    taken: TensorId | None
    """The operand whose bytes the result takes over."""
    result_after: list[Piece] = field(default_factory=list)
    """Whose bytes the result will overwrite; empty until promised, and where it takes over."""
    workspace_at: int = NOWHERE
    workspace_after: list[Piece] = field(default_factory=list)
    ahead_bytes: int = 0
    """Bytes brought in for it."""
    runs_at_once: bool = False
    """Whether it takes over an operand that others need again, which only its own execution can tell them."""


class Memory:
    """Device and host. Flat lists by tensor; sizes are aligned bytes."""

    def __init__(self, problem: Problem, reuse: Reuse, recorder: Recorder, residents: Residents = NOBODY) -> None:
        graph = problem.graph
        n = len(graph.tensors)
        self.graph, self.reuse, self.recorder = graph, reuse, recorder
        self.alignment, self.size = problem.alignment, problem.sizes
        self.is_output = [t.kind is Kind.OUTPUT for t in graph.tensors]
        self.device = Arena(problem.capacity, problem.alignment)
        self.host = Host(problem, recorder)
        self.at = [NOWHERE] * n
        """Offset on the device, from the promise on."""
        self.on_device = [NO_RESIDENCY] * n
        """From the node that creates it on."""
        self.pins = [0] * n
        """How many tasks between the horizons touch the tensor."""
        self.loose_bytes = 0
        """On the device and not pinned."""
        self.loose_until: NDArray[np.int64] = np.full(n - HOLE, NO_STEP)
        """[tensor] the next use of what may leave, NO_STEP of the rest; WORKSPACE and HOLE count from the end."""
        self.loose_until[HOLE] = FAR
        self.loose_load: Column = np.full(n - HOLE, HOLE_LOAD, object if self.device.capacity >= LARGE else np.int64)
        """[tensor] the load of what may leave."""
        self.held: set[TensorId] = set()
        """Residents that are still there: each has a pin of its own."""
        self.room = self.device.capacity
        """Bytes below the lowest resident that is still there."""
        for t in residents.tensors:
            self._settle(t)
        self.start = (*self.host.start, *(self.on_device[t] for t in residents.tensors))
        """What is there before the first node."""

    def _settle(self, t: TensorId) -> None:
        """`t` lies at the top of the room from the start on."""
        self.room -= self.size[t]
        self.at[t] = self.room
        self.device.take_at(self.room, self.size[t], t)
        self.on_device[t] = self.recorder.residency(t, DEVICE, self.room)
        self.held.add(t)
        self.pins[t] += 1

    # The allocation horizon.

    def reserve(self, step: Step, task: Task) -> Reservation:
        """Pin what the task touches; nothing is promised yet."""
        reads = self.reuse.reads[step]
        for t in reads:
            if not self.pins[t] and self.at[t] != NOWHERE:
                self._hold(t)
            self.pins[t] += 1
        self.pins[task.result] += 1
        offered = () if task.gathers else task.inplace
        taken = next((t for t in offered if self.reuse.is_last(t, step) and not self.is_output[t]), None)
        return Reservation(step, task, reads, taken)

    def wants(self, it: Reservation) -> list[TensorId]:
        """What has to find bytes for the task: absent operands, the result, the workspace, in this order."""
        wanted = [t for t in it.reads if self.at[t] == NOWHERE]
        wanted.append(it.task.result)
        if it.task.workspace_bytes:
            wanted.append(WORKSPACE)
        return wanted

    def size_of(self, it: Reservation, want: TensorId) -> int:
        """Bytes of the arena that `want` has to find; a result that takes over finds none."""
        if want == WORKSPACE:
            return aligned(it.task.workspace_bytes, self.alignment)
        return 0 if want == it.task.result and it.taken is not None else self.size[want]

    def footprint(self, it: Reservation) -> int:
        """What the task needs besides residents."""
        return sum(self.size[t] for t in it.reads if t not in self.held) + self.size_of(it, it.task.result) + self.size_of(it, WORKSPACE)

    def promise(self, it: Reservation, want: TensorId, start: int) -> None:
        """Take the bytes from the hole at `start`; a reload or a gather is issued now, for the link waits for no task.

        A result that takes over has its bytes already, and `start` is not used.
        """
        if want == it.task.result and it.taken is not None:
            self.at[want] = self.at[it.taken]
            return
        after = self.device.take(start, self.size_of(it, want), want)
        if want == WORKSPACE:
            it.workspace_at, it.workspace_after = start, after
            return
        self.at[want] = start
        if want != it.task.result:
            source = self.host.copy[want]
            assert source != NO_RESIDENCY, f"{self.graph.tensors[want].name} is nowhere"
            self.on_device[want] = self.recorder.move(source, DEVICE, start, after)
        elif it.task.gathers:
            operands = tuple(tuple(self.host.copy[t] for t in operand) for operand in it.task.operands)
            self.on_device[want] = self.recorder.gather(it.task.id, operands, want, DEVICE, start, after)
        else:
            it.result_after = after
            return
        it.ahead_bytes += self.size[want]

    def withdraw(self, it: Reservation) -> None:
        """Take back the promises of what only the task itself will write: as if they had never been made."""
        if it.result_after:
            self.device.give_back(it.result_after)
            it.result_after = []
        if it.workspace_after:
            self.device.give_back(it.workspace_after)
            it.workspace_at, it.workspace_after = NOWHERE, []
        if not it.task.gathers:
            self.at[it.task.result] = NOWHERE

    # Leaving.

    def spill(self, t: TensorId, it: Reservation) -> None:
        """Have a copy on the host, made in the name of `it` if there is none."""
        self.host.spill(t, self.on_device[t], it.task.name)

    def leave(self, t: TensorId) -> None:
        """Free the device's copy of what is not dead."""
        if not self.pins[t]:
            self._hold(t)
        self._discard(t)

    def _discard(self, t: TensorId) -> None:
        self.device.release(self.at[t], self.recorder.free(self.on_device[t]))
        self._gone(t)

    def _hold(self, t: TensorId) -> None:
        """`t`, which is loose, is about to be pinned or to leave."""
        self.loose_bytes -= self.size[t]
        self.loose_until[t] = NO_STEP

    def _let_loose(self, t: TensorId) -> None:
        self.loose_bytes += self.size[t]
        self.loose_until[t] = self.reuse.next_use(t)
        self.loose_load[t] = self.load(t)

    def load(self, t: TensorId) -> int:
        """What it costs to move `t` out and in again, as a Price sees it."""
        return load(self.size[t], self.host.copy[t] == NO_RESIDENCY)

    def _gone(self, t: TensorId) -> None:
        self.on_device[t] = NO_RESIDENCY
        self.at[t] = NOWHERE

    # The execution horizon.

    def execute(self, it: Reservation) -> None:
        """The task runs: its result exists, and what no later task reads is gone."""
        result = it.task.result
        if not it.task.gathers:
            node = self._compute(it)
            if it.workspace_at != NOWHERE:
                self.device.release(it.workspace_at, node)
        for t in it.reads:
            self.reuse.execute(t)
            if t in self.held and self.reuse.is_dead(t):
                self._let_go(t)
            self._unpin(t)
        if self.is_output[result]:
            self.host.write_output(result, self.on_device[result])
        self._unpin(result)

    def _compute(self, it: Reservation) -> NodeId:
        task, result = it.task, it.task.result
        operands = tuple(tuple(self.on_device[t] for t in operand) for operand in task.operands)
        taken: ResidencyId | None = None if it.taken is None else self.on_device[it.taken]
        workspace = None if it.workspace_at == NOWHERE else (it.workspace_at, task.workspace_bytes)
        after = it.result_after + it.workspace_after
        node, self.on_device[result] = self.recorder.compute(task.id, operands, result, DEVICE, self.at[result], after, taken, workspace)
        if it.taken is not None:
            self.device.rename(self.at[result], result)
            self._gone(it.taken)
        return node

    def _let_go(self, t: TensorId) -> None:
        """`t` is a resident no more."""
        self.held.remove(t)
        self.room += self.size[t]
        self._unpin(t)

    def _unpin(self, t: TensorId) -> None:
        self.pins[t] -= 1
        if self.pins[t]:
            return
        present = self.at[t] != NOWHERE
        if self.reuse.is_dead(t):
            if present:
                self._discard(t)
            self.host.drop(t)
        elif present:
            self._let_loose(t)

    def end(self) -> tuple[ResidencyId, ...]:
        """The outputs on the host. Asserts that nothing else is left anywhere."""
        assert self.device.free_bytes == self.device.capacity, "something is left on the device"
        assert self.host.is_tidy(), "a spill slot is left on the host"
        return tuple(self.host.copy[t] for t in self.host.outputs)
