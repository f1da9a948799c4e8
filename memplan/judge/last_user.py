"""Who used each byte of an arena last, for the judge."""

from __future__ import annotations

from bisect import bisect_right


class LastUsers:
    """Disjoint half-open segments of offsets, sorted. A user is a residency, or ~node for the workspace of that node."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.users: list[int] = []

    def claim(self, start: int, end: int, user: int) -> list[int]:
        """Make `user` the last user of [start, end); answers the users before, in order of offset.

        Both are rounded outwards to whole units. On the device that changes no verdict: all starts are aligned, so two claims that share a
        unit share its first byte; and no slivers of users long past remain. Of sectors it is the rule: each has one user.
        """
        start, end = start // self.unit * self.unit, -(-end // self.unit) * self.unit
        low = bisect_right(self.starts, start)
        if low and self.ends[low - 1] > start:
            low -= 1
        high = low
        while high < len(self.starts) and self.starts[high] < end:
            high += 1
        before = self.users[low:high]
        segments = [(start, end, user)]
        if high > low and self.starts[low] < start:
            segments.insert(0, (self.starts[low], start, self.users[low]))
        if high > low and self.ends[high - 1] > end:
            segments.append((end, self.ends[high - 1], self.users[high - 1]))
        self.starts[low:high] = [s[0] for s in segments]
        self.ends[low:high] = [s[1] for s in segments]
        self.users[low:high] = [s[2] for s in segments]
        return before
