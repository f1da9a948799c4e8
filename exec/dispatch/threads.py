"""Threads for engines: each waits for the next run of its plan when it has ended its part of one.

A new thread for every run would cost more than a small run itself, and what libraries keep by thread (OpenMP's team of threads, the
C library's heap) would be made anew each time. An engine gets the same thread in every run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TypeAlias

from einpage.exec.system.process_memory import give_back_pages

Body: TypeAlias = Callable[[], None]

STOP_S = 2.0
"""How long a stopping run waits for engines that are in the middle of a node."""


class EngineThreads:
    """Daemon threads by the name of their engine, for one run at a time.

    Each has a flag for whether it is busy: what comes by the queue only wakes the caller. An exception that a signal raises anywhere in
    the calling thread may leave one that never begins, or a flag behind; `supervise` lets interrupts raise none. They end with this
    object, to which they do not refer, at the latest.
    """

    def __init__(self) -> None:
        self._threads: dict[str, _Thread] = {}
        self._overdue: list[_Thread] = []
        """In the middle of what a run gave them that did not wait for it."""
        self._ended: SimpleQueue[None] = SimpleQueue()
        give_back_pages()  # of this thread's heap: the new ones have their own, and take none from it

    @property
    def busy(self) -> bool:
        """Whether one of them has not ended what it was given."""
        return any(thread.busy for thread in self._threads.values())

    def give(self, name: str, body: Body) -> None:
        """Run `body`, which raises nothing, on the thread of that name: on a new one where that is not waiting for work."""
        thread = self._threads.get(name)
        if thread is None or not thread.is_idle:
            if thread is not None:
                thread.end()
                self._overdue.append(thread)
            thread = self._threads[name] = _Thread(name, self._ended)
            thread.start()
        thread.given = True
        thread.work.put(body)

    def wait(self, timeout_s: float) -> bool:
        """Until one of them has ended its work, and perhaps sooner; False where none has for so long."""
        try:
            self._ended.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def wake(self) -> None:
        """End a `wait` early. A signal's handler may call this."""
        self._ended.put(None)

    def wait_for_all(self) -> None:
        """Wait for those that are busy, up to STOP_S; one that takes longer gets nothing more, and ends with what it does."""
        deadline = perf_counter() + STOP_S
        while self.busy and (left := deadline - perf_counter()) > 0:
            self.wait(left)
        for name, thread in [*self._threads.items()]:
            if thread.busy:
                thread.end()
                self._overdue.append(self._threads.pop(name))
        while not self._ended.empty():
            self._ended.get()

    def rested(self) -> bool:
        """Whether nothing that any run gave them is still being done, after up to STOP_S."""
        deadline = perf_counter() + STOP_S
        while (still := self.busy or any(thread.busy for thread in self._overdue)) and (left := deadline - perf_counter()) > 0:
            self.wait(left)
        self._overdue = [thread for thread in self._overdue if thread.busy]
        return not still

    def close(self) -> None:
        """End them all; those that are not busy have ended when this returns. What is given afterwards gets new ones."""
        threads = [*self._threads.items()]
        for _, thread in threads:
            thread.end()
        for _, thread in threads:
            if not thread.given and thread.is_alive():
                thread.join(STOP_S)
        self._threads = {name: thread for name, thread in threads if thread.busy}  # they are waited for: a run may be under way

    def __del__(self) -> None:
        for thread in self._threads.values():
            thread.end()


class _Thread(threading.Thread):
    """Does one piece of `work` after the other, until one is None."""

    def __init__(self, engine: str, ended: SimpleQueue[None]) -> None:
        super().__init__(name=f"einpage-{engine}", daemon=True)
        self.work, self._ended = SimpleQueue[Body | None](), ended
        self.given = False
        """Whether it has work that it has not done."""
        self._has_begun, self._is_ending, self._process = False, False, os.getpid()

    @property
    def busy(self) -> bool:
        """Whether a run waits for it."""
        return self.given and self._is_here

    @property
    def is_idle(self) -> bool:
        """Whether it does what it is given at once."""
        return not self.given and self._has_begun and not self._is_ending and self._is_here

    @property
    def _is_here(self) -> bool:
        return self._process == os.getpid()  # a process that was forked has none of the threads

    def end(self) -> None:
        """Do nothing more than what was given."""
        self._is_ending = True
        self.work.put(None)

    def run(self) -> None:
        self._has_begun = True
        while (body := self.work.get()) is not None:
            body()
            del body  # what it refers to is not kept while this waits
            self.given = False
            self._ended.put(None)
