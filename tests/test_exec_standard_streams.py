"""A stream that is closed, full, or in ASCII, and a reader that has gone: one line, the documented status, never a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from einpage.exec.cli import main

EINPAGE = f"{sys.executable} -m einpage.exec.cli"


def ended(shell: str, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of a command."""
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], env={**os.environ, **environment}, capture_output=True, timeout=100)
    return done.returncode, done.stderr.decode()


@contextmanager
def stream(name: str, instead: TextIO | None) -> Iterator[None]:
    kept = getattr(sys, name)
    setattr(sys, name, instead)
    try:
        yield
    finally:
        setattr(sys, name, kept)


def status_of(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (f"{EINPAGE} machine > /dev/full", 2, "einpage: stdout cannot be written: No space left on device\n"),
        (f"{EINPAGE} machine >&-", 2, "einpage: stdout is closed, so nobody would see the result; send it to a file, or to /dev/null\n"),
        (f"{EINPAGE} machine --json | true", 0, ""),
        (f"{EINPAGE} machine nosuch 2>&-", 2, ""),
        (f"{EINPAGE} machine nosuch 2>/dev/full", 2, ""),
    ],
)
def test_of_a_process(words: str, status: int, said: str) -> None:
    assert ended(words, PYTHONUNBUFFERED="") == (status, said)


def test_a_terminal_in_ascii_of_a_process() -> None:
    environment = {"PYTHONIOENCODING": "", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert ended(f"{EINPAGE} plan mlp --budget 8MiB", **environment) == (0, "")


@pytest.mark.parametrize("argv", [("machine",), ("plan", "--help"), ("machine", "--json"), ("plan", "mlp", "--budget", "8MiB")])
@pytest.mark.parametrize("buffering", [1, 1 << 20])
def test_a_full_stdout(capfd: pytest.CaptureFixture[str], argv: tuple[str, ...], buffering: int) -> None:
    with open("/dev/full", "w", buffering) as full, stream("stdout", full):
        status = status_of(*argv)
    assert (status, capfd.readouterr().err) == (2, "einpage: stdout cannot be written: No space left on device\n")


@pytest.mark.parametrize("argv", [("machine",), ("plan", "--help"), ("plan", "mlp", "--sweep", "budget=4MiB:8MiB:2")])
@pytest.mark.parametrize("buffering", [1, 1 << 20])
def test_a_reader_that_has_gone(capfd: pytest.CaptureFixture[str], argv: tuple[str, ...], buffering: int) -> None:
    source, sink = os.pipe()
    os.close(source)
    with open(sink, "w", buffering) as broken, stream("stdout", broken):
        status = status_of(*argv)
    assert (status, capfd.readouterr().err) == (0, "")


def test_what_goes_wrong_with_a_stderr_that_is_full_or_closed() -> None:
    with open("/dev/full", "w", 1) as full, stream("stderr", full):
        assert status_of("machine", "nosuch") == 2
        assert status_of("plan", "--nosuch") == 2
    with stream("stderr", None):
        assert status_of("machine", "nosuch") == 2


@pytest.mark.parametrize(
    "argv", [("plan", "mlp", "--budget", "8MiB"), ("plan", "--help"), ("plan", "mlp", "--sweep", "budget=4MiB:8MiB:2"), ("show", "mlp")]
)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_character_can_be_printed(argv: tuple[str, ...], encoding: str) -> None:
    printed = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    with stream("stdout", printed):
        assert status_of(*argv) == 0
    text = printed.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert text and "\\x" not in text and "\\u" not in text
    if encoding == "ascii" and argv[0] == "plan" and "--help" not in argv:
        assert "plan / bound" in text or "us" in text or "#" in text


def test_names_that_are_no_text_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    with stream("stderr", printed):
        assert status_of("verify", "\udcff.json") == 2
    assert printed.buffer.getvalue() == b"einpage: cannot read plan file \\udcff.json: No such file or directory\n"  # type: ignore[attr-defined]
