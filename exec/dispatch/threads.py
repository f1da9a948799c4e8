"""Threads for engines: each waits for the next run of its plan when it has ended its part of one.

A new thread for every run would cost more than a small run itself, and what libraries keep by thread (OpenMP's team of threads, the
C library's heap) would be made anew each time. An engine gets the same thread in every run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TypeAlias

from einpage.exec.system.process_memory import give_back_pages

Body: TypeAlias = Callable[[], None]

STOP_S = 2.0
"""How long a stopping run waits for engines that are in the middle of a node."""


class EngineThreads:
    """Daemon threads by the name of their engine, for one run at a time."""

    def __init__(self) -> None:
        give_back_pages()  # of this thread's heap: the new ones have their own, and take none from it
        self._idle: dict[str, _Thread] = {}
        self._busy: dict[str, _Thread] = {}
        self._ended: SimpleQueue[_Thread] = SimpleQueue()

    @property
    def busy(self) -> bool:
        """Whether one of them has not ended what it was given."""
        return bool(self._busy)

    def give(self, name: str, work: Body) -> None:
        """Run `work`, which raises nothing, on the thread of that name, which is not busy. An interrupt may come between any two lines."""
        assert name not in self._busy, f"the thread {name} is busy"
        thread = self._idle.pop(name, None)
        if thread is None or not thread.is_alive():  # a process that was forked has none of the threads
            thread = _Thread(name, self._ended)
        self._busy[name] = thread
        thread.work.put(work)
        if thread.ident is None:
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Until one of them has ended its work; False where none does for so long."""
        try:
            thread = self._ended.get(timeout=timeout_s)
        except Empty:
            return False
        if self._busy.get(thread.engine) is thread:
            self._idle[thread.engine] = self._busy.pop(thread.engine)
        return True

    def wait_for_all(self) -> None:
        """Wait for those that are busy, up to STOP_S; one that takes longer gets nothing more, and ends with what it does."""
        self._give_up([thread for thread in self._busy.values() if not thread.is_alive()])
        deadline = perf_counter() + STOP_S
        while self._busy and (left := deadline - perf_counter()) > 0:
            self.wait(left)
        self._give_up([*self._busy.values()])

    def close(self) -> None:
        """End them all; those that are idle have ended when this returns."""
        self._give_up([*self._busy.values()])
        for thread in self._idle.values():
            thread.work.put(None)
        for thread in self._idle.values():
            thread.join(STOP_S)
        self._idle.clear()

    def _give_up(self, threads: Iterable[_Thread]) -> None:
        for thread in threads:
            thread.work.put(None)
            del self._busy[thread.engine]


class _Thread(threading.Thread):
    """Does one piece of `work` after the other, until one is None."""

    def __init__(self, engine: str, ended: SimpleQueue[_Thread]) -> None:
        super().__init__(name=f"einpage-{engine}", daemon=True)
        self.engine, self.work, self._ended = engine, SimpleQueue[Body | None](), ended

    def run(self) -> None:
        while (work := self.work.get()) is not None:
            work()
            del work  # what it refers to is not kept while this waits
            self._ended.put(self)
