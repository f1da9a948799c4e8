"""Packings from orders: buffers are placed one by one, each at the lowest offset where it fits; then the order is mended.

In: lives, sizes and a target height. Out: the lowest packing met, its offsets in the order of the buffers. Fast and never exact: an
order takes n × neighbours steps. A buffer that ends above the target moves ahead in the order, as do its neighbours by chance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from time import perf_counter
from typing import TypeAlias

Span: TypeAlias = tuple[int, int, int]
"""(first, stop, size): a buffer with its life in steps, as every solver here takes it."""


def neighbours_of(spans: Sequence[Span]) -> list[list[int]]:
    """For each buffer, the others that are alive at some step of its life."""
    order = sorted(range(len(spans)), key=lambda i: spans[i][0])
    begins = [spans[i][0] for i in order]
    out: list[list[int]] = [[] for _ in spans]
    for i, (first, stop, _) in enumerate(spans):
        # Those that begin within its life are its neighbours, and it is theirs: each pair is met once, or twice where both begin together.
        for j in order[bisect_right(begins, first) : bisect_left(begins, stop)]:
            out[i].append(j)
            out[j].append(i)
        out[i] += [j for j in order[bisect_left(begins, first) : bisect_right(begins, first)] if j != i]
    return out


def place_in_order(spans: Sequence[Span], neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Offsets: each buffer of `order` in turn at the lowest offset that is free over its whole life."""
    offsets = [-1] * len(spans)
    for i in order:
        size, at = spans[i][2], 0
        for start, stop in sorted([(offsets[j], offsets[j] + spans[j][2]) for j in neighbours[i] if offsets[j] >= 0]):
            if start - at >= size:
                break
            if stop > at:
                at = stop
        offsets[i] = at
    return offsets


def height_of(spans: Sequence[Span], offsets: Sequence[int]) -> int:
    return max((at + size for (_, _, size), at in zip(spans, offsets, strict=True)), default=0)


def pack_by_order(spans: Sequence[Span], target: int, rounds: int, seed: int, deadline: float) -> list[int]:
    """The lowest packing of the four plain orders and of `rounds` mended ones; stops early at `target` and at `deadline`."""
    neighbours = neighbours_of(spans)
    rnd = Random(seed)
    everyone = range(len(spans))
    starts = [
        sorted(everyone, key=lambda i: (-spans[i][2] * (spans[i][1] - spans[i][0]), i)),
        sorted(everyone, key=lambda i: (-spans[i][2], i)),
        sorted(everyone, key=lambda i: (spans[i][0] - spans[i][1], i)),
        sorted(everyone, key=lambda i: (spans[i][0], -spans[i][2], i)),
    ]
    best, best_height, best_order = [0] * len(spans), 0, starts[0]
    for n in range(len(starts) + rounds):
        order = starts[n] if n < len(starts) else _mended(best_order, best, spans, target, rnd)
        offsets = place_in_order(spans, neighbours, order)
        height = height_of(spans, offsets)
        # An equal height is taken as well: walking along a plateau leaves local optima.
        if n == 0 or height <= best_height:
            best, best_height, best_order = offsets, height, order
        if best_height <= target or perf_counter() > deadline:
            break
    return best


def _mended(order: Sequence[int], offsets: Sequence[int], spans: Sequence[Span], target: int, rnd: Random) -> list[int]:
    """`order` with some of the buffers that end above `target`, and a few others, moved ahead."""
    height = height_of(spans, offsets)
    rank_by_buffer = {b: float(rank) for rank, b in enumerate(order)}
    limit = rnd.randint(target, height - 1) if target < height else height - 1
    for b in order:
        if offsets[b] + spans[b][2] > limit and rnd.random() < 0.7:
            rank_by_buffer[b] = rnd.random() * rank_by_buffer[b]
    for b in rnd.sample(order, min(len(order), rnd.randint(0, 4))):
        rank_by_buffer[b] = rnd.random() * len(order)
    return sorted(order, key=lambda b: rank_by_buffer[b])
