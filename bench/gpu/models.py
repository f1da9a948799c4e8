"""How near the floor are whole models? LLaMA-7B and a 24-layer 65B, seeded random fp16 weights, in arenas of 4, 8 and 16 GiB.

Floor = max(compute alone, bytes ÷ link): compute alone is a pass of the same model with everything resident, where it fits, else the plan's
own kernels one behind the other between two of the device's events, with no copy and no wait of the host among them; the bytes are the
fewest that any plan must bring in, the link is the measured one. Gates: static, dynamic and serial give the same logits to the bit; those
of the resident run are within 2e-2 of them; bytes moved are the plan's (the engines assert it); the device's memory beyond the arena stays
under a GiB. What the time does not allow is left out. `first` is one cell, early: the first proof of driver, events and graphs; `large` is
65B's, in a call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import torch

from bench.gpu.cells import CELLS, DRY_CELLS, DRY_FIRST, DRY_LARGE, FIRST, LARGE, SIZES, TINY, Cell
from bench.gpu.compile import compile_all, model_jobs
from bench.gpu.formulas import relative
from bench.gpu.host_weights import HostWeights, in_host_memory
from bench.gpu.links import link_rate, profile
from bench.gpu.report import Report
from bench.gpu.runs import WARM_UPS, Runs, Watched, forget_memory, kept_arena, kernels_alone_s, opened, prepared, repeat
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.device.stream_memory import KeptMemory
from einpage.exec.planning.model import Model
from einpage.exec.run.choose import Dispatch
from einpage.exec.run.prepared import Prepared
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.report import Report as PlanReport

TOLERANCE = 2e-2
MOST_OUTSIDE = 1 << 30
"""Of device memory beyond the arena."""
MOST_GATHERED = 0.1
"""Of everything: what a pass with everything resident may still bring in, the rows of the embedding."""
TARGET = 0.93
"""Of floor ÷ measured."""
COMPILING_S = 25.0
LEAST_LEFT_S = {"7B": 20.0, "65B/24": 45.0, "tiny": 0.0}
"""What a cell takes at most, with its weights to load and its kernels to compile."""


@dataclass(slots=True)
class Bench:
    """What cells share: one model's weights, and the host's arena."""

    report: Report
    machine: Machine
    kept: KeptMemory
    host_weights_of: str = ""
    host_weights: HostWeights | None = None

    def model(self, cell: Cell) -> Model:
        """The cell's model over the weights in host memory, made now where they are of another model."""
        setting = self.report.setting
        model = opened((TINY if setting.dry else SIZES)[cell.model], cell.seq)
        if self.host_weights is None or self.host_weights_of != cell.model:
            self.host_weights = None
            forget_memory(setting)
            began = perf_counter()
            self.host_weights, self.host_weights_of = in_host_memory(model), cell.model
            self.report.say(f"weights of {cell.model} made in {perf_counter() - began:.1f} s")
        return self.host_weights.give_to(model)


def measure(report: Report) -> None:
    _measure_all(report, DRY_CELLS if report.setting.dry else CELLS)


def measure_first(report: Report) -> None:
    _measure_all(report, DRY_FIRST if report.setting.dry else FIRST)


def measure_large(report: Report) -> None:
    _measure_all(report, DRY_LARGE if report.setting.dry else LARGE)


def _measure_all(report: Report, cells: Sequence[Cell]) -> None:
    setting = report.setting
    _compile(report, [cell for cell in cells if not report.knows(_name(cell))][:1])
    with closing(kept_arena(setting)) as kept:
        _measure_cells(Bench(report, profile(setting.out, setting.dry), kept), cells)


def _measure_cells(bench: Bench, cells: Sequence[Cell]) -> None:
    report, alone = bench.report, dict[tuple[str, int], Runs]()
    for cell in cells:
        name = _name(cell)
        if not report.begin(name, LEAST_LEFT_S[cell.model]):
            continue
        try:
            _measure(bench, cell, name, alone)
        except Exception as error:
            report.failed(name, error)
        forget_memory(report.setting)


def _name(cell: Cell) -> str:
    return f"{cell.model} {cell.seq} in {format_bytes(cell.budget)}"


def _compile(report: Report, cells: Sequence[Cell]) -> None:
    """What the cells run, by several processes, into Triton's cache: one after the other they would take most of the part's time."""
    for cell in () if report.setting.dry else cells:
        began = perf_counter()
        done = [w.title for w, _, fault in compile_all(model_jobs(cell, False), False, COMPILING_S) if fault is None]
        report.say(f"{len(done)} kernels of {_name(cell)} compiled in {perf_counter() - began:.1f} s")


def _measure(bench: Bench, cell: Cell, name: str, alone: dict[tuple[str, int], Runs]) -> None:
    setting = bench.report.setting
    model = bench.model(cell)
    began = perf_counter()
    with prepared(setting, model, bench.machine, cell.budget, kept=bench.kept) as ready:
        load_s = perf_counter() - began
        with Watched(setting) as watched:
            repeat(ready, Dispatch.STATIC, WARM_UPS)
        times = {Dispatch.STATIC: 3, Dispatch.DYNAMIC: 3, Dispatch.SERIAL: 1}
        runs = {dispatch: repeat(ready, dispatch, 1 if setting.dry else n) for dispatch, n in times.items()}
        kernels_s = kernels_alone_s(ready)
        row = {**_figures(bench, ready, runs, watched), "kernels_alone_s": kernels_s, "schedule_s": ready.schedule_s}
        ready_report = ready.planned.report
    del ready
    forget_memory(setting)
    _compute_alone(bench, cell, model, alone)
    _report(bench, cell, name, runs, kernels_s, alone.get((cell.model, cell.seq)), {**row, "load_s": load_s}, ready_report)


def _figures(bench: Bench, ready: Prepared, runs: dict[Dispatch, Runs], watched: Watched) -> dict[str, object]:
    peak = watched.peak_bytes
    outside = None if peak is None else peak - ready.device.arena_bytes
    return {
        "wall_s": {dispatch.value: run.wall_s for dispatch, run in runs.items()},
        "walls_s": {dispatch.value: run.walls_s for dispatch, run in runs.items()},
        "predicted_s": ready.planned.report.predicted_s,
        "measured_ratio": runs[Dispatch.STATIC].wall_s / ready.planned.report.predicted_s,
        "serial_compute_s": runs[Dispatch.SERIAL].measured.busy_s[Queue.COMPUTE],
        "h2d_bytes": runs[Dispatch.STATIC].measured.moved_bytes[Queue.H2D],
        "d2h_bytes": runs[Dispatch.STATIC].measured.moved_bytes[Queue.D2H],
        "arena_bytes": ready.device.arena_bytes,
        "outside_arena_bytes": ready.device.outside_arena_bytes,
        "driver_outside_arena_bytes": outside,
        "device": ready.device.name,
    }


def _compute_alone(bench: Bench, cell: Cell, model: Model, alone: dict[tuple[str, int], Runs]) -> None:
    """A steady pass with everything resident, once a model and length, where device, host and time allow."""
    setting = bench.report.setting
    key = (cell.model, cell.seq)
    need = _resident_bytes(model)
    room = setting.dry or (cell.model == "7B" and setting.left_s() > LEAST_LEFT_S[cell.model])
    if key in alone or not room or need > bench.machine.device_bytes:
        return
    try:
        with prepared(setting, model, bench.machine, need, 3, bench.kept) as ready:
            repeat(ready, Dispatch.STATIC, 1)
            found = repeat(ready, Dispatch.STATIC, 1)
    except DoesNotFit:  # the host has no room for it
        return
    if found.measured.moved_bytes[Queue.H2D] < MOST_GATHERED * need:
        alone[key] = found


def _resident_bytes(model: Model) -> int:
    """Room for all weights, in fp16, and twenty activations as wide as the model or the largest of its layers."""
    sizes = model.program.sizes
    weights = sum(2 * torch.Size(w.shape).numel() for w in model.program.weights)
    return weights + 40 * sizes["seq"] * max(sizes["model"], sizes["ffn"]) + (64 << 20)


def _report(
    bench: Bench,
    cell: Cell,
    name: str,
    runs: dict[Dispatch, Runs],
    kernels_s: float,
    alone: Runs | None,
    row: dict[str, object],
    plan: PlanReport,
) -> None:
    report, static = bench.report, runs[Dispatch.STATIC]
    same = all(torch.equal(static.logits, run.logits) for run in runs.values()) and bool(static.logits.isfinite().all())
    report.check(f"{name}: bits", same, "static, dynamic and serial are equal" if same else "dispatchers differ, or a logit is not finite")
    error = None if alone is None else relative(static.logits, alone.logits)
    if error is not None:
        report.check(f"{name}: resident", error <= TOLERANCE, f"logits within {error:.1e} of those with everything resident")
    outside = row["driver_outside_arena_bytes"]
    if isinstance(outside, int):
        report.check(f"{name}: memory", outside < MOST_OUTSIDE, f"{outside / 2**20:.0f} MiB of device memory beyond the arena")
    compute_s = kernels_s if alone is None else alone.wall_s
    least_bytes = plan.bytes_bound_h2d
    link_s = least_bytes / link_rate(report.setting.out, bench.machine)
    floor_s = max(compute_s, link_s)
    found = {
        "compute_alone_s": compute_s,
        "compute_alone_by": "its kernels one behind the other, by events" if alone is None else "a pass with everything resident",
        "link_s": link_s,
        "floor_s": floor_s,
        "floor_ratio": static.wall_s / floor_s,
        "bound_ratio": plan.bound_ratio,
        "bytes_bound_h2d": least_bytes,
        "target": TARGET,
        "meets": floor_s / static.wall_s >= TARGET,
    }
    key = {"model": cell.model, "seq": cell.seq, "budget_bytes": cell.budget, "tasks": plan.tasks, "split": plan.facts()["split"]}
    walls = ", ".join(f"{dispatch.value} {run.wall_s:.3f}" for dispatch, run in runs.items())
    bound_by = "link" if link_s >= compute_s else "compute"
    line = f"{walls} s; floor {floor_s:.3f} s ({bound_by}), measured ÷ floor {static.wall_s / floor_s:.3f}"
    line += f", ÷ predicted {row['measured_ratio']:.3f}"
    ok = same and (error is None or error <= TOLERANCE)
    report.row(name, ok, "bits equal" + ("" if error is None else f", resident within {error:.1e}"), key, {**row, **found}, line)
