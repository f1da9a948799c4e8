"""A device that fails in the middle of a part: its case is red and says why, the others keep their figures, all memory is given back.

A driver with real delays stands in for CUDA's (tests/delayed_driver.py). What ends a process in earnest is in the rehearsal.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import links, models
from bench.gpu.cells import DRY_CELLS
from bench.gpu.models import _name
from bench.gpu.report import DeviceLost, Go, Report, Setting
from delayed_driver import CALLS, Held
from rehearsal import Fails, Fault, replacements

LOSES = ("launch", "copy")
"""What fails later, and takes the device along."""
SAID = {
    "allocate": "UsageError: a rehearsal's device has 0 B",
    "pin": "cannot be pinned",
    "record": "CUDA error: out of memory",
    **dict.fromkeys(LOSES, "an illegal memory access was encountered"),
}


def measured(folder: Path, patch: pytest.MonkeyPatch, part: str, module: Any, go: Go = Go.ANEW) -> tuple[Any, Held, bool]:
    """The part's report, what its process still holds, and whether it lost its device; in one process, with a new driver."""
    fails, held, lost = Fails(folder / "rehearsal", part), Held(), False
    for target, name, value in replacements(fails, held):
        patch.setattr(target, name, value)
    report = Report(part, Setting(folder, True, 60.0, "a test", rehearsed=True), go)
    try:
        module.measure(report)
    except DeviceLost:
        lost = True
    else:
        report.finish()
    held.drain()
    gc.collect()
    if held.allocated or held.pinned:  # a thread that failed is still on its way out
        for thread in threading.enumerate():
            if thread.name.startswith("einpage"):
                thread.join(1.0)
        held.drain()
        gc.collect()
    return report, held, lost


@pytest.mark.parametrize("call", CALLS)
def test_a_device_that_fails_costs_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    failed, other = _name(DRY_CELLS[0]), _name(DRY_CELLS[1])
    Fault("models", failed, call, 1).write(tmp_path / "rehearsal")
    report, held, lost = measured(tmp_path, monkeypatch, "models", models)
    assert lost == (call in LOSES)
    assert (held.allocated, held.pinned) == (0, 0)
    if lost:  # as bench.gpu starts another process
        report, held, lost = measured(tmp_path, monkeypatch, "models", models, Go.ON)
    assert not lost and (held.allocated, held.pinned) == (0, 0)
    red = [gate for gate in report.gates if not gate["ok"]]
    assert [gate["what"] for gate in red] == [failed] and SAID[call] in red[0]["detail"]
    assert [row["what"] for row in report.rows] == [other] and report.rows[0]["wall_s"]["static"] > 0
    again, *_ = measured(tmp_path, monkeypatch, "models", models, Go.AGAIN)
    assert again.green and [row["what"] for row in again.rows] == [other, failed]


@pytest.mark.parametrize("call", ["allocate", "pin", "record", "copy"])
def test_links_that_fail_cost_one_kind_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    failed, other, *_ = links.MEMORY
    Fault("links", failed, call, 1).write(tmp_path / "rehearsal")
    report, held, lost = measured(tmp_path, monkeypatch, "links", links)
    assert lost == (call == "copy") and (held.allocated, held.pinned) == (0, 0)
    if lost:
        report, *_ = measured(tmp_path, monkeypatch, "links", links, Go.ON)
    assert [gate["what"] for gate in report.gates if not gate["ok"]] == [failed]
    assert [row["what"] for row in report.rows] == [other, "profile"]


def test_copies_that_do_not_arrive_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no figure of them is reported."""
    from delayed_driver import DelayedDriver

    monkeypatch.setattr(DelayedDriver, "copy", lambda self, stream, target, source: None)
    report, *_ = measured(tmp_path, monkeypatch, "links", links)
    assert not report.green and all("h2d_bytes_per_s" not in row for row in report.rows)
