"""The published rules by which tensors are evicted over inactive intervals, on an example of ten that is worked out by hand.

    slot       0   1   2   3   4   5   6   7   8   9     each takes a second, and leaves 240 bytes to what it does not touch
    a  100     ●───────────────────────────────────●     8 s
    b   60         ●───────────────────●                 4 s
    c   60             ●───────●                         1 s
    d  100             ●───────────────────────●         5 s
    e   40     ●───────────────────────────●             6 s
    f   40     ●───────────────●                         3 s
    g   80                 ●───────────────────────●     5 s
    h   60                     ●───────●                 1 s
    i   40                 ○───────●                     1 s, dirty: it moves twice
    j   40                         ●───────────●         2 s
    too many       0   0 160 180 200 120  80   0

By lifetime, seconds per time that it moves: a 8, e 6, then d and g 5, of which d is the first. Without a, e and d no slot has too many.

By pressure, what each takes off the last line, in parts of its bytes: a (0 + 100 + 100 + 100 + 100 + 80) / 100 = 4.8, and d 4.8 too, of
which a is the first. It leaves 60 80 100 20 in slots 3 to 6: e 140 / 40 = 3.5 (b 3, d 2.6). That leaves 20 40 60: b 120 / 60 = 2 (g 1.25).
"""

from __future__ import annotations

import numpy as np
import pytest

from einpage.memplan.problem.accesses import Accesses, from_lists
from einpage.memplan.residency.policies import by_lifetime, by_pressure
from plan_problems import IntervalPolicy

INTERVALS = {
    "a": (0, 9, 100), "b": (1, 6, 60), "c": (2, 4, 60), "d": (2, 8, 100), "e": (0, 7, 40),
    "f": (0, 4, 40), "g": (3, 9, 80), "h": (4, 6, 60), "i": (3, 5, 40), "j": (5, 8, 40),
}  # fmt: skip
SLOTS, HEADROOM = 10, 240


def example(seconds: float = 1.0) -> Accesses:
    names = list(INTERVALS)
    reads = [[n for n, name in enumerate(names) if slot in INTERVALS[name][:2] and (name, slot) != ("i", 3)] for slot in range(SLOTS)]
    writes = [[names.index("i")] if slot == 3 else [] for slot in range(SLOTS)]
    return from_lists(
        reads=reads, writes=writes, seconds=[seconds] * SLOTS, extra_bytes=[0] * SLOTS, nbytes=[INTERVALS[name][2] for name in names],
        clean=[name != "i" for name in names], output=[False] * len(names),
    )  # fmt: skip


def evicted(rule: IntervalPolicy, a: Accesses, headroom: int) -> str:
    resident = rule(a, np.full(a.slots, headroom))
    return "".join(sorted(list(INTERVALS)[t] for t in a.tensor[~resident].tolist()))


@pytest.mark.parametrize(("rule", "expected"), [(by_lifetime, "ade"), (by_pressure, "abe")])
def test_choices_worked_out_by_hand(rule: IntervalPolicy, expected: str) -> None:
    a = example()
    assert len(a.tensor) == 10 and sorted(a.nbytes[a.tensor].tolist()) == sorted(size for *_, size in INTERVALS.values())
    assert evicted(rule, a, HEADROOM) == expected


@pytest.mark.parametrize("rule", [by_lifetime, by_pressure])
def test_only_what_exceeds_the_arena_is_evicted(rule: IntervalPolicy) -> None:
    """All fits 440 bytes, but for a byte: then slot 5 alone has too many, and of all over it the longest is evicted, or the smallest of
    those that take most off."""
    a = example()
    assert evicted(rule, a, 440) == ""
    assert evicted(by_lifetime, a, 439) == "a"
    assert evicted(by_pressure, a, 439) == "e", "a byte is 1/40 of e, of which there is no smaller one over slot 5"


@pytest.mark.parametrize("rule", [by_lifetime, by_pressure])
def test_slots_that_take_no_time_are_relieved_too(rule: IntervalPolicy) -> None:
    assert len(evicted(rule, example(seconds=0.0), 0)) == 10
