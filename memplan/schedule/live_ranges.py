"""Live ranges in the arena: for how long each tensor needs its bytes, and for how long a timetable would have it there.

In: Slots, a Timetable. Out: LiveRanges. The required part of a range, from the position where its tensor has to be there to the end of its
last task, has to have its bytes; what the full range has beyond it, prefetch lead and write-back lag, costs time where it is denied. A
Placement says what each range gets. Invariant: no two ranges that have their bytes at once share one.
Positions: slot k's loads are at 3 k, its task at 3 k + 1, what is freed after it is free at 3 k + 2.

    slot         0        1        2        3
    position     0  1  2  3  4  5  6  7  8  9
    full range      [- - - - - -|===========|- - -]       loaded before slot 1 for slot 2, read by slots 2 and 3, then
                    prefetch lead  required  write-back lag    copied to the host while others run
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.timetable import Timetable

WORKSPACE = -1
"""In place of a tensor: a task's workspace."""
Key: TypeAlias = tuple[int, int]
"""Names a live range: its first tensor, and the position where that has to be there."""


@dataclass(frozen=True, slots=True)
class LiveRanges:
    full: tuple[Rectangle, ...]
    """[range] in positions."""
    tensors: tuple[tuple[int, ...], ...]
    """[range] the tensors that are in it one after the other, where results are written in place; (WORKSPACE,) for one."""
    keys: tuple[Key, ...]
    """[range] key[1] is where the required part starts: for a load at the slot that waits for it."""
    required_ends: tuple[int, ...]
    """[range] the position when the last task that touches it has run."""


@dataclass(frozen=True, slots=True)
class Placement:
    offsets: tuple[int, ...]
    """[range]"""
    starts: tuple[int, ...]
    """[range] from when it has its bytes: not before the full range starts, nor after the required part does."""
    ends: tuple[int, ...]
    """[range] until when: not after the full range ends, nor before the required part does."""


class RangeLimits(NamedTuple):
    """How much longer than its required part a live range is at most, in lengths of its own copies."""

    prefetch_lead: float
    write_back_lag: float


def live_ranges(slots: Slots, table: Timetable) -> LiveRanges:
    """Of everything that is on the device between a load, or a task, and a free; and of every workspace."""
    full: list[Rectangle] = []
    tensors: list[list[int]] = []
    keys: list[Key] = []
    required_ends: list[int] = []
    open_: dict[int, int] = {}
    size = slots.accesses.nbytes.tolist()

    def start(t: int, position: int, nbytes: int, required: int | None = None) -> None:
        open_[t] = len(full)
        full.append(Rectangle(position, position + 1, nbytes))
        tensors.append([t])
        keys.append((t, position if required is None else required))
        required_ends.append(position + 1)

    def end(t: int, position: int) -> None:
        i = open_.pop(t)
        full[i] = Rectangle(full[i].start, position, full[i].nbytes)

    for k, (actions, task) in enumerate(zip(table.actions, slots.tasks, strict=True)):
        for t in actions.frees_before:
            end(t, 3 * k)
        for t, use in actions.loads:
            start(t, 3 * k, size[t], 3 * use)
        if slots.workspace[k]:
            start(WORKSPACE, 3 * k + 1, slots.workspace[k])
            required_ends[-1] = 3 * k + 2
            end(WORKSPACE, 3 * k + 2)
        for t in task.reads():
            required_ends[open_[t]] = 3 * k + 2
        for t in task.results:
            if (donated := slots.donated[k].get(t)) is None:
                start(t, 3 * k + 1, size[t])
            else:
                open_[t] = open_.pop(donated)
                tensors[open_[t]].append(t)
            required_ends[open_[t]] = 3 * k + 2
        for t in actions.frees_after:
            end(t, 3 * k + 2)
    assert not open_, "something is never freed on the device"
    return LiveRanges(tuple(full), tuple(map(tuple, tensors)), tuple(keys), tuple(required_ends))


def limited(slots: Slots, ranges: LiveRanges, limits: RangeLimits) -> LiveRanges:
    """`ranges`, none longer than `limits` allow, while tasks alone take time."""
    elapsed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
    shorter = []
    for (start, end, nbytes), (tensor, required), required_end in zip(ranges.full, ranges.keys, ranges.required_ends, strict=True):
        if start < required:
            slot = int(elapsed.searchsorted(elapsed[required // 3] - limits.prefetch_lead * slots.load_s[tensor], "right")) - 1
            start = max(start, min(3 * slot, required))
        if end > required_end and limits.write_back_lag:
            slot = int(elapsed.searchsorted(elapsed[-(-required_end // 3)] + limits.write_back_lag * slots.store_s[tensor]))
            end = max(required_end, min(end, 3 * slot))
        shorter.append(Rectangle(start, end if limits.write_back_lag else required_end, nbytes))
    return replace(ranges, full=tuple(shorter))


def placement_at(ranges: LiveRanges, offset_by_key: Mapping[Key, int], shorter: LiveRanges) -> Placement:
    """Every range at its offset, and over all of its full range in which no other's required part has or will have its bytes by then; nor
    what another has beyond that in `shorter`, which are the same ranges limited: those come first."""
    required_start, required_end = np.array([at for _, at in ranges.keys], np.int64), np.array(ranges.required_ends, np.int64)
    low = np.array([offset_by_key[key] for key in ranges.keys], np.int64)
    high = low + np.array(ranges.full, np.int64).reshape(-1, 3)[:, 2]
    starts, ends = required_start, required_end
    for full in (shorter.full, ranges.full):
        start, end, _ = np.array(full, np.int64).reshape(-1, 3).T
        new_ends = end.copy()
        for i in np.flatnonzero(end > required_end).tolist():
            after = starts[(required_start >= required_end[i]) & (starts < end[i]) & (low < high[i]) & (high > low[i])]
            new_ends[i] = after.min(initial=end[i])
        ends = new_ends
        new_starts = start.copy()
        for i in np.flatnonzero(start < required_start).tolist():
            before = ends[(ends > start[i]) & (required_end <= required_start[i]) & (low < high[i]) & (high > low[i])]
            new_starts[i] = before.max(initial=start[i])
        starts = new_starts
    return Placement(tuple(low.tolist()), tuple(starts.tolist()), tuple(ends.tolist()))
