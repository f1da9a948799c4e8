"""How far above the proven bounds are plans of access traces?

Every trace in a folder, at every capacity and link rate that its `reference` names: bytes over both links beside the LP bound, what reuse
distance moves and (where it is known) the integer optimum; makespan beside the LP bound. Prints a table; with --out writes one JSON
file with the command, the commit and the machine that planned. Gate: every plan is judged right, or nothing is reported. Seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Any

from bench import results
from bench.results import ROOT

EINPAGE = (sys.executable, "-c", "from einpage.exec.cli import main; raise SystemExit(main())")
HEAD = ("trace", "capacity", "moved", "lp", "belady", "optimum", "moved/lp", "seconds", "lp_s", "seconds/lp", "plan_s")
SHORT = 28
"""Characters of a trace's name that the table shows."""


def references(path: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads(gzip.decompress(path.read_bytes()))["reference"]


def planned(path: Path, reference: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    """One row: the plan's figures beside the reference's. Raises SystemExit where there is no plan that is judged right."""
    links = ["--h2d", str(reference["bw_h2d"]), "--d2h", str(reference["bw_d2h"])]
    arguments = ["plan", "--graph", str(path), "--budget", str(reference["capacity"]), *links, "--json"]
    arguments += [] if seconds is None else ["--plan-seconds", str(seconds)]
    ran = subprocess.run([*EINPAGE, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    if ran.returncode != 0:
        raise SystemExit(f"einpage {' '.join(arguments)}\nended with status {ran.returncode}:\n{ran.stderr}")
    report = json.loads(ran.stdout)
    if report["verified"] is not True:
        raise SystemExit(f"einpage {' '.join(arguments)}\nmade a plan that the judge rejects: nothing is reported")
    moved = report["h2d_bytes"] + report["d2h_bytes"]
    return {
        "trace": path.name.removesuffix(".json.gz"),
        "capacity": reference["capacity"],
        "h2d_bytes": report["h2d_bytes"],
        "d2h_bytes": report["d2h_bytes"],
        "lp_h2d": reference["lp_h2d"],
        "lp_d2h": reference["lp_d2h"],
        "moved": moved,
        "lp": reference["lp_total"],
        "belady": reference["belady_total"],
        "optimum": reference.get("mip_total"),
        "moved/lp": moved / reference["lp_total"],
        "seconds": report["makespan_s"],
        "lp_s": reference["lp_makespan_s"],
        "seconds/lp": report["makespan_s"] / reference["lp_makespan_s"],
        "bound_order_s": report["bound_order_s"],
        "plan_s": report["plan_s"],
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table; bytes in MB, times in ms."""
    cells = [f"{row['trace'][:SHORT]:<{SHORT}}"]
    for key in HEAD[1:]:
        value = row[key]
        if value is None:
            text = "-"
        elif isinstance(value, int):
            text = f"{value / 1e6:.1f}"
        else:
            text = f"{value:.3f}" if "/" in key or key == "plan_s" else f"{1e3 * value:.2f}"
        cells.append(f"{text:>10}")
    return " ".join(cells)


def geometric_mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT.parent / "shared/data/paging", help="of *.json.gz traces")
    parser.add_argument("--plan-seconds", type=float, help="as of einpage plan")
    parser.add_argument("--out", type=Path, help="folder for traces.json")
    asked = parser.parse_args()
    paths = sorted(asked.folder.glob("*.json.gz"))
    if not paths:
        raise SystemExit(f"{asked.folder}: no *.json.gz there; name the folder of the traces")
    print(" ".join([f"{HEAD[0]:<{SHORT}}", *(f"{word:>10}" for word in HEAD[1:])]) + "      bytes in MB, times in ms, plan_s in s")
    rows = []
    for path in paths:
        for reference in references(path):
            rows.append(planned(path.resolve(), reference, asked.plan_seconds))
            print(line(rows[-1]), flush=True)
    for key in ("moved/lp", "seconds/lp"):
        ratios = [row[key] for row in rows]
        print(f"{key}: geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}")
    if asked.out is not None:
        results.write(
            asked.out,
            "traces",
            "python -m bench.traces" + ("" if asked.plan_seconds is None else f" --plan-seconds {asked.plan_seconds:g}"),
            rows,
        )


if __name__ == "__main__":
    main()
