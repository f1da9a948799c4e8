"""Ctrl-C while libraries are imported: one line and 130, at once.

An import that is torn up by an exception leaves half a library behind, which may say anything while it unwinds. Nothing has been done yet
that would have to be put right, so the process just ends.
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
def ends_at_once() -> Iterator[None]:
    """Within, an interrupt ends the process. Nothing changes where interrupts are ignored or somebody else handles them."""
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
