"""What blocks wish beyond what they need: to come ahead of need, and to stay until their copy to the host has ended.

In: Slots, Blocks. A block's core, from when it must be there to its last use, has to have its bytes; the rest of its life is a wish, which
costs time where it is not granted. `modest` has them wish less, so that places are found for all; `seated` then moves one block after the
other to where it loses least, and drives away those for whom it is no great loss. Invariant: no two blocks that stay at once share a byte.

    offset            b wishes to come at 2 and must be there at 4; above a, which is
      |  [     ][..b  ]         gone by 1, it may: it moves there from c's bytes
      |  [a][b'..b'   ]
      |  [c      ]
      +--0--1--2--3--4--> slot
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.emit import Blocks, Stays

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LEAST = 1e-9
"""Seconds that are not worth a move."""
ROUNDS = 3
"""Times that each block may move, and ..."""
PUSHES = 2
"""... times that each may drive away others, ..."""
PUSHED = 3
"""... so many at once, ..."""
PROBED = 6
"""... from so many places that it tries, those with the least in the way."""
WORK, LOOKING = 200_000_000, 20_000
"""What may be spent, two seconds or so, and on each time of looking."""


def modest(slots: Slots, blocks: Blocks, lead: float, linger: float) -> Blocks:
    """`blocks` that come at most `lead` times the length of their load ahead of need, and stay at most `linger` times the length of
    their copy to the host; tasks alone take time then."""
    passed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
    found = []
    for block, (tensor, need), upper in zip(blocks.blocks, blocks.keys, blocks.uppers, strict=True):
        birth, death = block.start, block.end
        if birth < need:
            slot = int(passed.searchsorted(passed[need // 3] - lead * slots.load_s[tensor], "right")) - 1
            birth = max(birth, min(3 * slot, need))
        if death > upper and linger:
            slot = int(passed.searchsorted(passed[-(-upper // 3)] + linger * slots.store_s[tensor]))
            death = max(upper, min(death, 3 * slot))
        found.append(Rectangle(birth, death if linger else upper, block.nbytes))
    return replace(blocks, blocks=tuple(found))


def seated(slots: Slots, blocks: Blocks, stays: Stays, capacity: int) -> Stays:
    """`stays` with some blocks elsewhere, so that together they lose less of what they wish."""
    seats = _Seats(slots, blocks, stays, capacity)
    for turn in [seats.move] * ROUNDS + [seats.push, seats.move] * PUSHES:
        for i in seats.unhappy():
            if seats.spent < WORK:
                turn(i)
    return Stays(tuple(seats.offset.tolist()), tuple(seats.birth.tolist()), tuple(seats.death.tolist()))


class _Seat(NamedTuple):
    lost: float
    offset: int
    birth: int
    death: int


class _Seats:
    """Where each block stays, and when. One that lives from 0 to 0 stays nowhere."""

    def __init__(self, slots: Slots, blocks: Blocks, stays: Stays, capacity: int) -> None:
        self.capacity = capacity
        self.spent = 0
        """Pairs of a place and a block that were looked at, and a little more for each time of looking."""
        passed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
        self.passed: Floats = np.append(passed.repeat(3), passed[-1])[2:]
        """[position] when the first slot begins that does not begin before it, if nothing waits."""
        wished = np.array(blocks.blocks, np.int64).reshape(-1, 3)
        self.wished_birth, self.wished_death, self.nbytes = wished.T
        self.need, self.upper = np.array([need for _, need in blocks.keys], np.int64), np.array(blocks.uppers, np.int64)
        self.offset, self.birth, self.death = (np.array(column, np.int64) for column in (stays.offsets, stays.births, stays.deaths))

    def unhappy(self) -> list[int]:
        """Those that lose most first."""
        lost = self._lost(np.arange(len(self.birth)), self.birth, self.death)
        order = np.argsort(-lost, kind="stable")
        unhappy: list[int] = order[lost[order] > LEAST].tolist()
        return unhappy

    def move(self, i: int) -> None:
        """`i` goes where it loses least."""
        seat = self._best(i)
        assert seat is not None, "where it is it may stay"
        if seat.lost < self._lost(i, self.birth[i], self.death[i]):
            self._sit(i, seat)

    def push(self, i: int) -> None:
        """`i` gets all it wishes where those in its way, who look for other places, lose less by that than it gains."""
        now = float(self._lost(i, self.birth[i], self.death[i]))
        if now <= LEAST:
            return
        near, at, there = self._places(i)
        core = (self.upper - self.need)[near] * self.nbytes[near].astype(np.float64)
        price = np.where(there.sum(1) <= PUSHED, there @ core, np.inf)
        for k in price.argsort(kind="stable")[:PROBED].tolist():
            if price[k] < np.inf and self._pushed(i, int(at[k]), near[there[k]], now):
                return

    def _pushed(self, i: int, at: int, others: Ints, now: float) -> bool:
        """Whether `i`, which loses `now`, stays `at` from now on."""
        all_ = np.append(others, i)
        before = self.offset[all_], self.birth[all_], self.death[all_]
        may_lose = now + float(self._lost(others, self.birth[others], self.death[others]).sum())
        self.birth[others] = self.death[others] = 0
        self._sit(i, _Seat(0.0, at, int(self.wished_birth[i]), int(self.wished_death[i])))
        by_core = np.argsort(-self.nbytes[others] * (self.upper - self.need)[others], kind="stable")
        for j in others[by_core].tolist():
            seat = self._best(j)
            may_lose -= np.inf if seat is None else seat.lost
            if seat is None or may_lose < LEAST:
                self.offset[all_], self.birth[all_], self.death[all_] = before
                return False
            self._sit(j, seat)
        return True

    def _sit(self, i: int, seat: _Seat) -> None:
        _, self.offset[i], self.birth[i], self.death[i] = seat

    def _lost(self, i: Ints | int, birth: Ints, death: Ints) -> Floats:
        """Seconds of its wishes that are not granted to `i`, or to each of `i`."""
        late = self.passed[birth] - self.passed[self.wished_birth[i]]
        early: Floats = self.passed[self.wished_death[i]] - self.passed[death]
        return early + late

    def _places(self, i: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """The others that stay while `i` wishes to; all offsets beside one of them or an end of the arena; who is there at each."""
        size = self.nbytes[i]
        near = np.flatnonzero((self.birth < self.wished_death[i]) & (self.death > self.wished_birth[i]))
        near = near[near != i]
        start, stop = self.offset[near], self.offset[near] + self.nbytes[near]
        at = np.unique(np.concatenate((stop, start - size, (0, self.capacity - size, self.offset[i]))))
        at = at[(at >= 0) & (at <= self.capacity - size)]
        self.spent += LOOKING + len(at) * len(near)
        return near, at, (start < at[:, None] + size) & (stop > at[:, None])

    def _best(self, i: int) -> _Seat | None:
        """Where `i` loses least while the others stay where they are."""
        near, at, there = self._places(i)
        birth, death = self.birth[near], self.death[near]
        free = ~(there & (birth < self.upper[i]) & (death > self.need[i])).any(1)
        if not free.any():
            return None
        at, there = at[free], there[free]
        births = np.where(there & (death <= self.need[i]), death, self.wished_birth[i]).max(1, initial=self.wished_birth[i])
        deaths = np.where(there & (birth >= self.upper[i]), birth, self.wished_death[i]).min(1, initial=self.wished_death[i])
        lost = self._lost(i, births, deaths)
        best = int(lost.argmin())
        return _Seat(float(lost[best]), int(at[best]), int(births[best]), int(deaths[best]))
