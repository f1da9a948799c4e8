"""Every kernel that later parts time is compiled here, by several processes at once, into Triton's cache on disk.

Gate: each compiles, and its code can be loaded; nothing runs. Compiling them one after the other would take longer than measuring them.
In a dry run torch's kernels are prepared and called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as PoolTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from time import perf_counter

import torch

from bench.gpu.cells import CELLS, DRY_CELLS, SIZES, TINY, Cell
from bench.gpu.kernels import real, tiny
from bench.gpu.report import Report
from bench.results import ROOT
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import GatherJob, Job
from einpage.exec.measure.cpu import cores
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.kernels.launch.kernel import TritonKernel, triton_kernel
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import Backend, prepare
from einpage.kernels.tiles.target import Target

MOST_PROCESSES = 12
SPARE_S = 4.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job, and what it is called."""

    title: str
    job: Job
    target: Target | None = None
    """None: the GPU at hand, and the tables' own tiles."""


def measure(report: Report) -> None:
    setting = report.setting
    jobs = [w for w in wanted(report) if not report.knows(w.title)]
    done = 0
    for w, seconds, fault in compile_all(jobs, setting.dry, setting.left_s() - SPARE_S):
        done += 1
        report.row(w.title, fault is None, fault or "compiles and loads", {"job": w.title}, {"compile_s": seconds}, f"{seconds:.1f} s")
    if done < len(jobs):
        report.leave_out(f"{len(jobs) - done} of {len(jobs)} jobs")


def compile_all(jobs: Sequence[Wanted], dry: bool, seconds: float) -> Iterator[tuple[Wanted, float, str | None]]:
    """What `compiled` says of each, as they end; those that do not in so many seconds are left out."""
    pool = ProcessPoolExecutor(1 if dry else min(MOST_PROCESSES, cores()), mp_context=get_context("spawn"))
    futures = {pool.submit(compiled, w, dry): w for w in jobs}
    try:
        for future in as_completed(futures, timeout=max(1.0, seconds)):
            yield futures[future], *future.result()
    except (PoolTimeout, BrokenProcessPool):  # the latter where a compiler takes its process along
        return
    finally:
        if not all(future.done() for future in futures):
            for process in active_children():  # each holds some of the device's memory, which would count as a run's
                process.kill()
        pool.shutdown(cancel_futures=True)


def wanted(report: Report) -> list[Wanted]:
    """Distinct jobs: those that are timed by themselves, then those of the models' layers; the products of one size once. What cannot be
    made here, for want of a wheel, is absent."""
    dry, found = report.setting.dry, list[tuple[str, Job]]()
    cells = DRY_CELLS if dry else CELLS
    sources = [(group.title, group.jobs()) for group in (tiny() if dry else real())]
    sources += [(f"{model} {seq}", _model_jobs(model, seq, dry)) for model, seq in dict.fromkeys((c.model, c.seq) for c in cells)]
    for title, jobs in sources:
        try:
            found += jobs
        except Exception as error:
            report.failed(title, error)
    return distinct(found)


def distinct(jobs: Iterable[tuple[str, Job]]) -> list[Wanted]:
    """Without those that are no kernel's, and each once."""
    title_by_job = {job: title for title, job in reversed([*jobs]) if not isinstance(job, GatherJob)}
    return [Wanted(title, job) for job, title in reversed(title_by_job.items())]


def model_jobs(cell: Cell, dry: bool) -> list[Wanted]:
    """Those that a cell of `models` runs unsplit: most of its kernels are the same in its tiles."""
    return distinct(_model_jobs(cell.model, cell.seq, dry))


def _model_jobs(model: str, seq: int, dry: bool) -> Iterator[tuple[str, Job]]:
    sizes = {**(TINY if dry else SIZES)[model], "layers": 1, "seq": seq}
    graph = build_graph(open_model(ROOT / "specs/llama.yaml", sizes).program, PlanRequest(1 << 60, DType.FP16, ("logits",))).graph
    for task in graph.tasks:
        assert task.job is not None
        yield f"{model} {seq} {task.name.partition('[')[0]}", task.job


def compiled(wanted: Wanted, dry: bool) -> tuple[float, str | None]:
    """Seconds it took to compile and load the job's kernels, and what was wrong with them. Runs in a process of its own."""
    torch.set_num_threads(1)
    job, target = wanted.job, wanted.target
    device = torch.device("cpu" if dry else "cuda")
    began = perf_counter()
    try:
        operands = tuple(
            tuple(torch.ones(box.shape, dtype=TORCH_DTYPE[view.dtype], device=device) for box in view.boxes) for view in job.reads
        )
        result = torch.empty(job.result.boxes[0].shape, dtype=TORCH_DTYPE[job.result.dtype], device=device)
        began = perf_counter()
        kernel = prepare(job, Backend.TORCH if dry else Backend.TRITON) if target is None else triton_kernel(job, target)
        if isinstance(kernel, TritonKernel):
            kernel.warm(operands, result)
        else:
            kernel(operands, result, None)
        return perf_counter() - began, None
    except Exception as error:
        return perf_counter() - began, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
