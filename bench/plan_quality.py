"""How near the bound are plans of LLaMA, over models, lengths, batches, machines and budgets? One cold pass in fp16, or with
`--passes` a steady one of many: what is resident between passes is on the device at the start, and at the end again.

Prints a line a cell and the spread of plan / bound, and writes one JSON file with the command, the commit and the machine that planned,
and the same as a table in Markdown. Beside each cell: what a per-layer streaming system would take (`streaming_s`), or that it cannot run
there; what is assumed of it stands in streaming.py. Gate: every plan is judged right, or nothing is reported. Five minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import geometric_mean, quantiles
from typing import Any

from bench import results
from bench.results import ROOT
from bench.streaming import streaming
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import format_seconds, parse_bytes
from einpage.einsum_front.graph.program import Program
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.profile import load_machine

MODELS = {
    "7B": {"model": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
    "13B": {"model": 5120, "layers": 40, "heads": 40, "kv_heads": 40, "ffn": 13824, "vocab": 32000},
    "65B": {"model": 8192, "layers": 80, "heads": 64, "kv_heads": 64, "ffn": 22016, "vocab": 32000},
}
BUDGETS = {
    "p100": ("4GiB", "8GiB", "15GiB"),
    "v100": ("4GiB", "8GiB", "15GiB"),
    "a100": ("4GiB", "8GiB", "16GiB", "38GiB"),
    "h100": ("8GiB", "16GiB", "38GiB", "72GiB"),
}
COLUMNS = ("bound_ratio", "makespan_s", "bound_s", "bound_limit", "h2d_bytes", "d2h_bytes", "resident_bytes", "tasks", "split", "plan_s")
SEQUENCES = (512, 2048, 8192)
BATCHES = (1, 8)


def cells(models: list[str], seconds: float, passes: int | None) -> Iterator[dict[str, Any]]:
    """One row a plan; `plan_program` raises where the judge rejects."""
    for model, machine, seq, batch in product(models, BUDGETS, SEQUENCES, BATCHES):
        program = open_model(ROOT / "specs/llama.yaml", {**MODELS[model], "seq": seq, "batch": batch}).program
        for budget in BUDGETS[machine]:
            yield {"model": model, "machine": machine, "seq": seq, "batch": batch, "budget": budget} | _cell(
                program, machine, budget, seconds, passes
            )


def _cell(program: Program, machine: str, budget: str, seconds: float, passes: int | None) -> dict[str, Any]:
    nbytes, profile = parse_bytes(budget), load_machine(machine)
    try:
        planned = plan_program(program, profile, PlanRequest(nbytes, DType.FP16, plan_seconds=seconds, passes=passes))
    except DoesNotFit as refused:
        return {"does_not_fit": str(refused)}
    figures = planned.facts
    other = streaming(program, DType.FP16, planned.machine)
    return {key: figures[key] for key in COLUMNS} | {"streaming_s": other.seconds if other.least_bytes <= nbytes else None}


def markdown(rows: list[dict[str, Any]], command: str, spread: dict[str, Any]) -> str:
    """All cells as one table, below the command and the spread."""
    head = ("model", "batch × sequence", "machine, budget", "time", "plan ÷ bound", "limited by", "per-layer streaming")
    lines = [f"`{command}`, commit {results.commit()}", "", "plan ÷ bound: " + ", ".join(f"{k} {v:.4g}" for k, v in spread.items()), ""]
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in rows:
        cell = [row["model"], f"{row['batch']} × {row['seq']}", f"{row['machine']}, {row['budget']}"]
        if "does_not_fit" in row:
            cell += ["does not fit", "", "", ""]
        else:
            other, took = row["streaming_s"], row["makespan_s"]
            beside = "cannot run" if other is None else f"{format_seconds(other)}, × {other / took:.2f}"
            cell += [format_seconds(took), f"{row['bound_ratio']:.3f}", row["bound_limit"], beside]
        lines.append(f"| {' | '.join(cell)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for plan_quality.json and .md")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--plan-seconds", type=float, default=5.0, help="as of einpage plan")
    parser.add_argument("--passes", type=int, metavar="N", help="plan a pass that ends as it began, to run N times")
    asked = parser.parse_args()
    rows = []
    for row in cells(asked.models, asked.plan_seconds, asked.passes):
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    ratios = sorted(row["bound_ratio"] for row in rows if "bound_ratio" in row)
    cut = quantiles(ratios, n=20, method="inclusive")
    spread = {
        "cells": len(rows),
        "planned": len(ratios),
        "geomean": geometric_mean(ratios),
        "median": cut[9],
        "p95": cut[18],
        "worst": ratios[-1],
    }
    print("plan / bound: " + "  ".join(f"{k} {v:.4g}" for k, v in spread.items()))
    if asked.out is not None:
        which = f"--plan-seconds {asked.plan_seconds:g}" + ("" if asked.passes is None else f" --passes {asked.passes}")
        command = f"python -m bench.plan_quality {which} --models {' '.join(asked.models)}"
        name = "plan_quality" if asked.passes is None else "plan_quality_steady"
        results.write(asked.out, name, command, rows, plan_over_bound=spread)
        (asked.out / f"{name}.md").write_text(markdown(rows, command, spread), encoding="utf-8")


if __name__ == "__main__":
    main()
