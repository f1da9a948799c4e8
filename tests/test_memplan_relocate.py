"""Relocation: no range loses what it requires, and together they lose less."""

from __future__ import annotations

import numpy as np
import pytest

from einpage.memplan.packing.place import place
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import nearest
from einpage.memplan.schedule import relocate
from einpage.memplan.schedule.live_ranges import LiveRanges, Placement, RangeLimits, limited, live_ranges, placement_at
from einpage.memplan.schedule.relocate import relocated
from einpage.memplan.schedule.timetable import timetable
from plan_problems import headroom_of, random_slots


def denied_s(slots: Slots, ranges: LiveRanges, placement: Placement) -> float:
    """Seconds of tasks between the full ranges and what they get."""
    elapsed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
    late = sum(elapsed[-(-at // 3)] - elapsed[-(-r.start // 3)] for at, r in zip(placement.starts, ranges.full, strict=True))
    return float(late + sum(elapsed[-(-r.end // 3)] - elapsed[-(-at // 3)] for at, r in zip(placement.ends, ranges.full, strict=True)))


def overlaps(ranges: LiveRanges, placement: Placement) -> bool:
    """Whether two that have their bytes at once share one."""
    all_ = list(zip(placement.offsets, placement.starts, placement.ends, (r.nbytes for r in ranges.full), strict=True))
    return any(
        max(b, d) < min(e, f) and max(at, other) < min(at + n, other + m)
        for i, (at, b, e, n) in enumerate(all_)
        for other, d, f, m in all_[:i]
    )


def test_relocation_denies_nothing_required_and_less_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """From offsets for what is required, and for short leads: after moves no more is denied than before, nor after displacements."""
    denied = np.zeros(3)
    for seed, slots in enumerate(random_slots(40, most_ops=40, extra=1024)):
        capacity = slots.problem.capacity
        ranges = live_ranges(slots, timetable(slots, nearest(slots.accesses, headroom_of(slots))))
        shorter = limited(slots, ranges, RangeLimits(seed % 3, seed % 2))
        offsets = place(shorter.full, capacity)
        if None in offsets:
            continue
        found = [placement_at(ranges, {key: at for key, at in zip(ranges.keys, offsets, strict=True) if at is not None}, shorter)]
        for full, start, end in zip(shorter.full, found[0].starts, found[0].ends, strict=True):
            assert start <= full.start and full.end <= end, "what an offset was found for is not denied"
        for displacements in (0, 2):
            monkeypatch.setattr(relocate, "DISPLACEMENTS", displacements)
            found.append(relocated(slots, ranges, found[0]))
        for after in found:
            assert not overlaps(ranges, after)
            assert all(0 <= at <= capacity - r.nbytes for at, r in zip(after.offsets, ranges.full, strict=True))
            for full, (_, required_start), required_end, start, end in zip(
                ranges.full, ranges.keys, ranges.required_ends, after.starts, after.ends, strict=True
            ):
                assert full.start <= start <= required_start < required_end <= end <= full.end
        denied_here = [denied_s(slots, ranges, after) for after in found]
        assert denied_here[2] <= denied_here[1] + 1e-12 <= denied_here[0] + 2e-12, seed
        denied += denied_here
    assert denied[1] < 0.6 * denied[0]
    assert denied[2] < 0.9 * denied[1], denied
