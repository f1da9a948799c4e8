"""Ctrl-C where an exception may not come anywhere: while libraries are imported, and while threads run for this one.

An import that is interrupted by an exception leaves half a library behind, which may print anything while it unwinds. Nothing has been
done yet that would have to be undone, so the process just exits: one line and 130, at once.

A thread that starts others and waits for them takes locks of theirs, in the standard library too (Thread.start). An exception between
the taking of one and the block that gives it back leaves it taken, and the next run waits for ever. There an interrupt is told, and
answered where it can be.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit status after an interrupt."""


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """A context in which an interrupt exits the process, unless interrupts are ignored or handled elsewhere."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Interrupts:
    """Those that came and were not answered yet."""

    def __init__(self, handler: Callable[[int, FrameType | None], object] | None, wake: Callable[[], None]) -> None:
        """`handler` answers them; without one there are none to tell of."""
        self._handler, self._wake = handler, wake
        self._frame: FrameType | None = None
        self._came = False

    def told(self, _signal: int, frame: FrameType | None) -> None:
        """One came: the thread that is to answer it is woken."""
        self._came, self._frame = True, frame
        self._wake()

    def answer(self) -> None:
        """Do what the process does about interrupts, if one came: raises KeyboardInterrupt, or whatever else its handler does."""
        if self._came and self._handler is not None:
            (frame, self._frame), self._came = (self._frame, None), False
            self._handler(signal.SIGINT, frame)


@contextmanager
def told_of_interrupts(wake: Callable[[], None]) -> Iterator[Interrupts]:
    """A context in which an interrupt calls `wake` and waits until it is answered, at the latest where the context ends. `wake` is called
    between any two instructions of the main thread, and so takes no lock of Python's. In another thread, and where interrupts are
    ignored, none come."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        yield Interrupts(None, wake)
        return
    interrupts = Interrupts(handler, wake)
    signal.signal(signal.SIGINT, interrupts.told)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, handler)
        interrupts.answer()


def _end(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"einpage: interrupted\n")
    os._exit(INTERRUPTED)
