"""Which tensors stay between two uses: policies, each a pure function to one truth an interval.

In: Accesses as the arena sees them, and the room that what stays may take at every slot. Out: Keep, which always fits that room.
`most_bytes` in policies.py says what the named ones move at most.

    stream all    nothing with a copy on the host stays          (what per-layer streaming does)
    pin first     the tensors first used stay for good            (a static split: the head of the model on the device)
    pin evenly    every so many bytes one tensor stays for good   (the same share, spread: the link never idles)
    .. and near   what room is left goes to the intervals with the fewest slots
    nearest       the interval with the fewest slots stays first  (Belady's rule, offline)
    rounded       the largest shares of a linear programme, or of prices.py, first
    evened        tensors with all or nothing of it first; of the others every so many bytes of shares one tensor, as it fits
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.problem.accesses import Accesses

Room = NDArray[np.int64]
"""[slot] bytes that intervals over the slot may take together."""
LEAST_SHARE = 1e-6
"""Shares below this are a solver's noise."""
SURE = 0.98
"""From this share on, an interval stays, and below 1 - this it goes, whatever is spread evenly."""


def rounded(a: Accesses, room: Room, share: NDArray[np.float64]) -> Keep:
    """The intervals with the largest `share` [interval] first, the shorter of equals; those of no share stay out."""
    order = np.lexsort((a.end - a.start, -np.round(share, 6)))
    return _filled(a, room, order[share[order] > LEAST_SHARE].tolist())


def evened(a: Accesses, room: Room, share: NDArray[np.float64]) -> Keep:
    """The intervals of share SURE first; then tensors by their first use, each whenever a share of the bytes passed is due: the link
    is as busy everywhere."""
    sure = np.flatnonzero(share > SURE)
    keep = _filled(a, room, sure[np.argsort(-share[sure], kind="stable")].tolist())
    by_tensor: dict[int, list[int]] = {}
    for j in np.flatnonzero((share > 1 - SURE) & ~keep).tolist():
        by_tensor.setdefault(int(a.tensor[j]), []).append(j)
    due, even = 0.0, []
    for t, mine in by_tensor.items():
        size = int(a.nbytes[t])
        due += size * float(share[mine].mean())
        if due >= size / 2:
            due -= size
            even += mine
    return keep | _filled(a, room - bytes_kept(a, keep), even)


def nearest(a: Accesses, room: Room) -> Keep:
    """The fewest slots per byte that would move again first; a dirty tensor's first interval counts its copy to the host too."""
    return _filled(a, room, _nearest_first(a))


def _nearest_first(a: Accesses) -> list[int]:
    twice = a.is_first & a.dirty[a.tensor]
    order: list[int] = np.lexsort((a.start, (a.end - a.start - 1) / np.where(twice, 2, 1))).tolist()
    return order


def and_nearest(a: Accesses, room: Room, keep: Keep) -> Keep:
    """`keep`, and as `nearest` what fits beside it."""
    return keep | _filled(a, room - bytes_kept(a, keep), [j for j in _nearest_first(a) if not keep[j]])


def stream_all(a: Accesses, room: Room) -> Keep:
    """Of what the host has, nothing stays; what tasks made stays as far as there is room."""
    return _made_first(a, room, ())


def pin_first(a: Accesses, room: Room) -> Keep:
    """Tensors of the host in the order of their first use stay for good, while there is room; what tasks made goes before them."""
    return _made_first(a, room, _by_first_use(a))


def pin_evenly(a: Accesses, room: Room) -> Keep:
    """As many bytes as `pin_first`, evenly over the order of first use: a tensor is pinned whenever a share of the bytes passed is due."""
    tensors = _by_first_use(a)
    pinned = pin_first(a, room)
    bytes_of = {t: int(a.nbytes[t]) for t in tensors}
    chosen = {int(t) for t in a.tensor[pinned & a.clean[a.tensor]]}
    share = sum(bytes_of[t] for t in chosen) / max(1, sum(bytes_of.values()))
    due, even = 0.0, []
    for t in tensors:
        due += share * bytes_of[t]
        if due >= bytes_of[t] / 2:
            due -= bytes_of[t]
            even.append(t)
    return _made_first(a, room, even)


def _by_first_use(a: Accesses) -> list[int]:
    """Tensors of the host that have intervals, by first use."""
    return [t for t in dict.fromkeys(a.tensor[np.argsort(a.start, kind="stable")].tolist()) if a.clean[t]]


def _made_first(a: Accesses, room: Room, pins: Iterable[int]) -> Keep:
    """What tasks made, the shortest intervals first; then the tensors `pins`, each with all its intervals or with none."""
    made = np.flatnonzero(~a.clean[a.tensor])
    keep = _filled(a, room, made[np.argsort((a.end - a.start)[made], kind="stable")].tolist())
    left = room - bytes_kept(a, keep)
    by_tensor: dict[int, list[int]] = {}
    for j, t in enumerate(a.tensor.tolist()):
        by_tensor.setdefault(t, []).append(j)
    for t in pins:
        mine, size = by_tensor[t], int(a.nbytes[t])
        if all(left[a.start[j] + 1 : a.end[j]].min() >= size for j in mine):
            for j in mine:
                left[a.start[j] + 1 : a.end[j]] -= size
            keep[mine] = True
    return keep


def _filled(a: Accesses, room: Room, order: Iterable[int]) -> Keep:
    """Every interval of `order` that fits what those before it left."""
    left, keep = room.copy(), np.zeros(len(a.tensor), bool)
    begin, end, size = a.start.tolist(), a.end.tolist(), a.nbytes[a.tensor].tolist()
    for j in order:
        over = left[begin[j] + 1 : end[j]]
        if over.min() >= size[j]:
            over -= size[j]
            keep[j] = True
    return keep


Keep = NDArray[np.bool_]
"""[interval] whether the tensor stays on the device."""


def bytes_kept(a: Accesses, keep: Keep) -> NDArray[np.int64]:
    """[slot] bytes of what stays over the slot."""
    size, change = a.nbytes[a.tensor[keep]], np.zeros(a.slots + 1, np.int64)
    np.add.at(change, a.start[keep] + 1, size)
    np.add.at(change, a.end[keep], -size)
    kept: NDArray[np.int64] = np.cumsum(change)[: a.slots]
    return kept
