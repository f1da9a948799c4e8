"""A spinner for work that takes long and prints nothing: a line on stderr, what it is and for how long, erased when it is over.

Only on a terminal, and only after a second: most plans are done by then, and what draws the line is imported when it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, Timer
from typing import TextIO

PATIENCE_S = 1.0


def planning_text(effort: int) -> str:
    """The spinner's text while a plan is made."""
    return f"planning at effort {effort}; --effort 0 takes less" if effort else "planning"


@contextmanager
def spinner(text: str, quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """A context: after PATIENCE_S, `text` and the seconds so far are shown on `stream` (stderr), unless `quiet` or it is no terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield
        return
    line = _Line(text, stream)
    timer = Timer(PATIENCE_S, line.draw)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.erase()


class _Line:
    """Drawn by the timer's thread, erased by the one that works, in either order."""

    def __init__(self, text: str, stream: TextIO) -> None:
        self._text, self._stream = text, stream
        self._lock, self._over, self._drawn = Lock(), False, ExitStack()

    def draw(self) -> None:
        with self._lock:
            if self._over:
                return
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            shown = Progress(*columns, console=Console(file=self._stream), transient=True)
            shown.add_task(self._text, total=None)
            self._drawn.enter_context(shown)

    def erase(self) -> None:
        with self._lock:
            self._over = True
            self._drawn.close()
