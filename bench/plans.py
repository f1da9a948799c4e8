"""How far above the bound are plans, and how long does planning take?

LLaMA 7B and 65B in fp16, over machines, budgets, lengths and batches. Prints a table and writes one JSON file with the command, the
commit and the machine that planned. Gate: every plan that is made is judged right, or nothing is reported. Minutes; --all is hours.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EINPAGE = (sys.executable, "-c", "from einpage.exec.cli import main; raise SystemExit(main())")
MODELS = {
    "7B": {"model": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
    "65B": {"model": 8192, "layers": 80, "heads": 64, "kv_heads": 64, "ffn": 22016, "vocab": 32000},
}
BUDGETS = {"p100": ("8GiB", "15GiB"), "v100": ("8GiB", "15GiB"), "a100": ("8GiB", "16GiB", "38GiB"), "h100": ("8GiB", "16GiB", "38GiB")}
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 4, 16)
SAMPLE = (
    ("7B", "p100", "8GiB", 1024, 1),
    ("7B", "a100", "8GiB", 4096, 1),
    ("7B", "h100", "16GiB", 16384, 4),
    ("65B", "h100", "38GiB", 4096, 1),
)
COLUMNS = ("bound_ratio", "makespan_s", "bound_s", "h2d_bytes", "d2h_bytes", "tasks", "plan_s")
DOES_NOT_FIT = 3


def cases(everything: bool) -> Iterator[tuple[str, str, str, int, int]]:
    if not everything:
        yield from SAMPLE
        return
    for model, machine, seq, batch in product(MODELS, BUDGETS, SEQUENCES, BATCHES):
        for budget in BUDGETS[machine]:
            yield model, machine, budget, seq, batch


def planned(model: str, machine: str, budget: str, seq: int, batch: int) -> dict[str, Any]:
    """One row: the report of `einpage plan`, or why there is no plan. Raises SystemExit where the plan is not judged right."""
    sizes = {**MODELS[model], "seq": seq, "batch": batch}
    settings = [word for k, v in sizes.items() for word in ("--set", f"{k}={v}")]
    words = ["plan", str(ROOT / "specs/llama.yaml"), "--machine", machine, "--budget", budget, "--dtype", "fp16", "--json", *settings]
    ran = subprocess.run([*EINPAGE, *words], capture_output=True, text=True, check=False)
    row: dict[str, Any] = {"model": model, "machine": machine, "budget": budget, "seq": seq, "batch": batch}
    if ran.returncode == DOES_NOT_FIT:
        return {**row, "does_not_fit": ran.stderr.strip()}
    if ran.returncode != 0:
        raise SystemExit(f"einpage {' '.join(words)}\nended with status {ran.returncode}:\n{ran.stderr}")
    report = json.loads(ran.stdout)
    if report["verified"] is not True:
        raise SystemExit(f"einpage {' '.join(words)}\nmade a plan that the judge rejects: nothing is reported")
    return {**row, **{column: report[column] for column in COLUMNS}}


def commit() -> str:
    """The commit the figures belong to, marked where the tree differs from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "no commit"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, help="folder for plans.json")
    words.add_argument("--all", action="store_true", help="every combination, not a sample")
    asked = words.parse_args()
    rows = []
    for case in cases(asked.all):
        rows.append(planned(*case))
        print(
            "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in rows[-1].items()), flush=True
        )
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        command = "python bench/plans.py" + (" --all" if asked.all else "")
        facts = {
            "command": command,
            "commit": commit(),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "rows": rows,
        }
        (asked.out / "plans.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
