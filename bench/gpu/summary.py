"""What the parts found, on one screen: which gates are green, the figures that have a target, what is absent. Needs Python alone.

In: the results file. Out: lines, and one word of each part. Nothing is worked out here that a part did not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu import results_file

SHOWN_MISSES = 20
FASTER = 0.98
"""Of the time of the tile in use: less is worth changing the table."""
EMPTY = {"state": "did not start", "green": False, "gates": [], "rows": [], "absent": {}, "left_out": [], "seconds": 0.0}


def read(out: Path, parts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What every part left; of one that left nothing, an entry that says so."""
    found = results_file.read(out)["parts"]
    return {part: found.get(part, EMPTY) for part in parts}


def word(part: Mapping[str, Any]) -> str:
    """green | RED | cut | absent | did not start"""
    if part["green"]:
        return "green"
    if part["state"] != "finished":
        return str(part["state"])
    return "absent" if not part["gates"] and part["absent"] else "RED"


def is_done(part: Mapping[str, Any]) -> bool:
    """Whether there is nothing left that another call could do better."""
    return bool(part["green"]) and not part["absent"] and not part["left_out"]


def lines(parts: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield "part       gates          time    measured"
    for name, part in parts.items():
        right = sum(gate["ok"] for gate in part["gates"])
        said = "" if part.get("dry_run") else headline(name, part["rows"])
        yield f"{name:<10} {word(part):<6} {right:>3}/{len(part['gates']):<3} {part['seconds']:6.1f} s  {said}".rstrip()
    for name, part in parts.items():
        for gate in part["gates"]:
            if not gate["ok"]:
                yield f"  RED      {name}: {gate['what']}: {gate['detail']}"
        for what, why in part["absent"].items():
            yield f"  absent   {name}: {what}: {why}"
        if part["left_out"]:
            yield f"  left out {name}: {', '.join(part['left_out'])}"
    missed = [(name, row) for name, part in parts.items() for row in part["rows"] if row.get("meets") is False]
    for name, row in missed[:SHOWN_MISSES]:
        reached = row["ratio"] if "ratio" in row else 1 / row["floor_ratio"]
        yield f"  below    {name}: {row['what']}: {reached:.3f} of the {row['target']:.2f} wanted"


def verdict(parts: Mapping[str, dict[str, Any]], path: Path, seconds: float) -> str:
    """The last line: one word of the whole, and the first thing that is wrong."""
    gates = [(name, gate) for name, part in parts.items() for gate in part["gates"]]
    red = [f"{name}: {gate['what']}: {gate['detail']}" for name, gate in gates if not gate["ok"]]
    unfinished = [f"{name} {word(part)}" for name, part in parts.items() if part["state"] != "finished"]
    absent = [name for name, part in parts.items() if word(part) == "absent"]
    wrong = [f"{len(red)} of {len(gates)} gates are red, the first: {red[0]}"] if red else []
    wrong += [", ".join(unfinished)] if unfinished else []
    wrong += [f"absent: {', '.join(absent)}"] if absent else []
    whole = "RED" if red else "cut" if unfinished else "green"
    said = "; ".join(wrong) if wrong else f"{len(gates)} gates of {len(parts)} parts"
    return f"gpu.sh: {whole}: {said}; {seconds:.0f} s; {path}"


def headline(name: str, rows: list[dict[str, Any]]) -> str:
    """One line of figures, of the rows whose check held."""
    rows = [row for row in rows if "refused" not in row]
    match name:
        case "links" if rows:
            best = {key: max((row[key] for row in rows if key in row), default=0.0) for key in ("h2d_bytes_per_s", "d2h_bytes_per_s")}
            inside = max((row["device_copy_bytes_per_s"] for row in rows if "device_copy_bytes_per_s" in row), default=0.0)
            rates = [f"in {best['h2d_bytes_per_s'] / 1e9:.1f}", f"out {best['d2h_bytes_per_s'] / 1e9:.1f}", f"inside {inside / 1e9:.0f}"]
            return f"{', '.join(rates)} GB/s"
        case "kernels" if rows:
            worst = {kind: min(row["ratio"] for row in rows if row["kind"] == kind) for kind in sorted({row["kind"] for row in rows})}
            return "slowest ÷ library: " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in worst.items())
        case "tests" if rows:
            return f"{sum(row['passed'] for row in rows)} tests passed"
        case "smollm2" if rows:
            return f"{len(rows)} prompts right, static {1e3 * rows[0]['wall_s']['static']:.1f} ms"
        case "first" | "models" | "large" if rows:
            return "measured ÷ floor: " + ", ".join(f"{row['model']} {row['seq']} {row['floor_ratio']:.3f}" for row in rows[:4])
        case "tiles" if rows:
            used = {row["case"]: row["seconds"] for row in rows if row["in_use"]}
            faster = [row for row in rows if row["case"] in used and row["seconds"] < FASTER * used[row["case"]]]
            return "faster than the table's: " + ("; ".join(f"{row['case']} {row['tile']} {row['ratio']:.2f}" for row in faster) or "none")
        case "peers" if rows:
            found = [f"{row['peer']} {row['seq']} {row['times_ours']:.2f}" for row in rows if row.get("times_ours")]
            return "time ÷ ours: " + ", ".join(found)
    return ""
