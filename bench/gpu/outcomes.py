"""A pytest plugin that writes each outcome as it comes, and leaves a process whose device is lost: `-p bench.gpu.outcomes --outcomes FILE`.

In: a file of outcomes, one JSON object a line, which may hold those of an earlier process. Out: a line for each test that is run now; those
that have one already are not run again. After an error of the device every later test of the process would fail for nothing: it ends at
once, with DEVICE_LOST; where pytest-xdist started it, that starts another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.report import device_answers

DEVICE_LOST = 76
"""Exit status of a process that was left."""
MOST_SAID = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="where each outcome is written as it comes")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Outcomes by test; a last line that was cut is none."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            outcome = json.loads(line)
        except ValueError:
            continue
        found.setdefault(outcome["test"], outcome)
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = _path(config)
    done = read(path) if path is not None and os.environ.get("PYTEST_XDIST_WORKER") is None else {}
    if path is not None and os.environ.get("PYTEST_XDIST_WORKER") is not None:
        done = read(path.with_suffix(".before"))  # the same for every process of this run, whenever it starts
    if dropped := [item for item in items if item.nodeid in done]:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    path = _path(item.config)
    if path is not None:
        if report.failed or report.skipped or report.when == "call":
            _write(path, item.nodeid, report.outcome, report)
        if report.failed and not device_answers():
            os._exit(DEVICE_LOST)  # before the next test: this one's outcome is written, and xdist blames no other
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What xdist says of a test in the middle of which a process died."""
    path = _CRASHED_TO
    if path is not None and str(report.when) not in ("setup", "call", "teardown") and report.nodeid not in read(path):
        _write(path, report.nodeid, "failed", report)


_CRASHED_TO: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _CRASHED_TO
    _CRASHED_TO = _path(config)


def _path(config: pytest.Config) -> Path | None:
    named = config.getoption("--outcomes")
    return None if named is None else Path(named)


def _write(path: Path, test: str, outcome: str, report: pytest.TestReport) -> None:
    """One line, by one write: lines of several processes do not mix. It begins anew where the last one was cut."""
    said = " ".join(report.longreprtext.split())[-MOST_SAID:] if report.failed else ""
    line = "\n" + json.dumps({"test": test, "outcome": outcome, "said": said}) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
