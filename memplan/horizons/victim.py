"""Who leaves the arena when bytes are wanted: a price for each tensor, and the cheapest row of neighbours that makes one hole.

In: loads (bytes that must move again) and reuse distances. Out: whole prices, so that sums are exact and plans the same everywhere.
Reuse distance is Belady's rule (1966); it is optimal for equal clean sizes only, hence the weights and the windows.

    segments   | x pinned | a: price 4 | hole | b: price 9 | c: price 2 |      wanted: a hole of two segments
    windows                [------- 4 -------] [--------- 9 ... ]              the first one: drop a
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[Any]
"""[candidate] or [segment], by offset; of int64, or of Python's ints where those are too short."""
Price: TypeAlias = Callable[[Column, Column], Column]
"""price(load, distance in steps): what it costs to have each tensor leave, positive, and 0 for a hole. Lower leaves first."""

HOLE_LOAD = -1
"""The load of a hole: a hole leaves at once, and at no price."""
FAR = 1 << 62
"""A step after all others, to which a hole may be away."""
LARGE = 1 << 37
"""In an arena this large loads reach a Price as Python's ints; in a smaller one no sum of `weighted` comes to half of what int64 holds."""
FEW = 300
"""Of so few segments it is as fast to look at all."""
_ONE = 1 << 24
"""Prices are whole multiples of 1 / _ONE byte a step."""


class VictimPolicy(Enum):
    WEIGHTED = "weighted"
    """Bytes that must move again, per step of room gained: farthest, smallest and clean first."""
    FARTHEST = "farthest"
    """Reuse distance alone: the window whose nearest next use is farthest away, nearly."""
    RANDOM = "random"
    """Any, drawn from the seed: for tests."""


def load(nbytes: int, dirty: bool) -> int:
    """A clean tensor costs its reload; a dirty one its offload too."""
    return nbytes * (1 + dirty) * _ONE


def weighted(loads: Column, distance: Column) -> Column:
    """Gained is the room until the next use."""
    prices: Column = loads // distance + 1
    return prices


def farthest(loads: Column, distance: Column) -> Column:
    """So steep in the distance that the nearest next use of a window decides; too steep for int64."""
    return np.where(loads == HOLE_LOAD, 0, (1 << 200) // distance.astype(object) ** 8 + 1)


def price_of(policy: VictimPolicy, seed: int) -> Price:
    """The price function of a policy; RANDOM is a fresh sequence at each call."""
    match policy:
        case VictimPolicy.WEIGHTED:
            return weighted
        case VictimPolicy.FARTHEST:
            return farthest
        case VictimPolicy.RANDOM:
            random = Random(seed)
            return lambda loads, distance: np.array([0 if x == HOLE_LOAD else random.randrange(1, _ONE) for x in loads], np.int64)


def cheapest_window(bounds: Column, may: Column, prices: Column, wanted: int) -> tuple[int, int] | None:
    """The half-open range of neighbours, of at least `wanted` bytes and all among `may`, whose prices sum to least.

    Segment i is [bounds[i], bounds[i + 1]); `may` [candidate] are segments, ascending, holes too, and `prices` [candidate] is theirs. Of
    equal sums the leftmost wins. None where the other segments leave no such range. O(n log n).
    """
    begins, ends = bounds[:-1], bounds[1:]
    if len(may) > FEW:
        alone = prices[(ends - begins).take(may) >= wanted]
        if len(alone):
            cheap = (prices <= alone.min()).nonzero()[0]  # what is dearer than one that is enough alone is in no cheapest range
            may, prices = may.take(cheap), prices.take(cheap)
    run = may - np.arange(len(may))  # neighbours have the same
    # The shortest range that ends with each begins with the last that starts so many bytes before.
    first = begins.take(may).searchsorted(ends.take(may) - wanted, "right") - 1
    last = ((run.take(first) == run) & (first >= 0)).nonzero()[0]
    if not len(last):
        return None
    first, total = first.take(last), prices.cumsum()
    best = (total.take(last) - total.take(first) + prices.take(first)).argmin()
    return int(may[first[best]]), int(may[last[best]]) + 1
