"""What does a plan lose when task and copy times are off by a quarter?

A plan made with nominal times is replayed with the real ones, beside a plan made knowing them: `loss` is the ratio of their makespans.

`each`: every task and every tensor's copy is off by its own factor; `engine`: all tasks by one factor, all copies of a link by another.
Over a few cells of LLaMA-7B and the access traces of a folder. Gate: every nominal plan is judged right, or nothing is reported. Four
minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench import results
from bench.perturbation import Spread, drawn, loss
from bench.results import ROOT
from bench.traces import references
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import format_bytes, parse_bytes
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.planning.judged_plan import plan_graph
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.machine.machine import Machine, links_only
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import PlanOptions
from einpage.memplan.problem.pace import pace_in_steps

CELLS = (("v100", "8GiB", 512, 1), ("a100", "16GiB", 2048, 1), ("a100", "8GiB", 8192, 1), ("h100", "8GiB", 2048, 8))
"""Machine, budget, sequence, batch."""
MOST_TASKS = 1000
"""A larger trace is left out, unless --all is given."""
WANTED = 1.05


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    graph: TaskGraph
    machine: Machine
    budget_bytes: int
    options: PlanOptions
    steps: int
    """Of the searches for both plans."""


def llama_cases(steps: int) -> Iterator[Case]:
    for machine, budget, seq, batch in CELLS:
        program, nbytes = open_model(ROOT / "specs/llama.yaml", {"seq": seq, "batch": batch}).program, parse_bytes(budget)
        name = f"llama 7B, {batch} x {seq}, {machine}, {budget}"
        graph = build_graph(program, PlanRequest(nbytes, DType.FP16)).graph
        yield Case(name, graph, load_machine(machine), nbytes, PlanOptions(), steps)


def trace_cases(folder: Path, steps: int, most_tasks: int) -> Iterator[Case]:
    for path in sorted(folder.glob("*.json.gz")):
        graph = read_trace(path)
        for reference in references(path) if len(graph.tasks) <= most_tasks else ():
            nbytes = int(reference["capacity"])
            machine = links_only(reference["bw_h2d"], reference["bw_d2h"], nbytes)
            name = f"{path.name.removesuffix('.json.gz')}, {format_bytes(nbytes)}"
            yield Case(name, graph, machine, nbytes, PlanOptions(alignment=1), steps)


def losses(case: Case, share: float, seeds: int) -> dict[str, list[float]]:
    """By spread, one loss a seed; `plan_graph` raises where the judge rejects."""
    nominal = plan_graph(case.graph, case.machine, case.budget_bytes, case.options, pace=pace_in_steps(case.steps)).memgraph
    return {
        spread.value: [
            loss(nominal, case.machine, drawn(case.graph, share, seed, spread), case.options, case.steps) for seed in range(seeds)
        ]
        for spread in Spread
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT.parent / "shared/data/paging", help="of *.json.gz traces")
    parser.add_argument("--plan-steps", type=int, default=100_000, help="0 heeds no times: nothing is lost")
    parser.add_argument("--share", type=float, default=0.25, help="how far times are off at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help=f"traces of more than {MOST_TASKS} tasks too")
    parser.add_argument("--out", type=Path, help="folder for robustness.json")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    most_tasks = 10**9 if asked.all else MOST_TASKS
    for case in [*llama_cases(asked.plan_steps), *trace_cases(asked.folder, asked.plan_steps, most_tasks)]:
        for spread, found in losses(case, asked.share, asked.seeds).items():
            rows.append({"case": case.name, "spread": spread, "mean": mean(found), "worst": max(found), "losses": found})
            print(f"{case.name:<48} {spread:<7} mean {mean(found):.4f}  worst {max(found):.4f}", flush=True)
    for kind in Spread:
        found = [loss for row in rows if row["spread"] == kind.value for loss in row["losses"]]
        above = sum(loss > WANTED for loss in found)
        print(f"{kind.value}: mean {mean(found):.4f}, worst {max(found):.4f}, {above} of {len(found)} above {WANTED}")
    if asked.out is not None:
        results.write(asked.out, "robustness", f"python -m bench.robustness --plan-steps {asked.plan_steps} --seeds {asked.seeds}", rows)


if __name__ == "__main__":
    main()
