"""What this machine can do at best: both links alone and together, beside products, copies inside the device, launches; a profile of it.

Gate: what was copied arrives. Rates are of pinned memory in blocks of LARGE bytes, the best of several samples, as a floor needs rates that
nothing here beats; the latency of a copy comes from small ones. Writes machine.yaml, the profile that `einpage machine --measure` would
keep, which later parts predict with. In a dry run that is the CPU device's, and what only a GPU has is absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from bench.gpu.report import Report
from bench.gpu.timing import timed_event
from einpage.exec.measure.cpu import measure_cpu
from einpage.exec.run.choose import DeviceKind, measured_machine
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine, machine_text

PROFILE = "machine.yaml"
LARGE, SMALL, TINY = 1 << 30, 1 << 20, 4 << 10
SAMPLES = 5
CHAIN = 400
"""Copies or launches in a row, of which each is a share."""
SIDE = 8192
"""Of the products that keep the processors busy."""


def profile(out: Path, dry: bool) -> Machine:
    """The machine that `links` measured, else the shipped profile nearest to it."""
    path = out / PROFILE
    if path.is_file():
        return load_machine(path)
    return measure_cpu(0.3) if dry else load_machine("h100")


def link_rate(out: Path, machine: Machine) -> float:
    """Bytes/s to the device, at best: what `links` saw of that link alone, else what the profile says."""
    path = out / "links.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return max([machine.link(Queue.H2D).bytes_per_s, *(float(row["h2d_bytes_per_s"]) for row in rows if "h2d_bytes_per_s" in row)])


def measure(report: Report) -> None:
    machine = _cpu(report) if report.setting.dry else _cuda(report)
    path = report.setting.out / PROFILE
    path.write_text(machine_text(machine), encoding="utf-8")
    assert load_machine(path) == machine


def _cpu(report: Report) -> Machine:
    for what in ("pinned host to device", "device to host", "both at once", "copy inside the device"):
        report.lacks(what, "dry run on the CPU")
    machine = measure_cpu(0.3)
    rate = machine.link(Queue.H2D).bytes_per_s
    report.check("profile", rate > 0, f"the CPU device's links, {rate / 1e9:.1f} GB/s")
    return machine


def _cuda(report: Report) -> Machine:
    _links(report)
    torch.cuda.empty_cache()
    return measured_machine(DeviceKind.CUDA, again=True, say=report.say)


def _links(report: Report) -> None:
    """The row of rates."""
    device = torch.device("cuda")
    pair = torch.empty(2, LARGE, dtype=torch.uint8, pin_memory=True)
    into, out_of = pair
    into.view(torch.int64).random_()
    near, other = torch.empty(2, LARGE, dtype=torch.uint8, device=device)
    up, down = new_stream(), new_stream()

    def h2d(nbytes: int = LARGE) -> None:
        with torch.cuda.stream(up):
            near[:nbytes].copy_(into[:nbytes], non_blocking=True)

    def d2h(nbytes: int = LARGE) -> None:
        with torch.cuda.stream(down):
            out_of[:nbytes].copy_(other[:nbytes], non_blocking=True)

    def both() -> None:
        h2d()
        d2h()

    h2d()
    torch.cuda.synchronize()
    other.copy_(near)
    torch.cuda.synchronize()
    d2h()
    torch.cuda.synchronize()
    arrived = torch.equal(into, out_of)
    up_s, down_s, both_s = best(h2d), best(d2h), best(both)
    small_s, tiny_s = (best(partial(in_a_row, partial(h2d, nbytes))) / CHAIN for nbytes in (SMALL, TINY))
    inside_s = best(lambda: other.copy_(near))
    number = torch.zeros(32, device=device)
    launch_s = best(partial(in_a_row, partial(number.add_, 1))) / CHAIN
    busy_s = _while_busy(up, h2d)
    figures = {
        "h2d_bytes_per_s": LARGE / up_s,
        "d2h_bytes_per_s": LARGE / down_s,
        "both_bytes_per_s_each": LARGE / both_s,
        "h2d_beside_products_bytes_per_s": LARGE / busy_s,
        "h2d_1mib_bytes_per_s": SMALL / small_s,
        "copy_latency_s": max(0.0, tiny_s - TINY * up_s / LARGE),
        "launch_latency_s": launch_s,
        "device_copy_bytes_per_s": 2 * LARGE / inside_s,
    }
    gb = {name: f"{value / 1e9:.1f} GB/s" for name, value in figures.items()}
    line = f"in {gb['h2d_bytes_per_s']}, out {gb['d2h_bytes_per_s']}, both at once {gb['both_bytes_per_s_each']} each way"
    line += f", beside products {gb['h2d_beside_products_bytes_per_s']}, inside {gb['device_copy_bytes_per_s']}"
    report.row("links", arrived, "a gigabyte there and back is the same", {"bytes": LARGE}, figures, line)
    assert arrived, "copies do not arrive: nothing can be measured here"


def best(call: Callable[[], object], samples: int = SAMPLES) -> float:
    """Seconds of the fastest of `samples` calls, each with the device idle before and after; the first does not count."""
    found = []
    for _ in range(samples + 1):
        torch.cuda.synchronize()
        began = perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(perf_counter() - began)
    return min(found[1:])


def in_a_row(call: Callable[[], object]) -> None:
    """CHAIN calls."""
    for _ in range(CHAIN):
        call()


def new_stream() -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return stream


def _while_busy(stream: torch.cuda.Stream, copy: Callable[[], None]) -> float:
    """Seconds of a copy on `stream` while products keep the processors busy on another."""
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    found = []
    for _ in range(SAMPLES):
        start, stop = timed_event(), timed_event()
        torch.cuda.synchronize()
        for _ in range(40):  # some 60 ms, three times what the copy takes
            torch.mm(x, x, out=out)
        start.record(stream)
        copy()
        stop.record(stream)
        torch.cuda.synchronize()
        found.append(float(start.elapsed_time(stop)) / 1e3)
    return min(found)
