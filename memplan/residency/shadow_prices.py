"""What a byte of the arena is worth at each slot, found by asking: at these prices, who would stay?

In: Accesses, and the room that what stays may take at every slot. Out: the share of the askings in which each interval wished to stay.
An interval stays while its rent, a byte's prices over it, is less than what a byte costs that comes back: 1, and 1 more on the first leave
of a dirty tensor. A slot that more would use than it has room for grows dearer, one with room to spare cheaper: subgradient steps, as long
as the last ones told each slot to go (AdaGrad: Duchi, Hazan, Singer 2011). The mean over steps tends to a solution of the interval LP;
no solver is needed.

    w        ●────────────────●           room for one of the two: while the prices between v's first use and w's next sum up to less
    v            ●────────────────●       than 1 both would stay, then neither; about 1 each stays in some of the askings
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.problem.accesses import Accesses

Floats = NDArray[np.float64]
STEP = 0.02
FIRST, LATER = 800, 300
"""Steps: for the first room, and for each other from the prices of the one before."""
COUNTED = 0.5
"""The share of the steps, the last ones, whose mean is taken."""


def shares(a: Accesses, rooms: Iterable[NDArray[np.int64]]) -> Iterator[Floats]:
    """[interval] in [0, 1], for each of the `rooms` ([slot] bytes, not negative). Rooms like the one before are quicker."""
    market = _Market(a)
    steps = FIRST
    for room in rooms:
        yield market.settle(room, steps)
        steps = LATER


class _Market:
    def __init__(self, a: Accesses) -> None:
        self.a = a
        self.dirty = a.dirty[a.tensor]
        self.price = np.zeros(a.slots)

    def settle(self, room: NDArray[np.int64], steps: int) -> Floats:
        a, unit = self.a, max(1.0, float(room.max(initial=0)))
        size, right = a.nbytes[a.tensor] / unit, room / unit
        stayed, past = np.zeros(len(size)), np.full(a.slots, 1e-12)
        for step in range(steps):
            stay = self._stay()
            if step >= steps * (1 - COUNTED):
                stayed += stay
            kept = size * stay
            change = np.bincount(a.start + 1, kept, a.slots + 1) - np.bincount(a.end, kept, a.slots + 1)
            excess = change.cumsum()[:-1] - right
            past += excess**2
            self.price = np.maximum(0.0, self.price + STEP * excess / np.sqrt(past))
        shares: Floats = stayed / max(1.0, np.floor(steps * COUNTED))
        return shares

    def _stay(self) -> NDArray[np.bool_]:
        """[interval] who stays at these prices. A dirty tensor leaves only if all that it saves is worth the copy to the host."""
        a = self.a
        passed = np.concatenate(((0.0,), self.price.cumsum()))
        rent = passed[a.end] - passed[a.start + 1]
        saved = np.bincount(a.tensor, np.maximum(rent - 1.0, 0.0), len(a.nbytes))
        stay: NDArray[np.bool_] = (rent < 1.0) | (self.dirty & (saved[a.tensor] <= 1.0))
        return stay
