"""The published planner's cases, planned by ours with its cost model: bytes and time within the targets set for them."""

from __future__ import annotations

import pytest

from bench.turnip_cases import CASES, Published, row


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.seq}-{case.budget_gb}GB")
def test_nothing_moves_twice_and_the_time_is_the_bounds(case: Published) -> None:
    found = row(case)
    assert found["h2d_over_compulsory"] <= 1.02
    assert found["clean_d2h_bytes"] == 0
    assert found["over_bound_order"] <= 1.03
    theirs = found["theirs"]
    assert found["h2d_gb"] < theirs["h2d_gb"] and found["ms"] < theirs["ms_without_clean"]
