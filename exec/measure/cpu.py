"""A profile of this CPU as a device: the best rates of its three engines, and what runs usually take.

Probes of rates are ordinary jobs run by the ordinary kernels: a product for each dtype (FLOP/s), a product of few rows and a pointwise
job (what memory allows), the smallest job (latency). Two threads copy blocks all the while, as the copy engines do. Of several samples
the best of each rate counts, and whatever is faster in a run: a lower bound needs rates that nothing beats. What is usual is fitted to
runs of small models. The profile holds for this machine with this number of torch threads.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Job
from einpage.exec.device.arena import MappedArena
from einpage.exec.measure.copies import CopySamples, measured_copies
from einpage.exec.measure.fit import fitted, sharing, spread
from einpage.exec.measure.kernels_version import blas, kernels_version
from einpage.exec.measure.probe_runs import PROBE_ROWS, ProbeRuns, resident_runs, rounded, streamed_runs
from einpage.exec.measure.products import measured_libraries, pointwise_job, product_job, strided_factor, unpack_seconds
from einpage.exec.measure.profiles import Say, measured, profile_path
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.multiply.products import ONLY_MM, Products
from einpage.kernels.prepare import prepare
from einpage.memplan.graph.memgraph import Extent, Offset
from einpage.memplan.machine.kernel_times import CopyTimes
from einpage.memplan.machine.machine import Machine, Measurement
from einpage.memplan.machine.places import host_links

BLOCK = 4 << 20
"""Bytes of one probe copy."""
BLOCKS = 4
PROBES = len(RUN_DTYPES) + 4
"""How many probes share the time: products, two of memory, two latencies."""
SAMPLES = 4
"""How often each probe is made."""
COPIES_S = 0.1
"""For how long copies are timed, in each way."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""In which the system counts processor time."""
WAKEUPS_S = 0.02
"""For how long two threads wake each other up, each time."""


@dataclass(slots=True)
class _Traffic:
    """What one copy thread has moved so far."""

    nbytes: int = 0


def default_threads() -> int:
    """All cores but one, which is for the copy engines.

    Torch's threads wait for each other at the end of every kernel, so one that a copy preempts delays all.
    """
    return max(1, cores() - 1)


def measured_cpu(*, threads: int | None = None, again: bool = False, say: Say | None = None) -> Machine:
    """The profile of this machine with `threads` torch threads, as `profiles.measured`."""
    return measured(cpu_profile(threads), lambda: measure_cpu(threads=threads), again, say)


def measure_cpu(seconds: float = 0.8, threads: int | None = None, rows: tuple[int, ...] = PROBE_ROWS) -> Machine:
    """Measure the best rates for about `seconds`, with `threads` torch threads, then runs with so many rows each. Sets torch's number of
    threads for the process."""
    threads = default_threads() if threads is None else threads
    others = OtherProcesses()
    torch.set_num_threads(threads)
    share = seconds / PROBES / SAMPLES
    libraries = measured_libraries()
    with _busy_links() as links:
        samples = [_rates(links, share, Products(libraries, threads)) for _ in range(SAMPLES)]
    *products, memory, h2d, d2h = (max(rates) for rates in zip(*samples, strict=True))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = Machine(
        name="cpu",
        device_bytes=physical // 2,
        host_bytes=physical,
        flops_per_s=tuple((dtype, rounded(rate)) for dtype, rate in zip(RUN_DTYPES, products, strict=True)),
        device_bytes_per_s=rounded(memory),
        links=host_links(rounded(h2d), rounded(d2h)),
        launch_latency_s=rounded(min(_launch_seconds(share) for _ in range(SAMPLES))),
        threads=threads,
        libraries=libraries,
        about=f"Measured on {_cpu_name()} with {threads} of {cores()} cores for torch; torch {torch.__version__}.",
    )
    resident = resident_runs(machine, rows)
    alone = _with_runs(machine, resident, measured_copies(COPIES_S))
    assert alone.kernel_times is not None
    return replace(
        alone,
        kernel_times=sharing(alone.kernel_times, streamed_runs(alone, rows)),
        measured=Measurement(spread(resident), round(others.cores(), 2), cores()),
    )


def _with_runs(machine: Machine, runs: Sequence[ProbeRuns], copies: CopySamples) -> Machine:
    """`machine` with what runs usually take, and with the best rates that anything here reached."""
    wakeup_s = median(_wakeup_seconds(WAKEUPS_S) for _ in range(SAMPLES))
    handover_s = median(run.handover_s for run in runs)
    kernels = [sample for run in runs for sample in run.kernels]
    flops_by_dtype = dict(machine.flops_per_s)
    flops_by_dtype[DType.FP32] = max(flops_by_dtype[DType.FP32], *(rounded(s.work.flops / s.least_s) for s in kernels))
    best_copy = max(rounded(copies.best_bytes_per_s), *(link.bytes_per_s for link in machine.links))
    best = replace(
        machine,
        flops_per_s=tuple(flops_by_dtype.items()),
        device_bytes_per_s=max(machine.device_bytes_per_s, *(rounded(s.nbytes / s.least_s) for s in kernels)),
        links=host_links(best_copy, best_copy, rounded(copies.least_s)),
        launch_latency_s=min(machine.launch_latency_s, *(rounded(s.least_s) for s in kernels)),
    )
    copy_bytes_per_s = rounded(copies.alone_bytes_per_s)
    usual = host_links(copy_bytes_per_s, copy_bytes_per_s, rounded(copies.least_s + handover_s))
    gathers_s = [max(0.0, seconds - usual[0].seconds(nbytes)) for run in runs for nbytes, seconds in run.gathers]
    times = CopyTimes(usual, rounded(median(gathers_s or [0.0])), rounded(max(1.0, copies.together)), copies.at_distances)
    strided_by_rows = {rows: strided_factor(machine.libraries, rows) for rows in {run.rows for run in runs}}
    return replace(
        best,
        kernel_times=fitted(runs, times, wakeup_s, strided_by_rows, unpack_seconds(machine.libraries)),
    )


def cpu_profile(threads: int | None = None) -> Path:
    """Where the profile of this CPU with so many torch threads is cached: another file for other kernels, and another BLAS."""
    machine = f"{_cpu_name()}|{cores()}|{torch.__version__}|{blas()}|{kernels_version()}"
    return profile_path("cpu", machine, str(default_threads() if threads is None else threads))


class OtherProcesses:
    """How many cores of this machine they use, from when this is made."""

    def __init__(self) -> None:
        self._began = self._counted()

    def cores(self) -> float:
        """On average so far; where the system counts no processor time, the load of the minute before."""
        began, now = self._began, self._counted()
        if began is None or now is None:
            return os.getloadavg()[0]
        (of_all, of_this, at), (of_all_now, of_this_now, at_now) = began, now
        return max(0.0, of_all_now - of_all - (of_this_now - of_this)) / max(at_now - at, 1 / TICKS_PER_S)

    @staticmethod
    def _counted() -> tuple[float, float, float] | None:
        """Seconds of all processes, and of this one; the time."""
        try:
            first, *_ = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (int(word) for word in first.split()[1:])
        return (user + nice + system + irq + softirq + steal) / TICKS_PER_S, process_time(), perf_counter()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@contextmanager
def _busy_links() -> Iterator[tuple[_Traffic, _Traffic]]:
    """Two threads that copy blocks, one each way, until the block of code ends."""
    links = (_Traffic(), _Traffic())
    whole = Extent(Offset(0), Nbytes(2 * BLOCKS * BLOCK))
    near, far = (MappedArena(whole.nbytes, touch=True).bytes(whole).reshape(2, BLOCKS, BLOCK) for _ in range(2))
    stop = threading.Event()

    def copies(link: _Traffic, target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
        turn = 0
        while not stop.is_set():
            np.copyto(target[turn % BLOCKS], source[turn % BLOCKS])
            link.nbytes += BLOCK
            turn += 1

    threads = [
        threading.Thread(target=copies, args=(links[0], near[0], far[0]), daemon=True),
        threading.Thread(target=copies, args=(links[1], far[1], near[1]), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield links
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _rates(links: tuple[_Traffic, _Traffic], seconds: float, products: Products) -> tuple[float, ...]:
    """One sample: FLOP/s of each run dtype, bytes/s inside the device, and of each link meanwhile."""
    started, before = perf_counter(), [link.nbytes for link in links]
    inside = (*(_product_rate(dtype, seconds, products) for dtype in RUN_DTYPES), _memory_rate(seconds, products))
    passed = perf_counter() - started
    return (*inside, *((link.nbytes - nbytes) / passed for link, nbytes in zip(links, before, strict=True)))


def _product_rate(dtype: DType, seconds: float, products: Products) -> float:
    """FLOP/s of a square-ish product, [256, 1024] x [1024, 1024]."""
    job = product_job(256, 1024, 1024, dtype)
    return 2 * 256 * 1024 * 1024 / _seconds_each(job, seconds, products)


def _memory_rate(seconds: float, products: Products) -> float:
    """Bytes/s of a product of few rows, [8, 1024] x [1024, 4096], or of a pointwise job of 4 MiB: of the faster."""
    return max(
        sum(b.size * 4 for view in (*job.reads, job.result) for b in view.boxes) / _seconds_each(job, seconds, products)
        for job in (product_job(8, 1024, 4096, DType.FP32), pointwise_job(1 << 20))
    )


def _launch_seconds(seconds: float) -> float:
    """What the smallest task costs."""
    return _seconds_each(pointwise_job(16), seconds)


def _wakeup_seconds(seconds: float) -> float:
    """How long one engine waits to see that another is done: half of a round trip between two threads."""
    condition, turn, stop = threading.Condition(), [0], perf_counter() + seconds

    def play(own: int) -> None:
        with condition:
            while turn[0] >= 0:
                if turn[0] % 2 != own:
                    condition.wait()
                    continue
                turn[0] = turn[0] + 1 if perf_counter() < stop else -turn[0] - 1
                condition.notify()

    other = threading.Thread(target=play, args=(1,), daemon=True)
    started = perf_counter()
    other.start()
    play(0)
    other.join()
    return (perf_counter() - started) / max(1, -turn[0])


def _seconds_each(job: Job, seconds: float, products: Products = ONLY_MM) -> float:
    """The mean time of `job` on tensors of ones, over about `seconds`; the first call does not count."""
    kernel = prepare(job, products=products)
    operands = tuple(tuple(torch.ones(b.shape, dtype=TORCH_DTYPE[view.dtype]) for b in view.boxes) for view in job.reads)
    result = torch.empty(job.result.boxes[0].shape, dtype=TORCH_DTYPE[job.result.dtype])
    kernel(operands, result, None)
    started, calls = perf_counter(), 0
    while (passed := perf_counter() - started) < seconds or calls == 0:
        kernel(operands, result, None)
        calls += 1
    return passed / calls
