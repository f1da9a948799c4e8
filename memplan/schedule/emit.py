"""From a timetable and places to a MemGraph.

In: Slots, a Timetable. `blocks_of` gives the blocks that need a place; `assemble` writes nodes in the timetable's order
at the places found, loads and frees as late or as soon as their bytes allow. Positions: slot k's loads stand at 3 k, its task at 3 k + 1,
what leaves after it is gone at 3 k + 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.memplan.graph.arena import Arena
from einpage.memplan.graph.host_slots import HostSlots
from einpage.memplan.graph.memgraph import MemGraph, ResidencyId
from einpage.memplan.graph.recorder import NO_RESIDENCY, Recorder
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.accesses import NEVER
from einpage.memplan.problem.places import DEVICE, HOST
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.timetable import Load, Timetable

WORKSPACE = -1
"""Stands for a task's workspace where a tensor is named."""


@dataclass(frozen=True, slots=True)
class Blocks:
    blocks: tuple[Rectangle, ...]
    stays: tuple[tuple[int, ...], ...]
    """[block] the tensors that live in it one after the other: a result that takes over lives in its operand's; (WORKSPACE,) for one."""
    keys: tuple[tuple[int, int], ...]
    """[block] its first tensor and the position where that must be there: for a load that of the slot that waits for it."""
    uppers: tuple[int, ...]
    """[block] the position when the last task that touches it has run; it dies later where a copy to the host has still to end."""


@dataclass(frozen=True, slots=True)
class Stays:
    offsets: tuple[int, ...]
    """[block]"""
    births: tuple[int, ...]
    """[block] when it comes: not before the block's birth, nor after it must be there."""
    deaths: tuple[int, ...]
    """[block] when it goes: not after the block's death, nor before the last task that touches it has run."""


def blocks_of(slots: Slots, table: Timetable) -> Blocks:
    """Every stay on the device, and every workspace, as a block."""
    blocks: list[Rectangle] = []
    stays: list[list[int]] = []
    keys: list[tuple[int, int]] = []
    uppers: list[int] = []
    open_: dict[int, int] = {}
    size = slots.accesses.nbytes.tolist()

    def born(t: int, position: int, nbytes: int, need: int | None = None) -> None:
        open_[t] = len(blocks)
        blocks.append(Rectangle(position, position + 1, nbytes))
        stays.append([t])
        keys.append((t, position if need is None else need))
        uppers.append(position + 1)

    def ends(t: int, position: int) -> None:
        block = open_.pop(t)
        blocks[block] = Rectangle(blocks[block].start, position, blocks[block].nbytes)

    for k, (step, task) in enumerate(zip(table.steps, slots.tasks, strict=True)):
        for t in step.frees_first:
            ends(t, 3 * k)
        for t, need in step.loads:
            born(t, 3 * k, size[t], 3 * need)
        if slots.workspace[k]:
            born(WORKSPACE, 3 * k + 1, slots.workspace[k])
            uppers[-1] = 3 * k + 2
            ends(WORKSPACE, 3 * k + 2)
        for t in task.reads():
            uppers[open_[t]] = 3 * k + 2
        taken = slots.donated[k]
        if taken == NEVER:
            born(task.result, 3 * k + 1, size[task.result])
        else:
            open_[task.result] = open_.pop(taken)
            stays[open_[task.result]].append(task.result)
        uppers[open_[task.result]] = 3 * k + 2
        for t in step.frees:
            ends(t, 3 * k + 2)
    assert not open_, "something never leaves the device"
    return Blocks(tuple(blocks), tuple(map(tuple, stays)), tuple(keys), tuple(uppers))


def assemble(slots: Slots, table: Timetable, blocks: Blocks, stays: Stays) -> MemGraph:
    """The MemGraph. Raises DoesNotFit where the host is full."""
    return _Assembly(slots, table, blocks, stays).run()


class _Assembly:
    def __init__(self, slots: Slots, table: Timetable, blocks: Blocks, stays: Stays) -> None:
        self.problem, self.graph, self.slots, self.table = slots.problem, slots.problem.graph, slots, table
        self.blocks, self.stays = blocks, stays
        self.block_by_key = {key: b for b, key in enumerate(blocks.keys)}
        self.recorder = Recorder(self.graph)
        self.host = HostSlots(self.problem, self.recorder)
        self.device = Arena(self.problem.capacity, self.problem.alignment)
        self.size = slots.accesses.nbytes.tolist()
        self.on_device = [NO_RESIDENCY] * len(self.graph.tensors)
        self.at = [0] * len(self.graph.tensors)
        """[tensor] its offset while it is on the device."""

    def run(self) -> MemGraph:
        a = self.slots.accesses
        last_at, sink = a.last_at.tolist(), a.output.tolist()
        loads, frees_first, frees = self.loads(), *self.frees()
        for k, step in enumerate(self.table.steps):
            for t in frees_first[k]:
                self.free(t)
            for load in loads[k]:
                self.load(load)
            self.compute(k)
            for t in step.stores:
                if sink[t]:
                    self.host.write_output(TensorId(t), self.on_device[t])
                else:
                    self.host.spill(TensorId(t), self.on_device[t], self.slots.tasks[k].name)
            for t in frees[k]:
                self.free(t)
            for t in {*self.slots.tasks[k].reads(), self.slots.tasks[k].result}:
                if last_at[t] == k:
                    self.host.drop(t)
        assert self.device.free_bytes == self.device.capacity, "something is left on the device"
        assert self.host.is_tidy(), "a spill slot is left on the host"
        return MemGraph(
            graph=self.graph,
            arenas=((DEVICE, self.problem.budget_bytes), (HOST, self.host.nbytes)),
            residencies=self.recorder.residencies.finish(),
            nodes=self.recorder.nodes.finish(),
            edges=self.recorder.edges.finish(),
            start=self.host.start,
            end=tuple(self.host.copy[t] for t in self.host.outputs),
            alignment=self.problem.alignment,
        )

    def loads(self) -> list[list[Load]]:
        """[slot] the loads issued before it."""
        by_slot: list[list[Load]] = [[] for _ in self.table.steps]
        for step in self.table.steps:
            for load in step.loads:
                birth = self.stays.births[self.block_by_key[load.tensor, 3 * load.need]]
                by_slot[-(-birth // 3)].append(load)
        return by_slot

    def frees(self) -> tuple[list[list[int]], list[list[int]]]:
        """[slot] the tensors freed before its loads; and after its task."""
        first: list[list[int]] = [[] for _ in self.table.steps]
        after: list[list[int]] = [[] for _ in self.table.steps]
        for tensors, death in zip(self.blocks.stays, self.stays.deaths, strict=True):
            if tensors[-1] != WORKSPACE:
                slot, rest = divmod(death, 3)
                (after if rest == 2 else first)[slot].append(tensors[-1])
        return first, after

    def offset(self, t: int, position: int) -> int:
        return self.stays.offsets[self.block_by_key[t, position]]

    def load(self, load: Load) -> None:
        t = TensorId(load.tensor)
        start = self.offset(t, 3 * load.need)
        after = self.device.allocate_at(start, self.size[t], t)
        source, task = self.host.copy[t], self.slots.gather_by_result.get(t)
        if source != NO_RESIDENCY:
            self.on_device[t] = self.recorder.move(source, DEVICE, start, after)
        else:
            assert task is not None, f"{self.graph.tensors[t].name} is nowhere"
            operands = tuple(tuple(self.host.copy[x] for x in operand) for operand in task.operands)
            self.on_device[t] = self.recorder.gather(task.id, operands, t, DEVICE, start, after)
        self.at[t] = start

    def compute(self, k: int) -> None:
        task, taken = self.slots.tasks[k], self.slots.donated[k]
        start = self.at[taken] if taken != NEVER else self.offset(task.result, 3 * k + 1)
        operands = tuple(tuple(self.on_device[t] for t in operand) for operand in task.operands)
        over: ResidencyId | None = None if taken == NEVER else self.on_device[taken]
        after = [] if taken != NEVER else self.device.allocate_at(start, self.size[task.result], task.result)
        workspace = None
        if self.slots.workspace[k]:
            scratch = self.offset(WORKSPACE, 3 * k + 1)
            after = after + self.device.allocate_at(scratch, self.slots.workspace[k], WORKSPACE)
            workspace = (scratch, task.workspace_bytes)
        node, created = self.recorder.compute(task.id, operands, task.result, DEVICE, start, after, over, workspace)
        if taken != NEVER:
            self.device.rename(start, task.result)
            self.on_device[taken] = NO_RESIDENCY
        if workspace is not None:
            self.device.release(workspace[0], node)
        self.on_device[task.result], self.at[task.result] = created, start

    def free(self, t: int) -> None:
        self.device.release(self.at[t], self.recorder.free(self.on_device[t]))
        self.on_device[t] = NO_RESIDENCY
