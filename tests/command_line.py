"""The command line called from a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from einpage.exec.cli import main
from specs_small import SMALL, SPECS

SMALL_LLAMA = [word for k, v in SMALL["llama"].items() for word in ("--set", f"{k}={v}")]
LLAMA_SIZES = [word for k, v in SMALL["llama"].items() if k not in ("batch", "seq") for word in ("--set", f"{k}={v}")]
"""Without batch and seq, which follow the tokens."""
LLAMA = str(SPECS / "llama.yaml")
MLP = str(SPECS / "mlp.yaml")
MLP_SIZES = [word for k, v in SMALL["mlp"].items() for word in ("--set", f"{k}={v}")]

PLAN_KEYS = [
    "spec",
    "machine",
    "dtype",
    "budget_bytes",
    "peak_bytes",
    "tasks",
    "nodes",
    "edges",
    "h2d_bytes",
    "d2h_bytes",
    "disk_read_bytes",
    "compute_s",
    "h2d_s",
    "d2h_s",
    "makespan_s",
    "bound_s",
    "bound_ratio",
    "bound_order_s",
    "bound_order_by",
    "bytes_bound_order",
    "bytes_bound_order_by",
    "bytes_bound_h2d",
    "host_bytes",
    "plan_s",
    "largest_working_set_bytes",
    "verified",
]
"""At least these are in `plan --json`."""


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
