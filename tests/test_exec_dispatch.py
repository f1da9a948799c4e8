"""The three dispatchers on devices that only record: every order respects the edges, every fault ends the run and names its node."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.device import NullDevice
from einpage.exec.dispatch.engine import Run
from einpage.exec.dispatch.progress import SILENT, Hooks, Progress
from einpage.exec.dispatch.serial import SerialDispatcher, random_order
from einpage.exec.dispatch.static import schedule
from einpage.exec.errors import CountMismatch, NodeError
from einpage.memplan.graph.memgraph import Free, MemGraph, Move, NodeId
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from einpage.memplan.machine.places import ENGINES, Queue
from hand_plan import edges_of, hand_plan
from plain_plan import plain_plan
from single_runs import run_dynamic, run_serial, run_static
from strategies import random_graph

DISPATCHERS = {"serial": run_serial, "dynamic": run_dynamic, "static": run_static}
every_dispatcher = pytest.mark.parametrize("dispatch", list(DISPATCHERS.values()), ids=list(DISPATCHERS))


class Faulty(NullDevice):
    """Raises `error` when it comes to `node`."""

    def __init__(self, memgraph: MemGraph, node: NodeId, error: BaseException) -> None:
        super().__init__(memgraph)
        self._bad, self._error = node, error

    def _check(self, node: NodeId) -> None:
        if node == self._bad:
            raise self._error

    def compute(self, node: NodeId) -> None:
        self._check(node)
        super().compute(node)

    def copy(self, node: NodeId) -> None:
        self._check(node)
        super().copy(node)

    def gather(self, node: NodeId) -> None:
        self._check(node)
        super().gather(node)

    def free(self, node: NodeId) -> None:
        self._check(node)
        super().free(node)


def assert_respects_edges(plan: MemGraph, order: list[NodeId] | tuple[NodeId, ...]) -> None:
    position = {node: i for i, node in enumerate(order)}
    assert sorted(order) == list(range(len(plan.nodes)))
    for source, target in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True):
        assert position[source] < position[target], (source, target)


@every_dispatcher
def test_every_node_runs_once_after_its_predecessors(dispatch: Any) -> None:
    plan = hand_plan()
    device = NullDevice(plan)
    measured = dispatch(plan, device)
    assert_respects_edges(plan, device.calls)
    assert (measured.finish_s >= measured.start_s).all()
    assert (measured.start_s[plan.edges.target] >= measured.finish_s[plan.edges.source]).all()
    assert tuple(measured.moved_bytes.values()) == (512 + 256 + 512, 512 + 512 + 512)
    busy = measured.finish_s - measured.start_s
    assert measured.busy_s[Queue.H2D] == pytest.approx(busy[[0, 1, 8]].sum())
    assert measured.busy_s[Queue.D2H] == pytest.approx(busy[[3, 7, 11]].sum())
    assert measured.busy_s[Queue.COMPUTE] == pytest.approx(busy[[2, 5, 10]].sum())
    assert measured.wall_s >= measured.finish_s.max()


@given(seed=st.integers(0, 2**32), halves=st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_plans_run_in_an_order_that_respects_the_edges(seed: int, halves: bool) -> None:
    graph = random_graph(seed)
    plan = plain_plan(graph)
    if halves:
        plan = plain_plan(graph, 2 * plan.budget_bytes)
    for dispatch in DISPATCHERS.values():
        device = NullDevice(plan)
        dispatch(plan, device)
        assert_respects_edges(plan, device.calls)


def test_random_orders_respect_the_edges_and_differ() -> None:
    plan = hand_plan()
    orders = [random_order(plan, seed) for seed in range(20)]
    for order in orders:
        assert_respects_edges(plan, order)
    assert len(set(orders)) > 5
    assert random_order(plan, 3) == orders[3]


def test_serial_refuses_an_order_against_an_edge() -> None:
    plan = hand_plan()
    order = list(random_order(plan, 0))
    order[0], order[-1] = order[-1], order[0]
    with pytest.raises(AssertionError, match="against an edge"):
        run_serial(plan, NullDevice(plan), order=order)


def test_schedule_waits_for_exactly_what_the_edges_imply() -> None:
    """The hand plan, worked out on paper. Engines: 0 compute, 1 host → device, 2 device → host."""
    found = schedule(hand_plan())
    items = {item.node: item for engine in found.engines for item in engine}
    assert [[item.node for item in engine] for engine in found.engines] == [[2, 5, 10], [0, 1, 8], [3, 7, 11]]
    waits = {node: dict(item.waits) for node, item in items.items()}
    assert waits == {0: {}, 1: {}, 2: {1: 2}, 3: {1: 1}, 5: {}, 7: {0: 2}, 8: {0: 1, 2: 1}, 10: {1: 3, 2: 2}, 11: {0: 3}}
    frees = {node: item.frees for node, item in items.items() if item.frees}
    assert frees == {2: (4,), 3: (4,), 5: (6,), 8: (9,), 10: (12,), 11: (13,)}
    assert found.initial_frees == ()


def test_frees_that_nothing_precedes_run_first() -> None:
    """Freeing what is there from the start: on no engine's list, and still before the node that writes those bytes."""
    plan = hand_plan()
    nodes = (Free(plan.start[0]), *plan.nodes)
    pairs = [(s + 1, t + 1) for s, t in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True)]
    shifted = replace(plan, nodes=nodes, edges=edges_of(((0, 1), *pairs)))
    for dispatch in (run_dynamic, run_static):
        device = NullDevice(shifted)
        dispatch(shifted, device)
        assert device.calls[0] == 0
        assert_respects_edges(shifted, device.calls)


def test_dynamic_takes_the_lowest_ready_node_of_an_engine() -> None:
    """Nodes 0 and 1 wait for nothing: whichever is ready sooner, the engine takes 0 first."""
    plan = hand_plan()
    for _ in range(5):
        device = NullDevice(plan)
        run_dynamic(plan, device)
        assert [n for n in device.calls if plan.queue(n) == Queue.H2D] == [0, 1, 8]


def test_engines_overlap() -> None:
    """A reload that waits inside until the compute engine is in its first node: only possible when both run at once."""
    plan = hand_plan()
    edges = edges_of(tuple(p for p in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True) if p[1] not in (2,)))
    loose = replace(plan, edges=edges)
    for dispatch in (run_dynamic, run_static):
        meet = threading.Barrier(2, timeout=30)

        class Meeting(NullDevice):
            def compute(self, node: NodeId, meet: threading.Barrier = meet) -> None:
                if node == 2:
                    meet.wait()
                super().compute(node)

            def copy(self, node: NodeId, meet: threading.Barrier = meet) -> None:
                if node == 1:
                    meet.wait()
                super().copy(node)

        dispatch(loose, Meeting(loose))


@every_dispatcher
@pytest.mark.parametrize("node", range(14))
def test_a_fault_in_any_node_ends_the_run_and_names_it(dispatch: Any, node: int) -> None:
    plan = hand_plan()
    cause = ValueError("the kernel broke")
    begun = perf_counter()
    with pytest.raises(NodeError) as caught:
        dispatch(plan, Faulty(plan, NodeId(node), cause))
    assert perf_counter() - begun < 2
    assert caught.value.node == node
    assert caught.value.__cause__ is cause
    assert caught.value.exit_status == 1
    text = str(caught.value)
    assert f"node {node} (" in text
    queue = plan.queue(NodeId(node))
    assert queue is None or f"on the {queue.name} engine" in text
    assert "ValueError: the kernel broke" in text
    assert not [t for t in threading.enumerate() if t.name.startswith("einpage-")]


def test_a_users_mistake_found_by_a_kernel_keeps_its_exit_status() -> None:
    plan = hand_plan()
    with pytest.raises(NodeError, match="index 9 is out of range") as caught:
        run_static(plan, Faulty(plan, NodeId(0), UsageError("index 9 is out of range")))
    assert caught.value.exit_status == 2
    assert caught.value.what == "gather make e"


@every_dispatcher
def test_other_bytes_than_planned_are_our_bug(dispatch: Any) -> None:
    class Miscounting(NullDevice):
        def copy(self, node: NodeId) -> None:
            super().copy(node)
            if node == 7:
                self._counted.add(node, 1)

    plan = hand_plan()
    with pytest.raises(CountMismatch, match="h2d 1280, d2h 1537; the plan says h2d 1280, d2h 1536"):
        dispatch(plan, Miscounting(plan))


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("engine", ["h2d", "d2h"])
def test_a_byte_more_or_less_on_either_link_is_our_bug(engine: str, change: int) -> None:
    class Miscounting(NullDevice):
        @property
        def moved_bytes(self) -> Mapping[Queue, int]:
            return {queue: nbytes + change * (queue.name == engine) for queue, nbytes in super().moved_bytes.items()}

    plan = hand_plan()
    with pytest.raises(CountMismatch, match=rf"moved other bytes than planned: .*{engine} {plan_bytes(plan)[engine] + change}"):
        run_serial(plan, Miscounting(plan))


def plan_bytes(plan: MemGraph) -> dict[str, int]:
    return {queue.name: nbytes for queue, nbytes in moved_bytes_by_queue(plan).items()}


def test_of_several_errors_the_first_is_reported() -> None:
    """What fails later failed perhaps because the run was being stopped."""
    run = Run(SerialDispatcher(hand_plan()), NullDevice(hand_plan()), SILENT)
    first = ValueError("first")
    for error in (None, first, RuntimeError("second"), None):
        run.stop(error)
    assert run.error is first and run.stopped


def test_a_dispatcher_that_forgets_a_node_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hand_plan()
    monkeypatch.setattr("einpage.exec.dispatch.serial._assert_order", lambda memgraph, order: None)
    with pytest.raises(AssertionError, match=r"never ran node 13 \(free c on the device\)"):
        run_serial(plan, NullDevice(plan), order=[NodeId(i) for i in range(13)])


@every_dispatcher
def test_an_interrupt_stops_every_engine(dispatch: Any) -> None:
    """Ctrl-C reaches the thread that started the run; here the progress hook raises it while an engine is held."""
    plan = hand_plan()
    held = threading.Event()

    class Held(NullDevice):
        def compute(self, node: NodeId) -> None:
            assert held.wait(30)
            super().compute(node)

    def interrupt(progress: Progress) -> None:
        held.set()
        raise KeyboardInterrupt

    device = Held(plan)
    with pytest.raises(KeyboardInterrupt):
        dispatch(plan, device, Hooks(progress=interrupt, interval_s=0.01))
    assert not [t for t in threading.enumerate() if t.name.startswith("einpage-")]
    assert len(device.calls) < len(plan.nodes)


@every_dispatcher
def test_a_signal_reaches_the_thread_that_waits(dispatch: Any) -> None:
    """SIGINT arrives while an engine holds a node until the handler has run: it must not wait for the run to end."""
    plan = hand_plan()
    handled = threading.Event()

    def handler(number: int, frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    class Held(NullDevice):
        def compute(self, node: NodeId) -> None:
            if not handled.is_set():
                signal.raise_signal(signal.SIGINT)
            assert handled.wait(30)
            super().compute(node)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            dispatch(plan, Held(plan))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [t for t in threading.enumerate() if t.name.startswith("einpage-")]


def test_no_item_of_a_schedule_waits_for_what_is_known() -> None:
    """Waits already implied by earlier ones are left out: no item of a long plan waits twice for one engine."""
    plan = plain_plan(random_graph(7, most_ops=12))
    found = schedule(plan)
    for engine, items in enumerate(found.engines):
        seen = [0] * len(ENGINES)
        for item in items:
            for other, count in item.waits:
                assert other != engine
                assert count > seen[other]
                seen[other] = count


def test_a_plan_without_moves_runs() -> None:
    """Engines with empty lists end at once."""
    plan = hand_plan()
    only = replace(plan, nodes=(plan.nodes[6],), edges=edges_of(()))
    for dispatch in DISPATCHERS.values():
        measured = dispatch(only, NullDevice(only))
        assert measured.moved_bytes[Queue.H2D] == 0
        assert np.isfinite(measured.finish_s).all()


def test_null_counts_what_the_plan_names() -> None:
    plan = hand_plan()
    device = NullDevice(plan)
    moves = [NodeId(i) for i, n in enumerate(plan.nodes) if isinstance(n, Move)]
    device.copy(moves[0])
    assert device.moved_bytes == {Queue.H2D: 256, Queue.D2H: 0}
    device.start_run(lambda: True)
    assert (sum(device.moved_bytes.values()), device.calls) == (0, [])
    assert device.arena_bytes == 2048
