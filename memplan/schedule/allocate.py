"""From a timetable to plans: places for its blocks, the stays cut that find none, wishes granted where there is room, the nodes.

In: Slots, what stays, the timetable under it. Out: MemGraphs; none where no way of cutting finds places for all, or the host is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.packing.place import place
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.schedule.emit import Blocks, assemble, blocks_of
from einpage.memplan.schedule.relocate import modest, seated
from einpage.memplan.schedule.split_ranges import Key, cut, within
from einpage.memplan.schedule.timetable import Timetable, timetable


class Wish(NamedTuple):
    """What blocks wish at most where not all find a place, in lengths of their own copies."""

    lead: float
    """To come ahead of need."""
    linger: float
    """To stay after the last use."""


WISHES = (Wish(4.0, 1.0), Wish(2.0, 0.0), Wish(1.0, 0.0))
"""Ever fewer, until nothing has to be cut."""
LESS_EFFORT = 0.3
"""What goes into places for all that blocks wish, where they may wish less."""


def settled(
    slots: Slots, resident: ResidentIntervals, table: Timetable, slack_bytes: int, wishes: Sequence[Wish] = WISHES, exact: bool = False
) -> Iterator[MemGraph]:  # fmt: skip
    """The plan in which just `resident` stays where all blocks find places; else one for each of `wishes` with which places are found, by
    cutting what has none, until with one of them nothing has to be cut. Wishes that come to the same are tried once.

    `slack_bytes` is what `table` leaves free. `exact` looks longer for places for what blocks wish at most.
    """
    capacity = slots.problem.capacity
    wished = blocks_of(slots, table)
    offsets = place(wished.blocks, capacity, LESS_EFFORT if wishes else 1.0)
    if None not in offsets:
        yield from _planned(slots, table, wished, {k: at for k, at in zip(wished.keys, offsets, strict=True) if at is not None})
        return
    tried: list[tuple[Rectangle, ...]] = []
    for wish in wishes:
        blocks = modest(slots, wished, *wish)
        if blocks.blocks in tried:
            continue
        tried.append(blocks.blocks)
        offsets = place(blocks.blocks, capacity, exact=exact)
        found = cut(slots, blocks, offsets, resident, capacity, drives=True) or cut(slots, blocks, offsets, resident, capacity)
        if found is None:
            continue
        if np.array_equal(found.resident, resident):
            yield from _planned(slots, table, wished, found.offset_by_key)
            return
        left = timetable(slots, capacity, found.resident, slack_bytes)
        yield from _planned(slots, left, blocks_of(slots, left), found.offset_by_key)


def _planned(slots: Slots, table: Timetable, blocks: Blocks, offset_by_key: dict[Key, int]) -> Iterator[MemGraph]:
    """The plan, or none where the host is full."""
    capacity = slots.problem.capacity
    stays = seated(slots, blocks, within(blocks, offset_by_key), capacity)
    try:
        yield assemble(slots, table, blocks, stays)
    except DoesNotFit:
        return
