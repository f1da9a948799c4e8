"""Ctrl-C while libraries are imported: one line and 130, at once.

An import that is interrupted by an exception leaves half a library behind, which may print anything while it unwinds. Nothing has been
done yet that would have to be undone, so the process just exits.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
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


def _end(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"einpage: interrupted\n")
    os._exit(INTERRUPTED)
