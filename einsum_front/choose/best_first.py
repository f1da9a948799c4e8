"""Every split there is, the one with the smallest working set first: for when no coarse split fits.

Best-first branch and bound (Land and Doig 1960) over ranges of splits: a range waits in a heap under a lower bound of its splits; the
least is halved along a letter that matters to the op that sets the bound, until it is one split. So the first split needs no more than
any other, and most are never measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from math import isqrt
from typing import NamedTuple

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.choose.lower_bound import LowerBounds, SplitRange
from einpage.einsum_front.choose.working_set import Choice, Pattern, WorkingSets
from einpage.einsum_front.tile.split import cuts_by_letter

MOST_MEASURED = 20_000
"""Tasks measured and lower bounds computed before the search ends with the best split it has met: half a second."""


class Found(NamedTuple):
    """A split, and a lower bound of those after it."""

    choice: Choice
    at_least: Nbytes
    """No later split needs less."""


def smallest_first(
    working_sets: WorkingSets, fixed: Mapping[Letter, int] | None = None, most_measured: int | None = None
) -> Iterator[Found]:
    """All splits that the rules allow (letters in `fixed` have their pieces), in the order of their largest working sets; once
    `most_measured` tasks and bounds have been, only the best that was met. Asked again, the search goes on where it was left.

    Raises UsageError for a `fixed` split that cannot be.
    """
    working_sets.check(fixed or {})
    most_measured = MOST_MEASURED if most_measured is None else most_measured
    key = (smallest_first, tuple(sorted((fixed or {}).items())), most_measured)
    if key not in working_sets.searches:
        search = _BestFirst(working_sets)
        search.push(_every_split(working_sets.most, fixed or {}))
        working_sets.searches[key] = _Replayed(search.splits(most_measured))
    return iter(working_sets.searches[key])


def least_of_all(working_sets: WorkingSets, fixed: Mapping[Letter, int] | None = None) -> Nbytes:
    """A lower bound of the largest working set of every split (letters in `fixed` have their pieces): computed at once, not searched.

    Raises UsageError for a `fixed` split that cannot be.
    """
    working_sets.check(fixed or {})
    key = (least_of_all, tuple(sorted((fixed or {}).items())))
    if key not in working_sets.searches:
        bounds, splits = LowerBounds(working_sets), _every_split(working_sets.most, fixed or {})
        working_sets.searches[key] = Nbytes(max((bounds.of(pattern, splits) for pattern in working_sets.patterns), default=0))
    least: Nbytes = working_sets.searches[key]
    return least


def coarsened(working_sets: WorkingSets, choice: Choice, most_bytes: int, fixed: Mapping[Letter, int] | None = None) -> Choice:
    """`choice` with each letter in turn (but those in `fixed`) as coarse as `most_bytes` allows: fewer tasks for the same budget."""
    for letter, have in choice.pieces:
        few = 1
        while letter not in (fixed or {}) and few < have:
            coarser = {**choice.by_letter, letter: few}
            if working_sets.fits(coarser, letter, most_bytes):
                choice = working_sets.measure(coarser)
                break
            few *= 2
    return choice


class _Replayed:
    """Each iteration gives all of `source` from the beginning, and takes from it only what none has asked for before."""

    def __init__(self, source: Iterator[Found]) -> None:
        self._source, self._given = source, list[Found]()

    def __iter__(self) -> Iterator[Found]:
        for n in count():
            if n == len(self._given):
                if (found := next(self._source, None)) is None:
                    return
                self._given.append(found)
            yield self._given[n]


class _BestFirst:
    """The heap of open ranges, each with its lower bound and its finest split."""

    def __init__(self, working_sets: WorkingSets) -> None:
        self.working_sets, self.bounds = working_sets, LowerBounds(working_sets)
        self.heap: list[tuple[int, int, int, SplitRange, Choice]] = []
        self.number = count()
        self.given: set[tuple[tuple[Letter, int], ...]] = set()

    def push(self, splits: SplitRange) -> None:
        """By lower bound, then by what the finest split of the range needs, the newest first."""
        finest = self.working_sets.measure({letter: many for letter, (_, many) in splits.items()})
        bound = max(self.bounds.of(pattern, splits) for pattern in self.working_sets.patterns)
        heappush(self.heap, (bound, finest.largest_bytes, -next(self.number), splits, finest))

    def splits(self, most_measured: int) -> Iterator[Found]:
        """As `smallest_first`."""
        while self.heap and self.working_sets.measured + self.bounds.measured <= most_measured:
            bound, needed, _, splits, finest = heappop(self.heap)
            if needed == bound and finest.pieces not in self.given:
                self.given.add(finest.pieces)
                yield Found(finest, Nbytes(bound))
            if any(few < many for few, many in splits.values()):
                for half in self.halves(splits, self.critical_pattern(splits, bound, finest)):
                    self.push(half)
        met = [finest for *_, finest in self.heap if finest.pieces not in self.given]
        if met:
            yield Found(min(met, key=lambda choice: (choice.largest_bytes, choice.pieces)), Nbytes(self.heap[0][0]))

    def critical_pattern(self, splits: SplitRange, bound: int, finest: Choice) -> Pattern:
        """A pattern that sets the bound and needs more under the finest split; where there is none, the largest of that split."""
        cut = cuts_by_letter(self.working_sets.opgraph, finest.by_letter)
        for pattern in self.working_sets.patterns:
            if self.bounds.of(pattern, splits) == bound < self.working_sets.largest_bytes(pattern, cut):
                return pattern
        return self.working_sets.pattern_by_value[finest.task]

    def halves(self, splits: SplitRange, pattern: Pattern) -> tuple[SplitRange, SplitRange]:
        """The range in two, along the letter that raises the lower bounds of `pattern` most."""
        open_letters = [letter for letter, (few, many) in sorted(splits.items()) if few < many]
        letters = [letter for letter in open_letters if letter in pattern.letters] or open_letters[:1]
        return max((_halved(splits, letter) for letter in letters), key=lambda pair: sum(self.bounds.of(pattern, half) for half in pair))


def _every_split(most: Mapping[Letter, int], fixed: Mapping[Letter, int]) -> SplitRange:
    return {letter: (1, top) for letter, top in most.items()} | {letter: (n, n) for letter, n in fixed.items()}


def _halved(splits: SplitRange, letter: Letter) -> tuple[SplitRange, SplitRange]:
    few, many = splits[letter]
    middle = min(max(few, isqrt(few * many)), many - 1)
    return {**splits, letter: (few, middle)}, {**splits, letter: (middle + 1, many)}
