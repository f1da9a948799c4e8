"""From a timetable and a placement to a MemGraph; and loads by due date, once it is known where they go.

In: Slots, a Timetable, its LiveRanges and a Placement of them. Out: nodes in the timetable's order at the offsets found, loads as early and
frees as late as the placement has them. Raises DoesNotFit where the host is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.memplan.graph.arena import Arena, Piece
from einpage.memplan.graph.host_slots import HostSlots
from einpage.memplan.graph.memgraph import MemGraph, ResidencyId
from einpage.memplan.graph.recorder import NO_RESIDENCY, Beside, Recorder
from einpage.memplan.machine.places import DEVICE, HOST
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.live_ranges import WORKSPACE, LiveRanges, Placement
from einpage.memplan.schedule.timetable import Prefetch, Timetable


def emit(slots: Slots, table: Timetable, ranges: LiveRanges, placement: Placement) -> MemGraph:
    """The MemGraph. Raises DoesNotFit where the host is full."""
    return _Emitter(slots, table, ranges, placement).run()


class _Emitter:
    def __init__(self, slots: Slots, table: Timetable, ranges: LiveRanges, placement: Placement) -> None:
        self.problem, self.graph, self.slots, self.table = slots.problem, slots.problem.graph, slots, table
        self.ranges, self.placement = ranges, placement
        self.range_by_key = {key: i for i, key in enumerate(ranges.keys)}
        self.recorder = Recorder(self.graph)
        self.host = HostSlots(self.problem, self.recorder)
        self.device = Arena(self.problem.capacity, self.problem.alignment)
        self.size = slots.accesses.nbytes.tolist()
        self.on_device = [NO_RESIDENCY] * len(self.graph.tensors)
        self.at = [0] * len(self.graph.tensors)
        """[tensor] its offset while it is on the device."""

    def run(self) -> MemGraph:
        a = self.slots.accesses
        last_at, is_output = a.last_at.tolist(), a.output.tolist()
        loads, frees_before, frees_after = self.loads(), *self.frees()
        for k, actions in enumerate(self.table.actions):
            for t in frees_before[k]:
                self.free(t)
            for load in loads[k]:
                self.load(load)
            self.compute(k)
            for t in actions.stores:
                if is_output[t]:
                    self.host.write_output(TensorId(t), self.on_device[t])
                else:
                    self.host.spill(TensorId(t), self.on_device[t], self.slots.tasks[k].name)
            for t in frees_after[k]:
                self.free(t)
            for t in {*self.slots.tasks[k].reads(), *self.slots.tasks[k].results}:
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

    def loads(self) -> list[list[Prefetch]]:
        """[slot] the loads issued before it."""
        by_slot: list[list[Prefetch]] = [[] for _ in self.table.actions]
        for actions in self.table.actions:
            for load in actions.loads:
                start = self.placement.starts[self.range_by_key[load.tensor, 3 * load.use]]
                by_slot[-(-start // 3)].append(load)
        return by_slot

    def frees(self) -> tuple[list[list[int]], list[list[int]]]:
        """[slot] the tensors freed before its loads; and after its task."""
        before: list[list[int]] = [[] for _ in self.table.actions]
        after: list[list[int]] = [[] for _ in self.table.actions]
        for tensors, end in zip(self.ranges.tensors, self.placement.ends, strict=True):
            if tensors[-1] != WORKSPACE:
                slot, rest = divmod(end, 3)
                (after if rest == 2 else before)[slot].append(tensors[-1])
        return before, after

    def offset(self, t: int, position: int) -> int:
        return self.placement.offsets[self.range_by_key[t, position]]

    def load(self, load: Prefetch) -> None:
        t = TensorId(load.tensor)
        at = self.offset(t, 3 * load.use)
        after = self.device.allocate_at(at, self.size[t], t)
        source, task = self.host.copy[t], self.slots.gather_by_result.get(t)
        if source != NO_RESIDENCY:
            self.on_device[t] = self.recorder.move(source, DEVICE, at, after)
        else:
            assert task is not None, f"{self.graph.tensors[t].name} is nowhere"
            operands = tuple(tuple(self.host.copy[x] for x in operand) for operand in task.operands)
            self.on_device[t] = self.recorder.gather(task.id, operands, t, DEVICE, at, after)
        self.at[t] = at

    def compute(self, k: int) -> None:
        task, donated = self.slots.tasks[k], self.slots.donated[k]
        operands = tuple(tuple(self.on_device[t] for t in operand) for operand in task.operands)
        over = {t: self.on_device[given] for t, given in donated.items()}
        after: list[Piece] = []
        for t in task.results:
            self.at[t] = self.at[donated[t]] if t in donated else self.offset(t, 3 * k + 1)
            if t not in donated:
                after += self.device.allocate_at(self.at[t], self.size[t], t)
        workspace = None
        if self.slots.workspace[k]:
            scratch = self.offset(WORKSPACE, 3 * k + 1)
            after += self.device.allocate_at(scratch, self.slots.workspace[k], WORKSPACE)
            workspace = (scratch, task.workspace_bytes)
        result, *beside = task.results
        others = [Beside(t, self.at[t], over.get(t)) for t in beside]
        node, created = self.recorder.compute(
            task.id, operands, result, DEVICE, self.at[result], after, over.get(result), workspace, others
        )
        for t, given in donated.items():
            self.device.rename(self.at[t], t)
            self.on_device[given] = NO_RESIDENCY
        if workspace is not None:
            self.device.release(workspace[0], node)
        for n, t in enumerate(task.results):
            self.on_device[t] = ResidencyId(created + n)

    def free(self, t: int) -> None:
        self.device.release(self.at[t], self.recorder.free(self.on_device[t]))
        self.on_device[t] = NO_RESIDENCY


def by_due_date(slots: Slots, table: Timetable, ranges: LiveRanges, placement: Placement) -> tuple[Timetable, Placement]:
    """`table` and `placement` with loads in another order: of those that may start, that which is needed first (Jackson 1955). Tasks,
    copies to the host and offsets stay.

    A timetable orders loads as if bytes lay anywhere. Where a placement has one wait for another tensor's bytes, those behind it need not:

        link    before   | . . . a | b | c |        a waits for bytes until here, b and c do not
                after    | b | c | a |              and a is in as soon as it was
    """
    issued = _Clock(slots, table, ranges, placement).run()
    range_by_key, starts = {key: i for i, key in enumerate(ranges.keys)}, list(placement.starts)
    for k, loads in enumerate(issued):
        for load in loads:
            starts[range_by_key[load.tensor, 3 * load.use]] = 3 * k
    actions = tuple(replace(actions, loads=loads) for actions, loads in zip(table.actions, issued, strict=True))
    return replace(table, actions=actions), replace(placement, starts=tuple(starts))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A load whose bytes are free from a slot on, once all these tensors are on the host."""

    load: Prefetch
    tensors: tuple[int, ...]


class _Clock:
    """Both links and the tasks, in time; no other copies than loads change places."""

    def __init__(self, slots: Slots, table: Timetable, ranges: LiveRanges, placement: Placement) -> None:
        self.slots, self.table = slots, table
        self.released: list[list[_Waiting]] = [[] for _ in table.actions]
        """[slot]"""
        self.missing = [0] * len(table.actions)
        """[slot] loads that it needs and that are not issued yet."""
        self._released(ranges, placement)
        self.link_s = 0.0
        self.early: list[tuple[float, Prefetch]] = []
        """A heap of (when it may start, load)."""
        self.ready: list[tuple[int, Prefetch]] = []
        """A heap of (due, load)."""
        self.there = [0.0] * len(table.actions)
        """[slot] when all that was loaded for it is there."""
        self.issued: list[list[Prefetch]] = [[] for _ in table.actions]

    def _released(self, ranges: LiveRanges, placement: Placement) -> None:
        low, start, end = (np.array(column, np.int64) for column in (placement.offsets, placement.starts, placement.ends))
        high = low + np.array([r.nbytes for r in ranges.full], np.int64)
        stored = {t for actions in self.table.actions for t in actions.stores}
        last = [tensors[-1] for tensors in ranges.tensors]
        copied = np.flatnonzero([t in stored for t in last])
        range_by_key = {key: i for i, key in enumerate(ranges.keys)}
        for load in (load for actions in self.table.actions for load in actions.loads):
            i = range_by_key[load.tensor, 3 * load.use]
            before = copied[(low[copied] < high[i]) & (high[copied] > low[i]) & (end[copied] <= start[i])]
            self.released[-(-int(start[i]) // 3)].append(_Waiting(load, (load.tensor, *(last[j] for j in before.tolist()))))
            self.missing[load.use] += 1

    def run(self) -> list[list[Prefetch]]:
        """[slot] the loads issued before it, in order."""
        done = stores_s = 0.0
        on_host_s: dict[int, float] = {}
        for k, (actions, seconds) in enumerate(zip(self.table.actions, self.slots.accesses.seconds.tolist(), strict=True)):
            for waiting in self.released[k]:
                may_start_s = max([done, *(on_host_s.get(t, 0.0) for t in waiting.tensors)])
                heappush(self.early, (may_start_s, waiting.load))
            while self.missing[k]:
                self._issue(self._next_s(), k)
            done = max(done, self.there[k]) + seconds
            while (self.early or self.ready) and (at := self._next_s()) < done:
                self._issue(at, k + 1)
            for t in actions.stores:
                on_host_s[t] = stores_s = max(stores_s, done) + self.slots.store_s[t]
        return self.issued

    def _next_s(self) -> float:
        """When the link takes its next load."""
        at = self.link_s if self.ready else max(self.link_s, self.early[0][0])
        while self.early and self.early[0][0] <= at:
            load = heappop(self.early)[1]
            heappush(self.ready, (load.use, load))
        return at

    def _issue(self, at: float, slot: int) -> None:
        """The link takes the load that is due first, before the task of `slot`."""
        due, load = heappop(self.ready)
        self.link_s = at + self.slots.load_s[load.tensor]
        self.there[due] = max(self.there[due], self.link_s)
        self.missing[due] -= 1
        self.issued[min(slot, due)].append(load)
