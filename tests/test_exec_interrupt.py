"""Ctrl-C ends with 130 and one line: while libraries are imported, however einpage was started, and in the middle of a run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specs_small import SMALL, SPECS


def started(command: Sequence[str], stdout: int | None = None) -> subprocess.Popen[str]:
    """The process, with its stderr to read. It heeds Ctrl-C even where whoever started the tests in the background had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=stdout, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read the process's stderr until a line has `word`."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if word in line:
            return line
        said.append(line)
    raise AssertionError(f"the process ended without saying {word!r}: {''.join(said)}")


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    """A run large enough to be in the middle of things is interrupted once it says it runs."""
    code = (
        "import sys\n"
        "from einpage.exec.dispatch.dynamic import DynamicDispatcher\n"
        "from einpage.exec.cli import main\n"
        "run = DynamicDispatcher.run\n"
        "def run_slowly(self, device, hooks):\n"
        "    compute = device.compute\n"
        "    def slow(node):\n"
        "        print('computing', file=sys.stderr, flush=True)\n"
        "        import threading; threading.Event().wait(0.2)\n"
        "        compute(node)\n"
        "    device.compute = slow\n"
        "    return run(self, device, hooks)\n"
        "DynamicDispatcher.run = run_slowly\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    sizes = [w for k, v in SMALL["matmul_chain"].items() if k != "depth" for w in ("--set", f"{k}={v}")]
    np.save(tmp_path / "x.npy", np.zeros((130, 192), np.float32))
    words: Sequence[str] = [
        "run",
        str(SPECS / "matmul_chain.yaml"),
        *sizes,
        "--set",
        "depth=400",
        "--weights",
        "random:1",
        "--budget",
        "1MiB",
        "--dispatch",
        "dynamic",
    ]
    given = ["--machine", "cpu", "--input", f"x0={tmp_path / 'x.npy'}"]
    process = started([sys.executable, "-c", code, *words, *given], stdout=subprocess.PIPE)
    try:
        wait_for(process, "computing")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert time.monotonic() - began < 5


ENTRIES = {
    "module": "import runpy\nrunpy.run_module('einpage.exec.cli', run_name='__main__', alter_sys=True)",
    "script": "from einpage.exec.cli import main\nsys.exit(main())",
}


@pytest.mark.parametrize("library", ["yaml", "numpy", "torch"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_ctrl_c_while_importing_ends_with_130_and_one_line(entry: str, library: str) -> None:
    code = (
        "import sys, threading\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {library!r}:\n"
        "            print('importing', file=sys.stderr, flush=True)\n"
        "            threading.Event().wait(20)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    words = ["run", str(SPECS / "mlp.yaml"), "--weights", "random:1", "--budget", "1MiB"]
    process = started([sys.executable, "-c", code + ENTRIES[entry], *words])
    try:
        wait_for(process, "importing")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "einpage: interrupted\n")
