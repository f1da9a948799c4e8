"""Plans on streams, with a driver that is not there: whatever order streams take, edges hold, results are right, and missing waits show."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device import streams
from einpage.exec.device.arena import outputs
from einpage.exec.device.stream_judge import Enqueued, Seen, Waited, unenforced
from einpage.exec.dispatch.progress import Hooks, Progress
from einpage.exec.dispatch.static import schedule
from einpage.exec.dispatch.stream_static import groups
from einpage.exec.errors import NodeError
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.on_torch.host_gather import prepare_gather, split_gather
from einpage.memplan.graph.memgraph import Free, HostGather, MemGraph, Move, NodeId
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import plan as make_plan
from fake_driver import FakeDriver, WatchedDevice
from kernels_cases import GATHERS
from plain_plan import plain_plan
from real_bytes import Data, differences, direct, filled_host
from single_runs import run_serial, run_stream_dynamic, run_stream_static
from strategies import a_machine, data, random_graph
from test_exec_cpu import SEEDS, made

DISPATCHERS = {"static": run_stream_static, "dynamic": run_stream_dynamic, "serial": run_serial}
every_dispatcher = pytest.mark.parametrize("dispatch", list(DISPATCHERS))


def run(plan: MemGraph, values: Data, dispatch: str, driver: FakeDriver) -> tuple[dict[str, Any], WatchedDevice, Any]:
    host = filled_host(plan, values)
    device = WatchedDevice(plan, host, driver)
    device.preload()
    device.actions.clear()
    measured = DISPATCHERS[dispatch](plan, device)  # type: ignore[operator]
    return outputs(plan, host), device, measured


@every_dispatcher
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_order_streams_take_the_result_is_the_direct_one(seed: int, dispatch: str) -> None:
    graph, plan, values = made(seed)
    expected = direct(graph, values)
    for draw in range(6):
        found, device, measured = run(plan, values, dispatch, FakeDriver(seed=draw, steps=draw))
        assert differences(found, expected) == []
        assert measured.moved_bytes == moved_bytes_by_queue(plan)
        assert device.moved_bytes == moved_bytes_by_queue(plan)


@pytest.mark.parametrize("dispatch", ["static", "dynamic"])
def test_the_judge_of_streams_finds_every_edge_enforced(dispatch: str) -> None:
    for seed in range(40):
        _, plan, values = made(seed)
        _, device, _ = run(plan, values, dispatch, FakeDriver(seed=seed, steps=seed % 4))
        assert unenforced(plan, device.actions) == []


def test_a_wait_left_out_is_an_edge_not_enforced() -> None:
    """Every wait that static dispatch enqueues is needed, and the judge misses none."""
    tried = 0
    for seed in SEEDS:
        _, plan, values = made(seed)
        _, device, _ = run(plan, values, "static", FakeDriver())
        for left_out in range(0, sum(isinstance(action, Waited) for action in device.actions), 7):
            driver = FakeDriver(ignore=lambda n, left_out=left_out: n == left_out)  # type: ignore[misc]
            faulty = WatchedDevice(plan, filled_host(plan, values), driver)
            with suppress(NodeError):  # an index that was poison
                run_stream_static(plan, faulty)
            assert unenforced(plan, [action for action in faulty.actions if not isinstance(action, Seen)]), f"seed {seed}, wait {left_out}"
            tried += 1
    assert tried > 15


def test_without_waits_some_order_gives_a_wrong_result() -> None:
    graph, plan, values = made(6)
    expected = direct(graph, values)

    def is_wrong(draw: int) -> bool:
        try:
            found, _, _ = run(plan, values, "static", FakeDriver(seed=draw, steps=1, ignore=lambda n: True))
        except NodeError:
            return True
        return bool(differences(found, expected))

    assert any(is_wrong(draw) for draw in range(5))


def test_a_node_never_put_is_said() -> None:
    _, plan, values = made(1)
    _, device, _ = run(plan, values, "static", FakeDriver())
    last = next(action.node for action in reversed(device.actions) if isinstance(action, Enqueued))
    assert unenforced(plan, [action for action in device.actions if getattr(action, "node", None) != last]) == [(last, last)]


@every_dispatcher
def test_large_copies_and_gathers_go_in_chunks(dispatch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COPY_BYTES", 100)
    monkeypatch.setattr(streams, "STAGING_BYTES", 64)
    graph, plan, values = next(m for m in map(made, range(100)) if any(isinstance(n, HostGather) for n in m[1].nodes))
    expected = direct(graph, values)
    for draw in range(4):
        found, device, _ = run(plan, values, dispatch, FakeDriver(seed=draw))
        assert differences(found, expected) == []
        assert device.moved_bytes == moved_bytes_by_queue(plan)
        moves = [i for i, n in enumerate(plan.nodes) if isinstance(n, Move)]
        assert max(device.chunks(i) for i in moves) > 1  # type: ignore[arg-type]
        if dispatch != "serial":
            assert unenforced(plan, device.actions) == []


def test_an_urgent_copy_overtakes_between_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under dynamic dispatch; a static stream keeps the plan's order."""
    monkeypatch.setattr(streams, "COPY_BYTES", 16)
    overtaken = {"static": 0, "dynamic": 0}
    for dispatch in overtaken:
        for seed in range(12):
            _, plan, values = made(seed)
            _, device, _ = run(plan, values, dispatch, FakeDriver(seed=seed, steps=1))
            enqueued = [(action.stream, action.node) for action in device.actions if isinstance(action, Enqueued)]
            for stream in (1, 2):
                nodes = [n for s, n in enqueued if s == stream]
                starts = [n for i, n in enumerate(nodes) if n not in nodes[:i]]
                runs = [n for i, n in enumerate(nodes) if i == 0 or nodes[i - 1] != n]
                overtaken[dispatch] += len(runs) - len(starts)
    assert overtaken["static"] == 0
    assert overtaken["dynamic"] > 0


def test_times_are_the_devices_and_keep_the_edges() -> None:
    for dispatch in ("static", "dynamic"):
        _, plan, values = made(6)
        _, _, measured = run(plan, values, dispatch, FakeDriver(seed=3))
        assert (measured.finish_s >= measured.start_s).all()
        assert np.isfinite(measured.finish_s).all()
        assert (measured.finish_s[plan.edges.target] >= measured.finish_s[plan.edges.source]).all()


@every_dispatcher
def test_a_kernel_that_fails_names_its_node(dispatch: str) -> None:
    graph, plan, values = next(m for m in map(made, range(100)) if any(isinstance(n, HostGather) for n in m[1].nodes))
    indices = next(v.name for v in graph.values if v.dtype is DType.INT32)
    with pytest.raises(NodeError, match=r"gather .* on the h2d engine: IndexOutOfRange") as caught:
        run(plan, {**values, indices: values[indices] + 1000}, dispatch, FakeDriver())
    assert isinstance(caught.value.__cause__, IndexOutOfRange)


@pytest.mark.parametrize("dispatch", ["static", "dynamic"])
def test_progress_is_told(dispatch: str) -> None:
    _, plan, values = made(1)
    device = WatchedDevice(plan, filled_host(plan, values), FakeDriver())
    told: list[Progress] = []
    DISPATCHERS[dispatch](plan, device, Hooks(progress=told.append))  # type: ignore[operator]
    assert told[-1].tasks_done == told[-1].tasks > 0
    assert told[-1].moved_bytes == told[-1].plan_bytes == moved_bytes_by_queue(plan)


def test_exactly_the_host_arena_is_pinned_and_given_back() -> None:
    _, plan, values = made(1)
    driver = FakeDriver()
    device = WatchedDevice(plan, filled_host(plan, values), driver)
    assert list(driver.pinned.values()) == [plan.host_bytes]
    assert device.arena_bytes == plan.budget_bytes
    assert device.outside_arena_bytes == 1000
    device.close()
    assert driver.pinned == {}


class FullDriver(FakeDriver):
    """No device memory is left."""

    def allocate(self, nbytes: int) -> Tensor:
        raise UsageError(f"too little for {nbytes}")


def test_a_device_that_cannot_be_made_leaves_nothing_pinned() -> None:
    _, plan, values = made(1)
    driver = FullDriver()
    with pytest.raises(UsageError, match="too little"):
        WatchedDevice(plan, filled_host(plan, values), driver)
    assert driver.pinned == {}


def test_a_device_is_closed_when_its_streams_are_done() -> None:
    _, plan, values = made(1)
    host, driver = filled_host(plan, values), FakeDriver(steps=0)
    device = WatchedDevice(plan, host, driver)
    for item in range(len(plan.nodes)):
        for chunk in range(device.chunks(NodeId(item))):
            device.enqueue(NodeId(item), chunk)
    assert any(driver._queues)
    device.close()
    assert not any(driver._queues)


def test_a_second_pass_gives_the_same() -> None:
    graph, plan, values = made(1)
    host = filled_host(plan, values)
    device = WatchedDevice(plan, host, FakeDriver())
    for dispatch in ("static", "dynamic", "static"):
        measured = DISPATCHERS[dispatch](plan, device)  # type: ignore[operator]
        assert differences(outputs(plan, host), direct(graph, values)) == []
        assert measured.moved_bytes == moved_bytes_by_queue(plan)


def test_groups_of_computes_are_captured_when_they_come_again() -> None:
    """With room for everything computes need not wait for links: a second pass enqueues them in groups, with the same results and edges."""
    graph = random_graph(3)
    plan, values = make_plan(graph, a_machine(), 1 << 20), data(graph, 3)
    host, driver = filled_host(plan, values), FakeDriver()
    device = WatchedDevice(plan, host, driver)
    captured = [group for group in groups(schedule(plan)) if len(group.items) > 1]
    assert captured
    assert sorted(i.node for g in groups(schedule(plan)) for i in g.items) == [
        i for i, n in enumerate(plan.nodes) if not isinstance(n, Free)
    ]
    for turn in range(3):
        device.actions.clear()
        driver.actions_at_capture.clear()
        measured = run_stream_static(plan, device)
        assert driver.captured == (len(captured) if turn else 0)
        assert driver.actions_at_capture == ([0] * len(captured) if turn == 1 else []), "captured during the run"
        assert differences(outputs(plan, host), direct(graph, values)) == []
        assert unenforced(plan, device.actions) == []
        assert measured.busy_s[Queue.COMPUTE] <= measured.wall_s


@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize("nbytes", [1, 60, 1 << 20])
def test_blocks_of_a_gather_lie_one_after_the_other(name: str, nbytes: int) -> None:
    case = GATHERS[name]()
    job = case.job
    whole, parts = case.poisoned(), case.poisoned()
    prepare_gather(job)(case.operands(), whole, None)  # type: ignore[arg-type]
    flat, start = parts.view(-1), 0
    blocks = list(split_gather(job, nbytes))  # type: ignore[arg-type]
    for block in blocks:
        (box,) = block.result.boxes
        prepare_gather(block)(case.operands(), flat[start : start + box.size].view(box.shape), None)
        start += box.size
        assert box.size * block.result.dtype.nbytes <= nbytes or box.size == 1
    assert start == whole.numel()
    assert (parts.view(-1) == whole.view(-1)).all()
    assert (len(blocks) > 1) == (nbytes < whole.nbytes)


def test_random_plans_of_other_dtypes() -> None:
    for seed, dtype in ((3, DType.BF16), (14, DType.FP16)):
        graph = random_graph(seed, dtype=dtype)
        plan, values = plain_plan(graph), data(graph, seed)
        found, device, _ = run(plan, values, "static", FakeDriver(seed=seed))
        assert differences(found, direct(graph, values)) == []
        assert unenforced(plan, device.actions) == []
