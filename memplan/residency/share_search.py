"""How much of an arena residents leave free: searched for by the seconds of the plans that come of it.

In: what asks for the seconds of a share. Out: its questions, and so the sets that are planned with. With too little free, loads wait for
room; with more than enough, more weights are loaded. So the best share is the least with which no load waits, wherever that is:

    seconds
      |  *
      |        *                                   doubled: 0, LEAST, 2 LEAST, ... while more free may be faster
      |           .     *     .     *              halved:  the gap between the best and the next that was less
      +--0------------> share left free
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from math import inf
from typing import TypeAlias, TypeVar

LEAST = 0.005
"""The first share that is doubled."""
HALVINGS = 3
"""Of a gap of LEAST or of a doubling: what is left of it matters less than the size of a weight."""

Question = TypeVar("Question")
SecondsOf: TypeAlias = Callable[[float, bool], Generator[Question, float, float]]
"""Of the plan with about this share left free, small weights resident before large ones or without regard to sizes; infinity where the link
alone would take too long with this share, and so with any larger one."""


def search(seconds_of: SecondsOf[Question], good: float | None = None) -> Generator[Question, float, None]:
    """Ask for the seconds of shares near the best. With `good`, a share that was best elsewhere, what is asked first is that and its
    neighbours.

    Small weights come first, so that what is loaded is fewer copies, each with its latency; unless for the best share a plan without regard
    to sizes, which loads more evenly, is faster.
    """
    seconds_by_share: dict[float, float] = {}
    for share in _doubled() if good is None else _around(good):
        seconds_by_share[share] = yield from seconds_of(share, True)
        if good is None and seconds_by_share[share] == inf:
            break
    best = _fastest(seconds_by_share)
    even_s = yield from seconds_of(best, False)
    small_first = seconds_by_share[best] <= even_s
    seconds_by_share[best] = min(seconds_by_share[best], even_s)
    for _ in range(HALVINGS):
        best = _fastest(seconds_by_share)
        less = max((share for share in seconds_by_share if share < best), default=best)
        middle = (less + best) / 2
        if middle not in seconds_by_share:
            seconds_by_share[middle] = yield from seconds_of(middle, small_first)


def _doubled() -> Iterator[float]:
    yield 0.0
    share = LEAST
    while share < 1:
        yield share
        share *= 2
    yield 1.0


def _around(good: float) -> tuple[float, ...]:
    good = max(good, LEAST)
    return good, 2 * good, good / 2


def _fastest(seconds_by_share: dict[float, float]) -> float:
    """The share, the least of equals."""
    return min(seconds_by_share, key=lambda share: (seconds_by_share[share], share))
