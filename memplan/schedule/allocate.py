"""From a timetable to plans: offsets for its live ranges, split where there are none, relocated, and the nodes.

In: Slots, the resident intervals, the timetable under them. Out: MemGraphs; none where no splitting finds offsets for all, or the host is
full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.packing.place import place
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.schedule.emit import emit
from einpage.memplan.schedule.live_ranges import Key, LiveRanges, RangeLimits, limited, live_ranges, placement_at
from einpage.memplan.schedule.relocate import relocated
from einpage.memplan.schedule.split_ranges import split_ranges
from einpage.memplan.schedule.timetable import Timetable, timetable

LIMITS = (RangeLimits(4.0, 1.0), RangeLimits(2.0, 0.0), RangeLimits(1.0, 0.0))
"""Ever shorter ranges, until nothing has to be split."""
LESS_EFFORT = 0.3
"""What goes into offsets for full ranges, where shorter ones are tried after them."""


def allocated(
    slots: Slots,
    resident: ResidentIntervals,
    table: Timetable,
    prefetch_headroom: int,
    limits: Sequence[RangeLimits] = LIMITS,
    exact: bool = False,
) -> Iterator[MemGraph]:
    """The plan in which just `resident` is, where all full ranges find offsets; else one for each of `limits` with which offsets are
    found, by splitting ranges that have none, until with one of them nothing has to be split. Limits that come to the same are tried once.

    `prefetch_headroom` is what `table` leaves free. `exact` looks longer for offsets for limited ranges.
    """
    capacity = slots.problem.capacity
    ranges = live_ranges(slots, table)
    offsets = place(ranges.full, capacity, LESS_EFFORT if limits else 1.0)
    if None not in offsets:
        yield from _emitted(slots, table, ranges, {key: at for key, at in zip(ranges.keys, offsets, strict=True) if at is not None})
        return
    tried: list[tuple[Rectangle, ...]] = []
    for limit in limits:
        shorter = limited(slots, ranges, limit)
        if shorter.full in tried:
            continue
        tried.append(shorter.full)
        offsets = place(shorter.full, capacity, exact=exact)
        found = split_ranges(slots, shorter, offsets, resident, evicts=True) or split_ranges(slots, shorter, offsets, resident)
        if found is None:
            continue
        if np.array_equal(found.resident, resident):
            yield from _emitted(slots, table, ranges, found.offset_by_key)
            return
        after_splits = timetable(slots, found.resident, prefetch_headroom)
        yield from _emitted(slots, after_splits, live_ranges(slots, after_splits), found.offset_by_key)


def _emitted(slots: Slots, table: Timetable, ranges: LiveRanges, offset_by_key: Mapping[Key, int]) -> Iterator[MemGraph]:
    """The plan, or none where the host is full."""
    placement = relocated(slots, ranges, placement_at(ranges, offset_by_key))
    try:
        yield emit(slots, table, ranges, placement)
    except DoesNotFit:
        return
