"""What whole tensors leave possible: by hand, and against every choice of whole intervals."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.memplan.bounds.interval_lp import bytes_bound
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.problem.accesses import Accesses, from_lists
from einpage.memplan.problem.fits import fits
from einpage.memplan.residency.policies import resident_bytes


def weights_read(reads: list[list[int]], nbytes: list[int]) -> Accesses:
    """Slots of a second that read weights and write nothing."""
    slots, tensors = len(reads), len(nbytes)
    return from_lists(
        reads=reads, writes=[()] * slots, seconds=[1.0] * slots, extra_bytes=[0] * slots, nbytes=nbytes, clean=[True] * tensors,
        output=[False] * tensors,
    )  # fmt: skip


def test_by_hand() -> None:
    """w of 60 bytes is used by slots 0 and 5; between them slots need 90, 30, 80 and 20 of 100."""
    a = weights_read([[0], [1], [2], [3], [4], [0, 2]], [60, 90, 30, 80, 20])
    it = fits(a, 100)
    assert list(zip(a.tensor, a.start, a.end, strict=True)) == [(0, 0, 5), (2, 2, 5)]
    assert it.resident.tolist() == [False, False], "w not beside 90, and what is 30 not beside 80"
    assert it.again_from.tolist() == [4, 4]
    first = dict(zip(a.loaded.tolist(), it.first_from.tolist(), strict=True))
    assert first == {0: 0, 1: 1, 2: 2, 3: 3, 4: 2}, "20 bytes fit beside 30 and 80, the others beside no slot before theirs"
    assert fits(a, 150).resident.tolist() == [True, True] and not fits(a, 150).crowds


def test_a_crowd_by_hand() -> None:
    """Three weights of 40 over a slot that leaves 90: two at most; cut, two and a quarter."""
    a = weights_read([[0], [1], [2], [3], [0], [1], [2]], [40, 40, 40, 10])
    it = fits(a, 100)
    assert [(c.intervals.tolist(), c.most) for c in it.crowds if len(c.intervals) == 3] == [([0, 1, 2], 2)]
    assert bytes_bound(a, 100).total == pytest.approx(130 + 40)
    assert bytes_bound(a, 100, cut=True).total == pytest.approx(130 + 30)


def test_what_does_not_fit_is_not_loaded_ahead() -> None:
    """The second weight waits for the first to go: both loads and both tasks one after the other. Cut, four tenths of it come before."""
    a, links = weights_read([[0], [1]], [60, 60]), (Link(Queue.H2D, 60.0), Link(Queue.D2H, 60.0))
    assert time_bound(a, 100, links).seconds == pytest.approx(4)
    assert time_bound(a, 100, links, cut=True).seconds == pytest.approx(4 - 40 / 60)
    assert time_bound(a, 120, links).seconds == pytest.approx(3)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_every_choice_of_whole_intervals_agrees(data: st.DataObject) -> None:
    nbytes = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    which = st.lists(st.integers(0, len(nbytes) - 1), min_size=1, max_size=2, unique=True)
    a = weights_read(data.draw(st.lists(which, min_size=2, max_size=8)), nbytes)
    capacity = int(a.footprint.max()) + data.draw(st.integers(0, 60))
    it, every = fits(a, capacity), range(len(a.tensor))
    assert len(every) <= 14
    least = None
    for count in range(len(every) + 1):
        for chosen in combinations(every, count):
            resident = np.zeros(len(every), bool)
            resident[list(chosen)] = True
            if (resident_bytes(a, resident) + a.footprint > capacity).any():
                continue
            assert it.resident[resident].all()
            assert all(resident[crowd.intervals].sum() <= crowd.most for crowd in it.crowds)
            moved = int(a.compulsory_load_bytes + a.nbytes[a.tensor[~resident]].sum())
            least = moved if least is None else min(least, moved)
    assert least is not None
    assert bytes_bound(a, capacity, cut=True).total * (1 - 1e-9) <= bytes_bound(a, capacity).total <= least * (1 + 1e-9)
