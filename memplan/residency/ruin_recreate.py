"""What stays, traded for what moves fewer bytes: an interval comes in, whoever is in its way goes, and who fits then comes in too.

In: Accesses, the room that what stays may take at every slot, a Keep within it, a judge of new ones. Out: a Keep within the room that
moves no more. Ruin and recreate (Schrimpf and others 2000) around one interval at a time; kept is what saves bytes and is accepted.
Policies choose by one figure an interval; a trade sees what it costs all others. Deterministic.

    w        ●────────────────●           room for one: w stays by its shares, but if it goes, u and v fit, which
    u, v     ●───────●  ●─────────●       together move more bytes than w
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.residency.policies import Keep, Room, bytes_kept

TRADES, WORK = 1_600, 7_000_000
"""Trades tried at most, and intervals glanced at over all of them."""
TRIED = 1_500_000
"""Intervals that were weighed, to go or to come in, over all trades: with the above ten seconds at most, as a rule two."""
LOOKED_AT = 100
"""Trades that are put before the judge, at most."""
DARED = 3
"""A trade is given up once it has cost this many times the interval that came in."""


def traded(a: Accesses, room: Room, keep: Keep, accepts: Callable[[Keep], bool]) -> Keep:
    """`keep` after all trades that moved fewer bytes each and that `accepts` took, in turn."""
    if not len(keep):
        return keep
    trader, dice, looked_at = _Trader(a, room, keep), Random(0), 0
    for _ in range(min(TRADES, WORK // len(keep))):
        gone = np.flatnonzero(~trader.keep)
        if not len(gone) or looked_at == LOOKED_AT or trader.tried > TRIED:
            break
        saved = trader.trade(int(gone[dice.randrange(len(gone))]), dice)
        looked_at += saved > 0
        if saved <= 0 or not accepts(trader.keep):
            trader.undo()
    return trader.keep


class _Trader:
    def __init__(self, a: Accesses, room: Room, keep: Keep) -> None:
        self.keep = keep.copy()
        self.left = room - bytes_kept(a, keep)
        """[slot]"""
        self.begin, self.end = a.start + 1, a.end
        """[interval] the slots that it stays over, half-open."""
        self.size = a.nbytes[a.tensor]
        self.nbytes: list[int] = self.size.tolist()
        self.tensor: list[int] = a.tensor.tolist()
        self.dirty: list[bool] = a.dirty.tolist()
        self.absent: list[int] = np.bincount(a.tensor[~keep], minlength=len(a.nbytes)).tolist()
        """[tensor] its intervals that do not stay: the first of a dirty tensor costs a copy to the host."""
        self.changed: list[int] = []
        self.tried = 0

    def trade(self, j: int, dice: Random) -> int:
        """Have `j` stay; answers the bytes that this saves. Where that is 0 or less, `undo` is due."""
        self.changed = []
        start, stop = int(self.begin[j]), int(self.end[j])
        saved = self._flip(j)
        least = -DARED * self.nbytes[j]
        near = np.flatnonzero(self.keep & (self.size > 0) & (self.begin < stop) & (self.end > start))
        while (left := self.left[start:stop]).min() < 0:
            worst = start + int(left.argmin())
            over = near[self.keep[near] & (self.begin[near] <= worst) & (worst < self.end[near]) & (near != j)]
            if not len(over) or saved < least:
                return 0
            self.tried += len(over)
            saved += self._flip(min(over.tolist(), key=lambda i: self._rate(i, start, stop) * (1 + dice.random())))
        start, stop = int(self.begin[self.changed].min()), int(self.end[self.changed].max())
        out = np.flatnonzero(~self.keep & (self.begin < stop) & (self.end > start))
        self.tried += len(out)
        slots = (self.end - self.begin).tolist()
        for i in sorted(out.tolist(), key=lambda i: -self._bytes(i, 1) / slots[i] ** 0.5 * (0.5 + dice.random())):
            if self.left[self.begin[i] : self.end[i]].min() >= self.nbytes[i]:
                saved += self._flip(i)
        return saved

    def undo(self) -> None:
        for i in self.changed[::-1]:
            self._flip(i)
        self.changed = []

    def _bytes(self, i: int, absent: int) -> int:
        """What `i` moves, where so many of its tensor's intervals do not stay, itself among them."""
        t = self.tensor[i]
        return self.nbytes[i] * (2 if self.dirty[t] and absent == 1 else 1)

    def _rate(self, i: int, start: int, stop: int) -> float:
        """What it costs to let `i` go, for each byte that it relieves."""
        left = self.left[max(start, self.begin[i]) : min(stop, self.end[i])]
        relieved = int(np.clip(-left, 0, self.nbytes[i]).sum())
        return self._bytes(i, self.absent[self.tensor[i]] + 1) / relieved

    def _flip(self, i: int) -> int:
        """Who stayed goes, and the reverse; answers the bytes that this saves."""
        t, size = self.tensor[i], self.nbytes[i]
        comes = not self.keep[i]
        if not comes:
            self.absent[t] += 1
        saved = self._bytes(i, self.absent[t])
        if comes:
            self.absent[t] -= 1
        self.keep[i] = comes
        self.left[self.begin[i] : self.end[i]] += -size if comes else size
        self.changed.append(i)
        return saved if comes else -saved
