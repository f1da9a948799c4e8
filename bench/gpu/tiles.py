"""Is the tile in use the fastest of those that the tables offer? Products and attentions once with each, beside the library.

In: the kernels' own tables, and for attention the tiles listed here. Gate of each row as in kernels.py. Nothing is chosen at run time:
whoever reads this changes the table. Runs last, with what time is left; a dry run has nothing to compare, as torch's kernels have no tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

from bench.gpu.cases import Case
from bench.gpu.compile import Wanted, compile_all
from bench.gpu.kernels import BF, LARGE, NARROW, SMALL, TOLERANCE, Layer, Square
from bench.gpu.report import Report
from bench.gpu.timing import Clock
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, Job
from einpage.kernels.launch.kernel import TritonKernel, triton_kernel
from einpage.kernels.launch.this_gpu import current_target
from einpage.kernels.on_triton.contract import product_of
from einpage.kernels.tiles.product_tiles import variants
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import Tiles

GROUPS = (
    Square(8192, BF),
    Layer("7B", SMALL, 2048, ("y", "x.2", "q", "o")),
    Layer("7B", SMALL, 16384, ("o", "y")),
    Layer("7B", SMALL, 512, ("y", "x.2", "q")),
    Layer("heads of 64", NARROW, 4096, ("o",)),
    Layer("65B", LARGE, 2048, ("y", "x.2")),
    Square(4096, BF),
)
"""Most important first."""
ATTENTION = (Tiles(128, 64, 0, 8, 2), Tiles(128, 64, 0, 4, 3), Tiles(128, 128, 0, 8, 2), Tiles(64, 64, 0, 4, 3), Tiles(128, 32, 0, 8, 3))
"""Queries a block, keys a step, offered beside the table's own."""
SECONDS_EACH = 0.2
SHARE_OF_COMPILING = 0.6
"""Of the time that is left."""
LEAST_LEFT_S = 4.0


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
    for group in GROUPS:
        if setting.left_s() < LEAST_LEFT_S:
            report.leave_out(group.title)
            continue
        for case in group.cases(setting.device):
            for i, target in enumerate(offered(case.job)):
                what = f"{case.name}, {words(target)}"
                if not report.begin(what, LEAST_LEFT_S):
                    continue
                try:
                    _measure(report, clock, case, target, what, in_use=i == 0)
                except Exception as error:
                    report.lacks(what, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
                    report.need_device()


def _wanted() -> Iterator[Wanted]:
    for group in GROUPS:
        for title, job in group.jobs():
            yield from (Wanted(f"{title}, {words(target)}", job, target) for target in [*offered(job)][1:])


def offered(job: Job) -> Iterator[Target]:
    """The target as it is, then with each other tile that is worth timing."""
    target = current_target()
    yield target
    match job:
        case ContractJob():
            yield from (Target(target.capability, product=tiles) for tiles in variants(product_of(job), target.capability)[1:])
        case AttentionJob():
            yield from (Target(target.capability, attention=tiles) for tiles in ATTENTION)


def words(target: Target) -> str:
    """`128x64, 8 warps, 3 stages`; the table's own tile goes by that name."""
    tiles = target.product or target.attention
    if tiles is None:
        return "the table's"
    block = "x".join(str(n) for n in (tiles.rows, tiles.columns, tiles.inner) if n)
    rest = [word for word, on in (("TMA", tiles.descriptors), ("specialised", tiles.specialised)) if on]
    return ", ".join([block, f"{tiles.warps} warps, {tiles.stages} stages", *rest])


def _measure(report: Report, clock: Clock, case: Case, target: Target, what: str, in_use: bool) -> None:
    kernel = triton_kernel(case.job, target)
    assert isinstance(kernel, TritonKernel)
    call = kernel.bind(case.operands, case.result)
    case.result.fill_(nan)
    call()
    error = case.error(case.result)
    times = clock.compare({"ours": call, **case.rivals}, SECONDS_EACH)
    ours = times.pop("ours")
    library_s = min(t.seconds for t in times.values())
    figures = {"seconds": ours.seconds, "library_s": library_s, "ratio": library_s / ours.seconds}
    key = {"case": case.name, "tile": words(target), "in_use": in_use}
    line = f"{1e6 * ours.seconds:9.1f} µs, x {library_s / ours.seconds:.3f}"
    report.row(what, error <= TOLERANCE, f"error {error:.1e}", key, figures, line)
