"""First fit in a given order: each rectangle at the lowest offset that is free over its whole interval; then the order is improved.

In: rectangles and a target height. Out: the lowest packing met, its offsets in the order of the rectangles. Fast and never exact: a pass
takes n × neighbours steps. The orders tried first are first fit decreasing by area, size and duration, and by start; then local search
moves rectangles that end above the target, and a few others by chance, ahead in the best order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from time import perf_counter

from einpage.memplan.packing.rectangles import Rectangle


def neighbours_of(rectangles: Sequence[Rectangle]) -> list[list[int]]:
    """For each rectangle, the others that overlap it in time."""
    order = sorted(range(len(rectangles)), key=lambda i: rectangles[i].start)
    starts = [rectangles[i].start for i in order]
    out: list[list[int]] = [[] for _ in rectangles]
    for i, (start, end, _) in enumerate(rectangles):
        # Those that start inside its interval are its neighbours, and it is theirs: each pair is met once, or twice where starts are equal.
        for j in order[bisect_right(starts, start) : bisect_left(starts, end)]:
            out[i].append(j)
            out[j].append(i)
        out[i] += [j for j in order[bisect_left(starts, start) : bisect_right(starts, start)] if j != i]
    return out


def first_fit(rectangles: Sequence[Rectangle], neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Offsets: each rectangle of `order` in turn at the lowest offset that its placed neighbours leave free."""
    offsets = [-1] * len(rectangles)
    for i in order:
        nbytes, at = rectangles[i].nbytes, 0
        for low, high in sorted([(offsets[j], offsets[j] + rectangles[j].nbytes) for j in neighbours[i] if offsets[j] >= 0]):
            if low - at >= nbytes:
                break
            if high > at:
                at = high
        offsets[i] = at
    return offsets


def height_of(rectangles: Sequence[Rectangle], offsets: Sequence[int]) -> int:
    """Where the highest of the rectangles ends, in bytes, at these offsets; 0 for none."""
    return max((at + nbytes for (_, _, nbytes), at in zip(rectangles, offsets, strict=True)), default=0)


def pack_by_order(rectangles: Sequence[Rectangle], target: int, rounds: int, seed: int, deadline: float) -> list[int]:
    """The lowest packing of the four plain orders and of `rounds` improved ones; stops early at `target` and at `deadline`."""
    neighbours = neighbours_of(rectangles)
    rng = Random(seed)
    numbers = range(len(rectangles))
    plain = [
        sorted(numbers, key=lambda i: (-rectangles[i].nbytes * (rectangles[i].end - rectangles[i].start), i)),
        sorted(numbers, key=lambda i: (-rectangles[i].nbytes, i)),
        sorted(numbers, key=lambda i: (rectangles[i].start - rectangles[i].end, i)),
        sorted(numbers, key=lambda i: (rectangles[i].start, -rectangles[i].nbytes, i)),
    ]
    best, best_height, best_order = [0] * len(rectangles), 0, plain[0]
    for n in range(len(plain) + rounds):
        order = plain[n] if n < len(plain) else _improved(best_order, best, rectangles, target, rng)
        offsets = first_fit(rectangles, neighbours, order)
        height = height_of(rectangles, offsets)
        # An equal height is accepted as well: walking along a plateau leaves local optima.
        if n == 0 or height <= best_height:
            best, best_height, best_order = offsets, height, order
        if best_height <= target or perf_counter() > deadline:
            break
    return best


def _improved(order: Sequence[int], offsets: Sequence[int], rectangles: Sequence[Rectangle], target: int, rng: Random) -> list[int]:
    """`order` with some of the rectangles that end above `target`, and a few others, moved ahead."""
    height = height_of(rectangles, offsets)
    rank_by_number = {i: float(rank) for rank, i in enumerate(order)}
    limit = rng.randint(target, height - 1) if target < height else height - 1
    for i in order:
        if offsets[i] + rectangles[i].nbytes > limit and rng.random() < 0.7:
            rank_by_number[i] = rng.random() * rank_by_number[i]
    for i in rng.sample(order, min(len(order), rng.randint(0, 4))):
        rank_by_number[i] = rng.random() * len(order)
    return sorted(order, key=lambda i: rank_by_number[i])
