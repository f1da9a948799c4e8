"""A result is one JSON file that says which command made it, of which commit, on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def write(folder: Path, name: str, command: str, rows: list[dict[str, Any]], **summary: object) -> Path:
    """`folder`/`name`.json, the folder made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    facts = {"command": command, "commit": commit(), "machine": machine, **summary, "rows": rows}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The commit the figures belong to, marked where the tree differs from it; $EINPAGE_COMMIT where the tree is no checkout."""
    if named := os.environ.get("EINPAGE_COMMIT"):
        return named
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "no commit"
