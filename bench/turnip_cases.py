"""What do our plans move and take where the published planner (Turnip, of the Einsummable project) was measured?

LLaMA-7B in fp16, attention in parts, weights on the device at the start as far as they fit, its cost model: contractions 140 TFLOP/s, the
rest 1.3 TB/s, 22 GB/s each way, 8 us a launch, one queue an engine. Their columns are its own simulator's. Sizes, memory and cost model are
the same; our tasks are not theirs one by one. Its compute takes longer for the same model; it counts a memory full of weights at the start,
where ours leaves the bytes free that scores will need. Gate: every plan is judged right, or nothing is reported. Seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import results
from bench.results import ROOT
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.graph.taskgraph import HOST_AT_START
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.graph.memgraph import MemGraph, Move
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import PlaceKind, host_links

NO_FUSE = ("attention",)
PIECES = {Letter("k"): 2}
"""Scores in two halves of the heads."""
LINK = 22e9


@dataclass(frozen=True, slots=True)
class Published:
    """One case as published: GB are decimal, times in ms."""

    seq: int
    budget_gb: int
    h2d_gb: float
    d2h_gb: float
    clean_share: float
    """Of the bytes to the host: what the host had already."""
    ms: float
    ms_without_clean: float
    """Had it not written clean bytes."""
    compute_ms: float
    compulsory_gb: float
    """Weights that are not on the device at the start."""


CASES = (
    Published(1024, 8, 5.67, 5.78, 1.0, 463, 382, 159, 5.23),
    Published(1024, 4, 9.76, 9.91, 1.0, 727, 533, 159, 9.23),
    Published(4096, 8, 11.98, 18.18, 0.996, 1407, 1159, 1144, 5.23),
)


def machine_of(case: Published) -> Machine:
    return Machine(
        name="published",
        device_bytes=case.budget_gb * 10**9,
        host_bytes=2**39,
        flops_per_s=tuple((dtype, 140e12) for dtype in RUN_DTYPES),
        device_bytes_per_s=1.3e12,
        links=host_links(LINK, LINK),
        launch_latency_s=8e-6,
        about="The cost model that the published planner was simulated with.",
    )


def planned(case: Published) -> Planned:
    program = open_model(ROOT / "specs/llama.yaml", {"seq": case.seq, "batch": 1}).program
    machine = machine_of(case)
    request = PlanRequest(machine.device_bytes, DType.FP16, pieces=PIECES, no_fuse=NO_FUSE, warm=True, bound_effort=Effort.LP)
    return plan_program(program, machine, request)


def clean_bytes(memgraph: MemGraph) -> int:
    """Bytes sent to the host although it had them: of what was there at the start, or had been sent before."""
    tensors, residencies = memgraph.graph.tensors, memgraph.residencies
    there = {t.id for t in tensors if t.kind in HOST_AT_START}
    clean = 0
    for node in memgraph.nodes:
        for _, target in node.copies if isinstance(node, Move) else ():
            if residencies[target].place.kind is PlaceKind.HOST:
                tensor = residencies[target].tensor
                clean += tensors[tensor].nbytes if tensor in there else 0
                there.add(tensor)
    return clean


def row(case: Published) -> dict[str, Any]:
    found = planned(case)
    report = found.report
    theirs_bound_ms = max(case.compute_ms, case.compulsory_gb * 1e12 / LINK)
    return {
        "case": f"1 x {case.seq}, {case.budget_gb} GB",
        "tasks": report.tasks,
        "h2d_gb": report.h2d_bytes / 1e9,
        "compulsory_gb": report.bytes_bound_h2d / 1e9,
        "h2d_over_compulsory": report.h2d_bytes / report.bytes_bound_h2d,
        "d2h_gb": report.d2h_bytes / 1e9,
        "clean_d2h_bytes": clean_bytes(found.memgraph),
        "compute_ms": 1e3 * report.compute_s,
        "ms": 1e3 * report.makespan_s,
        "bound_order_ms": 1e3 * report.bound_order_s,
        "over_bound_order": report.bound_order_ratio,
        "theirs": {
            "h2d_gb": case.h2d_gb,
            "compulsory_gb": case.compulsory_gb,
            "h2d_over_compulsory": case.h2d_gb / case.compulsory_gb,
            "d2h_gb": case.d2h_gb,
            "clean_d2h_gb": case.clean_share * case.d2h_gb,
            "compute_ms": case.compute_ms,
            "ms": case.ms,
            "ms_without_clean": case.ms_without_clean,
            "bound_ms": theirs_bound_ms,
            "over_bound": case.ms / theirs_bound_ms,
        },
    }


def text(found: dict[str, Any]) -> str:
    theirs = found["theirs"]
    pairs = [
        ("to device, GB", f"{found['h2d_gb']:.2f}", f"{theirs['h2d_gb']:.2f}"),
        ("  weights not there, GB", f"{found['compulsory_gb']:.2f}", f"{theirs['compulsory_gb']:.2f}"),
        ("  moved over not there", f"{found['h2d_over_compulsory']:.3f}", f"{theirs['h2d_over_compulsory']:.3f}"),
        ("to host, GB", f"{found['d2h_gb']:.2f}", f"{theirs['d2h_gb']:.2f}"),
        ("  of it clean, GB", f"{found['clean_d2h_bytes'] / 1e9:.2f}", f"{theirs['clean_d2h_gb']:.2f}"),
        ("compute, ms", f"{found['compute_ms']:.0f}", f"{theirs['compute_ms']:.0f}"),
        ("time, ms", f"{found['ms']:.0f}", f"{theirs['ms']:.0f} ({theirs['ms_without_clean']:.0f} without clean bytes)"),
        ("bound, ms", f"{found['bound_order_ms']:.0f}", f"{theirs['bound_ms']:.0f} (the busier of compute and link)"),
        ("  time over bound", f"{found['over_bound_order']:.3f}", f"{theirs['over_bound']:.3f}"),
    ]
    head = f"LLaMA-7B, batch x sequence {found['case']}: {found['tasks']} tasks\n{'':<28}{'ours':>10}   theirs"
    return "\n".join([head, *(f"  {what:<26}{ours:>10}   {published}" for what, ours, published in pairs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for turnip_cases.json")
    asked = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(row(case))
        print(text(rows[-1]) + "\n", flush=True)
    print("Same model, sizes, memory and cost model. Our tasks are not theirs one by one.")
    if asked.out is not None:
        results.write(asked.out, "turnip_cases", "python -m bench.turnip_cases", rows)


if __name__ == "__main__":
    main()
