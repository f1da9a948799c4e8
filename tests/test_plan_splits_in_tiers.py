"""Which splits of a loop are planned with a disk behind the host: finer ones while they gain, and a better plan is searched for once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.planning import judged_plan
from einpage.exec.planning.judged_plan import LOOP_SPLITS, Planned, plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.simulate import read_cost_s, simulate
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.tiers import plan_tiers
from specs_small import SPECS
from three_places import with_disk

KIB = 1024
MACHINE = with_disk(load_machine("cpu"), 1e9)
PROGRAM = open_model(
    SPECS / "llama.yaml", {"batch": 1, "seq": 8, "model": 128, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 1024, "layers": 4}
).program
HUNDREDTH = 1.01


def planned(budget_bytes: int, host_bytes: int, steps: int | None = None) -> tuple[Planned, list[tuple[Planned, Any, bool]]]:
    """The plan, and all that were made for it, in order: with the options of each, and whether it was searched for."""
    made: list[tuple[Planned, Any, bool]] = []
    plan_graph = judged_plan.plan_graph

    def noted(graph: Any, machine: Any, budget: int, options: Any, since: float, effort: Any, pace: Any) -> Planned:
        made.append((plan_graph(graph, machine, budget, options, since, effort, pace), options, pace is not None))
        return made[-1][0]

    with patch.object(judged_plan, "plan_graph", noted):
        found = plan_program(PROGRAM, MACHINE, PlanRequest(budget_bytes, host_budget_bytes=host_bytes, passes=3, plan_steps=steps))
    return found, made


def coarsest_graph() -> TaskGraph:
    return plan_program(PROGRAM, MACHINE, PlanRequest(2048 * KIB)).graph


def gain(found: Planned, other: Planned) -> float:
    """How many times longer the other takes, in all or, where that is as long, for what it reads."""
    link, seconds = MACHINE.usual_link(Queue.READ), found.timeline.makespan_s
    times = other.timeline.makespan_s / seconds
    saved_s = read_cost_s(other.memgraph, link) - read_cost_s(found.memgraph, link)
    return times if times < 1 / HUNDREDTH else max(times, 1 + saved_s / seconds)


@pytest.mark.parametrize(("device", "host"), [(3072, 1024), (1024, 2048), (2048, 1024)])
def test_splits_are_planned_while_they_gain_a_hundredth(device: int, host: int) -> None:
    _, made = planned(device * KIB, host * KIB)
    plans = list({it.graph.split: it for it, _, _ in made}.values())
    assert 2 <= len(plans) < len(LOOP_SPLITS)
    gains = [min(gain(it, other) for other in plans[:n]) for n, it in enumerate(plans) if n]
    assert min(gains[:-1], default=HUNDREDTH) >= HUNDREDTH > gains[-1]


def test_what_gains_is_a_hundredth_faster_or_as_fast_and_reads_for_so_much_less() -> None:
    plans = [it for it, _, _ in planned(2048 * KIB, 1024 * KIB)[1]]
    link = MACHINE.usual_link(Queue.READ)
    less, more = sorted(plans, key=lambda it: read_cost_s(it.memgraph, link))[:: len(plans) - 1]
    saved_s = read_cost_s(more.memgraph, link) - read_cost_s(less.memgraph, link)

    def taking(it: Planned, seconds: float) -> Planned:
        return replace(it, timeline=replace(it.timeline, makespan_s=seconds))

    for times, gains in ((1.005, False), (1.02, True)):
        assert judged_plan._gains(taking(less, 1.0), [taking(less, times)]) is gains
        assert not judged_plan._gains(taking(less, 1.0), [taking(less, 1.02), taking(less, 1.0)])
        assert not judged_plan._gains(taking(less, times), [taking(less, 1.0)])
    for share, gains in ((0.005, False), (0.02, True)):
        seconds = saved_s / share
        assert judged_plan._gains(taking(less, seconds), [taking(more, seconds)]) is gains
        assert not judged_plan._gains(taking(less, 1.02 * seconds), [taking(more, seconds)])


def test_a_better_plan_is_searched_for_in_the_split_that_is_taken_and_in_no_other() -> None:
    found, made = planned(2048 * KIB, 1024 * KIB, steps=20)
    alone, plans = planned(2048 * KIB, 1024 * KIB)
    assert [searched for _, _, searched in made] == [False] * len(plans) + [True]
    assert made[-1][0].graph.split == found.graph.split == alone.graph.split
    assert found.timeline.makespan_s <= HUNDREDTH * alone.timeline.makespan_s
    assert (found.report.plan_steps, alone.report.plan_steps) == (20, 0)


def test_a_finer_split_begins_with_as_many_bytes_resident_as_the_one_before() -> None:
    _, made = planned(2048 * KIB, 1024 * KIB)
    resident_by_split: dict[object, set[int | None]] = {None: {None}}
    before = last = None
    for it, options, _ in made:
        if it.graph.split != last:
            before, last = last, it.graph.split
        assert options.resident_bytes in resident_by_split[before]
        resident = sum(it.graph.tensors[t].nbytes for t in it.memgraph.resident)
        resident_by_split.setdefault(last, set()).add(resident)
    assert len(resident_by_split) > 3


def test_one_plan_of_the_host_is_enough_where_it_is_as_fast_as_the_device_alone() -> None:
    """Launches are the limit: others of the host, which read more, are not looked at."""
    slow = replace(MACHINE, launch_latency_s=1e-3)
    with patch.object(plan_tiers, "joined", side_effect=plan_tiers.joined) as counted:
        made = plan(
            coarsest_graph(), slow, 2048 * KIB, PlanOptions(start=Start.LOOP, host_bytes=1024 * KIB, paced_by=plan_tiers.Pacing.OWN)
        )
    line = simulate(made, slow)
    assert line.busy(Queue.COMPUTE) >= 0.99 * line.makespan_s
    assert counted.call_count == 1
