"""Which row of neighbours leaves: the cheapest, found without a look at the whole arena.

In: an arena, prices, and what could leave, the least worth keeping first, each with a floor: the least that a row without holes can cost
which has it and none of those before it. Out: the row, the same that a sweep over all segments finds. A row with a hole costs no less
than the cheaper of that hole's neighbours; those figures are kept, for they only rise until the arena says that something has changed.

    floors         a: 3    b: 5    c: 7    d: 9                   only a, b and what is beside them are looked at:
    segments       | d | a | hole | b | c |      best row: 6      from c on every row costs 7 or more
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from einpage.memplan.arena import Arena, Segment
from einpage.memplan.victim import PINNED, cheapest_window

PriceOf: TypeAlias = Callable[[int], int]
"""price_of(owner of a segment) > 0, or PINNED."""
Priced: TypeAlias = tuple[Segment, int]
Found: TypeAlias = tuple[int, int, list[Segment]]
"""(price, where it stops, row): the least of several is what a sweep would answer."""

FEW = 100
"""Of so few segments a sweep is as fast."""


def cheapest_row(arena: Arena, wanted: int, price_of: PriceOf) -> list[Segment] | None:
    """The neighbours of at least `wanted` bytes, none PINNED, whose prices sum to least, the leftmost of equals. O(segments)."""
    found = _cheapest_of([(segment, 0 if segment[2] is None else price_of(segment[2])) for segment in arena.segments()], wanted)
    return found[2] if found else None


@dataclass(slots=True)
class RowFinder:
    """The same answers as `cheapest_row`, where the price of what stays as it is only rises from one call to the next."""

    arena: Arena
    _floor_by_hole: dict[int, float] = field(default_factory=dict)
    _holes: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (floor, start); an entry that _floor_by_hole does not agree with is void."""

    def cheapest(self, wanted: int, leaving: PriceOf, price_of: PriceOf, candidates: Iterable[tuple[int, int]]) -> list[Segment] | None:
        """`leaving` is `price_of`, or PINNED for what is to stay this time; `candidates` are (start, floor) of all that is not PINNED by
        it, floors ascending. Where it comes to more work than a sweep, a sweep it is.
        """
        if len(self.arena) < FEW:
            return cheapest_row(self.arena, wanted, leaving)
        best: Found | None = None
        looked = 0
        for start, floor in candidates:
            if looked > len(self.arena):
                return cheapest_row(self.arena, wanted, leaving)
            if best is not None and best[0] < floor:
                return self._with_holes(best, wanted, leaving, price_of)[2]
            row = _around(self.arena, start, wanted, leaving, inf if best is None else best[0])
            looked += len(row)
            best = _better(best, _cheapest_of(row, wanted))
        return best[2] if best else None

    def _with_holes(self, best: Found, wanted: int, leaving: PriceOf, price_of: PriceOf) -> Found:
        """The best of `best` and all rows with holes."""
        floors, holes = self._floor_by_hole, self._holes
        for start in self.arena.changed_holes:
            floors[start] = 0
            heappush(holes, (0, start))
        self.arena.changed_holes.clear()
        fresh: dict[int, float] = {}
        while holes and holes[0][0] <= best[0]:
            floor, start = heappop(holes)
            if floors.get(start) != floor or start in fresh:
                continue
            if not self.arena.is_hole(start):
                del floors[start]
                continue
            floors[start] = fresh[start] = floor = self._floor(start, price_of)
            if floor <= best[0]:
                row = _around(self.arena, start, wanted, leaving, best[0])
                best = _better(best, _cheapest_of(row, wanted)) or best
        for start, floor in fresh.items():
            heappush(holes, (floor, start))
        return best

    def _floor(self, hole: int, price_of: PriceOf) -> float:
        """The price of the cheaper neighbour; what is pinned is in no row."""
        floor = inf
        for owner in self.arena.owners_beside(hole):
            price = price_of(owner)
            if price != PINNED and price < floor:
                floor = price
        return floor


def _around(arena: Arena, start: int, wanted: int, price_of: PriceOf, most: float) -> list[Priced]:
    """The segment at `start` amid all that is in a row with it which costs no more than `most`, none PINNED."""
    left: list[Priced] = []
    nbytes = total = 0
    for segment in arena.segments_before(start):
        price = 0 if segment[2] is None else price_of(segment[2])
        total += price
        if price == PINNED or total > most:
            break
        left.append((segment, price))
        nbytes += segment[1] - segment[0]
        if nbytes >= wanted:
            break
    left.reverse()
    nbytes = total = 0
    for segment in arena.segments(start):
        price = 0 if segment[2] is None else price_of(segment[2])
        total += price
        if price == PINNED or total > most or nbytes >= wanted:
            break
        left.append((segment, price))
        if segment[0] != start:
            nbytes += segment[1] - segment[0]
    return left


def _cheapest_of(row: list[Priced], wanted: int) -> Found | None:
    if not row or row[-1][0][1] - row[0][0][0] < wanted:
        return None
    prices = [price for _, price in row]
    window = cheapest_window([stop - start for (start, stop, _), _ in row], prices, wanted)
    if window is None:
        return None
    segments = [segment for segment, _ in row[slice(*window)]]
    return sum(prices[slice(*window)]), segments[-1][1], segments


def _better(a: Found | None, b: Found | None) -> Found | None:
    return b if a is None or (b is not None and b[:2] < a[:2]) else a
