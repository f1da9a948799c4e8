"""Which tensors are evicted when bytes are needed: a price for each, and the cheapest window of neighbours that makes one hole.

In: traffic (bytes that must move again) and reuse distances. Out: integer prices, so that sums are exact and plans the same everywhere.
Farthest reuse first is Belady's rule (1966); it is optimal for clean tensors of equal size only, hence the weights and the windows.

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
"""price(traffic, distance in steps): what it costs to evict each tensor, positive, and 0 for a hole. Lower is evicted first."""

HOLE_TRAFFIC = -1
"""The traffic of a hole, which is evicted at no price."""
FAR = 1 << 62
"""A step after all others: the next use of a hole."""
LARGE = 1 << 37
"""In an arena this large a Price is given Python's ints; in a smaller one no sum of `weighted` exceeds half of what int64 holds."""
FEW = 300
"""With so few candidates it is as fast to look at all."""
_ONE = 1 << 24
"""Prices are whole multiples of 1 / _ONE byte a step."""


class VictimPolicy(Enum):
    WEIGHTED = "weighted"
    """Bytes that must move again, per step for which bytes are gained: farthest, smallest and clean first."""
    FARTHEST = "farthest"
    """Reuse distance alone: the window whose nearest next use is farthest away, nearly."""
    RANDOM = "random"
    """Any, drawn from the seed: for tests."""


def traffic(nbytes: int, dirty: bool) -> int:
    """What evicting a tensor moves over the links: a clean one its reload, a dirty one its offload too."""
    return nbytes * (1 + dirty) * _ONE


def weighted(traffics: Column, distance: Column) -> Column:
    """Traffic per step until the next use."""
    prices: Column = traffics // distance + 1
    return prices


def farthest(traffics: Column, distance: Column) -> Column:
    """So steep in the distance that the nearest next use of a window decides; too steep for int64."""
    return np.where(traffics == HOLE_TRAFFIC, 0, (1 << 200) // distance.astype(object) ** 8 + 1)


def price_of(policy: VictimPolicy, seed: int) -> Price:
    """The price function of a policy; RANDOM is a fresh sequence at each call."""
    match policy:
        case VictimPolicy.WEIGHTED:
            return weighted
        case VictimPolicy.FARTHEST:
            return farthest
        case VictimPolicy.RANDOM:
            random = Random(seed)
            return lambda traffics, distance: np.array([0 if x == HOLE_TRAFFIC else random.randrange(1, _ONE) for x in traffics], np.int64)


def cheapest_window(bounds: Column, candidates: Column, prices: Column, wanted: int) -> tuple[int, int] | None:
    """The half-open range of neighbours, of at least `wanted` bytes and all candidates, whose prices sum to least.

    Segment i is [bounds[i], bounds[i + 1]); `candidates` are segments, ascending, holes too, and `prices` [candidate] is theirs. Of
    equal sums the leftmost wins. None where the other segments leave no such range. O(n log n).
    """
    starts, ends = bounds[:-1], bounds[1:]
    if len(candidates) > FEW:
        alone = prices[(ends - starts).take(candidates) >= wanted]
        if len(alone):
            cheap = (prices <= alone.min()).nonzero()[0]  # a costlier one than one that is enough alone is in no cheapest range
            candidates, prices = candidates.take(cheap), prices.take(cheap)
    run = candidates - np.arange(len(candidates))  # equal for neighbours
    # The shortest range that ends with a candidate starts with the last one that starts at least `wanted` bytes before its end.
    first = starts.take(candidates).searchsorted(ends.take(candidates) - wanted, "right") - 1
    last = ((run.take(first) == run) & (first >= 0)).nonzero()[0]
    if not len(last):
        return None
    first, total = first.take(last), prices.cumsum()
    best = (total.take(last) - total.take(first) + prices.take(first)).argmin()
    return int(candidates[first[best]]), int(candidates[last[best]]) + 1
