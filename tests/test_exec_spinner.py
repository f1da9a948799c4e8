"""The spinner: drawn on a terminal after a second, erased when the work is over, and nothing anywhere else."""

from __future__ import annotations

import io
from threading import Event

import pytest

from einpage.exec.system import spinner as waiting
from einpage.exec.system.spinner import planning_text, spinner
from einpage.memplan.problem.pace import Pace

ERASE_LINE = "\x1b[2K"


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")


def test_a_long_wait_is_said_and_wiped() -> None:
    stream, pace = Terminal(), Pace(ratio=1.25)
    with spinner(planning_text(pace), stream=stream):
        stream.written.wait(30)
    assert "planning: 1.250 x the bound so far (--plan-seconds)" in stream.getvalue()
    assert "0:00:0" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith(ERASE_LINE)


def test_a_short_wait_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 60.0)
    stream = Terminal()
    with spinner(planning_text(None), stream=stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_nothing_is_said_where_nobody_looks(stream: io.StringIO, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("there is a timer")

    monkeypatch.setattr(waiting, "Timer", never)
    with spinner("x", quiet, stream):
        pass
    with pytest.raises(AssertionError, match="there is a timer"), spinner("x", stream=Terminal()):
        pass


def test_a_wait_that_fails_is_wiped_too() -> None:
    stream = Terminal()

    def interrupted() -> None:
        with spinner("x", stream=stream):
            stream.written.wait(30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().rstrip().endswith(ERASE_LINE)


def test_what_comes_too_late_is_not_drawn() -> None:
    """The timer may fire while the wait ends."""
    stream = Terminal()
    line = waiting._Line("x", stream)
    line.erase()
    line.draw()
    assert stream.getvalue() == ""
