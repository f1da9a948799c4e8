"""Who leaves the arena when bytes are wanted: a price for each tensor, and the cheapest row of neighbours that makes one hole.

In: candidates as (bytes, reuse distance, dirtiness). Out: whole prices, so that sums are exact and plans are the same everywhere.
Reuse distance is Belady's rule (1966); it is optimal for equal clean sizes only, hence the weights and the windows.

    segments   | x pinned | a: price 4 | hole | b: price 9 | c: price 2 |      wanted: a hole of two segments
    windows                [------- 4 -------] [--------- 9 ... ]              the first one: drop a
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import TypeAlias

Price: TypeAlias = Callable[[int, int, bool], int]
"""price(nbytes, distance in steps, dirty) > 0: what it costs to have this tensor leave. Lower leaves first."""

PINNED = -1
"""The price of a segment that may not leave."""
_ONE = 1 << 24
"""Prices are whole multiples of 1 / _ONE byte a step."""


class VictimPolicy(Enum):
    WEIGHTED = "weighted"
    """Bytes that must move again, per step of room gained: farthest, smallest and clean first."""
    FARTHEST = "farthest"
    """Reuse distance alone: the window whose nearest next use is farthest away, nearly."""
    RANDOM = "random"
    """Any, drawn from the seed: for tests."""


def weighted(nbytes: int, distance: int, dirty: bool) -> int:
    """A clean tensor costs its reload; a dirty one its offload too. Gained is the room until the next use."""
    return nbytes * (2 if dirty else 1) * _ONE // distance + 1


def farthest(nbytes: int, distance: int, dirty: bool) -> int:
    """So steep in the distance that the nearest next use of a window decides."""
    return (1 << 200) // distance**8 + 1


FALL_WITH_DISTANCE: frozenset[Price] = frozenset((weighted, farthest))
"""Of these a row of at least n bytes, all needed within d steps, costs no less in sum than one clean tensor of n bytes needed in d."""


def price_of(policy: VictimPolicy, seed: int) -> Price:
    """The price function of a policy; RANDOM is a fresh sequence at each call."""
    match policy:
        case VictimPolicy.WEIGHTED:
            return weighted
        case VictimPolicy.FARTHEST:
            return farthest
        case VictimPolicy.RANDOM:
            random = Random(seed)
            return lambda nbytes, distance, dirty: random.randrange(1, _ONE)


def cheapest_window(sizes: Sequence[int], prices: Sequence[int], wanted: int) -> tuple[int, int] | None:
    """The half-open range of neighbours, none PINNED, of at least `wanted` bytes whose prices sum to least; a hole's price is 0.

    Of equal sums the leftmost wins. None where pinned segments leave no such range. O(n).
    """
    best: tuple[int, int] | None = None
    least = -1
    left = nbytes = total = 0
    for right, (size, price) in enumerate(zip(sizes, prices, strict=True)):
        if price == PINNED:
            left, nbytes, total = right + 1, 0, 0
            continue
        nbytes += size
        total += price
        while nbytes - sizes[left] >= wanted:
            nbytes -= sizes[left]
            total -= prices[left]
            left += 1
        if nbytes >= wanted and (best is None or total < least):
            best, least = (left, right + 1), total
    return best
