"""The report: its keys, its figures for the hand-made plan, what it says limits a plan, and its short form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einpage.einsum_front.base.dtype import DType
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.bounds.limit import limit_name
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import SecondRunFigures, Timeline, moved_bytes, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, Queue
from einpage.memplan.report import PassesReport, Report, limited_by, peak_bytes, render, report, tasks_in_order
from hand_plan import hand_plan
from kernel_time_figures import nothing_usual
from strategies import a_machine

SECONDS = a_machine(
    flops_per_s=((DType.FP32, 128.0),), device_bytes_per_s=1e12, h2d_bytes_per_s=256.0, d2h_bytes_per_s=128.0,
    copy_latency_s=0.5, launch_latency_s=2.0, device_bytes=2048,
)  # fmt: skip
KEYS = """spec machine policy plan_steps plan_ended order dtype split weight_bytes weight_bytes_as_run weight_formats
    budget_bytes peak_bytes largest_working_set_bytes
largest_working_set_task host_bytes
    start resident_bytes tasks nodes edges h2d_bytes d2h_bytes disk_read_bytes bytes_bound_h2d bytes_bound_d2h compute_s h2d_s d2h_s
    makespan_s predicted_s bound_s bound_ratio bound_limit bound_order_s bound_order_ratio bound_order_limit bound_order_by
    bytes_bound_order bytes_bound_order_by limited_by over_device_bytes plan_s verified
    second_runs second_runs_s second_runs_spared_bytes"""
"""Scripts read them: a key may be added, none taken away or given another meaning."""


def reported(plan: MemGraph, machine: Machine = SECONDS) -> Report:
    b = bounds(plan.graph, machine, plan.budget_bytes, tasks_in_order(plan))
    return report(plan, machine, simulate(plan, machine), b, plan_s=0.25, verified=True, spec="specs/hand.yaml")


def test_figures_of_the_hand_made_plan() -> None:
    got = reported(hand_plan()).facts()
    assert list(got) == KEYS.split()
    assert json.loads(json.dumps(got)) == got, "plain JSON"
    expected = {
        "spec": "specs/hand.yaml", "machine": "plain", "dtype": "fp32", "budget_bytes": 2048, "peak_bytes": 1792, "tasks": 4,
        "nodes": 14, "edges": 25, "h2d_bytes": 512 + 256 + 512, "d2h_bytes": 3 * 512, "disk_read_bytes": 0, "compute_s": 9.0, "h2d_s": 6.5,
        "d2h_s": 13.5, "makespan_s": 22.0, "bound_s": 8.0, "bound_ratio": 22.0 / 8.0, "bound_order_s": 17.5, "bytes_bound_h2d": 768,
        "bound_order_by": "busiest engine", "bytes_bound_order": 768 + 1024, "bytes_bound_order_by": "compulsory",
        "host_bytes": 2560, "plan_s": 0.25, "verified": True, "limited_by": "memory", "over_device_bytes": 0,
    }  # fmt: skip
    assert {key: got[key] for key in expected} == expected
    assert got["largest_working_set_bytes"] == 512 + 256 + 512 + 256, "a: e and w, the result, the workspace; e is read later"
    assert got["largest_working_set_task"] == "make a"


def test_what_runs_usually_take_is_in_the_time_line_and_in_no_bound() -> None:
    """A kernel takes a second longer than the rates say: four of them, behind one another."""
    times = nothing_usual()
    slower = replace(times, start_s=3.0)
    usual, best = reported(hand_plan(), replace(SECONDS, kernel_times=slower)), reported(hand_plan())
    assert usual.predicted_s == usual.makespan_s == best.makespan_s + 3.0
    assert (usual.bound_s, usual.bound_order_s) == (best.bound_s, best.bound_order_s)
    assert "predicted     25.0 s\n" in render(usual)


def test_a_figure_is_found_by_its_key_as_well() -> None:
    got = reported(hand_plan())
    assert all(got[key] == value for key, value in got.facts().items())


def test_passes_are_reported_behind_the_rest() -> None:
    got = replace(reported(hand_plan()), passes=PassesReport(3, 0.5, 66.5)).facts()
    assert list(got) == [*KEYS.split(), "passes", "prologue_s", "passes_s"]
    assert (got["passes"], got["prologue_s"], got["passes_s"]) == (3, 0.5, 66.5)


def test_moved_bytes_are_the_plans_own() -> None:
    plan = hand_plan()
    for queue in (Queue.H2D, Queue.D2H):
        nodes = [NodeId(n) for n in range(len(plan.nodes)) if plan.queue(NodeId(n)) == queue]
        assert moved_bytes(plan, queue) == sum(plan.moved_bytes(n) for n in nodes) > 0


def test_peak_counts_the_workspace_and_stays_within_the_budget() -> None:
    plan = hand_plan()
    assert peak_bytes(replace(plan, residencies=plan.residencies[:9])) == 1536, "the workspace's 100 bytes, rounded up"
    assert peak_bytes(plan.with_arena(DEVICE, 1790)) == 1790
    assert peak_bytes(replace(plan, residencies=plan.residencies[:9], alignment=1)) == 1380
    assert reported(replace(plan, alignment=64)).largest_working_set_bytes == 512 + 256 + 512 + 128, "the workspace in units of 64"


@pytest.mark.parametrize(
    ("busy", "makespan", "moved", "limit"),
    [
        ((9.0, 5.0, 1.0), 10.0, 100, "compute"),
        ((9.0, 5.0, 1.0), 10.0, 200, "compute"),
        ((5.0, 9.0, 1.0), 10.0, 100, "h2d"),
        ((5.0, 9.0, 1.0), 10.0, 200, "memory"),
        ((5.0, 1.0, 9.0), 10.0, 100, "d2h"),
        ((5.0, 1.0, 9.0), 10.0, 200, "memory"),
        ((5.0, 4.0, 3.0), 10.0, 100, "latency"),
        ((5.0, 4.0, 3.0), 10.0, 200, "memory"),
        ((0.0, 0.0, 0.0), 0.0, 0, "compute"),
    ],
)
def test_what_limits_a_plan(busy: tuple[float, float, float], makespan: float, moved: int, limit: str) -> None:
    plan = simulate(hand_plan(), SECONDS)
    by_queue = tuple(zip((Queue.COMPUTE, Queue.H2D, Queue.D2H), busy, strict=True))
    assert limit_name(limited_by(Timeline(plan.start_s, plan.finish_s, by_queue, makespan), moved, 100)) == limit


def test_the_short_form() -> None:
    lines = render(reported(hand_plan())).splitlines()
    assert len(lines) <= 15
    assert lines[0] == "plan          specs/hand.yaml, fp32, on plain: 4 tasks, 14 nodes"
    assert "budget        2KiB, 1.75KiB of it used" in lines
    assert "plan / bound  2.750 x 8.00 s (d2h; holds for any order and split)" in lines
    assert "              1.257 x 17.5 s (compute; holds for these tasks; by the busiest engine)" in lines
    assert "bytes         2.75KiB over both links, 1.75KiB at the least (each byte once)" in lines
    assert any(line.startswith("limited by    memory: ") for line in lines)
    assert "judge         passed; planned in 250 ms" in lines
    assert not any(line.startswith("warning") for line in lines)


def test_a_budget_beyond_the_device_is_warned_of() -> None:
    text = render(reported(hand_plan(), replace(SECONDS, device_bytes=1024)))
    assert "warning       the budget exceeds the device of plain by 1KiB" in text


def test_second_runs_are_told_where_there_are_some() -> None:
    of = reported(hand_plan())
    assert "recompute" not in render(of)
    found = render(replace(of, again=SecondRunFigures(1, 2e-3, 2048)))
    assert "recompute     1 second run in 2.00 ms, for 2KiB that no link carries\n" in found
