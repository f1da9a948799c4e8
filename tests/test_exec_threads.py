"""Engine threads from run to run: an engine keeps its thread, a thread that does not come back is replaced, and all end with their plan."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
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


@pytest.fixture
def interrupt_in() -> Iterator[Callable[[float], object]]:
    """Makes Ctrl-C come in so many seconds; 0: not at all. It has the timer that ends tests which take too long: a watchdog does that."""

    def interrupt(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    rest, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    before = {s: signal.signal(s, h) for s, h in ((signal.SIGALRM, interrupt), (signal.SIGINT, signal.default_int_handler))}
    faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__ or 2)
    try:
        yield partial(signal.setitimer, signal.ITIMER_REAL)
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, rest)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_is_answered_at_once_whenever_it_comes(dispatcher: Dispatcher, interrupt_in: Callable[[float], object]) -> None:
    """Signals at random moments of runs of a few hundred microseconds: none ends later than an engine needs for its node."""
    random, handled = Random(3), 0
    for _ in range(300):
        began = perf_counter()
        with suppress(KeyboardInterrupt):
            try:
                interrupt_in(random.uniform(1e-5, 6e-4))
                dispatcher.run(NullDevice(hand_plan()))
                began += 1e6  # it was in time
            finally:
                interrupt_in(0)
        handled += began < 1e6
        assert perf_counter() - began < 1.5
    assert handled > 20
    device = NullDevice(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))


def test_an_interrupt_that_comes_while_threads_are_started_is_answered_after(
    dispatcher: Dispatcher, interrupt_in: Callable[[float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thread.start waits with a lock taken that the new thread needs: whatever is raised there leaves it for ever. The run after this one
    has threads that work."""
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGINT)
        start(thread)
        started.append(thread.name)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dispatcher.run(NullDevice(hand_plan()))
    assert sorted(started) == alive() != []
    device = NullDevice(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_beside_an_error_is_not_lost(dispatcher: Dispatcher, interrupt_in: Callable[[float], object]) -> None:
    broke = threading.Event()

    class Held(NullDevice):
        def compute(self, node: NodeId) -> None:
            assert broke.wait(30)

    def fail(progress: Progress) -> None:
        broke.set()
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the hook broke")

    with pytest.raises(KeyboardInterrupt) as caught:
        dispatcher.run(Held(hand_plan()), Hooks(progress=fail, interval_s=0.005))
    assert isinstance(caught.value.__context__, ValueError)


def test_interrupts_that_are_ignored_end_no_run(dispatcher: Dispatcher, interrupt_in: Callable[[float], object]) -> None:
    class Interrupting(NullDevice):
        def compute(self, node: NodeId) -> None:
            signal.raise_signal(signal.SIGINT)
            super().compute(node)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    device = Interrupting(hand_plan())
    dispatcher.run(device)
    assert sorted(device.calls) == list(range(14))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


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
