"""Exact search window by window of time: for arenas so full that first fit and repairs leave rectangles out.

In: a Layout. Out: the same Layout, with all rectangles placed of every window that was solved. Windows lie between separators, positions
at which few bytes are alive; what is alive at a separator is placed first, at the bottom, longest first, and is pinned there while
exact.py places the others around it. A problem of a tenth of the size is easier by far more than ten times, and the failure of one undoes
no other's work.

    bytes
     |  [  c ][ d]  |  [ h ]  | [   k    ]
     |  [ b ] [e  ] |  [  g   ]  [ j]         separators at |, where a, f and i are alive
     |  [   a   ..............][..   i   ]
     +----------------------------------> position
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.memplan.packing.exact import FREE, ExactSearch, Outcome
from einpage.memplan.packing.layout import UNPLACED, Layout
from einpage.memplan.packing.pack import Restarts
from einpage.memplan.packing.rectangles import Rectangle, over_cliques

MOST = 512
"""Rectangles of a window that is searched, and of one that is not divided any more."""
SEPARATOR_SHARE = 0.3
"""The share of the arena that may be alive at a separator, at most."""
BALANCE = 4
"""A separator leaves at least one in this many of the rectangles on each side."""
NODES_PER_START = 1.5
"""Nodes of one start, for each rectangle: a search that has to backtrack much had better start anew."""
FRUITLESS = 50
"""With so many starts in a row that found nothing, no more are made."""


def search_windows(layout: Layout, nodes: int) -> None:
    """Place the rectangles of every window for which offsets for all are found, and no others. `nodes` is what the searches may take
    together, about in milliseconds."""
    layout.clear()
    solid = np.flatnonzero(layout.offset == UNPLACED)
    solid = solid[layout.nbytes[solid] <= layout.capacity]
    if not len(solid):
        return
    by_start = solid[layout.start[solid].argsort(kind="stable")]
    separators = list(_separators(layout, by_start, layout.capacity))
    window_of_start = np.searchsorted(separators, layout.start[by_start], "right")
    inside = window_of_start == np.searchsorted(separators, layout.end[by_start], "left")
    pinned = by_start[~inside]
    pinned = pinned[(layout.start[pinned] - layout.end[pinned]).argsort(kind="stable")]
    for i in pinned.tolist():
        layout.place(i, tight=False)
    pinned = pinned[layout.offset[pinned] != UNPLACED]
    unit = int(np.gcd.reduce(layout.nbytes[solid]))
    searches = []
    for window in range(len(separators) + 1):
        members = by_start[inside & (window_of_start == window)]
        if 0 < len(members) <= MOST:
            overlaps = (layout.start[pinned] < layout.end[members].max()) & (layout.end[pinned] > layout.start[members].min())
            members = np.concatenate((members, pinned[overlaps]))
            searches.append((members, _search(layout, members, unit)))
    _run_in_turn(layout, searches, unit, nodes)


def _run_in_turn(layout: Layout, searches: list[tuple[Int64s, Restarts]], unit: int, nodes: int) -> None:
    """A start for each window in turn, until all are solved or proven impossible, `nodes` are spent, or starts stay FRUITLESS."""
    fruitless = 0
    while searches:
        still_open = []
        for members, search in searches:
            if nodes <= 0 or fruitless == FRUITLESS:
                return
            fruitless += 1
            layout.pace.step()
            outcome, offsets = search.once(layout.capacity // unit, int(NODES_PER_START * len(members)), layout.pace.until_s)
            nodes -= search.nodes
            if outcome is Outcome.FOUND:
                layout.offset[members] = np.array(offsets, np.int64) * unit
                fruitless = 0
            elif outcome is Outcome.OPEN:
                still_open.append((members, search))
        searches = still_open


def _separators(layout: Layout, by_start: Int64s, capacity: int) -> Iterator[int]:
    """Positions, ascending, that divide the rectangles `by_start` until no window has more than MOST, or none can be divided."""
    starts = layout.start[by_start]
    if len(by_start) <= MOST:
        return
    middle = np.unique(starts[len(starts) // BALANCE : -(len(starts) // BALANCE)])
    ends = np.sort(layout.end[by_start])
    nbytes_by_end = layout.nbytes[by_start][layout.end[by_start].argsort(kind="stable")]
    started = np.concatenate(((0,), layout.nbytes[by_start].cumsum()))[starts.searchsorted(middle)]
    ended = np.concatenate(((0,), nbytes_by_end.cumsum()))[ends.searchsorted(middle, "right")]
    alive = started - ended
    least = int(alive.argmin())
    if alive[least] > SEPARATOR_SHARE * capacity:
        return
    at = int(middle[least])
    before, after = by_start[starts < at], by_start[starts >= at]
    if not len(before):
        return
    yield from _separators(layout, before, capacity)
    yield at
    yield from _separators(layout, after, capacity)


def _search(layout: Layout, members: Int64s, unit: int) -> Restarts:
    """Of offsets for `members`; those that are placed are pinned."""
    columns = layout.start[members].tolist(), layout.end[members].tolist(), (layout.nbytes[members] // unit).tolist()
    pinned = np.where(layout.offset[members] == UNPLACED, FREE, layout.offset[members] // unit)
    return Restarts(ExactSearch(over_cliques([Rectangle(*row) for row in zip(*columns, strict=True)]), pinned), seed=0)
