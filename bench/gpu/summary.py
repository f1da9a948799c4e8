"""What the parts found, on one screen, and as summary.json: which gates are green, the figures that have a target, what is absent.

In: the folder with the parts' files. Out: lines, and one word of the whole. Nothing is worked out here that a part did not measure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import results

SHOWN_MISSES = 20
FASTER = 0.98
"""Of the time of the tile in use: less is worth changing the table."""
FOLDED = ("compile", "tiles")
"""Parts that are of interest only beside the others: their rows end in summary.json, and they have no file of their own."""


def read(out: Path, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Every part's file; of a part that left none, one that says so."""
    found = {}
    for part in parts:
        path = out / f"{part}.json"
        empty = {"state": "did not start", "green": False, "gates": [], "rows": [], "absent": {}, "left_out": [], "seconds": 0.0}
        found[part] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty
    return found


def word(part: dict[str, Any]) -> str:
    """green | RED | cut | absent | did not start"""
    if part["green"]:
        return "green"
    if part["state"] != "finished":
        return str(part["state"])
    return "absent" if not part["gates"] and part["absent"] else "RED"


def lines(parts: dict[str, dict[str, Any]]) -> Iterator[str]:
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
        what = row.get("case") or f"{row['model']} {row['seq']}"
        yield f"  below    {name}: {what}: {reached:.3f} of the {row['target']:.2f} wanted"


def headline(name: str, rows: list[dict[str, Any]]) -> str:
    """One line of figures, of the rows whose check held."""
    rows = [row for row in rows if "refused" not in row]
    match name:
        case "links" if rows:
            row = rows[0]
            rates = [f"{word} {row[key] / 1e9:.1f}" for word, key in (("in", "h2d_bytes_per_s"), ("out", "d2h_bytes_per_s"))]
            return f"{', '.join(rates)}, inside {row['device_copy_bytes_per_s'] / 1e9:.0f} GB/s"
        case "kernels" if rows:
            worst = {kind: min(row["ratio"] for row in rows if row["kind"] == kind) for kind in sorted({row["kind"] for row in rows})}
            return "slowest ÷ library: " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in worst.items())
        case "tests" if rows:
            return f"{rows[-1]['passed']} tests passed"
        case "smollm2" if rows:
            return f"{len(rows)} prompts right, static {1e3 * rows[0]['wall_s']['static']:.1f} ms"
        case "models" if rows:
            return "measured ÷ floor: " + ", ".join(f"{row['model']} {row['seq']} {row['floor_ratio']:.3f}" for row in rows[:4])
        case "tiles" if rows:
            used = {row["case"]: row["seconds"] for row in rows if row["in_use"]}
            faster = [row for row in rows if row["case"] in used and row["seconds"] < FASTER * used[row["case"]]]
            return "faster than the table's: " + ("; ".join(f"{row['case']} {row['tile']} {row['ratio']:.2f}" for row in faster) or "none")
        case "peers" if rows:
            found = [f"{row['peer']} {row['seq']} {row['times_ours']:.2f}" for row in rows if row.get("times_ours")]
            return "time ÷ ours: " + ", ".join(found)
    return ""


def write(out: Path, command: str, parts: dict[str, dict[str, Any]], seconds: float, dry: bool) -> Path:
    rows: list[dict[str, Any]] = [
        {"part": name, "word": word(part), "seconds": part["seconds"], "absent": part["absent"], "left_out": part["left_out"]}
        for name, part in parts.items()
    ]
    first: dict[str, Any] = next((part for part in parts.values() if "machine" in part), {})
    for row in rows:
        if row["part"] in FOLDED:
            row["rows"] = parts[row["part"]]["rows"]
            (out / f"{row['part']}.json").unlink(missing_ok=True)
    facts = {"machine": first.get("machine"), "versions": first.get("versions"), "dry_run": dry, "seconds": round(seconds, 1)}
    return results.write(out, "summary", command, rows, **facts, table=list(lines(parts)))
