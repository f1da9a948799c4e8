"""Which intervals between two uses of a tensor are resident: policies, each a pure function to one truth an interval.

In: Accesses as the arena sees them, and the headroom that resident intervals may take at every slot. Out: ResidentIntervals, which always
fit that headroom. `most_bytes` in schedule/static_plans.py says what the named ones move at most.

    stream all    nothing with a copy on the host is resident     (what per-layer streaming does)
    pin first     the tensors first used are resident throughout  (a static split: the head of the model on the device)
    pin evenly    every so many bytes one tensor is pinned        (the same share, spread: the link never idles)
    and nearest   the headroom that is left goes to the intervals with the fewest slots
    nearest       the interval with the fewest slots first        (Belady 1966, over intervals of many sizes)
    lifetime      evicted are the intervals of most time per byte that moves  (TERAIO, Yuan et al. 2025)
    pressure      evicted are those that take most bytes × seconds off what exceeds the arena, per byte that moves  (G10, Zhang et al. 2023)
    rounded       the largest shares of a linear programme, or of shadow_prices.py, first
    evened        tensors of which all or nothing is resident first; of the others every so many bytes of shares one tensor, as it fits
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np

from einpage.einsum_front.base.columns import Bools, Floats, Int64s
from einpage.memplan.problem.accesses import Accesses

Headroom: TypeAlias = Int64s
"""[slot] bytes that intervals over the slot may take together."""
ResidentIntervals: TypeAlias = Bools
"""[interval] whether the tensor is on the device over all of it."""
LEAST_SHARE = 1e-6
"""Shares below this are a solver's noise."""
LEAST_SECONDS = 1e-12
"""Of a slot, so that no slot has too many bytes at no cost."""
SURE = 0.98
"""From this share on, an interval is resident, and below 1 - this it is not, whatever is spread evenly."""


def resident_bytes(a: Accesses, resident: ResidentIntervals) -> Int64s:
    """[slot] bytes of the resident intervals over it."""
    size, change = a.nbytes[a.tensor[resident]], np.zeros(a.slots + 1, np.int64)
    np.add.at(change, a.start[resident] + 1, size)
    np.add.at(change, a.end[resident], -size)
    total: Int64s = np.cumsum(change)[: a.slots]
    return total


def rounded(a: Accesses, headroom: Headroom, share: Floats) -> ResidentIntervals:
    """The intervals with the largest `share` [interval] first, the shorter of equals; those of no share are left out."""
    order = np.lexsort((a.end - a.start, -np.round(share, 6)))
    return _filled(a, headroom, order[share[order] > LEAST_SHARE].tolist())


def evened(a: Accesses, headroom: Headroom, share: Floats) -> ResidentIntervals:
    """The intervals of share SURE first; then tensors by their first use, each whenever a share of the bytes passed is due: the link
    is as busy everywhere."""
    sure = np.flatnonzero(share > SURE)
    resident = _filled(a, headroom, sure[np.argsort(-share[sure], kind="stable")].tolist())
    by_tensor: dict[int, list[int]] = {}
    for j in np.flatnonzero((share > 1 - SURE) & ~resident).tolist():
        by_tensor.setdefault(int(a.tensor[j]), []).append(j)
    due, even = 0.0, []
    for t, intervals in by_tensor.items():
        size = int(a.nbytes[t])
        due += size * float(share[intervals].mean())
        if due >= size / 2:
            due -= size
            even += intervals
    return resident | _filled(a, headroom - resident_bytes(a, resident), even)


def nearest(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """The fewest slots per byte that would move again first; a dirty tensor's first interval counts its copy to the host too."""
    return _filled(a, headroom, _nearest_first(a))


def _nearest_first(a: Accesses) -> list[int]:
    twice = a.is_first & a.dirty[a.tensor]
    order: list[int] = np.lexsort((a.start, (a.end - a.start - 1) / np.where(twice, 2, 1))).tolist()
    return order


def and_nearest(a: Accesses, headroom: Headroom, resident: ResidentIntervals) -> ResidentIntervals:
    """`resident`, and as `nearest` what fits beside it."""
    return resident | _filled(a, headroom - resident_bytes(a, resident), [j for j in _nearest_first(a) if not resident[j]])


def by_lifetime(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """All but what is evicted: while some slot has too many, of the intervals over such slots the one with the most seconds per byte that
    moves; of equal ones, the first. A dirty tensor's first interval moves twice its bytes."""
    within = np.concatenate(([0.0], np.cumsum(a.seconds)))
    benefit = (within[a.end] - within[a.start + 1]) / _moves(a)
    over, resident = resident_bytes(a, np.ones(len(a.tensor), bool)) - headroom, np.ones(len(a.tensor), bool)
    for j in np.lexsort((np.arange(len(benefit)), -benefit)).tolist():
        inside = over[a.start[j] + 1 : a.end[j]]
        if inside.max() > 0:
            inside -= a.nbytes[a.tensor[j]]
            resident[j] = False
    return resident


def by_pressure(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """All but what is evicted: while some slot has too many, the interval that takes the most bytes × seconds off what is too many, per
    byte that moves; of equal ones, the first. What an interval takes off only becomes less, so a heap of what it took last is exact."""
    over, resident = resident_bytes(a, np.ones(len(a.tensor), bool)) - headroom, np.ones(len(a.tensor), bool)
    moved, seconds = (_moves(a) * a.nbytes[a.tensor]).tolist(), np.maximum(a.seconds, LEAST_SECONDS)

    def relief(j: int) -> float:
        inside = slice(int(a.start[j]) + 1, int(a.end[j]))
        return float((np.clip(over[inside], 0, a.nbytes[a.tensor[j]]) * seconds[inside]).sum() / moved[j])

    heap = [(-relief(j), j) for j in range(len(a.tensor))]
    heapify(heap)
    while heap and over.max(initial=0) > 0:
        known, j = heappop(heap)
        now = -relief(j)
        if now != known:
            heappush(heap, (now, j))
        elif now:
            over[a.start[j] + 1 : a.end[j]] -= a.nbytes[a.tensor[j]]
            resident[j] = False
    return resident


def _moves(a: Accesses) -> Int64s:
    """[interval] how often its bytes cross a link if it is not resident."""
    moves: Int64s = np.where(a.is_first & a.dirty[a.tensor], 2, 1)
    return moves


def stream_all(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """Nothing of which the host has a copy; results of tasks as far as there is headroom."""
    return _results_first(a, headroom, ())


def pin_first(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """Results of tasks, and then the host's tensors in the order of their first use, each throughout, while there is headroom."""
    return _results_first(a, headroom, _by_first_use(a))


def pin_evenly(a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """As many bytes as `pin_first`, evenly over the order of first use: a tensor is pinned whenever a share of the bytes passed is due."""
    tensors = _by_first_use(a)
    first = pin_first(a, headroom)
    bytes_of = {t: int(a.nbytes[t]) for t in tensors}
    chosen = {int(t) for t in a.tensor[first & a.clean[a.tensor]]}
    share = sum(bytes_of[t] for t in chosen) / max(1, sum(bytes_of.values()))
    due, even = 0.0, []
    for t in tensors:
        due += share * bytes_of[t]
        if due >= bytes_of[t] / 2:
            due -= bytes_of[t]
            even.append(t)
    return _results_first(a, headroom, even)


def _by_first_use(a: Accesses) -> list[int]:
    """Tensors of the host that have intervals, by first use."""
    return [t for t in dict.fromkeys(a.tensor[np.argsort(a.start, kind="stable")].tolist()) if a.clean[t]]


def _results_first(a: Accesses, headroom: Headroom, pins: Iterable[int]) -> ResidentIntervals:
    """Results of tasks, the shortest intervals first; then the tensors `pins`, each with all its intervals or with none."""
    results = np.flatnonzero(~a.clean[a.tensor])
    resident = _filled(a, headroom, results[np.argsort((a.end - a.start)[results], kind="stable")].tolist())
    left = headroom - resident_bytes(a, resident)
    by_tensor: dict[int, list[int]] = {}
    for j, t in enumerate(a.tensor.tolist()):
        by_tensor.setdefault(t, []).append(j)
    for t in pins:
        intervals, size = by_tensor[t], int(a.nbytes[t])
        if all(left[a.start[j] + 1 : a.end[j]].min() >= size for j in intervals):
            for j in intervals:
                left[a.start[j] + 1 : a.end[j]] -= size
            resident[intervals] = True
    return resident


def _filled(a: Accesses, headroom: Headroom, order: Iterable[int]) -> ResidentIntervals:
    """Greedily every interval of `order` that fits what those before it left."""
    left, resident = headroom.copy(), np.zeros(len(a.tensor), bool)
    start, end, size = a.start.tolist(), a.end.tolist(), a.nbytes[a.tensor].tolist()
    for j in order:
        over = left[start[j] + 1 : end[j]]
        if over.min() >= size[j]:
            over -= size[j]
            resident[j] = True
    return resident
