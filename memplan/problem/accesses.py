"""Which task touches which tensor when: a graph in one order of tasks as flat arrays, from which lower bounds are computed.

In: a TaskGraph, a Machine and an order of tasks (or plain lists). Out: Accesses, arrays by slot, tensor, load and interval. A slot is a
task on the device. A host gather has no slot: its result has no host copy and no slot writes it, so it crosses the link at any time
before its first use. Sizes are the tensors' own, not aligned, and a footprint counts no result that may be written in place: what is
proved from an Accesses holds for every plan.

    slot      0   1   2   3   4   5
    w       ──●───●───────●───────────    first load at 0, interval (1, 3); the uses 0 and 1 are adjacent: no interval
    h             ○───●           ●       written at 1, interval (2, 5)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from einpage.einsum_front.base.columns import Bools, Floats, Int64s
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskGraph, TaskId, TensorId
from einpage.memplan.machine.machine import Machine, all_task_seconds

NEVER = -1
"""Stands for a slot."""


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """Slots, tensors, first loads, and the intervals between two uses of a tensor."""

    seconds: Floats
    """[slot] how long the task runs, its launch included."""
    footprint: Int64s
    """[slot] bytes of all that the task touches, workspace included."""
    nbytes: Int64s
    """[tensor]"""
    clean: Bools
    """[tensor] the host has a copy at the start."""
    output: Bools
    """[tensor] it has to be on the host at the end, and is not at the start."""
    made_at: Int64s
    """[tensor] the slot that writes it; NEVER for what is loaded from the host."""
    last_at: Int64s
    """[tensor] the last slot that touches it, or NEVER."""
    loaded: Int64s
    """[load] a tensor that is loaded from the host for its first use, ..."""
    load_at: Int64s
    """[load] ... and the slot of that use."""
    unread: Int64s
    """Tensors that cross the link to the device although no slot reads them: results of gathers."""
    tensor: Int64s
    """[interval] sorted by (start, tensor)"""
    start: Int64s
    """[interval] the slot before it, which touches the tensor"""
    end: Int64s
    """[interval] the next slot that touches it, at least start + 2"""
    is_first: Bools
    """[interval] whether it is the earliest of its tensor"""

    @property
    def slots(self) -> int:
        """The number of slots: tasks in order."""
        return len(self.seconds)

    @property
    def compulsory_load_bytes(self) -> Nbytes:
        """Bytes of all first loads."""
        return Nbytes(int(self.nbytes[self.loaded].sum() + self.nbytes[self.unread].sum()))

    @property
    def compulsory_store_bytes(self) -> Nbytes:
        """Bytes of all outputs."""
        return Nbytes(int(self.nbytes[self.output].sum()))

    @property
    def dirty(self) -> Bools:
        """[tensor] it has to be written to the host once if it is evicted before its last use, and need not be otherwise."""
        return ~(self.clean | self.output)

    def by_slot(self, slots: Int64s, nbytes: Int64s) -> Int64s:
        """[slot] the sum of the `nbytes` whose entry of `slots` is that slot."""
        total = np.zeros(self.slots, np.int64)
        np.add.at(total, slots, nbytes)
        return total


def accesses(
    graph: TaskGraph, machine: Machine, order: Sequence[TaskId] | None = None, resident: Collection[TensorId] = frozenset()
) -> Accesses:
    """The accesses of `graph` with its tasks in `order` (gathers may stand in it); in graph order without one.

    Tensors `resident` at the start need no first load; the bytes they occupy until their first use are not counted, which proves less.
    """
    tasks = graph.tasks if order is None else [graph.tasks[t] for t in order]
    on_device = [t for t in tasks if not t.gathers]
    nbytes, seconds = [int(t.nbytes) for t in graph.tensors], all_task_seconds(machine, graph)
    return from_lists(
        reads=[t.reads() for t in on_device],
        writes=[t.results for t in on_device],
        seconds=[seconds[t.id] for t in on_device],
        extra_bytes=[t.workspace_bytes - sum(nbytes[one.tensor] for one in t.written if one.inplace) for t in on_device],
        nbytes=nbytes,
        clean=[t.kind in HOST_AT_START for t in graph.tensors],
        output=[t.kind is Kind.OUTPUT for t in graph.tensors],
        gathered=[t.result for t in tasks if t.gathers],
        resident=resident,
    )


def from_lists(
    *, reads: Sequence[Sequence[int]], writes: Sequence[Sequence[int]], seconds: Sequence[float], extra_bytes: Sequence[int],
    nbytes: Sequence[int], clean: Sequence[bool], output: Sequence[bool], gathered: Sequence[int] = (), resident: Collection[int] = (),
) -> Accesses:  # fmt: skip
    """The accesses of slots that read and write distinct tensors, each tensor written once at most and before it is read.

    `extra_bytes` [slot] is added to the bytes of those tensors in the footprint; `gathered` are results that no slot writes,
    `resident` tensors that are on the device before the first slot.
    """
    tensors = len(nbytes)
    made_at, last_at = [NEVER] * tensors, [NEVER] * tensors
    loads: list[tuple[int, int]] = []
    intervals: list[tuple[int, int, int, bool]] = []
    has_interval = bytearray(tensors)
    footprint = []
    for slot, (read, written, extra) in enumerate(zip(reads, writes, extra_bytes, strict=True)):
        for t in read:
            before = last_at[t]
            if before == NEVER:
                if t not in resident:
                    loads.append((t, slot))
            elif before + 1 < slot:
                intervals.append((before, t, slot, not has_interval[t]))
                has_interval[t] = 1
            last_at[t] = slot
        for t in written:
            made_at[t] = last_at[t] = slot
        footprint.append(extra + sum(nbytes[t] for t in read) + sum(nbytes[t] for t in written))
    intervals.sort()
    start, tensor, end, is_first = (np.array(column, np.int64) for column in (zip(*intervals, strict=True) if intervals else [()] * 4))
    loaded, load_at = (np.array(column, np.int64) for column in (zip(*loads, strict=True) if loads else [()] * 2))
    is_clean = np.array(clean, bool)
    return Accesses(
        seconds=np.array(seconds, np.float64),
        footprint=np.array(footprint, np.int64),
        nbytes=np.array(nbytes, np.int64),
        clean=is_clean,
        output=np.array(output, bool) & ~is_clean,
        made_at=np.array(made_at, np.int64),
        last_at=np.array(last_at, np.int64),
        loaded=loaded,
        load_at=load_at,
        unread=np.array([t for t in gathered if last_at[t] == NEVER], np.int64),
        tensor=tensor,
        start=start,
        end=end,
        is_first=is_first.astype(bool),
    )
