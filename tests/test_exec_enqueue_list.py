"""What the host does for a node: a plan is scheduled once, the list is gone through in every pass, and nothing is made for a node then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.dispatch_cost import dispatch_cost, long_plan
from einpage.exec.device import streams
from einpage.exec.device.arena import outputs
from einpage.exec.device.stream_judge import Enqueued, Seen, Waited, unenforced
from einpage.exec.device.stream_memory import StreamMemory
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch import stream_common, stream_static
from einpage.exec.dispatch.engine import Neighbours, predecessors
from einpage.exec.dispatch.serial import StreamSerialDispatcher
from einpage.exec.dispatch.static import QueueItem, Schedule, schedule
from einpage.exec.dispatch.stream_common import Polling
from einpage.exec.dispatch.stream_static import StreamStaticDispatcher
from einpage.exec.errors import NodeError
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import choose
from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions
from einpage.exec.run.prepared import prepare_run, run_model
from einpage.kernels.launch.bound_launch import BoundLaunch
from einpage.kernels.prepare import prepare
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move, NodeId
from einpage.memplan.graph.simulate import NO_QUEUE, moved_bytes_by_queue, queue_numbers, queues_of
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import plan as make_plan
from failing_driver import CountingDriver
from fake_driver import FakeDriver, WatchedDevice
from hand_plan import hand_plan
from real_bytes import Data, differences, direct, filled_host
from strategies import a_machine, random_graph
from test_exec_choose import SIZES, SPECS
from test_exec_cpu import SEEDS, made

VectorClock = tuple[int, ...]


def naive_schedule(memgraph: MemGraph) -> Schedule:
    """By its definition: what each item is known to be behind, as a clock with a count an engine, and every count that is not known."""
    before: Neighbours = predecessors(memgraph)
    queues, engines = queue_numbers(memgraph).tolist(), len(queues_of(memgraph))

    def latest(clocks: Iterable[VectorClock]) -> VectorClock:
        return tuple(map(max, zip((0,) * engines, *clocks, strict=True)))

    def needed(need: VectorClock) -> VectorClock:
        clocks = {e: known[e][count - 1] for e, count in enumerate(need) if count}
        return tuple(0 if any(i != e and clock[e] >= n for i, clock in clocks.items()) else n for e, n in enumerate(need))

    items: list[list[NodeId]] = [[] for _ in range(engines)]
    known: list[list[VectorClock]] = [[] for _ in range(engines)]
    waits: dict[int, Any] = {}
    frees: dict[int, list[NodeId]] = {}
    first, arrivals, needs = [], [0] * len(queues), []
    for node in map(NodeId, range(len(queues))):
        need, engine = needed(latest(needs[p] for p in before[node])), queues[node]
        if engine == NO_QUEUE:
            attached = [items[e][count - 1] for e, count in enumerate(need) if count]
            for item in attached:
                frees[item].append(node)
            first += [] if attached else [node]
            arrivals[node] = len(attached)
            needs.append(need)
            continue
        now = known[engine][-1] if known[engine] else (0,) * engines
        waits[node] = tuple((e, count) for e, count in enumerate(need) if count > now[e])
        items[engine].append(node)
        frees[node] = []
        done = tuple(len(items[e]) if e == engine else 0 for e in range(engines))
        known[engine].append(latest((now, *(known[e][count - 1] for e, count in waits[node]), done)))
        needs.append(done)
    lists = tuple(tuple(QueueItem(n, waits[n], tuple(frees[n])) for n in nodes) for nodes in items)
    return Schedule(lists, tuple(first), tuple(arrivals))


@given(st.integers(0, 400), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_a_schedule_is_the_one_of_its_definition(seed: int, room: int) -> None:
    graph = random_graph(seed)
    plan = make_plan(graph, a_machine(), 1 << (14 + room)) if room else made(seed % 40)[1]
    assert schedule(plan) == naive_schedule(plan)


def test_a_long_schedule_is_the_one_of_its_definition() -> None:
    for plan in (long_plan(300), hand_plan()):
        assert schedule(plan) == naive_schedule(plan)


class BoundKernel:
    """Stands in for a compiled kernel: bound to the handle of the compute stream, it runs the torch kernel, and counts what it is asked."""

    check = None
    bound = 0

    ways = ()

    def __init__(self, job: Any, choices: Any = None) -> None:
        self._kernel = prepare(job)

    def warm(self, operands: Any, result: Any) -> None:
        """Nothing to compile."""

    def bind(self, operands: Any, result: Any, stream: int | None = None) -> BoundLaunch:
        assert stream == 1000 + COMPUTE, "the handle of the compute stream"
        BoundKernel.bound += 1
        return BoundLaunch(partial(self._kernel, operands, result, None))


def direct_device(plan: MemGraph, values: Data, monkeypatch: pytest.MonkeyPatch) -> tuple[StreamDevice, CountingDriver]:
    """A device whose driver binds all to its streams, as CUDA's does."""
    monkeypatch.setattr(streams, "prepare_launches", BoundKernel)
    driver = CountingDriver()
    return StreamDevice(plan, StreamMemory(filled_host(plan, values), driver, plan.budget_bytes)), driver


def test_nothing_is_made_or_bound_or_scheduled_in_later_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third on: the first captures nothing, the second captures groups."""
    scheduled: list[MemGraph] = []
    monkeypatch.setattr(stream_static, "schedule", lambda plan: (scheduled.append(plan), schedule(plan))[1])
    for seed in range(12):
        graph, plan, values = made(seed)
        device, driver = direct_device(plan, values, monkeypatch)
        device.preload()
        scheduled.clear()
        with closing(StreamStaticDispatcher(plan)) as dispatcher:
            for _ in range(2):
                dispatcher.run(device)
            listed, made_events, bound, counts = dispatcher._list, driver.made, BoundKernel.bound, dict(driver.counts)
            assert listed is not None and listed.is_final
            for _ in range(3):
                dispatcher.run(device)
                assert differences(outputs(plan, device.memory.host), direct(graph, values)) == []
                assert device.moved_bytes == moved_bytes_by_queue(plan)
            assert dispatcher._list is listed, "the list is the same in every pass"
        assert scheduled == [plan]
        assert (driver.made, BoundKernel.bound) == (made_events, bound), "events are recorded again, kernels called as they were bound"
        for what in ("bound_copy", "capture"):
            assert driver.counts.get(what) == counts.get(what)
        replayed = sum(count > 1 for *_, count in listed.steps)
        assert driver.counts.get("launch", 0) == counts.get("launch", 0) + 3 * replayed, (
            "a stream is made the current one for a graph alone"
        )
        gathers = sum(isinstance(node, HostGather) for node in plan.nodes)
        assert (driver.counts.get("copy", 0) - counts.get("copy", 0) > 0) == (gathers > 0), "only gathered rows are copied unbound"
        device.close()
        device.memory.close()


def test_one_record_a_node_and_the_waits_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = long_plan(50)
    monkeypatch.setattr(streams, "prepare_launches", lambda *_: BoundKernel.__new__(BoundKernel))
    monkeypatch.setattr(BoundKernel, "bind", lambda *_: BoundLaunch(lambda: None))
    driver = CountingDriver()
    host = filled_host(plan, {t.value: np.zeros(64, np.float32) for t in plan.graph.tensors})
    device = StreamDevice(plan, StreamMemory(host, driver, plan.budget_bytes))
    with closing(StreamStaticDispatcher(plan)) as dispatcher:
        dispatcher.run(device)
        driver.counts.clear()
        dispatcher.run(device)
    enqueued = sum(not isinstance(node, Free) for node in plan.nodes)
    assert driver.counts["record"] == enqueued + 1, "and one for the clock"
    assert driver.counts["wait"] == sum(len(item.waits) for items in schedule(plan).engines for item in items)
    assert driver.counts["passed"] <= enqueued + 3
    device.close()


class Interrupted(FakeDriver):
    """The device refuses a launch, once it has taken so many."""

    left = 0

    def launch(self, stream: Any, call: Callable[[], object]) -> None:
        Interrupted.left -= 1
        if Interrupted.left < 0:
            raise RuntimeError("CUDA error: out of resources")
        FakeDriver.launch(self, stream, call)


@pytest.mark.parametrize("dispatcher", [StreamStaticDispatcher, StreamSerialDispatcher])
def test_a_node_that_cannot_be_enqueued_is_named(dispatcher: Callable[[MemGraph], Any]) -> None:
    for seed in (0, 3, 6):
        _, plan, values = made(seed)
        computes = [i for i, node in enumerate(plan.nodes) if isinstance(node, Compute)]
        for wanted in computes[:: max(1, len(computes) // 4)]:
            Interrupted.left = computes.index(wanted)
            device = WatchedDevice(plan, filled_host(plan, values), Interrupted(seed=seed))
            with closing(dispatcher(plan)) as found, pytest.raises(NodeError, match="out of resources") as caught:
                found.run(device)
            assert caught.value.node == wanted
            device.close()


def serial_on_streams(plan: MemGraph, values: Data, driver: FakeDriver) -> tuple[Any, WatchedDevice]:
    device = WatchedDevice(plan, filled_host(plan, values), driver)
    device.preload()
    device.actions.clear()
    with closing(StreamSerialDispatcher(plan)) as dispatcher:
        return dispatcher.run(device), device


@pytest.mark.parametrize("seed", SEEDS)
def test_serial_dispatch_on_streams_runs_one_node_after_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams alone see to it, whatever the host has seen; times are between events around each node, in the order of the plan."""
    monkeypatch.setattr(streams, "COPY_BYTES", 100)
    graph, plan, values = made(seed)
    for draw in range(4):
        measured, device = serial_on_streams(plan, values, FakeDriver(seed=draw, steps=draw))
        assert differences(outputs(plan, device.memory.host), direct(graph, values)) == []
        issued = [action for action in device.actions if not isinstance(action, Seen)]
        assert unenforced(plan, issued) == []
        chain = [i for i, node in enumerate(plan.nodes) if not isinstance(node, Free)]
        firsts = [action.node for action in issued if isinstance(action, Enqueued)]
        assert [n for i, n in enumerate(firsts) if n not in firsts[:i]] == chain
        assert (measured.start_s[chain[1:]] >= measured.finish_s[chain[:-1]]).all()
        assert (measured.finish_s >= measured.start_s).all()
        assert (measured.finish_s[plan.edges.target] >= measured.finish_s[plan.edges.source]).all()


def test_a_wait_left_out_of_serial_dispatch_is_found() -> None:
    _, plan, values = made(6)
    _, device = serial_on_streams(plan, values, FakeDriver())
    waits = sum(isinstance(action, Waited) for action in device.actions)
    assert waits > 3
    found = 0
    for left_out in range(waits):
        issued = [action for action in device.actions if not isinstance(action, Seen)]
        del issued[[i for i, action in enumerate(issued) if isinstance(action, Waited)][left_out]]
        found += bool(unenforced(plan, issued))
    assert found > waits // 2


def test_the_host_asks_without_a_pause_and_sleeps_only_when_nothing_has_passed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = [0.0], []
    monkeypatch.setattr(stream_common, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(stream_common, "sleep", slept.append)
    polling = Polling()
    for at in (0.0, 50e-6, 199e-6):
        clock[0] = 1 + at
        polling.pause()
    assert slept == []
    clock[0] = 1 + 201e-6
    polling.pause()
    assert slept == [stream_common.PAUSE_S]
    polling.found()
    clock[0] = 1 + 202e-6
    polling.pause()
    assert len(slept) == 1, "something passed: it begins anew"


TOKENS = {"tokens": np.arange(7, dtype=np.int32)[None], "lengths": np.full(1, 7, np.int32)}


def test_a_prepared_run_makes_its_dispatchers_once_and_says_what_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    made_plans: list[MemGraph] = []
    monkeypatch.setattr(stream_static, "schedule", lambda plan: (made_plans.append(plan), schedule(plan))[1])
    model, options = open_model(SPECS / "llama.yaml", SIZES, "random:0"), RunOptions(PlanRequest(20_000), device=DeviceKind.CUDA)
    ready = prepare_run(model, load_machine("cpu", threads=1), options, TOKENS)
    found: list[Sequence[Any]] = []
    for dispatch in (Dispatch.STATIC, Dispatch.SERIAL, Dispatch.STATIC, Dispatch.DYNAMIC, Dispatch.STATIC):
        ready.run(dispatch)
        found.append(ready.outputs()["logits"].tolist())
        if dispatch is Dispatch.STATIC:
            assert ready.schedule_s > 0
    ready.close()
    assert len(made_plans) == 1
    assert all(logits == found[0] for logits in found)
    result = run_model(model, load_machine("cpu", threads=1), RunOptions(PlanRequest(20_000, passes=4), dispatch=Dispatch.STATIC), TOKENS)
    assert 0 < result.report.schedule_s == result.facts["schedule_s"]


def test_moves_are_bound_with_their_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COPY_BYTES", 64)
    _, plan, values = made(3)
    device, driver = direct_device(plan, values, monkeypatch)
    chunks = sum(device.chunks(NodeId(i)) for i, node in enumerate(plan.nodes) if isinstance(node, Move))
    assert driver.counts["bound_copy"] == chunks > sum(isinstance(node, Move) for node in plan.nodes)
    device.close()


@pytest.mark.slow
def test_a_node_costs_the_host_little_and_a_plan_is_scheduled_in_little_time() -> None:
    """Of a processor's time, as others may be on the machine too."""
    cost = dispatch_cost(25_000)
    node_s, schedule_s = cost.pass_cpu_s / cost.enqueued, cost.schedule_cpu_s
    print(f"{node_s * 1e6:.2f} µs a node, {schedule_s:.2f} s to schedule {cost.nodes} nodes")
    assert node_s <= 10e-6
    assert schedule_s <= 1.5
