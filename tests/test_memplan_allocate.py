"""From a timetable to plans."""

from __future__ import annotations

from einpage.memplan.graph.simulate import all_moved_bytes
from einpage.memplan.residency.policies import nearest
from einpage.memplan.schedule.allocate import LIMITS, allocated
from einpage.memplan.schedule.timetable import timetable
from plan_problems import headroom_of, random_slots


def test_the_same_limits_make_one_plan() -> None:
    """Limits given twice make no other plan; of some graphs in the smallest arena there are plans only with live ranges split."""
    split = 0
    for slots in random_slots(60, most_ops=30, extra=0, alignment=1):
        resident = nearest(slots.accesses, headroom_of(slots))
        table = timetable(slots, resident)
        once, twice = (list(allocated(slots, resident, table, 0, LIMITS[:1] * n)) for n in (1, 2))
        assert len(once) == len(twice)
        split += any(all_moved_bytes(it) > table.moved_bytes for it in once)
    assert split >= 3, split
