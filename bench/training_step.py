"""A training step in too little memory, again and again: our planner beside the published rules for inactive intervals.

In: a step as JSON (`kernels` with their seconds and the tensors that they read and write, `tensors` with their bytes, `global` where they
live from step to step, `peak_live_bytes`, `ideal_seconds`). Out: for each capacity and link, which share of the ideal steps reach with each
planner, as a table. Steps are unrolled; what LONG of them take more than SHORT is what steps in the middle take.

    python bench/training_step.py STEP.json [--seconds 10] [--capacity 0.6,0.45,0.35] [--links 6.5e9,16e9,32e9]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine, links_only
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.pace import Pace
from einpage.memplan.schedule.static_plans import Policy

SHORT, LONG = 2, 4
STATIC = (Policy.STREAM_ALL, Policy.TERAIO, Policy.G10)


class Unrolled:
    """So many steps as one graph: each write of a tensor is a new version of it, in place of the old one where the kernel reads that."""

    def __init__(self, step: Mapping[str, Any], steps: int) -> None:
        self._bytes = {t["name"]: int(t["bytes"]) for t in step["tensors"]}
        self._tensors: list[Tensor] = []
        self._tasks: list[Task] = []
        self._ops: list[Op] = []
        self._newest: dict[str, TensorId] = {}
        for t in step["tensors"]:
            if t["global"]:
                self._newest[t["name"]] = self._version(t["name"], Kind.WEIGHT)
        for n in range(steps):
            for k, kernel in enumerate(step["kernels"]):
                self._kernel(f"{n}.{k}", kernel)

    def graph(self) -> TaskGraph:
        """The steps."""
        values = tuple(Value(t.name, t.name, t.box.shape, DType.BYTE, t.kind) for t in self._tensors)
        return TaskGraph("steps", DType.FP32, (), values, tuple(self._tensors), tuple(self._tasks), tuple(self._ops), ())

    def _version(self, name: str, kind: Kind) -> TensorId:
        number = TensorId(len(self._tensors))
        self._tensors.append(Tensor(number, f"{name} {number}", f"{name} {number}", Box((0,), (self._bytes[name],)), DType.BYTE, kind))
        return number

    def _kernel(self, name: str, kernel: Mapping[str, Any]) -> None:
        """A task a result: the first takes the kernel's time, and every one reads what the kernel reads and what those before it wrote."""
        reads = [self._newest[t] for t in kernel["reads"]]
        before = {t: self._newest.get(t) for t in kernel["writes"]}
        for i, t in enumerate(kernel["writes"]):
            donated = before[t]
            result = self._version(t, Kind.ACTIVATION)
            operands = tuple(
                (r,) for r in (reads if i == 0 else [r for r in reads if r == donated] + [self._newest[kernel["writes"][i - 1]]])
            )
            op, number = OpId(len(self._ops)), TaskId(len(self._tasks))
            seconds = float(kernel["seconds"]) if i == 0 else 0.0
            inplace = (donated,) if donated is not None and (donated,) in operands else ()
            self._ops.append(Op(op, f"{name}.{i}", "traced", 0, Nbytes(0), "", seconds))
            self._tasks.append(Task(number, f"{name}.{i}", op, operands, result, inplace, 0, Nbytes(0), Nbytes(0), None, False, seconds))
            self._newest[t] = result


def seconds(graph: TaskGraph, machine: Machine, budget: int, options: PlanOptions, search_s: float) -> float:
    """Of the plan, which the judge has passed."""
    from time import perf_counter

    pace = Pace(until_s=perf_counter() + search_s) if search_s and options.policy is Policy.AUTO else None
    made = plan(graph, machine, budget, options, pace)
    assert judge(made) is None
    return simulate(made, machine).makespan_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step")
    parser.add_argument("--seconds", type=float, default=10.0, help="of search for each of our plans")
    parser.add_argument("--capacity", default="0.6,0.45,0.35", help="shares of the step's peak")
    parser.add_argument("--links", default="6.5e9,16e9,32e9", help="bytes per second each way")
    a = parser.parse_args()
    step = json.loads(Path(a.step).read_text(encoding="utf-8"))
    graphs = {steps: Unrolled(step, steps).graph() for steps in (SHORT, LONG)}
    shares: dict[str, list[float]] = {}
    print(f"{'capacity':>8} {'link':>8} " + " ".join(f"{p.value:>11}" for p in (*STATIC, Policy.AUTO)))
    for capacity in map(float, a.capacity.split(",")):
        for link in map(float, a.links.split(",")):
            budget = int(capacity * step["peak_live_bytes"])
            machine, row = links_only(link, link, budget), []
            for policy in (*STATIC, Policy.AUTO):
                try:
                    took = {n: seconds(g, machine, budget, PlanOptions(alignment=1, policy=policy), a.seconds) for n, g in graphs.items()}
                except EinpageError:
                    row.append(float("nan"))
                    continue
                row.append(step["ideal_seconds"] * (LONG - SHORT) / (took[LONG] - took[SHORT]))
                shares.setdefault(policy.value, []).append(row[-1])
            print(f"{capacity:>8} {link / 1e9:>6}GB " + " ".join(f"{share:>11.3f}" for share in row), flush=True)
    print("mean " + " ".join(f"{name} {sum(found) / len(found):.3f}" for name, found in shares.items()))


if __name__ == "__main__":
    main()
