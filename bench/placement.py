"""What does placement cost? Bytes of plans of access traces beside those of the same plans before any tensor had an offset.

Every trace in a folder, at every capacity and link rate that its `reference` names. A plan that was searched for comes from a timetable,
which says which intervals are resident and knows no offsets: `unplaced` is what that one moves, `cost` what the plan moves more. The
horizons' own plan has no timetable: beside it stands the LP bound, which no plan beats, placed or not, so that its cost is at most what is
shown (`<`). Gate: every plan is judged right, or nothing is reported. Four minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import results
from bench.results import ROOT
from bench.traces import SHORT, references
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.bounds.bounds import Effort, bounds
from einpage.memplan.graph.simulate import moved_bytes
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import links_only
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.order import as_written
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.schedule.search import Bound, better_plan


def row(path: Path, reference: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The plan that `einpage plan --graph` makes, and the timetable behind it. Raises SystemExit where the judge rejects."""
    name, graph, budget = path.name.removesuffix(".json.gz"), read_trace(path), int(reference["capacity"])
    machine, order = links_only(reference["bw_h2d"], reference["bw_d2h"], budget), as_written(graph)
    slots = slots_of(problem_of(graph, machine, budget, order, 1))
    assert slots is not None, "every trace has a timetable"
    start = plan(graph, machine, budget, PlanOptions(alignment=1))
    limits = bounds(graph, machine, budget, order, Effort.AUTO)
    found = better_plan(slots, start, Bound(limits.bound_order_s, limits.bytes_bound_order), Pace(until_s=perf_counter() + seconds))
    if judge(found.memgraph) is not None:
        raise SystemExit(f"{name} in {budget} bytes: the judge rejects the plan: nothing is reported")
    moved = sum(moved_bytes(found.memgraph, queue) for queue in (Queue.H2D, Queue.D2H))
    unplaced = None if found.decision is None else found.decision.unplaced_bytes
    return {
        "trace": name,
        "capacity": budget,
        "h2d_bytes_per_s": reference["bw_h2d"],
        "moved": moved,
        "unplaced": unplaced,
        "lp": reference["lp_total"],
        "cost": moved / (unplaced or reference["lp_total"]) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT.parent / "shared/data/paging", help="of *.json.gz traces")
    parser.add_argument("--plan-seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="folder for placement.json")
    asked = parser.parse_args()
    print(f"{'trace':<{SHORT}} {'capacity':>10} {'moved':>10} {'unplaced':>10} {'lp':>10} {'cost':>10}      bytes in MB")
    rows = []
    for path in sorted(asked.folder.glob("*.json.gz")):
        for reference in references(path):
            found = row(path, reference, asked.plan_seconds)
            rows.append(found)
            known = found["unplaced"] is not None
            unplaced = f"{found['unplaced'] / 1e6:.1f}" if known else "-"
            cost = f"{'' if known else '< '}{100 * found['cost']:.2f} %"
            moved = [f"{found[key] / 1e6:>10.1f}" for key in ("capacity", "moved")]
            print(f"{found['trace'][:SHORT]:<{SHORT}} {' '.join(moved)} {unplaced:>10} {found['lp'] / 1e6:>10.1f} {cost:>10}", flush=True)
    if asked.out is not None:
        results.write(asked.out, "placement", f"python -m bench.placement --plan-seconds {asked.plan_seconds:g}", rows)


if __name__ == "__main__":
    main()
