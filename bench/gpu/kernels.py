"""Are the generated kernels as fast as the library? Products against cuBLAS, attention against the best fused backend, rows against a copy.

Gate of each row: the result, poisoned before, is within 1e-2 of plain torch in fp32. `ratio` is the library's time ÷ ours: 1 is as fast,
more is faster. The product it is held against is the bare one, with weights that share their input stacked and no epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import nan
from time import perf_counter

import torch

from bench.gpu.cases import TITLE, Case, layer_jobs, llama, product
from bench.gpu.report import DeviceLost, Report
from bench.gpu.timing import Clock
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import ContractJob, Job
from einpage.exec.measure.products import product_job
from einpage.kernels.launch.kernel import TritonKernel
from einpage.kernels.prepare import Backend, prepare

TOLERANCE = 1e-2
"""Of bf16 and fp16 kernels, as in the tests."""
TARGET = {"product": 0.90, "attention": 0.85, "rows": 0.85}
"""Of `ratio`."""
SECONDS_EACH = 0.6
LEAST_LEFT_S = 8.0
"""A case is not begun with less: large ones compile for seconds."""
BF, HF = DType.BF16, DType.FP16

SMALL = {"model": 4096, "heads": 32, "ffn": 11008}
"""LLaMA-7B."""
LARGE = {"model": 8192, "heads": 64, "ffn": 22016}
"""LLaMA-65B."""
GROUPED = {"model": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336}
NARROW = {"model": 4096, "heads": 64, "ffn": 11008}
"""Heads of 64."""


@dataclass(frozen=True, slots=True)
class Square:
    """A plain product, as long as wide as deep."""

    side: int
    dtype: DType

    @property
    def title(self) -> str:
        return f"{self.side}³ {self.dtype.value}"

    def jobs(self) -> Iterator[tuple[str, ContractJob]]:
        yield self.title, product_job(self.side, self.side, self.side, self.dtype)

    def cases(self, device: torch.device) -> Iterator[Case]:
        for title, job in self.jobs():
            yield product(title, job, device)


@dataclass(frozen=True, slots=True)
class Layer:
    """Some jobs of one layer of LLaMA."""

    name: str
    sizes: dict[str, int]
    seq: int
    words: tuple[str, ...]
    dtype: DType = HF

    @property
    def title(self) -> str:
        return f"{self.name} {self.seq} {self.dtype.value}"

    def jobs(self) -> Iterator[tuple[str, Job]]:
        for word, job, _ in layer_jobs({**self.sizes, "seq": self.seq}, self.words, self.dtype):
            yield f"{self.title} {TITLE[word]}", job

    def cases(self, device: torch.device) -> Iterator[Case]:
        return llama(self.title, {**self.sizes, "seq": self.seq}, self.words, self.dtype, device)


def real() -> tuple[Square | Layer, ...]:
    """Most important first."""
    return (
        Square(8192, BF),
        Layer("7B", SMALL, 2048, ("y", "x.2", "q", "x.1", "o", "h", "qr")),
        Layer("7B", SMALL, 16384, ("o", "y", "h")),
        Square(4096, BF),
        Layer("65B", LARGE, 2048, ("y", "x.2", "q", "h", "qr")),
        Layer("GQA", GROUPED, 4096, ("o", "q")),
        Layer("heads of 64", NARROW, 4096, ("o",)),
        Square(8192, HF),
        Square(4096, HF),
        Layer("7B", SMALL, 2048, ("y", "x.2", "o", "h"), BF),
        Layer("7B", SMALL, 8192, ("o", "x.2", "qr")),
        Layer("GQA", GROUPED, 16384, ("o",)),
        Layer("heads of 64", NARROW, 16384, ("o",)),
        Layer("7B", SMALL, 4096, ("o", "y")),
        Layer("65B", LARGE, 8192, ("y", "x.2")),
    )


def tiny() -> tuple[Square | Layer, ...]:
    """The same kinds of cases, of sizes for a CPU."""
    sizes = {"model": 64, "heads": 4, "kv_heads": 2, "ffn": 96}
    return Square(70, DType.FP32), Layer("tiny", sizes, 72, ("y", "x.2", "q", "x.1", "o", "h", "qr"))


def measure(report: Report) -> None:
    setting = report.setting
    clock = Clock(setting.device)
    for group in tiny() if setting.dry else real():
        if not setting.dry and setting.left_s() < LEAST_LEFT_S:
            report.leave_out(group.title)
            continue
        try:
            for case in group.cases(setting.device):
                _try(report, clock, case)
        except DeviceLost:
            raise
        except Exception as error:  # operands that the device has no room for, a spec that cannot be read here
            report.failed(group.title, error)


def _try(report: Report, clock: Clock, case: Case) -> None:
    if not report.begin(case.name, LEAST_LEFT_S):
        return
    try:
        _measure(report, clock, case)
    except Exception as error:
        report.failed(case.name, error)


def _measure(report: Report, clock: Clock, case: Case) -> None:
    began = perf_counter()
    kernel = prepare(case.job, Backend.TORCH if report.setting.dry else Backend.TRITON)
    # Bound once, as the device does it: what is timed is the launch and the kernel.
    call: Callable[[], object] = partial(kernel, case.operands, case.result, None)
    if isinstance(kernel, TritonKernel):
        call = kernel.bind(case.operands, case.result)
    case.result.fill_(nan)
    call()
    error = case.error(case.result)
    first_s = perf_counter() - began
    calls = {"ours": call, **case.rivals}
    times = clock.compare(calls, 0.02 if report.setting.dry else SECONDS_EACH)
    ours = times.pop("ours")
    best = min(times, key=lambda name: times[name].seconds)
    ratio = times[best].seconds / ours.seconds
    figures = {
        "seconds": ours.seconds,
        "least_s": ours.least_s,
        "most_s": ours.most_s,
        "count": ours.count,
        "flops_per_s": case.flops / ours.seconds,
        "bytes_per_s": case.nbytes / ours.seconds,
        "library_s": {name: t.seconds for name, t in times.items()},
        "library": best,
        "ratio": ratio,
        "target": TARGET[case.kind],
        "meets": ratio >= TARGET[case.kind],
        "first_call_s": first_s,
    }
    key = {"case": case.name, "kind": case.kind, "dtype": case.dtype.value, "flops": case.flops, "bytes": case.nbytes}
    ok = error <= (TOLERANCE if case.dtype is not DType.FP32 else 1e-5)
    rate = f"{case.nbytes / ours.seconds / 1e9:7.0f} GB/s  " if case.kind == "rows" else f"{case.flops / ours.seconds / 1e12:7.1f} TFLOP/s"
    line = f"{1e6 * ours.seconds:9.1f} µs {rate} x {ratio:.3f} of {best}, error {error:.1e}"
    report.row(case.name, ok, f"error {error:.1e}", key, figures, line)
