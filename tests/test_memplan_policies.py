"""Policies of resident intervals: what they choose fits, and is what their names say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.residency.policies import pin_evenly, pin_first, resident_bytes, stream_all
from plan_problems import POLICIES, IntervalPolicy, headroom_of, random_slots, slots_for
from strategies import a_machine, task_graphs


@given(task_graphs(joined=True), st.integers(0, 20_000), st.sampled_from(POLICIES))
def test_resident_intervals_fit(graph: TaskGraph, extra: int, policy: IntervalPolicy) -> None:
    slots = slots_for(graph, a_machine(), extra)
    a, headroom = slots.accesses, headroom_of(slots)
    assert bool((resident_bytes(a, policy(a, headroom)) <= headroom).all())


@given(task_graphs(joined=True), st.integers(0, 20_000))
def test_with_stream_all_nothing_the_host_has_is_resident(graph: TaskGraph, extra: int) -> None:
    slots = slots_for(graph, a_machine(), extra)
    a = slots.accesses
    assert not stream_all(a, headroom_of(slots))[a.clean[a.tensor]].any()


@pytest.mark.parametrize("policy", [pin_first, pin_evenly])
def test_a_pin_is_for_good(policy: IntervalPolicy) -> None:
    """Of a tensor of the host all intervals are resident or none; and with headroom for everything all are."""
    some = 0
    for slots in random_slots(200, most_ops=8, extra=4096):
        a = slots.accesses
        resident = policy(a, headroom_of(slots))
        for t in set(a.tensor[a.clean[a.tensor]].tolist()):
            mine = resident[a.tensor == t]
            assert mine.all() or not mine.any()
            some += bool(mine.any())
        assert policy(a, np.full(a.slots, 1 << 40)).all()
    assert some > 20
