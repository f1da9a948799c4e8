"""A spinner for work that takes long and prints nothing: a line on stderr, what it is and for how long, erased when it is over.

Only on a terminal, and only after a second: most plans are done by then, and what draws the line is imported when it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from einpage.memplan.problem.pace import Pace

PATIENCE_S = 1.0


def planning_text(pace: Pace | None) -> Callable[[], str]:
    """The spinner's text while a plan is made: how near its bound the best one is."""

    def text() -> str:
        if pace is None or pace.ratio is None:
            return "planning"
        return f"planning: {pace.ratio:.3f} x the bound so far (--plan-seconds)"

    return text


@contextmanager
def spinner(text: str | Callable[[], str], quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """A context: after PATIENCE_S, `text`, asked for again and again, and the seconds so far are shown on `stream` (stderr), unless `quiet`
    or it is no terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield
        return
    line = _Line(text if callable(text) else lambda: text, stream)
    timer = Timer(PATIENCE_S, line.draw)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.erase()


class _Now:
    """A text as it is when it is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich__(self) -> str:
        return self._text()


class _Line:
    """Drawn by the timer's thread, erased by the one that works, in either order."""

    def __init__(self, text: Callable[[], str], stream: TextIO) -> None:
        self._text, self._stream = text, stream
        self._lock, self._over, self._drawn = Lock(), False, ExitStack()

    def draw(self) -> None:
        with self._lock:
            if self._over:
                return
            from rich.console import Console
            from rich.progress import Progress, RenderableColumn, SpinnerColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), RenderableColumn(_Now(self._text)), TimeElapsedColumn())
            shown = Progress(*columns, console=Console(file=self._stream), transient=True)
            shown.add_task("", total=None)
            self._drawn.enter_context(shown)

    def erase(self) -> None:
        with self._lock:
            self._over = True
            self._drawn.close()
