"""What an arena leaves possible because tensors are whole: which intervals can be resident, how many of them together, and from which slot
on a load can be ahead of its need.

In: Accesses, bytes of the arena. Out: Fits, which holds of every plan of these slots; the interval LP and the slot LP, in which tensors
may be cut at every byte, are nearer the truth with it where tensors are large beside the arena.

    slot                3      4      5      6
    headroom           10     70     20     80       w, 60 bytes, used by slots 2 and 7, cannot be resident; it can be loaded ahead of
                                          w..        slot 7 from slot 6 on, no earlier
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from einpage.einsum_front.base.columns import Bools, Int64s
from einpage.memplan.problem.accesses import Accesses

MOST_TOGETHER = 3
"""Only of intervals so large that so many at most fit together it is said how many do: of smaller ones, cut ones say nearly as much."""
MOST_ENTRIES = 200_000
"""Of all Crowds together; slots after those that have so many are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """Intervals over one slot, any `most` + 1 of which together exceed its headroom."""

    intervals: Int64s
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class Fits:
    resident: Bools
    """[interval] whether its tensor fits beside the footprint of each slot over which it would be resident."""
    again_from: Int64s
    """[interval] the first slot after whose task its tensor can be in for the use that ends it; that use where none before can."""
    first_from: Int64s
    """[load] the same of first loads."""
    crowds: tuple[Crowd, ...]

    @property
    def is_everything(self) -> bool:
        """Whether every interval can be resident."""
        return bool(self.resident.all())


def fits(a: Accesses, capacity: int) -> Fits:
    """`capacity` is at least every footprint. Time grows with slots times tensor sizes, and with slots times intervals."""
    headroom = capacity - a.footprint
    size = a.nbytes[a.tensor]
    full: dict[int, Int64s] = {}
    slots = np.arange(a.slots)
    for nbytes in np.unique(np.concatenate((size, a.nbytes[a.loaded]))).tolist():
        full[nbytes] = np.maximum.accumulate(np.where(headroom < nbytes, slots, -1))

    def after_full(sizes: Int64s, uses: Int64s) -> Int64s:
        """After the last slot before each use that has too little headroom."""
        return np.array([full[n][use - 1] + 1 if use else 0 for n, use in zip(sizes.tolist(), uses.tolist(), strict=True)], np.int64)

    from_slot = after_full(size, a.end)
    resident = from_slot <= a.start + 1
    return Fits(
        resident=resident,
        again_from=np.maximum(from_slot, a.start + 1),
        first_from=after_full(a.nbytes[a.loaded], a.load_at),
        crowds=tuple(_crowds(a, headroom, resident)),
    )


def _crowds(a: Accesses, headroom: Int64s, resident: Bools) -> Iterator[Crowd]:
    """Each once, of intervals that can be resident at all."""
    which = np.flatnonzero(resident)
    start, end, size = a.start[which], a.end[which], a.nbytes[a.tensor[which]]
    seen: set[tuple[int, bytes]] = set()
    entries = 0
    for k, left in enumerate(headroom.tolist()):
        over = which[large := (start < k) & (k < end) & (size * (MOST_TOGETHER + 1) > left)]
        sizes = size[large]
        for most in range(1, MOST_TOGETHER + 1):
            crowd = over[sizes * (most + 1) > left]
            key = most, crowd.tobytes()
            if len(crowd) <= most or key in seen:
                continue
            seen.add(key)
            entries += len(crowd)
            if entries > MOST_ENTRIES:
                return
            yield Crowd(crowd, most)
