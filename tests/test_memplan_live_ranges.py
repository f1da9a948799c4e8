"""Live ranges: limits shorten what is not required, and nothing else."""

from __future__ import annotations

from einpage.memplan.residency.policies import nearest
from einpage.memplan.schedule.live_ranges import RangeLimits, limited, live_ranges
from einpage.memplan.schedule.timetable import timetable
from plan_problems import headroom_of, random_slots


def test_limited_ranges_lie_between_what_is_required_and_the_full_ranges() -> None:
    shortened = 0
    for slots in random_slots(40, most_ops=10, extra=2048):
        ranges = live_ranges(slots, timetable(slots, nearest(slots.accesses, headroom_of(slots))))
        for copies in (0.0, 1.0, 1e9):
            shorter = limited(slots, ranges, RangeLimits(copies, copies))
            for full, less, (_, required_start), required_end in zip(
                ranges.full, shorter.full, ranges.keys, ranges.required_ends, strict=True
            ):
                assert full.start <= less.start <= required_start < required_end <= less.end <= full.end
                assert copies or (less.start, less.end) == (required_start, required_end)
                assert copies < 2 or less == full
            shortened += shorter != ranges
    assert shortened >= 10, shortened
