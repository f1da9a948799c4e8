"""From a timetable to plans: places for its blocks, the stays cut that find none, the nodes.

In: Slots, what stays, the timetable under it. Out: MemGraphs; none where no way of cutting finds places for all, or the host is full.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einpage.memplan.assemble import assemble, blocks_of
from einpage.memplan.cut import cut, within
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.memgraph import MemGraph
from einpage.memplan.place import place
from einpage.memplan.slots import Slots
from einpage.memplan.timetable import Keep, Timetable, timetable


def settled(
    slots: Slots, budget_bytes: int, keep: Keep, table: Timetable, slack_bytes: int, may_cut: bool = True
) -> Iterator[MemGraph]:  # fmt: skip
    """The plan in which just `keep` stays where all blocks find places; else one for each way of cutting, if any `may_cut`.

    `slack_bytes` is what `table` leaves free.
    """
    capacity = budget_bytes // slots.alignment * slots.alignment
    blocks = blocks_of(slots, table)
    offsets = place(blocks.blocks, capacity)
    if None in offsets and not may_cut:
        return
    for drives in (False, True) if None in offsets else (False,):
        found = cut(slots, blocks, offsets, keep, capacity, drives)
        if found is None:
            continue
        if not np.array_equal(found.keep, keep):
            left = timetable(slots, capacity, found.keep, slack_bytes)
            stays = blocks_of(slots, left)
        else:
            left, stays = table, blocks
        try:
            yield assemble(slots, budget_bytes, left, stays, within(stays, found.offset_by_key))
        except DoesNotFit:
            continue
