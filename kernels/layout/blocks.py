"""Splits a job's letters into blocks, so that a kernel's temporaries stay small whatever the job's size.

In: the letters with their extents, a cost in bytes of a block of given extents, places where a letter must be split (tile borders).
Out: block extents, and the blocks as regions (a half-open interval a letter), outermost letter first. Regions cover the whole exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise, product

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.graph.job import Range

SCRATCH_BYTES = 8 << 20
"""What the temporaries of one job may hold at once; a single row that cannot be split may exceed it."""


def whole(ranges: Iterable[Range]) -> dict[Letter, tuple[int, int]]:
    """The region of all that a job covers."""
    return {r.letter: (r.start, r.end) for r in ranges}


def extents(region: Region) -> dict[Letter, int]:
    """How many numbers each letter takes."""
    return {letter: end - start for letter, (start, end) in region.items()}


def fit(
    extent: Mapping[Letter, int],
    letters: Collection[Letter],
    cost: Callable[[Mapping[Letter, int]], int],
    limit: int,
    slow: Callable[[Mapping[Letter, int]], int] = lambda size: 0,
) -> dict[Letter, int]:
    """Extents of a block that costs at most `limit` bytes: `letters` are halved, the longest first, those that save nothing never.
    `slow` counts what a block of given extents does the slow way: a letter that adds to it is halved where no other saves anything.

    Where no letter can be split further the block may cost more.
    """
    size = dict(extent)
    now = cost(size)
    while now > limit:
        at_most, fallback = slow(size), None
        for letter in sorted((x for x in letters if size[x] > 1), key=lambda letter: -size[letter]):
            smaller = size | {letter: -(-size[letter] // 2)}
            if (then := cost(smaller)) < now:
                fallback = fallback or (smaller, then)
                if slow(smaller) <= at_most:
                    size, now = smaller, then
                    break
        else:
            if fallback is None:
                return size
            size, now = fallback
    return size


def regions(
    region: Region, letters: Iterable[Letter], size: Mapping[Letter, int], borders: Mapping[Letter, Collection[int]]
) -> Iterator[dict[Letter, tuple[int, int]]]:
    """`region` with `letters` split into intervals of at most `size`, and at every place of `borders`."""
    letters = tuple(letters)
    intervals = [_intervals(*region[letter], size[letter], borders.get(letter, ())) for letter in letters]
    for combination in product(*intervals):
        yield dict(region) | dict(zip(letters, combination, strict=True))


def _intervals(start: int, end: int, size: int, borders: Collection[int]) -> list[tuple[int, int]]:
    places = [start, *sorted({p for p in borders if start < p < end}), end]
    return [(a, min(a + size, hi)) for lo, hi in pairwise(places) for a in range(lo, hi, size)]
