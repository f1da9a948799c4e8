"""The trace: valid trace events, a lane per engine, every node but the Frees, and files that are whole or absent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.exec.device.device import NullDevice
from einpage.exec.picture.chrome_trace import chrome_trace, write_trace
from hand_plan import hand_plan
from single_runs import run_static


@dataclass(frozen=True)
class Times:
    start_s: NDArray[np.floating]
    finish_s: NDArray[np.floating]


def test_slices_lie_on_the_lane_of_their_engine() -> None:
    plan = hand_plan()
    predicted = Times(np.arange(14) * 1e-3, np.arange(14) * 1e-3 + 5e-4)
    trace = chrome_trace(plan, run_static(plan, NullDevice(plan)), predicted)
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert lanes == {(p, t): n for p in (1, 2) for t, n in enumerate(("compute", "host to device", "device to host"))}
    assert [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"] == ["measured: hand", "predicted: hand"]
    slices = {(e["pid"], e["args"]["node"]): e for e in trace["traceEvents"] if e["ph"] == "X"}
    for process in (1, 2):
        on_lane = [[n for (p, n), e in slices.items() if p == process and e["tid"] == lane] for lane in range(3)]
        assert on_lane == [[2, 5, 10], [0, 1, 8], [3, 7, 11]]
    reload = slices[2, 8]
    assert reload["name"] == "reload e"
    assert reload["cat"] == "reload"
    assert (reload["ts"], reload["dur"]) == (8000.0, 500.0)
    assert reload["args"] == {"node": 8, "bytes": 512, "GB/s": 0.001}
    assert slices[2, 10]["args"] == {"node": 10}


def test_nodes_without_times_are_left_out() -> None:
    plan = hand_plan()
    times = Times(np.full(14, np.nan), np.full(14, np.nan))
    times.start_s[2], times.finish_s[2] = 0.0, 0.0
    times.start_s[5] = 1.0
    slices = [e for e in chrome_trace(plan, None, times)["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["node"] for e in slices] == [2]


def test_the_file_is_the_trace(tmp_path: Path) -> None:
    plan = hand_plan()
    measured = run_static(plan, NullDevice(plan))
    write_trace(tmp_path / "t.json", plan, measured)
    assert json.loads((tmp_path / "t.json").read_text()) == chrome_trace(plan, measured)
    assert os.listdir(tmp_path) == ["t.json"]


def test_a_place_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*none"):
        write_atomically(tmp_path / "none" / "t.json", "x")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    write_atomically(path, "old")

    def refuse(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match="No space left"):
        write_atomically(path, "new")
    assert os.listdir(tmp_path) == ["t.json"]
    assert path.read_text() == "old"
