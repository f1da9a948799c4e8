"""Places for all, by cutting stays: what finds no place stays shorter, or what lies in its way does.

In: the blocks of a timetable, places for most of them, what stays. Out: Keep without the intervals that were cut, and a place for every
stay that is left. Only cores are looked at: from the position where a block must be there to the end of its last task. A load ahead of
need comes later where its bytes are still in use, and a copy to the host that somebody waits for is waited for: `within` says when.

    offset            w, used at 1, 5 and 9, finds no hole from 1 to 9; cut after 5 its second half does
      |  [b   ][w      ]
      |  [w     ][ c    ]
      +--1----5-----9--> slot
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.accesses import Accesses
from einpage.memplan.assemble import Blocks, Stays
from einpage.memplan.timetable import Keep

Ints = NDArray[np.int64]
NO_PRICE = 1 << 60
"""Of a core that cannot be cut where it is asked to."""
Key = tuple[int, int]
"""A tensor and the position where it must be there."""


@dataclass(frozen=True, slots=True)
class Core:
    key: Key
    lower: int
    upper: int
    """Positions, half-open."""
    nbytes: int
    gaps: tuple[int, ...]
    """Kept intervals inside it, ascending: over each it only waits."""


@dataclass(frozen=True, slots=True)
class Cut:
    keep: Keep
    offset_by_key: dict[Key, int]


def cut(a: Accesses, blocks: Blocks, offsets: Sequence[int | None], keep: Keep, capacity: int) -> Cut | None:
    """Places for all. None where tasks' own operands leave no hole that is large enough."""
    ground = _Ground(a, capacity)
    homeless = []
    for core, at in zip(_cores(a, blocks, keep), offsets, strict=True):
        if at is None:
            homeless.append(core)
        else:
            ground.stand(core, at)
    homeless.sort(key=lambda c: (len(c.gaps), -c.nbytes, c.key), reverse=True)
    while homeless:
        core = homeless.pop()
        at = ground.hole(core)
        if at is not None:
            ground.stand(core, at)
        elif core.gaps:
            longest = max(core.gaps, key=lambda j: (int(a.end[j] - a.begin[j]), j))
            homeless += ground.halves(core, longest)
        elif not ground.make_room(core):
            return None
    left = keep.copy()
    left[ground.cut] = False
    return Cut(left, {core.key: int(ground.offset[i]) for i, core in enumerate(ground.cores)})


def within(blocks: Blocks, offset_by_key: dict[Key, int]) -> Stays:
    """Where every block lies, and when: as it wishes, but for bytes that another's core still uses or uses again by then."""
    lower, upper = np.array([position for _, position in blocks.keys], np.int64), np.array(blocks.uppers, np.int64)
    start = np.array([offset_by_key[key] for key in blocks.keys], np.int64)
    birth, death, size = np.array([(b.birth, b.death, b.nbytes) for b in blocks.blocks], np.int64).reshape(-1, 3).T
    stop = start + size
    births, deaths = birth.copy(), death.copy()
    by_death = np.argsort(upper, kind="stable")
    for i in by_death[death[by_death] > upper[by_death]].tolist():
        after = lower[(lower >= upper[i]) & (lower < death[i]) & (start < stop[i]) & (stop > start[i])]
        deaths[i] = after.min(initial=death[i])
    for i in np.flatnonzero(birth < lower).tolist():
        before = deaths[(deaths > birth[i]) & (deaths <= lower[i]) & (start < stop[i]) & (stop > start[i])]
        births[i] = before.max(initial=birth[i])
    return Stays(tuple(start.tolist()), tuple(births.tolist()), tuple(deaths.tolist()))


def _cores(a: Accesses, blocks: Blocks, keep: Keep) -> list[Core]:
    kept = np.flatnonzero(keep)
    by_tensor: dict[int, list[int]] = {}
    for j, t in zip(kept.tolist(), a.tensor[kept].tolist(), strict=True):
        by_tensor.setdefault(t, []).append(j)
    cores = []
    for block, stays, key, upper in zip(blocks.blocks, blocks.stays, blocks.keys, blocks.uppers, strict=True):
        inside = [j for t in stays for j in by_tensor.get(t, ()) if key[1] <= 3 * a.begin[j] + 1 and 3 * a.end[j] < upper]
        cores.append(Core(key, key[1], upper, block.nbytes, tuple(inside)))
    return cores


class _Ground:
    """Cores that stand. No two that live at once share a byte."""

    def __init__(self, a: Accesses, capacity: int) -> None:
        self.a, self.capacity = a, capacity
        self.cores: list[Core] = []
        self.cut: list[int] = []
        """The intervals that no longer stay."""
        self.lower, self.upper, self.offset, self.stop = (np.zeros(64, np.int64) for _ in range(4))
        self.leaves: Ints = 3 * a.begin + 2
        """[interval] the position from which its bytes are free if it is cut, ..."""
        self.returns: Ints = 3 * a.end
        """[interval] ... and until when."""
        self.price: Ints = a.nbytes[a.tensor] * np.where(a.first & a.dirty[a.tensor], 2, 1)
        """[interval] bytes that cutting it moves."""

    def stand(self, core: Core, at: int) -> None:
        n = len(self.cores)
        if n == len(self.lower):
            self.lower, self.upper, self.offset, self.stop = (
                np.concatenate((column, np.zeros_like(column))) for column in (self.lower, self.upper, self.offset, self.stop)
            )
        self.lower[n], self.upper[n], self.offset[n], self.stop[n] = core.lower, core.upper, at, at + core.nbytes
        self.cores.append(core)

    def halves(self, core: Core, gap: int) -> tuple[Core, Core]:
        """What is left of `core` if it does not stay over `gap`."""
        self.cut.append(gap)
        i = core.gaps.index(gap)
        tensor, back = int(self.a.tensor[gap]), int(self.returns[gap])
        return (
            Core(core.key, core.lower, int(self.leaves[gap]), core.nbytes, core.gaps[:i]),
            Core((tensor, back), back, core.upper, core.nbytes, core.gaps[i + 1 :]),
        )

    def hole(self, core: Core) -> int | None:
        """The offset of the tightest hole for the whole of it."""
        near = self._near(core)
        ends = [0, *np.maximum.accumulate(self.stop[near]).tolist()]
        starts = [*self.offset[near].tolist(), self.capacity]
        holes = [(start - end, end) for end, start in zip(ends, starts, strict=True) if start - end >= core.nbytes]
        return min(holes)[1] if holes else None

    def make_room(self, core: Core) -> bool:
        """Let `core`, which only works, stand where the cheapest to cut are in its way. False where nothing that can be cut makes room."""
        near = self._near(core)
        gaps = [self._gap(self.cores[i], core) for i in near.tolist()]
        price = [NO_PRICE if gap is None else int(self.price[gap]) for gap in gaps]
        start, stop, size = self.offset[near], self.stop[near], core.nbytes
        cheapest, best = NO_PRICE, 0
        for at in sorted({0, self.capacity - size, *stop.tolist(), *(start - size).tolist()}):
            if 0 <= at <= self.capacity - size:
                total = sum(p for p, s, e in zip(price, start.tolist(), stop.tolist(), strict=True) if s < at + size and e > at)
                if total < cheapest:
                    cheapest, best = total, at
        if cheapest >= NO_PRICE:
            return False
        for i, gap, s, e in zip(near.tolist(), gaps, start.tolist(), stop.tolist(), strict=True):
            if s < best + size and e > best:
                assert gap is not None
                self.cores[i], back = self.halves(self.cores[i], gap)
                self.upper[i] = self.cores[i].upper
                self.stand(back, s)
        self.stand(core, best)
        return True

    def _gap(self, core: Core, other: Core) -> int | None:
        """The gap of `core` over all that it shares with `other`."""
        lower, upper = max(core.lower, other.lower), min(core.upper, other.upper)
        return next((j for j in core.gaps if self.leaves[j] <= lower and self.returns[j] >= upper), None)

    def _near(self, core: Core) -> Ints:
        """Those that live while `core` does, by offset."""
        n = len(self.cores)
        found = np.flatnonzero((self.lower[:n] < core.upper) & (self.upper[:n] > core.lower) & (self.stop[:n] > self.offset[:n]))
        by_offset: Ints = found[np.argsort(self.offset[found], kind="stable")]
        return by_offset
