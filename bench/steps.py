"""How near the ideal is a step of training whose memory is too small, beside layer-granular offloading, TERAIO's rule and G10's?

Ideal, as TERAIO has it: a step with room for everything, all kernels one after the other. Capacities are parts of the peak that this
takes. A plan is of a run of steps that begins with all states on the host; its share of the ideal is that of the steps after the first,
from the end of one step to the end of the next: each writes back what the step before it changed, as far as that does not stay. Beside
each share, the LP's: no plan of this run has a larger one. step16xF are the kernels of step16.json, each F times as slow: as they are, no
plan at these links comes near the ideal. Everything moves in whole pages, and every rule has the same pages. With --recompute also what a
plan reaches that may run kernels again, at the same pace. Gate: every plan is judged right. Minutes: --plan-seconds and what the LP takes
for each cell.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from bench import results
from bench.results import ROOT
from bench.step_trace import Run, Shape, Step, run_of, step_of_file, step_of_shape
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import COMPUTE, Nodes
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.accesses import Accesses, accesses
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.policies import Headroom, ResidentIntervals, by_lifetime, by_pressure, resident_bytes
from einpage.memplan.schedule.static_plans import Rule, StaticRules

CAPACITIES = (0.60, 0.45, 0.35)
"""Parts of the peak with room for everything."""
FLOPS_PER_S, DEVICE_BYTES_PER_S = 400e12, 3e12
"""Of the shapes' kernels: what an H100 reaches in bf16."""
SHAPES = {
    "8B": Shape(layers=32, width=4096, kv_width=1024, ffn=14336, tokens=32768, context=4096),
    "70B": Shape(layers=80, width=8192, kv_width=1024, ffn=28672, tokens=32768, context=4096),
}
HOST_BYTES = 2**43
"""What is behind the link has room for all: it may be flash."""
RULES = ("layers", "teraio", "g10")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    step: Step
    steps: int
    page_bytes: int
    gb_per_s: tuple[float, ...]


def cases(names: Sequence[str], data: Path) -> Iterator[Case]:
    for name in names:
        if name in SHAPES:
            step = step_of_shape(SHAPES[name], FLOPS_PER_S, DEVICE_BYTES_PER_S)
            yield Case(name, step, 2, step.nbytes["x"], (16, 32))
        else:
            _, _, factor = name.partition("x")
            yield Case(name, step_of_file(data).slower(float(factor or 1)), 3, 133_400_000, (6.5, 16, 32))


def by_layer(layer: Sequence[int], slot_layer: Sequence[int], a: Accesses, headroom: Headroom) -> ResidentIntervals:
    """Layer-granular: the tensors of a layer are resident between its visits all or none, the last layers first (what they save is away for
    the shortest time); while a layer is visited, what it touches is resident. `layer` [tensor], `slot_layer` [slot]."""
    passed = np.concatenate(([0], np.cumsum(np.diff(slot_layer) != 0)))
    resident: ResidentIntervals = passed[a.start] == passed[a.end]
    groups = np.array(layer)[a.tensor]
    for group in sorted(set(groups.tolist()), reverse=True):
        more = resident | (groups == group)
        if bool((resident_bytes(a, more) <= headroom).all()):
            resident = more
    while bool((resident_bytes(a, resident) > headroom).any()):  # a visit that does not fit: its longest intervals go
        over = resident_bytes(a, resident) > headroom
        at = int(np.flatnonzero(over)[0])
        inside = np.flatnonzero(resident & (a.start < at) & (a.end > at))
        resident[inside[np.argmax((a.end - a.start)[inside])]] = False
    return resident


def layer_of(name: str) -> int:
    """Of a tensor, whose name has it as its first number: W3, a3.1, M.mlp7; -1 for what belongs to none."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else -1


def machine_of(bytes_per_s: float) -> Machine:
    machine = replace(load_machine("h100"), host_bytes=HOST_BYTES)
    return machine.with_links(Link(Queue.H2D, bytes_per_s, 1e-5), Link(Queue.D2H, bytes_per_s, 1e-5))


def step_s(made: MemGraph, machine: Machine, run: Run) -> float:
    """From the end of the first step to the end of the last, for each step."""
    assert (found := judge(made)) is None, found
    nodes, finish_s = Nodes.of(made.nodes), simulate(made, machine).finish_s
    end_s = {int(nodes.subject[n]): finish_s[n] for n in np.flatnonzero(nodes.kind == COMPUTE).tolist()}
    return float(end_s[run.ends[-1]] - end_s[run.ends[0]]) / (len(run.ends) - 1)


def row(case: Case, capacity: float, gb_per_s: float, seconds: float, recompute: bool = False) -> dict[str, Any]:
    """One cell: shares of the ideal."""
    run, machine = run_of(case.step, case.steps, case.page_bytes), machine_of(gb_per_s * 1e9)
    nbytes, ideal_s = int(capacity * case.step.peak_bytes), case.step.ideal_s
    of_run = accesses(run.graph, machine)
    bound_s = time_bound(of_run, nbytes, machine.links, stretch=(run.ends[0], run.ends[-1])).seconds / (case.steps - 1)
    slots = slots_of(problem_of(run.graph, machine, nbytes, alignment=case.page_bytes))
    assert slots is not None
    layer = [layer_of(name) for name in run.layer]
    rules: dict[str, Rule] = {
        "layers": partial(by_layer, layer, [layer[task.result] for task in slots.tasks]),
        "teraio": by_lifetime,
        "g10": by_pressure,
    }
    static, shares, moved = StaticRules(slots), dict[str, float | None](), dict[str, int]()
    for name in RULES:
        found = static.plan(rules[name])
        shares[name] = None if found is None else ideal_s / step_s(found.memgraph, machine, run)
        moved[name] = 0 if found is None else all_moved_bytes(found.memgraph)
    options, began_s = PlanOptions(alignment=case.page_bytes), perf_counter()
    made = plan(run.graph, machine, nbytes, options, Pace(until_s=began_s + seconds))
    ours, moved["ours"], plan_s = ideal_s / step_s(made, machine, run), all_moved_bytes(made), perf_counter() - began_s
    shares["ours"] = ours
    if recompute:
        again = plan(run.graph, machine, nbytes, replace(options, recompute=Recompute.FASTEST), Pace(until_s=perf_counter() + seconds))
        shares["recompute"] = ideal_s / step_s(again, machine, run)
    return {
        "case": case.name, "capacity": capacity, "gb_per_s": gb_per_s, "ideal_s": ideal_s, "peak_bytes": case.step.peak_bytes,
        "tasks": len(run.graph.tasks), **shares, "lp": ideal_s / bound_s, "ours/lp": ours * bound_s / ideal_s,
        "moved_bytes": moved, "plan_s": plan_s,
    }  # fmt: skip


HEAD = ("case", "capacity", "GB/s", *RULES, "ours", "lp", "ours/lp")


def line(it: dict[str, Any]) -> str:
    keys = (*RULES, "ours", "lp", "ours/lp", *(("recompute",) if "recompute" in it else ()))
    figures = ("-" if it[key] is None else f"{it[key]:.3f}" for key in keys)
    return " ".join([f"{it['case']:<9}", f"{it['capacity']:>8.2f}", f"{it['gb_per_s']:>6g}", *(f"{text:>8}" for text in figures)])


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means by case, of all capacities and of those from 45 % on; a rule without a plan counts as 0."""
    found = {}
    for name in dict.fromkeys(it["case"] for it in rows):
        for which, least in (("all", 0.0), ("from 45 %", 0.44)):
            some = [it for it in rows if it["case"] == name and it["capacity"] > least]
            if some:
                found[f"{name}, {which}"] = {key: fmean(it[key] or 0.0 for it in some) for key in (*RULES, "ours", "lp", "ours/lp")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", nargs="+", default=["step16", "step16x2", "step16x4", "8B", "70B"], help="step16xF: kernels F times as slow"
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/step16.json")
    parser.add_argument("--plan-seconds", type=float, default=10.0)
    parser.add_argument("--capacities", type=float, nargs="+", default=list(CAPACITIES))
    parser.add_argument("--links", type=float, nargs="+", help="GB/s each way, instead of the case's own")
    parser.add_argument("--recompute", action="store_true", help="also with kernels that run again")
    parser.add_argument("--out", type=Path, help="folder for steps.json")
    asked = parser.parse_args()
    print(" ".join([f"{HEAD[0]:<9}", f"{HEAD[1]:>8}", f"{HEAD[2]:>6}", *(f"{word:>8}" for word in HEAD[3:])]))
    rows = []
    for case in cases(asked.cases, asked.data):
        for capacity, gb_per_s in product(asked.capacities, asked.links or case.gb_per_s):
            rows.append(row(case, capacity, gb_per_s, asked.plan_seconds, asked.recompute))
            print(line(rows[-1]), flush=True)
    means = summary(rows)
    for name, figures in means.items():
        print(f"mean of {name}: " + "  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    if asked.out is not None:
        command = f"python -m bench.steps --plan-seconds {asked.plan_seconds:g} --cases {' '.join(asked.cases)}"
        results.write(asked.out, "steps", command, rows, means=means)


if __name__ == "__main__":
    main()
