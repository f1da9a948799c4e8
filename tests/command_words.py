"""The command line called from a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from einpage.exec.cli import main


def ran(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command that must end with `status`."""
    try:
        got = main(words)
    except SystemExit as end:
        got = int(end.code or 0)
    out, err = capsys.readouterr()
    assert got == status, f"exit status {got}, expected {status}\n{out}\n{err}"
    return out, err


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    out, _ = ran(capsys, *words, "--json")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found
