"""The offline search: never worse than what it starts from, often better, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, TaskGraph
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, queue_numbers, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.places import ENGINES, Queue
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals, stream_all
from einpage.memplan.schedule import search
from einpage.memplan.schedule.allocate import allocated
from einpage.memplan.schedule.search import SLOWER, Decision, SearchResult, better_plan, reissued
from einpage.memplan.schedule.static_plans import Policy, static_plans
from einpage.memplan.schedule.timetable import Timetable, timetable
from plan_problems import budget_of, headroom_of, random_slots
from strategies import a_machine, machines, task_graphs


def plan_of(slots: Slots, options: PlanOptions | None = None) -> MemGraph:
    return plan(slots.problem.graph, a_machine(), slots.problem.budget_bytes, options)


@settings(max_examples=15)
@given(task_graphs(most_ops=5), machines(), st.integers(0, 8192), st.sampled_from([1, 2]), st.sampled_from([1, 256]))
def test_effort_is_never_worse_and_always_right(graph: TaskGraph, machine: Machine, extra: int, effort: int, alignment: int) -> None:
    budget = budget_of(graph, extra, alignment)
    plain, better = (plan(graph, machine, budget, PlanOptions(alignment=alignment, effort=e)) for e in (0, effort))
    assert judge(better) is None
    assert simulate(better, machine).makespan_s <= simulate(plain, machine).makespan_s
    assert memgraph_text(plan(graph, machine, budget, PlanOptions(alignment=alignment, effort=effort))) == memgraph_text(better)
    assert all(graph.tensors[better.residencies[r].tensor].kind in HOST_AT_START for r in better.start)


def test_effort_pays() -> None:
    """Over many graphs a good share of plans becomes faster."""
    faster = tried = 0
    for slots in random_slots(40, most_ops=10, extra=1024):
        start = plan_of(slots)
        found = better_plan(slots, 1, start, 0.0).memgraph
        tried += 1
        faster += simulate(found, a_machine()).makespan_s < 0.99 * simulate(start, a_machine()).makespan_s
    assert tried >= 20
    assert faster >= tried // 5, f"{faster} of {tried}"


def test_a_plan_at_its_bound_of_time_still_moves_less() -> None:
    """Where nothing can be faster, a plan that takes no longer is searched for that moves less; of some graphs there is one."""
    less = 0
    for slots in random_slots(60, most_ops=10, extra=2048):
        if not static_plans(slots, (Policy.STREAM_ALL,)):
            continue
        start = plan_of(slots, PlanOptions(policy=Policy.STREAM_ALL))
        start_s = simulate(start, a_machine()).makespan_s
        found = better_plan(slots, 1, start, start_s).memgraph
        assert simulate(found, a_machine()).makespan_s <= start_s
        less += all_moved_bytes(found) < all_moved_bytes(start)
    assert less >= 5, less


def test_nothing_is_allocated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of candidates with the same timetable one is allocated; prefetch headroom that changes none makes no other candidate."""
    seen: list[tuple[bytes, Timetable]] = []

    def checked(slots: Slots, resident: ResidentIntervals, table: Timetable, *more: Any, exact: bool = False) -> Iterator[MemGraph]:
        if not exact:
            assert not [t for r, t in seen if r == resident.tobytes() and t.actions == table.actions]
            seen.append((resident.tobytes(), table))
        return allocated(slots, resident, table, *more, exact=exact)

    monkeypatch.setattr(search, "allocated", checked)
    monkeypatch.setattr(search, "reissued", lambda slots, best: best)
    most = 0
    for slots in random_slots(40, most_ops=10, extra=1024):
        better_plan(slots, 1, plan_of(slots), 0.0)
        most = max(most, len(seen))
        seen.clear()
    assert most > 1


def late_s(memgraph: MemGraph) -> float:
    """The makespan when tasks are slow, and when copies are."""
    on = [q == ENGINES.index(Queue.COMPUTE) for q in queue_numbers(memgraph).tolist()]
    factors = [np.array([SLOWER if slow is late else 1.0 for slow in on]) for late in (True, False)]
    return sum(simulate(memgraph, a_machine(), f).makespan_s for f in factors)


def test_a_reissued_plan_costs_nothing_and_loses_less() -> None:
    """It takes no longer, moves no more, and loses less by slow tasks and copies, or it is the plan that was there; some are others."""
    changed = 0
    for slots in random_slots(60, most_ops=10, extra=1024):
        resident = stream_all(slots.accesses, headroom_of(slots))
        table = timetable(slots, resident)
        for before in allocated(slots, resident, table, 0):
            after = reissued(slots, SearchResult(before, Decision(resident, 0, table.moved_bytes))).memgraph
            assert judge(after) is None
            assert simulate(after, a_machine()).makespan_s <= simulate(before, a_machine()).makespan_s
            assert all_moved_bytes(after) <= all_moved_bytes(before)
            assert after is before or late_s(after) < late_s(before)
            changed += after is not before
    assert changed >= 5, changed
