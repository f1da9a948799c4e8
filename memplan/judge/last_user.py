"""Who last owned each byte of an arena, for the judge."""

from __future__ import annotations

from bisect import bisect_right


class Owners:
    """Disjoint half-open segments, sorted. An owner is a residency, or ~node for a workspace."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.owners: list[int] = []

    def claim(self, start: int, stop: int, owner: int) -> list[int]:
        """Give [start, stop) to `owner`; answer whom it belonged to, in order of offset.

        The stop is rounded up to the alignment. That changes no verdict: all starts are aligned, so two claims that share a unit share its
        first byte; and it leaves no slivers that belong to somebody of long ago.
        """
        stop = -(-stop // self.alignment) * self.alignment
        lo = bisect_right(self.starts, start)
        if lo and self.stops[lo - 1] > start:
            lo -= 1
        hi = lo
        while hi < len(self.starts) and self.starts[hi] < stop:
            hi += 1
        before = self.owners[lo:hi]
        segments = [(start, stop, owner)]
        if hi > lo and self.starts[lo] < start:
            segments.insert(0, (self.starts[lo], start, self.owners[lo]))
        if hi > lo and self.stops[hi - 1] > stop:
            segments.append((stop, self.stops[hi - 1], self.owners[hi - 1]))
        self.starts[lo:hi] = [s[0] for s in segments]
        self.stops[lo:hi] = [s[1] for s in segments]
        self.owners[lo:hi] = [s[2] for s in segments]
        return before
