"""What a run measured, beside what its plan predicted.

In: the plan's Report, the Measured of each pass, the device's figures. Out: a RunReport; `RunReport.facts` is what `run --json` prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan, prod

import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_seconds
from einpage.exec.dispatch.engine import Measured
from einpage.exec.load.fill import NotFiniteWeight
from einpage.exec.measure.better import bettered, faster
from einpage.exec.measure.profiles import forget, path_of, save
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.run.choose import DeviceKind, Dispatch
from einpage.exec.run.find_nan import FoundNan
from einpage.exec.run.outputs import TextFigures
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.target import Choices
from einpage.memplan.graph.memgraph import Free, HostGather, MemGraph, Move, ResidencyId
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import HOST
from einpage.memplan.report import Report

MOST_WEIGHTS = 3
"""Named in one warning."""
TOO_FAST = 0.6
"""A run that takes less than this share of what was predicted had its machine measured under load."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    name: str
    arena_bytes: int
    outside_arena_bytes: int
    """Device memory beside the arena: kernels' scratch on the CPU, whatever is in use on a GPU."""


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """Bytes are of whole sectors."""

    path: str
    """What read, and whether past the page cache: `io_uring, past the page cache`."""
    read_bytes: tuple[int, ...]
    """[pass]"""
    written_bytes: tuple[int, ...]
    """[pass]"""
    loaded_bytes: int
    """Before the first pass, of what a loop begins with."""
    host_peak_bytes: int
    """The most that tensors on the host have at once."""
    host_power_of_two_bytes: int
    """The same where each is rounded up to a power of two, as pinning allocators do."""

    def facts(self) -> dict[str, object]:
        """For JSON, bytes of the last pass."""
        return {
            "disk_path": self.path,
            "disk_sector_bytes": self.read_bytes[-1],
            "disk_written_sector_bytes": self.written_bytes[-1],
            "disk_loaded_bytes": self.loaded_bytes,
            "host_peak_bytes": self.host_peak_bytes,
            "host_power_of_two_bytes": self.host_power_of_two_bytes,
        }


def host_peaks(memgraph: MemGraph) -> tuple[int, int]:
    """The most bytes that tensors on the host have at once: as they are, and each rounded up to a power of two."""
    now = peak = now_rounded = peak_rounded = 0
    sizes = {}
    for found in memgraph.residencies:
        if found.place == HOST:
            sizes[found.id] = int(found.extents[0].nbytes)

    def add(r: ResidencyId, sign: int) -> None:
        nonlocal now, peak, now_rounded, peak_rounded
        if r in sizes:
            now += sign * sizes[r]
            now_rounded += sign * (1 << max(0, sizes[r] - 1).bit_length())
            peak, peak_rounded = max(peak, now), max(peak_rounded, now_rounded)

    for r in memgraph.start:
        add(r, 1)
    for node in memgraph.nodes:
        match node:
            case Move() as move:
                for _, target in move.copies:
                    add(target, 1)
            case HostGather(creates=created):
                add(created, 1)
            case Free(residency):
                add(residency, -1)
    return peak, peak_rounded


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """Counted and timed by the run, not copied from the plan."""

    plan: Report
    device: DeviceFigures
    dispatch: Dispatch
    kernels: str
    choices: Choices
    """What compiled kernels are written by."""
    ways: tuple[tuple[str, int], ...]
    """(`product by TMA`, how many tasks are computed so), in the order in which they first occur; of compiled kernels alone."""
    threads: int
    passes: tuple[Measured, ...]
    """At least one."""
    peak_rss_bytes: int
    text: TextFigures
    warnings: tuple[str, ...]
    find_nan: FoundNan | None = None
    """What was found where it was asked for."""
    disk: DiskFigures | None = None
    """Of a plan with one."""
    schedule_s: float = 0.0
    """What it took, once, to make the dispatcher ready: in no pass's time."""

    @property
    def measured(self) -> Measured:
        """The last pass."""
        return self.passes[-1]

    @property
    def fp32_products(self) -> Fp32Products:
        """How factors of fp32 are multiplied, where there are any: torch's and interpreted kernels do it exactly."""
        return self.choices.fp32_products if self.ways else Fp32Products.IEEE

    @property
    def wall_s(self) -> float:
        """The mean of the passes."""
        return sum(m.wall_s for m in self.passes) / len(self.passes)

    @property
    def measured_ratio(self) -> float:
        """Measured ÷ predicted seconds."""
        return self.wall_s / self.plan.predicted_s

    def facts(self) -> dict[str, object]:
        """What `run --json` prints: the plan's report, then what was measured. Sizes are bytes, times seconds, both of one pass."""
        measured, text = self.measured, self.text
        return {
            **self.plan.facts(),
            "device": self.device.name,
            "arena_bytes": self.device.arena_bytes,
            "outside_arena_bytes": self.device.outside_arena_bytes,
            "dispatch": self.dispatch.value,
            "kernels": self.kernels,
            "fp32_products": self.fp32_products.value,
            **({"ways": dict(self.ways), "tiles": self.choices.tiles_text} if self.ways else {}),
            "threads": self.threads,
            "wall_s": self.wall_s,
            "schedule_s": self.schedule_s,
            **({} if self.plan.passes is None else {"passes_wall_s": [m.wall_s for m in self.passes]}),
            "measured_ratio": self.measured_ratio,
            **{f"measured_{queue.name}_bytes": nbytes for queue, nbytes in measured.moved_bytes.items()},
            **{f"measured_{queue.name}_s": seconds for queue, seconds in measured.busy_s.items()},
            **({} if self.disk is None else self.disk.facts()),
            "peak_rss_bytes": self.peak_rss_bytes,
            **({} if text.top is None else {"top": [[[i, word, _finite(x)] for i, word, x in row] for row in text.top]}),
            **({} if text.perplexity is None else {name: _finite(x) for name, x in asdict(text.perplexity).items()}),
            **({} if self.find_nan is None else {"find_nan": asdict(self.find_nan)}),
            "warnings": list(self.warnings),
        }


def _finite(x: float) -> float | None:
    """`x`; None for NaN and inf, which JSON has no number for."""
    return x if isfinite(x) else None


def _weight_text(f: NotFiniteWeight) -> str:
    first = "NaN" if isnan(f.value) else f"{f.value:g}"
    return f"{f.tensor}, {f.count} of {prod(f.shape)} values, the first {first} at {list(f.first)}"


def weight_warnings(not_finite: Sequence[NotFiniteWeight], dtype: DType) -> Iterator[str]:
    """Up to two lines: weights that hold NaN or inf, and weights that do in the run's dtype."""
    most = torch.finfo(TORCH_DTYPE[dtype]).max
    beyond = f"weights beyond {dtype.value}, whose largest number is {most:.4g}, are infinite in this run (bf16 and fp32 hold more)"
    for kind, what in ((False, "weights of the checkpoint are not finite"), (True, beyond)):
        lines = [_weight_text(weight) for weight in not_finite if weight.beyond is kind]
        if lines:
            more = f"; and {len(lines) - MOST_WEIGHTS} more weights" if len(lines) > MOST_WEIGHTS else ""
            yield f"{what}: {'; '.join(lines[:MOST_WEIGHTS])}{more}"


def profile_warnings(machine: Machine, device: DeviceKind, wall_s: float, planned: Planned, passes: Sequence[Measured]) -> Iterator[str]:
    """Says where a profile cannot be believed, or was beaten by the run.

    Rates that the run beat are set to what it reached if the profile is the cached one. A run far faster than predicted had its machine
    measured under load: the profile is dropped if it is the cached one.
    """
    if machine.outdated:
        yield f"the profile {machine.name}: {machine.outdated}"
    measure = f"einpage machine --measure --device {device.value}"
    if machine.measured is not None and (busy := machine.measured.busy()) is not None:
        yield f"the profile {machine.name} was {busy}, so what it predicts may be off; on a quiet machine, `{measure}`"
    plan, path = planned.report, path_of(machine)
    if machine.kernel_times is not None and wall_s < TOO_FAST * plan.predicted_s and path is not None and forget(machine):
        found = f"the run took {format_seconds(wall_s)}, far less than the {format_seconds(plan.predicted_s)} predicted"
        yield f"{found}: this machine was busy when it was measured; the next run measures again, or `{measure}` does it now"
        return
    best = bettered(machine, planned.memgraph, passes)
    beaten = ", ".join(f"{what} {before / 1e9:.3g} -> {after / 1e9:.3g} G/s" for what, before, after in faster(machine, best))
    if path is not None and beaten:
        try:
            save(best, path)
        except UsageError as error:
            yield f"the run was faster than the best rates of the profile ({beaten}), which is not kept: {error}"
        else:
            yield f"the run was faster than the best rates of the profile, which now has the run's ({beaten}): {path}"
    elif wall_s < plan.bound_s:
        found = f"the run took {format_seconds(wall_s)}, less than its lower bound of {format_seconds(plan.bound_s)}"
        cure = f"`{measure}` measures this machine, and a run without --machine, --h2d and --d2h uses what was measured"
        yield f"{found}: the rates of the profile {machine.name} are too low for this machine; {cure}"
