"""Offsets for rectangles in an arena of given bytes, such that no two that are alive at once share a byte.

In: rectangles, the arena's bytes. Out: an offset for each, or None where no arrangement that was tried holds them all. Rectangles are
placed first fit in a few orders, decreasing size first; what the best order leaves out goes to `repair`, and in the end to exact search.
Invariant: offsets are multiples of whatever all sizes are multiples of.

    bytes
     |  [e ] [ d  ][f]
     |  [   c   ]   [ g ]
     |  [      a        ]
     +--[      b        ]----> position
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from einpage.memplan.packing.layout import UNPLACED, Layout, Snapshot
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.packing.repair import ALWAYS, ANNEALED, repair
from einpage.memplan.packing.windows import search_windows
from einpage.memplan.problem.pace import Pace

WORK, WORK_PER_RECTANGLE = 50_000, 200
"""What may be spent on repairs, about in microseconds: at least, and for each rectangle."""
NODES_PER_RECTANGLE = 4
"""What may be spent on exact search."""
SMALL_SHARE = 0.002
"""Of the arena: the smallest rectangles that need no more than this at once are packed apart, at its top, before the others."""


def place(
    rectangles: Sequence[Rectangle], capacity: int, effort: float = 1.0, exact: bool = False, pace: Pace | None = None
) -> tuple[int | None, ...]:
    """[rectangle] the offset of its first byte, within `capacity` bytes; None for those that are left out.

    The bytes of those left out, and a thousandth of the arena for each, are made few, not proven least. Rectangles of one size always fit
    where those alive at once do.
    Repairs take about `effort` seconds for 5,000 rectangles; with `exact`, what they leave out is searched for, which may take thirty times
    as long. Deterministic. Raises SearchOver where `pace` ends it.
    """
    table = np.array(rectangles, dtype=np.int64).reshape(-1, 3)
    layout = Layout(table, capacity, table[:, 2] + (1 + capacity // 1000), pace or Pace())
    work = int(effort * (WORK + WORK_PER_RECTANGLE * len(rectangles)))
    _fill(layout)
    if UNPLACED in layout.offset:
        best = layout.snapshot()
        _small_apart(layout, work * 4 // 5)
        if layout.snapshot().loss > best.loss:
            layout.restore(best)
        repair(layout, ALWAYS, work // 5)
    if exact and UNPLACED in layout.offset:
        best = layout.snapshot()
        _small_apart(layout, work, NODES_PER_RECTANGLE * len(rectangles))
        if layout.snapshot().loss > best.loss:
            layout.restore(best)
    return tuple(None if at == UNPLACED else at for at in layout.offset.tolist())


def first_fit_loss(rectangles: Sequence[Rectangle], capacity: int, pace: Pace | None = None) -> int:
    """Bytes of the rectangles that first fit leaves out, in the best of a few orders: at a tenth of the cost of `place`, which leaves out
    less. Raises SearchOver where `pace` ends it."""
    table = np.array(rectangles, dtype=np.int64).reshape(-1, 3)
    layout = Layout(table, capacity, table[:, 2] + (1 + capacity // 1000), pace or Pace())
    _fill(layout)
    return int(layout.nbytes[layout.offset == UNPLACED].sum())


def _unplaced(layout: Layout) -> list[int]:
    """The heaviest first."""
    return sorted(np.flatnonzero(layout.offset == UNPLACED).tolist(), key=lambda i: (-int(layout.weight[i]), i))


def _small_apart(layout: Layout, work: int, nodes: int = 0) -> None:
    """The small ones at the top, the rest below them, where `work` is spent on repairs, which do not see the small ones then; before them
    `nodes` on exact search."""
    small = _small(layout)
    is_small = set(small)
    large = [i for i in range(len(layout.offset)) if i not in is_small]
    above = layout.subset(small, layout.capacity)
    _fill(above)
    below = layout.subset(large, layout.capacity - above.height())
    if nodes:
        search_windows(below, nodes)
        for i in next(_orders(below)):
            below.place(i, tight=False)
    else:
        _fill(below)
    repair(below, ANNEALED, work // 2)
    repair(below, ALWAYS, work // 2)
    layout.clear()
    layout.offset[small] = np.where(above.offset == UNPLACED, UNPLACED, above.offset + layout.capacity - above.height())
    layout.offset[large] = below.offset
    for i in _unplaced(layout):
        layout.place(i, tight=True)


def _small(layout: Layout) -> list[int]:
    """The smallest rectangles, whole sizes at a time, that take at most SMALL_SHARE of the arena at once."""
    alive = np.zeros(int(layout.end.max(initial=0)) + 1, dtype=np.int64)
    small: list[int] = []
    for nbytes in np.unique(layout.nbytes):
        numbers = np.flatnonzero((layout.nbytes == nbytes) & (layout.start < layout.end))
        change = np.zeros_like(alive)
        np.add.at(change, layout.start[numbers], nbytes)
        np.add.at(change, layout.end[numbers], -nbytes)
        alive += change.cumsum()
        if alive.max(initial=0) > SMALL_SHARE * layout.capacity:
            break
        small += numbers.tolist()
    return small


def _fill(layout: Layout) -> None:
    """Place all first fit, in the order that leaves out least."""
    best = Snapshot(int(layout.weight.sum()) + 1, [])
    for order in _orders(layout):
        layout.clear()
        loss = 0
        for i in order:
            if not layout.place(i, tight=False):
                loss += int(layout.weight[i])
                if loss >= best.loss:
                    break
        else:
            best = layout.snapshot()
        if not best.loss:
            break
    layout.restore(best)


def _orders(layout: Layout) -> Iterator[list[int]]:
    """By size, then start or, backwards, end: classes of equal sizes one above the other, each as narrow as can be. By area or, within a
    size, by duration: the long ones lie at the bottom, where the short ones change above them."""
    start, end, nbytes = layout.start.tolist(), layout.end.tolist(), layout.nbytes.tolist()
    numbers = range(len(start))
    yield sorted(numbers, key=lambda i: (-nbytes[i], start[i], -end[i], i))
    yield sorted(numbers, key=lambda i: (-nbytes[i], -end[i], start[i], i))
    yield sorted(numbers, key=lambda i: (-nbytes[i] * (end[i] - start[i]), i))
    yield sorted(numbers, key=lambda i: (-nbytes[i], start[i] - end[i], i))
