"""Which options of a plan exclude each other, and the options of the planner that follow from the rest."""

from __future__ import annotations

from typing import Any

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.schedule.static_plans import Policy


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"warm": True, "passes": 2}, "--warm and --passes exclude each other"),
        ({"passes": 0}, "--passes 0 is not at least 1"),
        ({"warm": True, "plan_seconds": 1.0}, "--warm: a plan is searched for from an empty device"),
        ({"policy": Policy.PIN_FIRST, "plan_steps": 9}, "--policy pin-first: a static plan is not searched for"),
        ({"plan_seconds": 1.0, "plan_steps": 9}, "--plan-seconds and --plan-steps exclude each other"),
        ({"plan_seconds": -1.0}, "--plan-seconds -1 is not between 0"),
        ({"plan_seconds": float("nan")}, "--plan-seconds nan is not between 0"),
        ({"plan_steps": -1}, "--plan-steps -1 is not between 0"),
        ({"policy": Policy.PIN_FIRST, "warm": True}, "--policy pin-first: a static plan starts with an empty device"),
        ({"policy": Policy.PIN_FIRST, "passes": 2}, "--policy pin-first: a static plan starts with an empty device"),
        ({"free_order": True, "passes": 2}, "--free-order: a loop is planned in the order as written"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        PlanRequest(1 << 20, **options)


@pytest.mark.parametrize(
    ("options", "start"), [({}, Start.COLD), ({"warm": True}, Start.WARM), ({"passes": 1, "plan_steps": 2}, Start.LOOP)]
)
def test_options_of_the_planner_follow(options: dict[str, Any], start: Start) -> None:
    planner = PlanRequest(1 << 20, alignment=1, **options).planner
    assert (planner.start, planner.alignment) == (start, 1)
    assert PlanRequest(1 << 20, policy=Policy.NEAREST).planner.policy is Policy.NEAREST
    assert PlanRequest(1 << 20, free_order=True).planner.free_order
