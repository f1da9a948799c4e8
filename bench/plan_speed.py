"""How long does planning take, and how does it grow? LLaMA split so finely, or passed so often, that its MemGraph has 112,000 nodes.

Three shapes, each in sizes that double: `deep`, 65B with 16, 32, … layers under 256 MiB, where nothing is resident for long; `passes`, 7B
split for 64 MiB and run 2, 4, … times over the same weights in it; `roomy`, the same in 1 GiB, where hundreds of tiles are evictable.
Prints nodes, seconds for order + plan + edges and for the judge, µs a node, the growth from the size before, and the peak memory
of the process so far. Gate: the judge passes every plan. Seconds are of this one thread's CPU; five minutes.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

from bench import results
from bench.plan_quality import MODELS
from bench.results import ROOT
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import format_bytes, parse_bytes
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, TaskGraph, TaskId, TensorId
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import plan

SIZES = {"deep": (16, 32, 64, 128, 256), "passes": (2, 4, 8, 16), "roomy": (2, 4, 8, 16)}
"""Layers, passes, passes. In the last pass what is used is dead, and nobody is chosen to leave: two to four passes choose three times as
often, four to eight 7 / 3 times. At so much a node and so much a choice, more than two is fair.
"""
BUDGETS = {"deep": "256MiB", "passes": "64MiB", "roomy": "1GiB"}
MACHINE = replace(load_machine("a100"), host_bytes=2**42)
"""With a host for any number of layers."""


def shape(name: str, size: int) -> TaskGraph:
    if name == "deep":
        return llama("65B", "256MiB", seq=2048, layers=size)
    return repeated(llama("7B", "64MiB", seq=512), size)


def llama(model: str, cut_for: str, **settings: int) -> TaskGraph:
    program = open_model(ROOT / "specs/llama.yaml", {**MODELS[model], **settings}).program
    return build_graph(program, PlanRequest(parse_bytes(cut_for), DType.FP16)).graph


def repeated(graph: TaskGraph, passes: int) -> TaskGraph:
    """The tasks of `graph` so many times over the same weights and inputs; each pass has activations and outputs of its own."""
    tensors, tasks = list(graph.tensors), list(graph.tasks)
    for n in range(1, passes):
        own = [t for t in graph.tensors if t.kind not in HOST_AT_START]
        new = list(range(len(graph.tensors)))
        for i, t in enumerate(own):
            new[t.id] = len(tensors) + i
        tensors += [replace(t, id=TensorId(new[t.id]), name=f"{t.name} of pass {n}") for t in own]
        tasks += [
            replace(
                task,
                id=TaskId(n * len(graph.tasks) + task.id),
                name=f"{task.name} of pass {n}",
                operands=tuple(tuple(TensorId(new[t]) for t in operand) for operand in task.operands),
                result=TensorId(new[task.result]),
                inplace=tuple(TensorId(new[t]) for t in task.inplace),
            )
            for task in graph.tasks
        ]
    return replace(graph, tensors=tuple(tensors), tasks=tuple(tasks))


def rows(name: str, repeats: int) -> Iterator[dict[str, Any]]:
    """One row a size; the least of `repeats` timings. Raises SystemExit where the judge rejects a plan."""
    before: dict[str, Any] | None = None
    for size in SIZES[name]:
        graph = shape(name, size)
        plan_s = judge_s = float("inf")
        for _ in range(repeats):
            began = process_time()
            memgraph = plan(graph, MACHINE, parse_bytes(BUDGETS[name]))
            planned = process_time()
            violation = judge(memgraph)
            plan_s, judge_s = min(plan_s, planned - began), min(judge_s, process_time() - planned)
            if violation is not None:
                raise SystemExit(f"{name}, size {size}: the judge rejects the plan: {violation}: nothing is reported")
        row: dict[str, Any] = {
            "shape": name,
            "size": size,
            "nodes": len(memgraph.nodes),
            "edges": len(memgraph.edges),
            "plan_s": plan_s,
            "judge_s": judge_s,
        }
        row |= {"plan_us_per_node": 1e6 * plan_s / row["nodes"], "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        if before is not None:
            row |= {"plan_growth": plan_s / before["plan_s"], "judge_growth": judge_s / before["judge_s"]}
        before = row
        yield row


def line(row: dict[str, Any]) -> str:
    growth = f"x {row['plan_growth']:.2f} and x {row['judge_growth']:.2f}" if "plan_growth" in row else ""
    times = f"plan {row['plan_s']:6.2f} s ({row['plan_us_per_node']:4.1f} µs a node)  judge {row['judge_s']:5.2f} s"
    return f"{row['shape']:<7} {row['size']:>4}  {row['nodes']:>7} nodes  {times}  peak {format_bytes(row['peak_bytes']):>9}  {growth}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for plan_speed.json")
    asked = parser.parse_args()
    found = []
    for name in asked.shapes:
        for row in rows(name, asked.repeats):
            found.append(row)
            print(line(row), flush=True)
    if asked.out is not None:
        command = f"python -m bench.plan_speed --repeats {asked.repeats} --shapes {' '.join(asked.shapes)}"
        results.write(asked.out, "plan_speed", command, found)


if __name__ == "__main__":
    main()
