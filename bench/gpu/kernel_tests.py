"""`pytest -m gpu` as a part: are the compiled kernels right over ragged sizes, strides, dtypes and random jobs?

Gate: no test fails, and some passed. Several processes compile at once where pytest-xdist is there. A run that time cuts counts what it
reached. In a dry run the marked tests are skipped, as they must be without a GPU, and a few of the interpreter's stand in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from bench.gpu.report import Report
from bench.results import ROOT
from einpage.exec.measure.cpu import cores

DRY = (
    "tests/test_kernels_on_triton.py",
    "tests/test_kernels_gpu.py",
    "-m",
    "interpreter or gpu",
    "-k",
    "(naive and rms_norm) or rotations",
)
REAL = ("-m", "gpu", "tests")
MOST_PROCESSES = 8
NAMED = 12
"""How many failures are listed by name."""
SPARE_S = 6.0
"""For pytest to write its report when it is interrupted."""


def measure(report: Report) -> None:
    setting = report.setting
    along = ["-n", str(min(MOST_PROCESSES, cores())), "--dist", "load"] if find_spec("xdist") and not setting.dry else []
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *along, *(DRY if setting.dry else REAL)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        environment = {**os.environ, "TRITON_INTERPRET": "1" if setting.dry else "0"}
        status = _run([*words, f"--junitxml={path}"], environment, setting.left_s() - SPARE_S)
        if not path.is_file():
            report.check("pytest", False, f"no report, exit status {status}")
            return
        _count(report, path)
    if status is None:
        report.leave_out("tests that were not reached in time")
    elif status not in (0, 1):  # 1: tests failed, which are counted
        report.check("pytest", False, f"exit status {status}")


def _run(words: list[str], environment: dict[str, str], seconds: float) -> int | None:
    """The exit status; None where it had to be interrupted."""
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(SPARE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def _count(report: Report, path: Path) -> None:
    """A row a file of tests, from pytest's own report."""
    counts: dict[str, Counter[str]] = {}
    failures: list[str] = []
    for case in ElementTree.parse(path).iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        counts.setdefault(case.get("classname", "?"), Counter())[outcome] += 1
        if outcome in ("failure", "error"):
            failures.append(f"{case.get('classname')}::{case.get('name')}")
    for file, count in sorted(counts.items()):
        failed = count["failure"] + count["error"]
        figures = {"passed": count["passed"], "failed": failed, "skipped": count["skipped"]}
        said = f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped"
        report.rows.append({"file": file, **figures})
        report.check(file, failed == 0, said)
    for name in failures[:NAMED]:
        report.say(f"failed: {name}")
    passed = sum(count["passed"] for count in counts.values())
    report.rows.append({"failures": failures, "passed": passed})
    report.check("some passed", passed > 0, f"{passed} passed in all")
