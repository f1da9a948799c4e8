"""A result is one JSON file that says which command made it, of which commit, on which machine. Needs Python alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = "unknown"
"""The commit, where nobody says."""


def write(folder: Path, name: str, command: str, rows: list[dict[str, Any]], **summary: object) -> Path:
    """`folder`/`name`.json, the folder made where there is none."""
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    facts = {"command": command, "commit": commit(), "machine": machine, **summary, "rows": rows}
    path = folder / f"{name}.json"
    write_whole(path, facts)
    return path


def write_whole(path: Path, facts: dict[str, Any]) -> None:
    """As JSON: whoever reads `path`, whenever, finds all of the old facts or all of the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps(facts, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def commit() -> str:
    """The commit the figures belong to, marked where the tree differs from it; $EINPAGE_COMMIT where the tree is no checkout; UNKNOWN
    without either, and without git."""
    if named := os.environ.get("EINPAGE_COMMIT"):
        return named
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return described.stdout.strip() or UNKNOWN
