"""Ruin and recreate: what holds for any graph, the drawing in the module, and how much is left of what a policy loses to the LP."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.bounds.interval_lp import bytes_bound
from einpage.memplan.problem.accesses import Accesses, from_lists
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.policies import ResidentIntervals, nearest, resident_bytes, rounded, stream_all
from einpage.memplan.residency.ruin_recreate import ruin_and_recreate
from strategies import a_machine, task_graphs


def moved(a: Accesses, resident: ResidentIntervals) -> int:
    """Bytes that cross the links because of intervals that are not resident."""
    evicted = ~resident
    written = np.unique(a.tensor[evicted & a.dirty[a.tensor]])
    return int(a.nbytes[a.tensor[evicted]].sum() + a.nbytes[written].sum())


def accesses_of(graph: TaskGraph) -> Accesses | None:
    slots = slots_of(problem_of(graph, a_machine(), 0))
    return None if slots is None else slots.accesses


@given(task_graphs(), st.integers(0, 20_000), st.booleans(), st.integers(1, 4))
@settings(max_examples=15)
def test_each_result_fits_and_moves_less(graph: TaskGraph, extra: int, streams: bool, every: int) -> None:
    """Each that the judge takes moves fewer bytes than the last it took; those it refuses leave no trace."""
    a = accesses_of(graph)
    if a is None:
        return
    headroom = largest_footprint(graph)[1] + extra - a.footprint
    resident = stream_all(a, headroom) if streams else nearest(a, headroom)
    seen = [(moved(a, resident), resident)]
    asked = 0

    def accepts(new: ResidentIntervals) -> bool:
        nonlocal asked
        asked += 1
        assert bool((resident_bytes(a, new) <= headroom).all())
        assert moved(a, new) < seen[-1][0]
        if asked % every:
            return False
        seen.append((moved(a, new), new.copy()))
        return True

    assert np.array_equal(ruin_and_recreate(a, headroom, resident, accepts, 0, Pace()), seen[-1][1])


def test_two_that_move_more_together_take_the_place_of_one() -> None:
    """The drawing in the module: w is read at 0 and 8, u at 1 and 4, v at 5 and 9; headroom for one."""
    reads = [(0,), (1,), (), (), (1,), (2,), (), (), (0,), (2,)]
    a = from_lists(
        reads=reads, writes=[()] * 10, seconds=[1.0] * 10, extra_bytes=[0] * 10, nbytes=[10] * 3, clean=[True] * 3, output=[False] * 3
    )
    headroom, by_share = np.full(10, 10), np.where(a.tensor == 0, 1.0, 0.5)
    resident = rounded(a, headroom, by_share)
    assert a.tensor[resident].tolist() == [0]
    assert sorted(a.tensor[ruin_and_recreate(a, headroom, resident, lambda _: True, 0, Pace())].tolist()) == [1, 2]


def test_a_third_of_what_a_policy_loses_is_won_back() -> None:
    """Loops over weights of many sizes: bytes above the interval LP's, which no plan beats, for the nearest first and after it."""
    lost, left = 0.0, 0.0
    for seed in range(2):
        sizes = np.random.default_rng(seed).integers(5, 60, 15).tolist()
        slots = 15 * 8
        a = from_lists(
            reads=[(k % 15,) for k in range(slots)], writes=[()] * slots, seconds=[1.0] * slots, extra_bytes=[0] * slots,
            nbytes=sizes, clean=[True] * 15, output=[False] * 15,
        )  # fmt: skip
        capacity = sum(sizes) // 2
        resident = nearest(a, capacity - a.footprint)
        least = bytes_bound(a, capacity).total - a.compulsory_load_bytes
        lost += moved(a, resident) - least
        left += moved(a, ruin_and_recreate(a, capacity - a.footprint, resident, lambda _: True, 0, Pace())) - least
    assert 0 <= left < 0.67 * lost, (left, lost)
