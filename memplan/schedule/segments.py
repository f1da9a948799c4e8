"""Segments of live ranges at their offsets: what is placed, which holes are left, and where a range may be split.

In: Slots, the arena's bytes. Invariant: no two placed segments that are alive at once share a byte. A live range is one segment until it
is split at a resident interval over which it is idle: then its tensor is evicted after the interval's first use and loaded again for the
next (live-range splitting, as in register allocation: Cooper and Simpson 1998).

    offset            w, used at 1, 5 and 9, is split over (5, 9): two segments, and
      |  [w      ][c    ]         b and c are alive between them
      |  [b    ]    [w  ]
      +--1----5-----9--> slot
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.memplan.problem.slots import Slots
from einpage.memplan.schedule.live_ranges import Key

AHEAD = 2.0
"""Of a load that a split makes: it is to be issued this many times its own length before its use; a store has as long after its own."""


@dataclass(frozen=True, slots=True)
class LiveSegment:
    key: Key
    start: int
    """The position from which it has its bytes, at the latest key[1]: sooner where it is loaded ahead of need."""
    end: int
    """Half-open, at least `required_end`: later where a copy to the host has still to end."""
    required_end: int
    """The position when its last task has run."""
    nbytes: int
    idle: tuple[int, ...]
    """Resident intervals inside it, ascending: it may be split at each."""


class SplitPoints:
    """What splitting at an interval does. All lists: [interval]."""

    def __init__(self, slots: Slots) -> None:
        a = slots.accesses
        self.free_from: list[int] = (3 * a.start + 2).tolist()
        """The position from which the bytes are free, ..."""
        self.free_until: list[int] = (3 * a.end).tolist()
        """... and until when."""
        self.tensor: list[int] = a.tensor.tolist()
        self.moved: list[int] = (a.nbytes[a.tensor] * np.where(a.is_first & a.dirty[a.tensor], 2, 1)).tolist()
        """Bytes that it moves."""
        self.writes: list[bool] = (a.is_first & ~a.clean[a.tensor]).tolist()
        """Whether it is what has the tensor copied to the host, or an output's copy may still be under way."""
        self.elapsed: list[float] = np.concatenate(([0.0], np.cumsum(a.seconds))).tolist()
        """[slot] seconds of the tasks before it."""
        self.load_s, self.store_s = slots.load_s, slots.store_s

    def split(self, segment: LiveSegment, interval: int) -> tuple[LiveSegment, LiveSegment]:
        """What is left of `segment` if it is not resident over `interval`."""
        i, tensor = segment.idle.index(interval), self.tensor[interval]
        free_from, free_until = self.free_from[interval], self.free_until[interval]
        written = self._after(free_from // 3 + 1, AHEAD * self.store_s[tensor]) if self.writes[interval] else free_from
        issued = self._before(free_until // 3, AHEAD * self.load_s[tensor])
        before = replace(segment, end=min(written, free_until), required_end=free_from, idle=segment.idle[:i])
        after = replace(segment, key=(tensor, free_until), start=max(issued, before.end), idle=segment.idle[i + 1 :])
        return before, after

    def around(self, segment: LiveSegment, other: LiveSegment) -> int | None:
        """The idle interval of `segment` that holds all of `other`."""
        return next((j for j in segment.idle if self.free_from[j] <= other.start and other.end <= self.free_until[j]), None)

    def lateness(self, segment: LiveSegment, start: int) -> float:
        """The share of its load that is not done when it has to be there, if it is issued at `start` on an idle link."""
        ahead = self.elapsed[segment.key[1] // 3] - self.elapsed[-(-start // 3)]
        return max(0.0, 1.0 - ahead / max(self.load_s[segment.key[0]], 1e-12))

    def _before(self, slot: int, seconds: float) -> int:
        """The position of the last slot that starts `seconds` of tasks before `slot` does."""
        return 3 * max(0, bisect_right(self.elapsed, self.elapsed[slot] - seconds) - 1)

    def _after(self, slot: int, seconds: float) -> int:
        """The position of the first slot that starts `seconds` of tasks after `slot` does."""
        return 3 * min(bisect_left(self.elapsed, self.elapsed[slot] + seconds), len(self.elapsed) - 1)


class PlacedSegments:
    """Rows of columns; a row whose segment was removed is empty, from 0 to 0."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: list[LiveSegment] = []
        self.start, self.end, self.low, self.high = (np.zeros(64, np.int64) for _ in range(4))
        """[row] positions and bytes, both half-open."""
        self._empty: list[int] = []

    def offset_by_key(self) -> dict[Key, int]:
        """The byte offset of every placed segment."""
        return {self.segments[row].key: int(self.low[row]) for row in self.rows()}

    def rows(self) -> Iterator[int]:
        """Those that are not empty."""
        empty = set(self._empty)
        return (row for row in range(len(self.segments)) if row not in empty)

    def place(self, segment: LiveSegment, at: int) -> int:
        """Add `segment` at the byte offset `at`; answers its row. That the bytes are free is not checked."""
        if self._empty:
            row = self._empty.pop()
            self.segments[row] = segment
        else:
            row = len(self.segments)
            self.segments.append(segment)
            if row == len(self.start):
                self.start, self.end, self.low, self.high = (
                    np.concatenate((column, np.zeros_like(column))) for column in (self.start, self.end, self.low, self.high)
                )
        self.start[row], self.end[row], self.low[row], self.high[row] = segment.start, segment.end, at, at + segment.nbytes
        return row

    def remove(self, row: int) -> None:
        """Remove the segment of `row`, which may be used again."""
        self.start[row] = self.end[row] = 0
        self._empty.append(row)

    def neighbours(self, segment: LiveSegment) -> Int64s:
        """The rows that are alive while `segment` is, by offset."""
        n = len(self.segments)
        found = np.flatnonzero((self.start[:n] < segment.end) & (self.end[:n] > segment.start) & (self.high[:n] > self.low[:n]))
        by_offset: Int64s = found[np.argsort(self.low[found], kind="stable")]
        return by_offset

    def tightest_hole(self, segment: LiveSegment) -> int | None:
        """The offset of the tightest hole for the whole of it."""
        near = self.neighbours(segment)
        after = np.concatenate(((0,), np.maximum.accumulate(self.high[near])))
        free = np.append(self.low[near], self.capacity) - after
        wide = np.flatnonzero(free >= segment.nbytes)
        return int(after[wide[free[wide].argmin()]]) if len(wide) else None

    def trimmed(self, segment: LiveSegment, at: int) -> LiveSegment:
        """`segment`, starting later and ending sooner where others have the bytes `at`; while it is required nothing has them."""
        n = len(self.segments)
        there = (
            (self.low[:n] < at + segment.nbytes) & (self.high[:n] > at) & (self.start[:n] < segment.end) & (self.end[:n] > segment.start)
        )
        start, end = self.start[:n][there], self.end[:n][there]
        return replace(
            segment,
            start=int(end[end <= segment.key[1]].max(initial=segment.start)),
            end=int(start[start >= segment.required_end].min(initial=segment.end)),
        )
