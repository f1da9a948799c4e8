"""What this machine can do at best: both links alone and together, out of every kind of host memory; beside products, copies inside the
device, launches; a profile of it.

Gate: what was copied arrives. All times are the device's own, between two events. Runs copy out of registered memory, so that is measured
with and without huge pages, beside memory that the driver hands out; the best of several samples counts, as a floor needs rates that
nothing here beats. Leaves machine.yaml, the profile that `einpage machine --measure` would keep, which later parts predict with. In a dry
run that is the CPU's that ships, and what only a GPU has is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.gpu import results_file
from bench.gpu.drivers import new_driver
from bench.gpu.mapped import filled, huge_bytes, mapped
from bench.gpu.report import Report
from bench.gpu.timing import timed_event
from einpage.exec.device.driver import Driver, Stream
from einpage.exec.device.stream_memory import PinnedMemory, copy_cuts
from einpage.exec.device.streams import COMPUTE, COPY_BYTES, D2H, H2D
from einpage.exec.run.choose import DeviceKind, measured_machine
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine, machine_text

PROFILE = "machine.yaml"
LARGE, SMALL, TINY = 1 << 30, 1 << 20, 4 << 10
DRY_LARGE = 1 << 22
SAMPLES = 5
CHAIN = 400
"""Copies or launches in a row, of which each is a share."""
SIDE = 8192
"""Of the products that keep the processors busy."""
MEMORY = ("registered, huge pages", "registered, 4 KiB pages", "handed out by the driver")
"""What runs use comes first."""
LEAST_LEFT_S = 3.0

Copy = tuple[Stream, Tensor, Tensor]
"""On a stream, to, from."""


def profile(out: Path, dry: bool) -> Machine:
    """The machine that `links` measured, else the shipped profile nearest to it."""
    path, text = out / PROFILE, results_file.part_facts(out, "links").get("facts", {}).get("profile")
    if text is not None and not path.is_file():
        path.write_text(text, encoding="utf-8")
    if path.is_file():
        return load_machine(path)
    return load_machine("cpu" if dry else "h100")


def link_rate(out: Path, machine: Machine) -> float:
    """Bytes/s to the device, at best: what `links` saw of that link alone, else what the profile says."""
    rows = results_file.part_facts(out, "links").get("rows", [])
    return max([machine.link(Queue.H2D).bytes_per_s, *(float(row["h2d_bytes_per_s"]) for row in rows if "h2d_bytes_per_s" in row)])


def measure(report: Report) -> None:
    driver = new_driver(report.setting)
    for memory in MEMORY:
        _case(report, memory, partial(_out_of, report, driver, memory))
    if report.setting.dry:
        for what in ("beside products", "inside the device, launches"):
            if report.begin(what):
                report.lacks(what, "dry run on the CPU")
    else:
        assert driver is not None
        _case(report, "beside products", partial(_beside_products, report, driver))
        _case(report, "inside the device, launches", partial(_inside, report, driver))
    _case(report, "profile", partial(_profile, report))


def _case(report: Report, what: str, call: Callable[[], None]) -> None:
    if not report.begin(what, LEAST_LEFT_S):
        return
    try:
        call()
    except Exception as error:
        report.failed(what, error)
    if not report.setting.dry:
        torch.cuda.empty_cache()


def _profile(report: Report) -> None:
    """Measured last: what the device holds beside it would count as in use."""
    machine = load_machine("cpu") if report.setting.dry else measured_machine(DeviceKind.CUDA, again=True, say=report.say)
    path = report.setting.out / PROFILE
    report.facts["profile"] = machine_text(machine)
    path.write_text(report.facts["profile"], encoding="utf-8")
    assert load_machine(path) == machine
    rate = machine.link(Queue.H2D).bytes_per_s
    report.row("profile", rate > 0, "it reads back", {"machine": machine.name}, {}, f"{machine.name}, {rate / 1e9:.1f} GB/s in")


# Links


def _out_of(report: Report, driver: Driver | None, what: str) -> None:
    if driver is None or (report.setting.dry and what == MEMORY[2]):
        report.lacks(what, "dry run on the CPU")
        return
    nbytes = DRY_LARGE if report.setting.dry else LARGE
    with host_memory(driver, what, 2 * nbytes) as memory:
        into, out_of = memory[:nbytes], memory[nbytes:]
        near, other = driver.allocate(nbytes), driver.allocate(nbytes)
        filled(into, nbytes)
        _best(driver, [(H2D, near, into)], 0)
        _best(driver, [(COMPUTE, other, near)], 0)
        _best(driver, [(D2H, out_of, other)], 0)
        arrived = torch.equal(into, out_of)
        up, down = [(H2D, near, into)], [(D2H, out_of, other)]
        up_s, down_s, both_s = _best(driver, up), _best(driver, down), _best(driver, up + down)
        small_s, tiny_s = (_best(driver, [(H2D, near[:n], into[:n])] * CHAIN) / CHAIN for n in (SMALL, TINY))
        in_huge = huge_bytes(memory)
    figures = {
        "h2d_bytes_per_s": nbytes / up_s,
        "d2h_bytes_per_s": nbytes / down_s,
        "both_bytes_per_s_each": nbytes / both_s,
        "h2d_1mib_bytes_per_s": SMALL / small_s,
        "copy_latency_s": max(0.0, tiny_s - TINY * up_s / nbytes),
        "huge_bytes": in_huge,
    }
    line = f"in {nbytes / up_s / 1e9:.1f} GB/s, out {nbytes / down_s / 1e9:.1f}, both at once {nbytes / both_s / 1e9:.1f} each way"
    report.row(what, arrived, "what was copied there and back is the same", {"memory": what, "bytes": nbytes}, figures, line)
    assert arrived, "copies do not arrive: nothing can be measured here"


@contextmanager
def host_memory(driver: Driver, what: str, nbytes: int) -> Iterator[Tensor]:
    """So many bytes of that kind of MEMORY, which copy engines reach. Raises UsageError."""
    if what == MEMORY[2]:
        yield torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return
    memory = mapped(nbytes, huge=what == MEMORY[0])
    with closing(PinnedMemory(driver, memory)):
        yield memory


def _best(driver: Driver, copies: list[Copy], samples: int = SAMPLES) -> float:
    """Seconds from the first event to the last of the streams that `copies` go on, in chunks as runs cut them: the least of `samples`; one
    more before them does not count."""
    found = []
    for _ in range(samples + 1):
        streams = sorted({stream for stream, _, _ in copies})
        firsts = [driver.record(stream) for stream in streams]
        for stream, target, source in copies:
            for start, end in copy_cuts(0, target.nbytes, COPY_BYTES):
                driver.copy(stream, target[start:end], source[start:end])
        lasts = [driver.record(stream) for stream in streams]
        for last in lasts:
            driver.synchronize(last)
        found.append(max(driver.seconds(first, last) for first, last in zip(firsts, lasts, strict=True)))
    return min(found[1:], default=found[0])


# The device


def _beside_products(report: Report, driver: Driver) -> None:
    """The link while products keep the processors busy on another stream."""
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(x)

    def busy() -> None:
        for _ in range(40):  # some 60 ms, three times what the copy takes
            torch.mm(x, x, out=product)

    with host_memory(driver, MEMORY[0], LARGE) as memory:
        near, found = driver.allocate(LARGE), []
        for _ in range(SAMPLES):
            driver.launch(COMPUTE, busy)
            found.append(_best(driver, [(H2D, near, memory)], 0))
            driver.synchronize(driver.record(COMPUTE))
    rate = LARGE / min(found)
    figures = {"h2d_beside_products_bytes_per_s": rate}
    report.row("beside products", rate > 0, "it was copied", {"memory": MEMORY[0]}, figures, f"{rate / 1e9:.1f} GB/s")


def _inside(report: Report, driver: Driver) -> None:
    near, other = torch.zeros(2, LARGE, dtype=torch.uint8, device="cuda")
    number = torch.zeros(32, device="cuda")
    inside_s = _shortest(lambda: other.copy_(near))
    launch_s = _shortest(lambda: [number.add_(1) for _ in range(CHAIN)]) / CHAIN
    figures = {"device_copy_bytes_per_s": 2 * LARGE / inside_s, "torch_launch_s": launch_s}
    line = f"{2 * LARGE / inside_s / 1e9:.0f} GB/s read and written, {1e6 * launch_s:.1f} µs a launch"
    right = float(number[0]) == CHAIN * (SAMPLES + 1)
    report.row("inside the device, launches", right, "every launch counted", {}, figures, line)


def _shortest(call: Callable[[], object]) -> float:
    """Seconds between events around `call`, the least of SAMPLES; one more before them does not count."""
    found = []
    for _ in range(SAMPLES + 1):
        start, end = timed_event(), timed_event()
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(float(start.elapsed_time(end)) / 1e3)
    return min(found[1:])
