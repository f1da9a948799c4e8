"""Every split there is, the one with the smallest working set first: what is asked where no coarse split fits.

Best first over boxes of splits: a box stands in a heap under a floor of its splits; the least is halved along a letter that matters to
the op in its way, until it is a split. So what comes first needs no more than any other, and most are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from math import isqrt
from typing import NamedTuple

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.choose.lower_bound import Box, Floors
from einpage.einsum_front.choose.working_set import Choice, Pattern, Sizer
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.tile.split import check_pieces, cuts_by_letter
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of

MOST_BOXES = 3_000
"""Boxes that are opened before the search settles for the best it has met: some seconds."""


class Found(NamedTuple):
    choice: Choice
    at_least: Nbytes
    """No split that has not come yet needs less."""


def smallest_first(
    opgraph: OpGraph, dtype: DType, fixed: Mapping[Letter, int] | None = None, most_boxes: int | None = None
) -> Iterator[Found]:
    """All splits that the rules allow (letters in `fixed` stay), in the order of their largest working sets; once `most_boxes` are
    open, only the best that was met.

    Raises UsageError for a `fixed` split that cannot be.
    """
    check_pieces(opgraph, fixed or {})
    most = most_pieces(map(tiling_of, opgraph.ops), opgraph.program.extents)
    search = _Search(Sizer(opgraph, dtype), most)
    box = {letter: (1, top) for letter, top in most.items()} | {letter: (n, n) for letter, n in (fixed or {}).items()}
    search.push(box)
    return search.splits(MOST_BOXES if most_boxes is None else most_boxes)


def coarsened(opgraph: OpGraph, dtype: DType, choice: Choice, most_bytes: int, fixed: Mapping[Letter, int] | None = None) -> Choice:
    """`choice` with each letter in turn (but those in `fixed`) as coarse as `most_bytes` allows: fewer tasks for the same budget."""
    sizer = Sizer(opgraph, dtype)
    for letter, have in choice.pieces:
        few = 1
        while letter not in (fixed or {}) and few < have:
            coarser = sizer.measure({**choice.by_letter, letter: few})
            if coarser.largest_bytes <= most_bytes:
                choice = coarser
                break
            few *= 2
    return choice


class _Search:
    def __init__(self, sizer: Sizer, most: Mapping[Letter, int]) -> None:
        self.sizer, self.floors = sizer, Floors(sizer, most)
        self.heap: list[tuple[int, int, int, Box, Choice]] = []
        self.number = count()
        self.given: set[tuple[tuple[Letter, int], ...]] = set()

    def push(self, box: Box) -> None:
        """By floor, then by what the finest split of the box needs, the newest first."""
        finest = self.sizer.measure({letter: many for letter, (_, many) in box.items()})
        floor = max(self.floors.of(pattern, box) for pattern in self.sizer.patterns)
        heappush(self.heap, (floor, finest.largest_bytes, -next(self.number), box, finest))

    def splits(self, most_boxes: int) -> Iterator[Found]:
        for _ in range(most_boxes):
            if not self.heap:
                return
            floor, needed, _, box, finest = heappop(self.heap)
            if needed == floor and finest.pieces not in self.given:
                self.given.add(finest.pieces)
                yield Found(finest, Nbytes(floor))
            if any(few < many for few, many in box.values()):
                for half in self.halves(box, self.in_the_way(box, floor, finest)):
                    self.push(half)
        met = [finest for *_, finest in self.heap if finest.pieces not in self.given]
        if met:
            yield Found(min(met, key=lambda choice: (choice.largest_bytes, choice.pieces)), Nbytes(self.heap[0][0]))

    def in_the_way(self, box: Box, floor: int, finest: Choice) -> Pattern:
        """A pattern at the floor that the finest split does not bring down to it; where there is none, the largest of that split."""
        cut = cuts_by_letter(self.sizer.opgraph, finest.by_letter)
        for pattern in self.sizer.patterns:
            if self.floors.of(pattern, box) == floor < self.sizer.footprint(pattern, cut):
                return pattern
        return self.sizer.pattern_by_value[finest.task]

    def halves(self, box: Box, pattern: Pattern) -> tuple[Box, Box]:
        """The box in two, along the letter that raises the floors of `pattern` most."""
        open_letters = [letter for letter, (few, many) in sorted(box.items()) if few < many]
        letters = [letter for letter in open_letters if letter in pattern.letters] or open_letters[:1]
        return max((_halved(box, letter) for letter in letters), key=lambda pair: sum(self.floors.of(pattern, half) for half in pair))


def _halved(box: Box, letter: Letter) -> tuple[Box, Box]:
    few, many = box[letter]
    middle = min(max(few, isqrt(few * many)), many - 1)
    return {**box, letter: (few, middle)}, {**box, letter: (middle + 1, many)}
