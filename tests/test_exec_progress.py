"""What a person sees while a plan runs: progress that adds up, and the queue heads of engines that are stuck."""

from __future__ import annotations

import threading
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from einpage.exec.device.device import NullDevice
from einpage.exec.dispatch.progress import Hooks, Monitor, Progress, QueueHead, queue_heads
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from einpage.memplan.machine.places import Queue
from hand_plan import hand_plan
from single_runs import run_dynamic, run_serial, run_static

DISPATCHERS = {"serial": run_serial, "dynamic": run_dynamic, "static": run_static}


def test_nodes_in_words() -> None:
    plan = hand_plan()
    words = [describe(plan, NodeId(i)) for i in (0, 1, 2, 3, 4, 9)]
    assert words == ["gather make e", "reload w", "compute make a", "offload e", "free e on the device", "free e on the host"]


def test_heads_name_what_each_engine_waits_for() -> None:
    plan = hand_plan()
    finished = [nan] * 14
    started = [nan] * 14
    for done in (0, 1, 3):
        started[done] = finished[done] = 0.5
    started[2] = 0.6
    running = QueueHead(Queue.COMPUTE, NodeId(2), "compute make a", True, ())
    reload = QueueHead(Queue.H2D, NodeId(8), "reload e", False, ((NodeId(2), "compute make a"),))
    offload = QueueHead(Queue.D2H, NodeId(7), "offload b", False, ((NodeId(5), "compute make b"),))
    assert queue_heads(plan, started, finished) == (running, reload, offload)
    assert [h.text() for h in (running, reload, offload)] == [
        "compute: node 2 (compute make a) running",
        "h2d: node 8 (reload e) waits for node 2 (compute make a)",
        "d2h: node 7 (offload b) waits for node 5 (compute make b)",
    ]
    assert replace(offload, waits_for=()).text() == "d2h: node 7 (offload b) ready, not started"


def test_finished_engines_have_no_head() -> None:
    plan = hand_plan()
    finished = [1.0] * 14
    finished[11] = nan
    assert [h.engine for h in queue_heads(plan, finished, finished)] == [Queue.D2H]


def test_stuck_is_told_after_the_time_and_again_after_as_long() -> None:
    plan = hand_plan()
    told: list[tuple[QueueHead, ...]] = []
    finished = [nan] * 14
    monitor = Monitor(
        plan, moved_bytes_by_queue(plan), NullDevice(plan), Hooks(stuck=told.append, stuck_after_s=30.0), [nan] * 14, finished
    )
    for seconds in (10.0, 29.9):
        monitor.update(seconds)
    assert told == []
    monitor.update(30.0)
    monitor.update(59.9)
    assert len(told) == 1
    finished[0] = 59.95
    monitor.update(60.0)
    monitor.update(89.9)
    assert len(told) == 1
    monitor.update(90.0)
    assert len(told) == 2
    assert [h.node for h in told[1]] == [2, 1, 3]


@pytest.mark.parametrize("dispatch", list(DISPATCHERS.values()), ids=list(DISPATCHERS))
def test_a_stuck_engine_is_named_and_the_run_still_ends(dispatch: Any) -> None:
    """Node 1 hangs until the watchdog has spoken: the reload is running, compute waits for it."""
    plan = hand_plan()
    spoken = threading.Event()
    told: list[tuple[QueueHead, ...]] = []

    class Hanging(NullDevice):
        def copy(self, node: NodeId) -> None:
            if node == 1:
                assert spoken.wait(30)
            super().copy(node)

    def stuck(found: tuple[QueueHead, ...]) -> None:
        if any(h.node == 1 and h.running for h in found):
            told.append(found)
            spoken.set()

    dispatch(plan, Hanging(plan), Hooks(stuck=stuck, stuck_after_s=0.02, interval_s=0.005))
    by_engine = {head.engine: head for head in told[0]}
    assert by_engine[Queue.H2D].text() == "h2d: node 1 (reload w) running"
    assert by_engine[Queue.COMPUTE].waits_for == ((1, "reload w"),)


@pytest.mark.parametrize("dispatch", list(DISPATCHERS.values()), ids=list(DISPATCHERS))
def test_progress_ends_with_everything_done(dispatch: Any) -> None:
    plan = hand_plan()
    seen: list[Progress] = []
    polled = threading.Event()

    class Slow(NullDevice):
        def compute(self, node: NodeId) -> None:
            if node == 5:
                assert polled.wait(30)
            super().compute(node)

    def progress(p: Progress) -> None:
        seen.append(p)
        if p.tasks_done == 2:
            polled.set()

    dispatch(plan, Slow(plan), Hooks(progress=progress, interval_s=0.005))
    last = seen[-1]
    assert (last.tasks_done, last.tasks) == (4, 4)
    assert last.moved_bytes == last.plan_bytes == {Queue.H2D: 1280, Queue.D2H: 1536}
    assert [p.tasks_done for p in seen] == sorted(p.tasks_done for p in seen)
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    assert any(p.tasks_done == 2 for p in seen)
