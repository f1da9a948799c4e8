"""Engine threads from run to run: an engine keeps its thread, a thread that does not come back is replaced, and all end with their plan."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing import get_context
from random import Random
from time import perf_counter

import pytest

from einpage.exec.device.device import NullDevice
from einpage.exec.dispatch import threads as engine_threads
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.engine import Dispatcher
from einpage.exec.dispatch.progress import Hooks, Progress
from einpage.exec.dispatch.serial import SerialDispatcher
from einpage.exec.dispatch.static import StaticDispatcher
from einpage.exec.dispatch.threads import EngineThreads
from einpage.exec.errors import NodeError
from einpage.memplan.graph.memgraph import NodeId
from hand_plan import hand_plan

DISPATCHERS = (SerialDispatcher, DynamicDispatcher, StaticDispatcher)


@pytest.fixture(params=DISPATCHERS)
def dispatcher(request: pytest.FixtureRequest) -> Iterator[Dispatcher]:
    with closing(request.param(hand_plan())) as made:
        yield made
    for thread in threading.enumerate():
        if thread.name.startswith("einpage-") and thread.is_alive():
            thread.join(5)
    assert alive() == []


def alive() -> list[str]:
    """What is left of those that were interrupted while they were started is listed, and does not live."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("einpage-") and t.is_alive())


class Recording(NullDevice):
    """On which thread each node ran."""

    def __init__(self) -> None:
        super().__init__(hand_plan())
        self.thread_by_node: dict[int, int] = {}

    def _note(self, node: NodeId) -> None:
        self.thread_by_node[node] = threading.get_ident()

    def compute(self, node: NodeId) -> None:
        self._note(node)
        super().compute(node)

    def copy(self, node: NodeId) -> None:
        self._note(node)
        super().copy(node)

    def gather(self, node: NodeId) -> None:
        self._note(node)
        super().gather(node)


def test_an_engine_has_the_same_thread_in_every_run(dispatcher: Dispatcher) -> None:
    found = []
    for _ in range(4):
        device = Recording()
        measured = dispatcher.run(device)
        assert measured.wall_s >= measured.finish_s.max() > 0
        found.append(device.thread_by_node)
    assert all(threads == found[0] for threads in found)
    assert len(alive()) == len(set(found[0].values())) == (1 if isinstance(dispatcher, SerialDispatcher) else 3)


def test_runs_after_a_fault_are_as_before_it(dispatcher: Dispatcher) -> None:
    class Faulty(NullDevice):
        def compute(self, node: NodeId) -> None:
            raise ValueError("the kernel broke")

    for _ in range(3):
        with pytest.raises(NodeError, match="the kernel broke"):
            dispatcher.run(Faulty(hand_plan()))
        device = NullDevice(hand_plan())
        dispatcher.run(device)
        assert sorted(device.calls) == list(range(14))


def test_a_thread_that_does_not_come_back_is_replaced(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in a node when the run is stopped; the next run has another thread, which the late end of the first does not concern."""
    monkeypatch.setattr(engine_threads, "STOP_S", 0.05)
    let_go, gone = threading.Event(), threading.Event()

    class Interrupted(NullDevice):
        def compute(self, node: NodeId) -> None:
            run_stopped.set()
            assert let_go.wait(30)
            gone.set()

    class Late(NullDevice):
        """Lets the first thread go in the middle of its own first compute, and sees it end before that does."""

        def compute(self, node: NodeId) -> None:
            let_go.set()
            assert gone.wait(30)
            for thread in stuck:
                thread.join(30)
            super().compute(node)

    run_stopped = threading.Event()
    stop_when(dispatcher, Interrupted(hand_plan()), run_stopped)
    assert not dispatcher.threads.busy
    stuck = [t for t in threading.enumerate() if t.name in ("einpage-compute", "einpage-serial")]
    device = Late(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))


def stop_when(dispatcher: Dispatcher, device: NullDevice, event: threading.Event) -> None:
    def interrupt(progress: Progress) -> None:
        if event.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dispatcher.run(device, Hooks(progress=interrupt, interval_s=0.005))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_makes_its_own(dispatcher: Dispatcher) -> None:
    """Threads are not inherited: a run there must not wait for one."""
    dispatcher.run(NullDevice(hand_plan()))
    child = get_context("fork").Process(target=run_forked, args=(dispatcher,))
    child.start()
    child.join(30)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
    dispatcher.run(NullDevice(hand_plan()))


def run_forked(dispatcher: Dispatcher) -> None:
    device = NullDevice(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_is_answered_at_once_whenever_it_comes(dispatcher: Dispatcher) -> None:
    """Signals at random moments of runs of a few hundred microseconds: none ends later than an engine needs for its node."""
    random, handled = Random(3), 0

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            began = perf_counter()
            with suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-4))
                    dispatcher.run(NullDevice(hand_plan()))
                    began += 1e6  # it was in time
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            handled += began < 1e6
            assert perf_counter() - began < 1.5
    finally:
        signal.signal(signal.SIGALRM, before)
    assert handled > 20
    device = NullDevice(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))


def test_a_second_interrupt_leaves_a_dispatcher_that_runs(dispatcher: Dispatcher) -> None:
    """It comes while the stopping run waits for a node; that node ends later than the next run."""
    let_go, in_node = threading.Event(), threading.Event()

    class Held(NullDevice):
        def compute(self, node: NodeId) -> None:
            in_node.set()
            assert let_go.wait(30)

    def interrupted(threads: EngineThreads) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineThreads, "wait_for_all", interrupted)
        stop_when(dispatcher, Held(hand_plan()), in_node)
    device = NullDevice(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))
    let_go.set()


def test_threads_end_with_a_dispatcher_that_nobody_closes() -> None:
    dispatcher = DynamicDispatcher(hand_plan())
    dispatcher.run(NullDevice(hand_plan()))
    threads = [t for t in threading.enumerate() if t.name.startswith("einpage-") and t.is_alive()]
    assert len(threads) == 3
    del dispatcher
    gc.collect()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_what_is_closed_has_no_threads() -> None:
    threads = EngineThreads()
    let_go = threading.Event()
    threads.give("compute", lambda: None)
    assert threads.wait(30) and not threads.busy

    def wait() -> None:
        assert let_go.wait(30)

    threads.give("h2d", wait)
    assert alive() == ["einpage-compute", "einpage-h2d"] and threads.busy
    (busy,) = (t for t in threading.enumerate() if t.name == "einpage-h2d" and t.is_alive())
    threads.close()
    assert alive() == ["einpage-h2d"] and threads.busy
    let_go.set()
    assert threads.rested() and not threads.busy
    busy.join(30)
    assert alive() == []


def test_nothing_is_kept_of_what_an_idle_thread_did() -> None:
    """The plan and the arenas of a run that has ended can go while its thread waits."""

    class Large:
        def work(self) -> None:
            pass

    threads, large = EngineThreads(), Large()
    seen = weakref.ref(large)
    threads.give("compute", large.work)
    assert threads.wait(30)
    del large
    gc.collect()
    assert seen() is None
    threads.close()
