"""Are predictions to be believed? Predicted ÷ measured seconds of runs on the CPU device, over models, tokens and budgets.

SmolLM2 (a file, --model) and a random GPT-2 of 124 M; 1 to 2,048 tokens, or as many as the model takes; in an arena of 64 MiB, and with all
weights resident. The profile is measured anew at the start, by generic jobs: no cell is used in fitting. A cell is a steady pass: the
median of seven, each after three that do not count. The cells of a model take turns, so that a neighbour who is busy for seconds disturbs
one pass of each and not all of one; the load of the machine stands beside each, and how many cores other processes used. Of 24 cells 22
are distinct: GPT-2's limit is 1,024 tokens, which it has already. Gate: the judge passes every plan. Ten minutes and 12 GB; --quick takes
the shorter half of the cells.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench import results
from bench.results import ROOT
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import format_seconds, parse_bytes
from einpage.exec.dispatch.progress import SILENT
from einpage.exec.load.inputs import TokenLists
from einpage.exec.measure.cpu import OtherProcesses, measured_cpu
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.prepared import prepare_run, run_passes
from einpage.memplan.machine.machine import Machine

MODELS = {"SmolLM2": ("specs/llama.yaml", 2048), "GPT-2": ("specs/gpt2.yaml", 1024)}
"""Spec, and the most tokens that are tried."""
TOKENS = (1, 8, 64, 256, 1024, 2048)
BUDGETS = {"64 MiB": "64MiB", "resident": "2GiB"}
PASSES, BEFORE = 7, 3
"""Passes that count, and those before each of them: two passes after its turn has come a cell is slower by a tenth still, as its memory
is in no cache."""
LONG_S = 1.0
"""From so long on a pass is not repeated."""
NEAR, FAIR = 1.1, 1.25
FEW_TOKENS = 64


class Cell:
    """A model, tokens and a budget, ready to run a pass whenever it is asked to."""

    def __init__(self, name: str, tokens: int, budget: str, weights: str, machine: Machine) -> None:
        spec, _ = MODELS[name]
        # Token ids that every vocabulary has; their values change nothing about time.
        model = open_model(ROOT / spec, {}, weights, TokenLists((tuple(range(1, tokens + 1)),), "numbers"))
        request = PlanRequest(parse_bytes(BUDGETS[budget]), DType.FP32, passes=(BEFORE + 1) * PASSES + 1, plan_seconds=5.0, plan_worth=True)
        self._name, self._tokens, self._budget = name, tokens, budget
        self._prepared = prepare_run(model, machine, RunOptions(request))
        ready = self._prepared
        self._passes = run_passes(ready.planned.memgraph, ready.device, ready.options, Dispatch.DYNAMIC, SILENT)
        self._walls: list[float] = []
        self._load, self._others = 0.0, list[float]()
        next(self._passes)

    def run(self) -> None:
        """One pass more, after BEFORE that do not count where passes are short: the memory of a cell that waited for its turn is cold."""
        self._load, others = max(self._load, os.getloadavg()[0]), OtherProcesses()
        wall_s = next(self._passes).wall_s
        for _ in range(BEFORE if wall_s < LONG_S else 0):
            wall_s = next(self._passes).wall_s
        self._walls.append(wall_s)
        self._others.append(others.cores())

    def row(self) -> dict[str, Any]:
        """What was measured, beside what was predicted; nothing runs afterwards."""
        self._prepared.close()
        report, walls = self._prepared.planned.report, self._walls
        assert report.verified and len(walls) == PASSES
        return {
            "model": self._name, "tokens": self._tokens, "budget": self._budget, "predicted_s": report.predicted_s,
            "measured_s": median(walls), "least_s": min(walls), "most_s": max(walls), "ratio": report.predicted_s / median(walls),
            "bound_s": report.bound_s, "bound_order_s": report.bound_order_s, "compute_s": report.compute_s, "h2d_s": report.h2d_s,
            "tasks": report.tasks, "load": self._load, "others": median(self._others),
        }  # fmt: skip


def measured(name: str, tokens: list[int], weights: str, machine: Machine) -> list[dict[str, Any]]:
    """All cells of a model."""
    cells = [Cell(name, n, budget, weights, machine) for n in tokens for budget in BUDGETS]
    for _ in range(PASSES):
        for cell in cells:
            cell.run()
    return [cell.row() for cell in cells]


def within(rows: list[dict[str, Any]], factor: float) -> int:
    """How many predictions are at most that factor off: 0.9 to 1.1 for 1.1, 0.8 to 1.25 for 1.25."""
    low = {NEAR: 0.9, FAIR: 0.8}[factor]
    return sum(low <= row["ratio"] <= factor for row in rows)


def line(row: dict[str, Any]) -> str:
    walls = f"{format_seconds(row['least_s'])} to {format_seconds(row['most_s'])}"
    return (
        f"{row['model']:<8} {row['tokens']:>6} {row['budget']:>9}  {format_seconds(row['predicted_s']):>9}  "
        f"{format_seconds(row['measured_s']):>9} ({walls})  {row['ratio']:.2f}  load {row['load']:.2f}, others {row['others']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(ROOT / ".cache/SmolLM2-135M-Instruct.Q4_1.gguf"), help="SmolLM2's file")
    parser.add_argument("--quick", action="store_true", help=f"at most {FEW_TOKENS} tokens")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/local")
    a = parser.parse_args()
    weights = {"SmolLM2": a.model, "GPT-2": "random:0"}
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["EINPAGE_CACHE"] = fresh
        machine = measured_cpu(say=print)
    assert machine.measured is not None and machine.kernel_times is not None
    print(f"profile: {machine.measured.text()}")
    rows: list[dict[str, Any]] = []
    for name, (_, most) in MODELS.items():
        tokens = [t for t in TOKENS if t <= (min(most, FEW_TOKENS) if a.quick else most)]
        of_model = measured(name, tokens, weights[name], machine)
        print("\n".join(map(line, of_model)), flush=True)
        rows += of_model
    near, fair = within(rows, NEAR), within(rows, FAIR)
    beaten = [row for row in rows if max(row["bound_s"], row["bound_order_s"]) > row["least_s"]]
    print(f"{near} of {len(rows)} cells within 0.9 to 1.1, {fair} within 0.8 to 1.25; {len(beaten)} runs beat a lower bound")
    load = max(row["load"] for row in rows)
    results.write(
        a.out, "predict", "python -m bench.predict", rows, near=near, fair=fair, most_load=load, profile=asdict(machine.measured)
    )  # fmt: skip


if __name__ == "__main__":
    main()
