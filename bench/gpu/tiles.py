"""Which tile of those that the tables offer is the fastest on this GPU? Products and attentions once with each, beside the library.

In: the kernels' own tables. Gate of each row as in kernels.py. After each case the fastest tile that was right is written into the file of
this GPU's tiles, which every later run reads, and into a copy beside the results. Tiles whose warps are specialised might never end: they
come last, each in a process of its own with a time limit. A dry run has nothing to compare, as torch's kernels have no tiles.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import torch

from bench.gpu.cases import Case
from bench.gpu.compile import Wanted, compile_all
from bench.gpu.kernels import BF, LARGE, NARROW, SMALL, TOLERANCE, Layer, Square
from bench.gpu.report import Report
from bench.gpu.timing import Clock
from bench.results import ROOT
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.files import write_atomically
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, Job
from einpage.exec.load.kept_tiles import kept_tiles, save_tiles
from einpage.kernels.launch.candidates import candidates, shape_of
from einpage.kernels.launch.kernel import TritonKernel, launches_of, triton_kernel
from einpage.kernels.launch.this_gpu import current_target
from einpage.kernels.tiles.kernels_version import triton_kernels_version
from einpage.kernels.tiles.measured_tiles import MeasuredTile, MeasuredTiles
from einpage.kernels.tiles.target import Target

GROUPS = (
    Square(8192, BF),
    Layer("7B", SMALL, 2048, ("y", "x.2", "q", "o")),
    Layer("7B", SMALL, 16384, ("o", "y")),
    Layer("7B", SMALL, 512, ("y", "x.2", "q", "o")),
    Layer("heads of 64", NARROW, 4096, ("o",)),
    Square(4096, DType.FP32),
    Layer("65B", LARGE, 2048, ("y", "x.2")),
    Square(4096, BF),
)
"""Most important first."""
FP32_TOLERANCE = 1e-5
SECONDS_EACH = 0.2
SHARE_OF_COMPILING = 0.5
"""Of the time that is left."""
LEAST_LEFT_S = 4.0
ALONE_S = 45.0
"""For one tile in a process of its own, its start and its compilation included."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One tile of one case, timed."""

    error: float
    seconds: float
    library_s: float


def measure(report: Report) -> None:
    setting = report.setting
    if setting.dry:
        report.lacks("tiles", "dry run on the CPU, where kernels have none")
        return
    for w, _, fault in compile_all([*_wanted()], setting.dry, SHARE_OF_COMPILING * setting.left_s()):
        if fault is not None:  # a tile that is not in use may not fit: no fault of what runs
            report.lacks(w.title, fault)
            report.begun.append(w.title)
    clock = Clock(setting.device)
    table = Table(report)
    for alone in (False, True):
        for group in GROUPS:
            if setting.left_s() < LEAST_LEFT_S:
                report.leave_out(group.title)
                continue
            for case in group.cases(setting.device):
                for i, target in enumerate(offered(case.job)):
                    if is_risky(target) is alone:
                        _try(report, clock, table, case, target, i == 0)
                table.keep(case)


def _wanted() -> Iterator[Wanted]:
    for group in GROUPS:
        for title, job in group.jobs():
            yield from (Wanted(f"{title}, {words(job, target)}", job, target) for target in [*offered(job)][1:])


def offered(job: Job) -> list[Target]:
    """The target with the table's own tile, then with each other one that is worth timing."""
    return candidates(job, current_target())


def is_risky(target: Target) -> bool:
    """Whether a kernel with this tile is to be tried where nothing is lost if it never ends."""
    tiles = target.product or target.attention
    return tiles is not None and tiles.specialised


def words(job: Job, target: Target) -> str:
    """`128x64, 8 warps, 3 stages, TMA`; the table's own tile goes by that name."""
    tiles = target.product or target.attention
    if tiles is None or not isinstance(job, ContractJob | AttentionJob):
        return "the table's"
    block = "x".join(str(n) for n in (tiles.rows, tiles.columns, tiles.inner) if n)
    (launch,) = launches_of(job, target)
    group = f", groups of {tiles.group}" if tiles.group != 8 else ""
    return f"{block}, {tiles.warps} warps, {tiles.stages} stages{group}, {launch.way}"


class Table:
    """The fastest tiles so far, on disk after every case."""

    def __init__(self, report: Report) -> None:
        self.report = report
        device = torch.cuda.get_device_name()
        before, _ = kept_tiles(device)
        self.tiles = before or MeasuredTiles(device, triton_kernels_version(), ())
        self._best: dict[str, list[MeasuredTile]] = {}
        """By case: the fastest tile of each way of fp32."""

    def add(self, case: Case, target: Target, trial: Trial) -> None:
        """A tile that was right."""
        assert isinstance(case.job, ContractJob | AttentionJob)
        (launch,) = launches_of(case.job, target)
        asked = target.fp32_products if case.dtype is DType.FP32 else None
        new = MeasuredTile(shape_of(case.job), asked, launch.tiles, trial.seconds, trial.library_s)
        known = self._best.setdefault(case.name, [])
        old = next((m for m in known if m.fp32_products is asked), None)
        if old is None or new.seconds < old.seconds:
            self._best[case.name] = [*(m for m in known if m is not old), new]

    def keep(self, case: Case) -> None:
        """Write the fastest tiles of `case` beside those of the cases before. A file that cannot be written is noted, and nothing is lost:
        the report has every row."""
        for best in self._best.get(case.name, []):
            self.tiles = self.tiles.with_tile(best)
        try:
            path = save_tiles(self.tiles)
            write_atomically(self.report.setting.out / "tiles_table.json", self.tiles.text())
        except EinpageError as error:
            self.report.lacks("the file of this GPU's tiles", str(error))
        else:
            self.report.say(f"     {len(self.tiles.found)} shapes in {path}")


def _try(report: Report, clock: Clock, table: Table, case: Case, target: Target, in_use: bool) -> None:
    what = f"{case.name}, {words(case.job, target)}"
    if not report.begin(what, LEAST_LEFT_S + (ALONE_S if is_risky(target) else 0.0)):
        return
    try:
        trial = _alone(case, target) if is_risky(target) else tried(clock, case, target)
    except Exception as error:
        report.lacks(what, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
        report.need_device()
        return
    right = trial.error <= (FP32_TOLERANCE if case.dtype is DType.FP32 else TOLERANCE)
    if right:
        table.add(case, target, trial)
    ratio = trial.library_s / trial.seconds
    figures = {"seconds": trial.seconds, "library_s": trial.library_s, "ratio": ratio}
    key = {"case": case.name, "tile": words(case.job, target), "in_use": in_use}
    report.row(what, right, f"error {trial.error:.1e}", key, figures, f"{1e6 * trial.seconds:9.1f} µs, x {ratio:.3f}")


def tried(clock: Clock, case: Case, target: Target) -> Trial:
    """Run `case` with the tile of `target`, its result poisoned before."""
    kernel = triton_kernel(case.job, target)
    assert isinstance(kernel, TritonKernel)
    call = kernel.bind(case.operands, case.result)
    case.result.fill_(nan)
    call()
    error = case.error(case.result)
    times = clock.compare({"ours": call, **case.rivals}, SECONDS_EACH)
    ours = times.pop("ours")
    return Trial(error, ours.seconds, min(t.seconds for t in times.values()))


def _alone(case: Case, target: Target) -> Trial:
    """As `tried`, in a process that ends after ALONE_S. Raises RuntimeError, TimeoutExpired."""
    command = [sys.executable, "-m", "bench.gpu.tiles", case.name, words(case.job, target)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALONE_S, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else f"exit status {ended.returncode}")
    return Trial(**json.loads(ended.stdout.splitlines()[-1]))


def main(name: str, tile: str) -> int:
    """One trial, as a line of JSON."""
    device = torch.device("cuda")
    for group in GROUPS:
        if name not in (title for title, _ in group.jobs()):
            continue
        for case in group.cases(device):
            for target in offered(case.job) if case.name == name else ():
                if words(case.job, target) == tile:
                    found = tried(Clock(device), case, target)
                    print(json.dumps({"error": found.error, "seconds": found.seconds, "library_s": found.library_s}))
                    return 0
    print(f"no case {name} with the tile {tile}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
