"""Places by exact search, one window of time after the other: for arenas so full that orders and repairs leave blocks out.

In: a Field. Out: the same Field, all blocks of every window that was solved standing. A window lies between two seams, positions where
few bytes live; what lives at a seam is stood at the bottom first, the longest lives lowest, and stays there while pack_search.py looks
for places beside it. A problem of a tenth of the size is easier by far more than ten times, and the failure of one undoes no other's work.

    bytes
     |  [  c ][ d]  |  [ h ]  | [   k    ]
     |  [ b ] [e  ] |  [  g   ]  [ j]         seams at |, where a, f and i live
     |  [   a   ..............][..   i   ]
     +----------------------------------> position
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einpage.memplan.packing.exact import FREE, Outcome, Search
from einpage.memplan.packing.layout import NOWHERE, Field, Ints
from einpage.memplan.packing.pack import Restarts, cliques

MOST = 512
"""Blocks of a window that is searched, and of one that is not divided any more."""
THIN = 0.3
"""The share of the arena that may live at a seam."""
EDGE = 4
"""A seam leaves at least one in this many of the blocks on each side."""
DIVES = 1.5
"""Nodes of one start, for each block: the search that has to go back much had better start anew."""

FRUITLESS = 50
"""With so many starts in a row that found nothing, no more are made."""


def search_windows(field: Field, nodes: int) -> None:
    """Stand the blocks of every window for which places for all are found; all others stand nowhere. `nodes` is what the searches may
    take together, about in milliseconds."""
    field.clear()
    solid = np.flatnonzero(field.offset == NOWHERE)
    solid = solid[field.nbytes[solid] <= field.capacity]
    if not len(solid):
        return
    by_birth = solid[field.birth[solid].argsort(kind="stable")]
    seams = list(_seams(field, by_birth, field.capacity))
    number_of_birth = np.searchsorted(seams, field.birth[by_birth], "right")
    inside = number_of_birth == np.searchsorted(seams, field.death[by_birth], "left")
    pinned = by_birth[~inside]
    pinned = pinned[(field.birth[pinned] - field.death[pinned]).argsort(kind="stable")]
    for i in pinned.tolist():
        field.put(i, tight=False)
    pinned = pinned[field.offset[pinned] != NOWHERE]
    unit = int(np.gcd.reduce(field.nbytes[solid]))
    searches = []
    for n in range(len(seams) + 1):
        members = by_birth[inside & (number_of_birth == n)]
        if 0 < len(members) <= MOST:
            lives = (field.birth[pinned] < field.death[members].max()) & (field.death[pinned] > field.birth[members].min())
            members = np.concatenate((members, pinned[lives]))
            searches.append((members, _search(field, members, unit)))
    fruitless = 0
    while searches:
        left = []
        for members, search in searches:
            if nodes <= 0 or fruitless == FRUITLESS:
                return
            fruitless += 1
            outcome, offsets = search.once(field.capacity // unit, int(DIVES * len(members)))
            nodes -= search.nodes
            if outcome is Outcome.FOUND:
                field.offset[members] = np.array(offsets, np.int64) * unit
                fruitless = 0
            elif outcome is Outcome.OPEN:
                left.append((members, search))
        searches = left


def _seams(field: Field, by_birth: Ints, capacity: int) -> Iterator[int]:
    """Positions, ascending, at which all blocks of `by_birth` are divided until no part has more than MOST, or none can be."""
    births = field.birth[by_birth]
    if len(by_birth) <= MOST:
        return
    middle = np.unique(births[len(births) // EDGE : -(len(births) // EDGE)])
    ends = np.sort(field.death[by_birth])
    size_by_end = field.nbytes[by_birth][field.death[by_birth].argsort(kind="stable")]
    begun = np.concatenate(((0,), field.nbytes[by_birth].cumsum()))[births.searchsorted(middle)]
    ended = np.concatenate(((0,), size_by_end.cumsum()))[ends.searchsorted(middle, "right")]
    alive = begun - ended
    thinnest = int(alive.argmin())
    if alive[thinnest] > THIN * capacity:
        return
    at = int(middle[thinnest])
    before, after = by_birth[births < at], by_birth[births >= at]
    if not len(before):
        return
    yield from _seams(field, before, capacity)
    yield at
    yield from _seams(field, after, capacity)


def _search(field: Field, members: Ints, unit: int) -> Restarts:
    """Of places for `members`; those that stand stay where they are."""
    columns = field.birth[members].tolist(), field.death[members].tolist(), (field.nbytes[members] // unit).tolist()
    pinned = np.where(field.offset[members] == NOWHERE, FREE, field.offset[members] // unit)
    return Restarts(Search(cliques(list(zip(*columns, strict=True))), pinned), seed=0)
