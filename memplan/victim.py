"""Who leaves the arena when bytes are wanted: a price for each tensor, and the cheapest row of neighbours that makes one hole.

In: candidates as columns of bytes, reuse distance, dirtiness. Out: whole prices, so that sums are exact and plans are the same everywhere.
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
Price: TypeAlias = Callable[[Column, Column, Column], Column]
"""price(nbytes, distance in steps, dirty) > 0: what it costs to have each tensor leave. Lower leaves first."""

PINNED = -1
"""The price of a segment that may not leave."""
LARGE = 1 << 37
"""In an arena this large sizes reach a Price as Python's ints; in a smaller one no sum of `weighted` comes to half of what int64 holds."""
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


def weighted(nbytes: Column, distance: Column, dirty: Column) -> Column:
    """A clean tensor costs its reload; a dirty one its offload too. Gained is the room until the next use."""
    prices: Column = nbytes * (1 + dirty) * _ONE // distance + 1
    return prices


def farthest(nbytes: Column, distance: Column, dirty: Column) -> Column:
    """So steep in the distance that the nearest next use of a window decides; too steep for int64."""
    return (1 << 200) // distance.astype(object) ** 8 + 1


def price_of(policy: VictimPolicy, seed: int) -> Price:
    """The price function of a policy; RANDOM is a fresh sequence at each call."""
    match policy:
        case VictimPolicy.WEIGHTED:
            return weighted
        case VictimPolicy.FARTHEST:
            return farthest
        case VictimPolicy.RANDOM:
            random = Random(seed)
            return lambda nbytes, distance, dirty: np.array([random.randrange(1, _ONE) for _ in distance], np.int64)


def cheapest_window(bounds: Column, prices: Column, wanted: int) -> tuple[int, int] | None:
    """The half-open range of neighbours, none PINNED, of at least `wanted` bytes whose prices sum to least; a hole's price is 0.

    Segment i is [bounds[i], bounds[i + 1]). Of equal sums the leftmost wins. None where pinned segments leave no such range. O(n log n).
    """
    may = prices != PINNED
    if len(prices) > FEW:
        alone = prices[may & (bounds[1:] - bounds[:-1] >= wanted)]
        if len(alone):
            may &= prices <= alone.min()  # what is dearer than one that is enough alone is in no cheapest range
    there = may.nonzero()[0]
    run = _after(-1, there - np.arange(len(there)))  # neighbours have the same
    # The shortest range that ends with each begins with the last that starts so many bytes before.
    begun = bounds[there].searchsorted(bounds[there + 1] - wanted, "right")
    last = (run[1:] == run[begun]).nonzero()[0]
    if not len(last):
        return None
    first, total = begun[last] - 1, _after(0, prices[there].cumsum())
    best = (total[last + 1] - total[first]).argmin()
    return int(there[first[best]]), int(there[last[best]]) + 1


def _after(first: int, column: Column) -> Column:
    return np.concatenate((np.array([first], column.dtype), column))
