"""tests/test_kernels_gpu.py as a part: are the compiled kernels right over ragged sizes, strides, dtypes and random jobs?

Gate: no test fails, and some passed. Outcomes are kept as they come, so a run that time cuts has what it reached, and one that goes on does
the rest. Several processes compile at once where pytest-xdist is there; one whose device is lost is left, and another goes on. In a dry run
the tests of that file are skipped, as they must be without a GPU, and a few of the interpreter's stand in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench.gpu import outcomes
from bench.gpu.report import Report
from bench.results import ROOT

DRY = (
    "tests/test_kernels_on_triton.py",
    "tests/test_kernels_gpu.py",
    "-m",
    "interpreter or gpu",
    "-k",
    "(naive and rms_norm) or rotations",
)
REAL = ("tests/test_kernels_gpu.py", "-m", "gpu")
MOST_PROCESSES = 16
NAMED = 12
"""How many failures are listed by name."""
SPARE_S = 6.0
"""For pytest to end when it is interrupted."""
LOOK_S = 0.25
SETTINGS = """[pytest]
pythonpath = {root} {root}/tests
addopts = --import-mode=importlib
markers =
    slow: a long sweep
    interpreter: runs Triton kernels in Triton's interpreter
    gpu: needs a CUDA device
"""
"""Those of pyproject.toml name plugins that may be missing here."""


def measure(report: Report) -> None:
    for needed in ("torch", "pytest", "hypothesis"):
        import_module(needed)
    setting = report.setting
    before = _before(report)
    report.rows, report.gates = [], []  # counted anew from all outcomes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text(SETTINGS.format(root=ROOT), encoding="utf-8")
        path = folder / "outcomes.jsonl"
        path.write_text("".join(json.dumps({"test": test, **outcome}) + "\n" for test, outcome in before.items()), encoding="utf-8")
        status: int | None = outcomes.DEVICE_LOST
        while status == outcomes.DEVICE_LOST:
            path.with_suffix(".before").write_bytes(path.read_bytes())
            status = _run(report, folder, path, setting.left_s() - SPARE_S)
        _count(report, outcomes.read(path))
    if status is None:
        report.leave_out("tests that were not reached in time")
    elif status not in (0, 1, 5):  # 1: tests failed, which are counted; 5: none is left to run
        report.check("pytest", False, f"exit status {status}")


def command(dry: bool, folder: Path, path: Path) -> list[str]:
    """pytest's, on as many processes as there are cores; of plugins only ours and these two, whatever else is installed, or half so."""
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    along = ["-p", "xdist.plugin"] if all(map(find_spec, ("xdist", "execnet"))) else []
    along += ["-n", str(processes), "--dist", "load"] if along and not dry else []
    ends = ["-p", "pytest_timeout", "-o", "timeout=60"] if find_spec("pytest_timeout") else []
    words = [sys.executable, "-m", "pytest", "-q", "-c", str(folder / "pytest.ini"), "--rootdir", str(ROOT), *ends, *along]
    return [*words, "-p", "no:cacheprovider", "-p", "bench.gpu.outcomes", "--outcomes", str(path), *(DRY if dry else REAL)]


def _run(report: Report, folder: Path, path: Path, seconds: float) -> int | None:
    """The exit status; None where it had to be interrupted. Meanwhile the report has what there is."""
    dry = report.setting.dry
    environment = {**os.environ, "TRITON_INTERPRET": "1" if dry else "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    until, seen = perf_counter() + max(1.0, seconds), -1
    process = subprocess.Popen(command(dry, folder, path), cwd=ROOT, env=environment)
    while (status := process.poll()) is None and perf_counter() < until:
        sleep(LOOK_S)
        if path.stat().st_size != seen:
            seen = path.stat().st_size
            _keep(report, outcomes.read(path))
            report.write()
    if status is not None:
        return status
    process.send_signal(signal.SIGINT)
    try:
        process.wait(SPARE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def _before(report: Report) -> dict[str, dict[str, Any]]:
    """What earlier processes found, by test; what failed in an earlier call is tried again."""
    kept: dict[str, dict[str, Any]] = report.facts.get("outcomes", {})
    return {test: found for test, found in kept.items() if found["outcome"] != "failed" or found["call"] == report.setting.call}


def _keep(report: Report, found: dict[str, dict[str, Any]]) -> None:
    call = {"call": report.setting.call}
    report.facts["outcomes"] = {t: {**call, **{key: value for key, value in o.items() if key != "test"}} for t, o in found.items()}


def _count(report: Report, found: dict[str, dict[str, Any]]) -> None:
    """A row a file of tests, and a gate for each of the first that failed."""
    counts: dict[str, Counter[str]] = {}
    for test, outcome in found.items():
        counts.setdefault(test.partition("::")[0], Counter())[outcome["outcome"]] += 1
    _keep(report, found)
    for file, count in sorted(counts.items()):
        figures = {outcome: count[outcome] for outcome in ("passed", "failed", "skipped")}
        said = f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
        report.rows.append({"what": file, "call": report.setting.call, "file": file, **figures})
        report.check(file, not count["failed"], said)
    for test in [test for test, outcome in found.items() if outcome["outcome"] == "failed"][:NAMED]:
        report.say(f"failed: {test}: {found[test]['said']}")
    passed = sum(count["passed"] for count in counts.values())
    report.check("some passed", passed > 0, f"{passed} passed in all")
