"""Offsets for all live ranges, by splitting: a range without one is split, or what is in its way is moved, loaded later, split or evicted;
and what was split is joined again where there turns out to be a hole for all of it.

In: live ranges, offsets for most of them, the resident intervals. Out: resident intervals without those at which ranges were split, and an
offset for every segment that is left. Each unplaced segment takes the offset that costs least, in bytes that move again or come late, as
spilling in a register allocator does (Chaitin 1982, Briggs 1992); what it evicts looks for another hole, and costs more to evict the next
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from einpage.einsum_front.base.columns import Floats, Int64s
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.schedule.live_ranges import Key, LiveRanges
from einpage.memplan.schedule.segments import LiveSegment, PlacedSegments, SplitPoints

MOVE_DIVISOR = 8
"""Moving a segment to another hole costs this part of its bytes: nothing moves, but the hole is gone."""
EVICTION_COST = 3.0
"""Evicting a segment that has no other hole costs this many times its bytes; an unplaced one that can only be placed at more is split
itself. It grows ..."""
EVICTION_GROWTH = 2.0
"""... by this factor each time."""
FORBIDDEN = 1e30
"""The cost of what is not done."""
PROBED = 48
"""Offsets whose real cost is found out, of those that may cost least."""
TURNS, TURNS_PER_SEGMENT = 200, 8
"""Segments that may be placed before it is given up: at least, and for each that was unplaced at first."""


@dataclass(frozen=True, slots=True)
class SplitRanges:
    resident: ResidentIntervals
    placed: PlacedSegments
    last_tensor: dict[Key, int]
    """The tensor that a segment holds at its end."""

    @property
    def offset_by_key(self) -> dict[Key, int]:
        """Of every segment."""
        return self.placed.offset_by_key()


def split_ranges(
    slots: Slots,
    ranges: LiveRanges,
    offsets: Sequence[int | None],
    resident: ResidentIntervals,
    evicts: bool = False,
    pace: Pace | None = None,
) -> SplitRanges | None:
    """Offsets for all; None where none were found. `evicts`: a segment that has no other hole may be evicted too, and look for an offset in
    turn, which finds good ones among many small segments and none among few large ones. Raises SearchOver where `pace` ends it.
    """
    allocator = _SplittingAllocator(slots, ranges, EVICTION_COST if evicts else FORBIDDEN)
    unplaced = []
    for segment, at in zip(_segments(slots.accesses, ranges, resident), offsets, strict=True):
        if at is None:
            unplaced.append(segment)
        else:
            allocator.placed.place(segment, at)
    unplaced.sort(key=_size)
    turns = TURNS + TURNS_PER_SEGMENT * len(unplaced)
    while unplaced and turns:
        if pace is not None:
            pace.step()
        turns -= 1
        evicted = allocator.allocate(unplaced.pop())
        if evicted is None:
            return None
        unplaced += evicted
    if unplaced:
        return None
    still = resident.copy()
    still[allocator.split_at] = False
    return SplitRanges(still, allocator.placed, allocator.last_tensor)


def coalesced(slots: Slots, found: SplitRanges) -> SplitRanges:
    """`found`, which is used up, with all segments joined for which there is a hole: coalescing, the inverse of splitting (Chaitin 1982).

    Resident intervals were chosen by bytes, of which some are left free, and splitting takes more than it needs; which holes there are is
    known only once everything lies somewhere. The intervals first that move most for their bytes and slots.
    """
    a, points, resident = slots.accesses, SplitPoints(slots), found.resident.copy()
    segments = _Segments(found.placed, found.last_tensor)
    evicted = np.flatnonzero(~resident)
    gain = np.array(points.moved, np.float64)[evicted] / (a.nbytes[a.tensor] * (a.end - a.start - 1))[evicted]
    for j in evicted[np.argsort(-gain, kind="stable")].tolist():
        tensor = points.tensor[j]
        resident[j] = segments.join((tensor, points.free_from[j]), (tensor, points.free_until[j]), j)
    return SplitRanges(resident, segments.placed, segments.last_tensor)


def _segments(a: Accesses, ranges: LiveRanges, resident: ResidentIntervals) -> list[LiveSegment]:
    """One for each range, with the resident intervals inside it."""
    numbers = np.flatnonzero(resident)
    by_tensor: dict[int, list[int]] = {}
    for j, t in zip(numbers.tolist(), a.tensor[numbers].tolist(), strict=True):
        by_tensor.setdefault(t, []).append(j)
    segments = []
    for (start, end, nbytes), tensors, key, required_end in zip(
        ranges.full, ranges.tensors, ranges.keys, ranges.required_ends, strict=True
    ):
        idle = [j for t in tensors for j in by_tensor.get(t, ()) if key[1] <= 3 * a.start[j] + 1 and 3 * a.end[j] < required_end]
        segments.append(LiveSegment(key, start, end, required_end, nbytes, tuple(idle)))
    return segments


def _size(segment: LiveSegment) -> tuple[int, Key]:
    return segment.nbytes, segment.key


class Resolution(NamedTuple):
    """How a segment in the way of another yields: it is moved or evicted, or one of these."""

    cost: float
    """In bytes that move again, about."""
    split_at: int | None = None
    late: bool = False
    """Its load is issued later."""


class Conflict(NamedTuple):
    """A placed segment in the way of an unplaced one."""

    row: int
    low: int
    resolution: Resolution
    within: int | None
    """The idle interval, of the unplaced one, that holds all of it: split there, both have their bytes."""


def _cost_by_interval(conflicts: list[Conflict]) -> dict[int, float]:
    """For each idle interval that holds conflicts, the cost of resolving them all."""
    cost: dict[int, float] = {}
    for c in conflicts:
        if c.within is not None:
            cost[c.within] = cost.get(c.within, 0.0) + c.resolution.cost
    return cost


class _SplittingAllocator:
    def __init__(self, slots: Slots, ranges: LiveRanges, eviction_cost: float) -> None:
        self.eviction_cost = eviction_cost
        self.placed = PlacedSegments(slots.problem.capacity)
        self.points = SplitPoints(slots)
        self.last_tensor = {key: tensors[-1] for key, tensors in zip(ranges.keys, ranges.tensors, strict=True)}
        self.split_at: list[int] = []
        """The intervals that are no longer resident."""
        self.evictions: dict[Key, int] = {}
        """How often each segment has been evicted."""

    def allocate(self, segment: LiveSegment) -> list[LiveSegment] | None:
        """Place `segment` in a hole, or where that costs least; answers what is unplaced then, None where there is no offset for it."""
        at = self.placed.tightest_hole(segment)
        if at is None:
            return self._resolve(segment)
        self.placed.place(segment, at)
        return []

    def split(self, segment: LiveSegment, interval: int) -> tuple[LiveSegment, LiveSegment]:
        self.split_at.append(interval)
        before, after = self.points.split(segment, interval)
        self.last_tensor[after.key] = self.last_tensor[before.key]
        self.last_tensor[before.key] = self.points.tensor[interval]
        return before, after

    def _resolve(self, segment: LiveSegment) -> list[LiveSegment] | None:
        """Place `segment` where it costs least, of the PROBED offsets that may cost least, or split it."""
        placed = self.placed
        near = placed.neighbours(segment)
        rows, low, high = near.tolist(), placed.low[near], placed.high[near]
        within = [self.points.around(segment, placed.segments[row]) for row in rows]
        least = np.where([interval is None for interval in within], (high - low) / MOVE_DIVISOR, 0.0)
        resolutions: dict[int, Resolution] = {}

        def conflicts(at: int) -> list[Conflict]:
            found = []
            for k in np.flatnonzero((low < at + segment.nbytes) & (high > at)).tolist():
                if k not in resolutions:
                    resolutions[k] = self._resolution(rows[k], segment)
                found.append(Conflict(rows[k], int(low[k]), resolutions[k], within[k]))
            return found

        probed = self._cheapest(low, high, least, segment.nbytes)
        cost, at = FORBIDDEN, 0
        for least_cost, offset in probed:
            if least_cost > cost:
                break
            cost, at = min((cost, at), (self._cost(conflicts(offset)), offset))
        if segment.idle and cost > EVICTION_COST * segment.nbytes:
            points = self.points
            return list(self.split(segment, max(segment.idle, key=lambda j: (points.free_until[j] - points.free_from[j], j))))
        if cost >= FORBIDDEN:
            return None
        return self._place_at(segment, at, conflicts(at))

    def _cheapest(self, low: Int64s, high: Int64s, least: Floats, nbytes: int) -> list[tuple[float, int]]:
        """The PROBED offsets whose conflicts' sums of `least` are smallest, with these. `low` ascends."""
        capacity = self.placed.capacity
        at = np.unique(np.concatenate((high, low - nbytes, (0, capacity - nbytes))))
        at = at[(at >= 0) & (at <= capacity - nbytes)]
        by_high = high.argsort(kind="stable")
        below_top, below_bottom = (np.concatenate(((0.0,), least[order].cumsum())) for order in (slice(None), by_high))
        total = below_top[low.searchsorted(at + nbytes)] - below_bottom[high[by_high].searchsorted(at, "right")]
        chosen = total.argsort(kind="stable")[:PROBED]
        return list(zip(total[chosen].tolist(), at[chosen].tolist(), strict=True))

    def _cost(self, conflicts: list[Conflict]) -> float:
        """Of resolving them; for each idle interval around some of them the cheaper of splitting there and of resolving those."""
        outside = sum(c.resolution.cost for c in conflicts if c.within is None)
        return outside + sum(min(cost, self.points.moved[interval]) for interval, cost in _cost_by_interval(conflicts).items())

    def _resolution(self, row: int, segment: LiveSegment) -> Resolution:
        """The cheapest that has the segment in `row` out of the way of `segment`."""
        other = self.placed.segments[row]
        if self.placed.tightest_hole(other) is not None:
            return Resolution(other.nbytes / MOVE_DIVISOR)
        found = [Resolution(other.nbytes * self.eviction_cost * EVICTION_GROWTH ** self.evictions.get(other.key, 0))]
        start, end, points = max(segment.start, other.start), min(segment.end, other.end), self.points
        found += [
            Resolution(points.moved[j], split_at=j) for j in other.idle if points.free_from[j] <= start and points.free_until[j] >= end
        ]
        if end <= other.key[1]:
            found.append(Resolution(other.nbytes * points.lateness(other, end), late=True))
        return min(found, key=lambda r: r.cost)

    def _place_at(self, segment: LiveSegment, at: int, conflicts: list[Conflict]) -> list[LiveSegment]:
        """Place `segment` at `at`, split where that is cheaper than resolving what an idle interval holds; answers what is evicted."""
        split_at = [interval for interval, cost in sorted(_cost_by_interval(conflicts).items()) if cost >= self.points.moved[interval]]
        yielding = [(c, self.placed.segments[c.row]) for c in conflicts if c.within not in split_at]
        for c, _ in yielding:
            self.placed.remove(c.row)
        rest = segment
        for interval in split_at:
            before, rest = self.split(rest, interval)
            self._place_trimmed(before, at)
        self._place_trimmed(rest, at)
        evicted: list[LiveSegment] = []
        for c, other in yielding:
            if c.resolution.split_at is not None:
                for half in self.split(other, c.resolution.split_at):
                    self._place_trimmed(half, c.low)
            elif c.resolution.late:
                self._place_trimmed(other, c.low)
            else:
                evicted.append(other)
                self.evictions[other.key] = self.evictions.get(other.key, 0) + 1
        return sorted(evicted, key=_size)

    def _place_trimmed(self, segment: LiveSegment, at: int) -> None:
        self.placed.place(self.placed.trimmed(segment, at), at)


class _Segments:
    """Placed segments, by where they start and by where they end."""

    def __init__(self, placed: PlacedSegments, last_tensor: dict[Key, int]) -> None:
        self.placed, self.last_tensor = placed, last_tensor
        self.row_by_key: dict[Key, int] = {}
        self.row_by_end: dict[Key, int] = {}
        """By the tensor at its end, and the end of its required part."""
        for row in placed.rows():
            self._note(row)

    def _note(self, row: int) -> None:
        segment = self.placed.segments[row]
        self.row_by_key[segment.key] = row
        self.row_by_end[self.last_tensor[segment.key], segment.required_end] = row

    def join(self, end: Key, key: Key, interval: int) -> bool:
        """Join the segment that ends at `end` with that of `key` over `interval`, if there is a hole for both and what is between."""
        before, after = self.row_by_end[end], self.row_by_key[key]
        first, second = self.placed.segments[before], self.placed.segments[after]
        whole = replace(first, end=second.end, required_end=second.required_end, idle=(*first.idle, interval, *second.idle))
        places = [(segment, int(self.placed.low[row])) for segment, row in ((second, after), (first, before))]
        for row in (before, after):
            self.placed.remove(row)
        hole = self.placed.tightest_hole(whole)
        if hole is None:
            self._place(places)
            return False
        self.last_tensor[first.key] = self.last_tensor[second.key]
        self._place([(whole, hole)])
        return True

    def _place(self, places: list[tuple[LiveSegment, int]]) -> None:
        for segment, at in places:
            self._note(self.placed.place(segment, at))
