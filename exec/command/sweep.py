"""`einpage plan --sweep`: time against the budget, or against a size of the spec, each point a plan that the judge has passed.

In: `budget=4GiB:40GiB`, `seq=512:8192`, with `:N` for N points. Out: a table with bars; with `--json` a list, one report a point; with
`--timeline` the curve as a page or an SVG. Budgets are evenly spaced, sizes are doublings, both evenly with `:N`. A budget that is too
small says so in its row, unless all are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes, whole_number
from einpage.exec.command.options import settings_of
from einpage.exec.picture.curve_svg import render_curve
from einpage.exec.planning.judged_plan import Planned
from einpage.memplan.bounds.limit import limit_name
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.report import Report

BUDGET = "budget"
POINTS, MOST_POINTS = 10, 200
BAR = 32
"""Characters of the longest bar."""

PlannedFor = Callable[[argparse.Namespace, int, float], Planned]
"""planned_for(arguments, budget, when it began), as Plans.planned. Raises EinpageError."""


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    values: tuple[int, ...]
    """Bytes for a budget; ascending."""

    def value_text(self, value: int) -> str:
        """A value for a person: bytes with their unit, or a size's number."""
        return format_bytes(value) if self.name == BUDGET else str(value)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a sweep, and its plan's report or why it has none."""

    value: int
    found: Report | DoesNotFit

    def facts(self, name: str) -> dict[str, object]:
        """As `plan --sweep NAME=… --json` prints it."""
        point: dict[str, object] = {"sweep": name, "value": self.value}
        if isinstance(self.found, DoesNotFit):
            return {**point, "does_not_fit": str(self.found), "smallest_budget": self.found.misfit.smallest_budget}
        return {**point, **self.found.facts()}


def parse_sweep(text: str) -> Sweep:
    """`NAME=LOW:HIGH[:N]`. Raises UsageError for another form, an empty range, or a number of points that makes no sense."""
    name, equals, span = text.partition("=")
    name, limits = name.strip(), span.split(":")
    if not (name and equals and len(limits) in (2, 3)):
        raise UsageError(f"--sweep {text}: write a name and a range, as in --sweep budget=4GiB:40GiB or --sweep seq=512:8192")
    low, high = (parse_bytes(w, f"--sweep {name}") if name == BUDGET else _whole(w, text) for w in limits[:2])
    if low >= high:
        raise UsageError(f"--sweep {text}: the range is empty; the first of its ends must be the smaller one")
    points = _whole(limits[2], text) if len(limits) == 3 else None
    if points is not None and not 2 <= points <= MOST_POINTS:
        raise UsageError(f"--sweep {text}: {points} points; give a number from 2 to {MOST_POINTS}")
    if name != BUDGET and points is None:
        return Sweep(name, tuple(low << n for n in range((high // low).bit_length())))
    n = points or POINTS
    return Sweep(name, tuple(dict.fromkeys(low + (high - low) * i // (n - 1) for i in range(n))))


def _whole(word: str, text: str) -> int:
    if not (number := whole_number(word)):
        raise UsageError(f"--sweep {text}: {word.strip()!r} is not a positive whole number; write as in --sweep seq=512:8192")
    return number


def sweep_command(a: argparse.Namespace, planned_for: PlannedFor) -> int:
    """Plan every point, then print. Raises DoesNotFit where no point has a plan; EinpageError as planning does."""
    sweep = parse_sweep(a.sweep)
    if a.out:
        raise UsageError("--out saves one plan and --sweep makes many: leave one of them out")
    if sweep.name == BUDGET and a.budget is not None:
        raise UsageError("--budget and --sweep budget both give the budget; use one")
    if sweep.name != BUDGET and a.budget is None:
        raise UsageError(f"--sweep {sweep.name}: under which budget? add --budget SIZE, as 8GiB")
    if sweep.name != BUDGET and a.graph:
        raise UsageError(f"--sweep {sweep.name}: a trace has no sizes to set; sweep the budget")
    if sweep.name in settings_of(a.set):
        raise UsageError(f"--set {sweep.name} and --sweep {sweep.name} both give the size; use one")
    budget = 0 if sweep.name == BUDGET else parse_bytes(a.budget, "--budget")
    console = Console(stderr=True)
    quiet = a.json or not console.is_terminal
    values = track(sweep.values, "plan", console=console, transient=True, disable=quiet)
    points = [_point(a, sweep, value, budget or value, planned_for) for value in values]
    if a.timeline:
        curve = [(p.value, p.found.makespan_s, p.found.bound_s) for p in points if isinstance(p.found, Report)]
        _draw(Path(a.timeline), render_curve(f"{a.sweep} on {a.machine or 'cpu'}", curve, sweep.value_text))
    if a.json:
        print(json.dumps([point.facts(sweep.name) for point in points]))
    else:
        table = Console()
        with table.capture() as drawn:  # printed as everything is: a reader that has gone would be an error to Console
            table.print(_table(sweep, points))
        print(drawn.get(), end="")
    return 0


def _draw(path: Path, svg: str) -> None:
    """The curve alone, or as a page where the name does not end in .svg."""
    write_atomically(
        path, svg if path.suffix == ".svg" else f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>einpage: sweep</title>\n{svg}'
    )


def _point(a: argparse.Namespace, sweep: Sweep, value: int, budget: int, planned_for: PlannedFor) -> SweepPoint:
    """Raises EinpageError but for a budget that is too small."""
    settings = a.set if sweep.name == BUDGET else [*a.set, f"{sweep.name}={value}"]
    try:
        planned = planned_for(argparse.Namespace(**{**vars(a), "set": settings}), budget, perf_counter())
    except DoesNotFit as refused:
        if value == sweep.values[-1] and sweep.name == BUDGET:
            raise
        return SweepPoint(value, refused)
    return SweepPoint(value, planned.report)


def _table(sweep: Sweep, points: list[SweepPoint]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in (sweep.name, "time", "÷ bound", "moved", "limited by"):
        table.add_column(head, justify="left" if head == "limited by" else "right", no_wrap=True)
    table.add_column("")
    longest = max((p.found.makespan_s for p in points if isinstance(p.found, Report)), default=0.0)
    for point in points:
        name, found = sweep.value_text(point.value), point.found
        if isinstance(found, DoesNotFit):
            least = found.misfit.smallest_budget
            table.add_row(name, "-", "-", "-", "", f"does not fit; {format_bytes(least)} would" if least else "does not fit")
            continue
        ratio = "-" if found.bound_ratio is None else f"{found.bound_ratio:.3f}"
        bar = "█" * max(1, round(BAR * found.makespan_s / longest)) if longest else ""
        moved = format_bytes(found.h2d_bytes + found.d2h_bytes)
        table.add_row(name, format_seconds(found.makespan_s), ratio, moved, limit_name(found.limited_by), bar)
    return table
