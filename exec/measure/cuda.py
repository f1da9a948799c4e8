"""A profile of this machine's GPU: what its engines do at best.

Products are torch's own (cuBLAS): no kernel of ours beats them, so that bounds made from them hold. Links copy registered host memory on
huge pages, and launches are of a compiled kernel with kept arguments, both as in runs. Of several short samples the best of each counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

import torch

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.exec.device.arena import MappedArena
from einpage.exec.device.cuda import CudaDriver
from einpage.exec.device.stream_memory import PinnedMemory
from einpage.exec.device.streams import COMPUTE, D2H, H2D
from einpage.exec.measure.products import pointwise_job
from einpage.exec.measure.profiles import Say, measured, profile_path
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import prepare_launches
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import host_links

SIDE = {DType.FP32: 4096, DType.BF16: 8192, DType.FP16: 8192}
"""Of the square products measured."""
LINK_BYTES = 256 << 20
INSIDE_BYTES = 1 << 30
SAMPLES = 5
SMALL = 200
"""Smallest kernels, and copies, in a row."""


def measured_cuda(*, again: bool = False, say: Say | None = None) -> Machine:
    """The profile of this GPU, as `profiles.measured`."""
    about = f"{torch.cuda.get_device_name(0)}|{torch.version.cuda}|{torch.__version__}"
    return measured(profile_path("cuda", about), measure_cuda, again, say)


def measure_cuda() -> Machine:
    """Measure for a second or two. Raises UsageError where memory cannot be had or pinned."""
    driver = CudaDriver()
    h2d, d2h = link_rates(driver)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = Machine(
        name="cuda",
        device_bytes=torch.cuda.mem_get_info()[1],
        host_bytes=physical,
        flops_per_s=tuple((dtype, _rounded(_product_rate(driver, dtype))) for dtype in RUN_DTYPES),
        device_bytes_per_s=_rounded(_inside_rate(driver)),
        links=host_links(_rounded(h2d), _rounded(d2h), _rounded(_copy_seconds(driver))),
        launch_latency_s=_rounded(_launch_seconds(driver)),
        about=f"Measured on {driver.name}, the best of each link; torch {torch.__version__}, CUDA {torch.version.cuda}.",
    )
    torch.cuda.empty_cache()  # a run that follows in this process counts what is in use beside its arena
    return machine


def _product_rate(driver: CudaDriver, dtype: DType) -> float:
    """FLOP/s of a square product."""
    side = SIDE[dtype]
    x, y = (torch.randn(side, side, device="cuda", dtype=TORCH_DTYPE[dtype]) for _ in range(2))
    out = torch.empty_like(x)
    return 2 * side**3 / _best(driver, lambda: torch.mm(x, y, out=out))


def _inside_rate(driver: CudaDriver) -> float:
    """Bytes/s of copies inside the device, read and written both counted."""
    source, target = (torch.empty(INSIDE_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * INSIDE_BYTES / _best(driver, lambda: target.copy_(source))


def _launch_seconds(driver: CudaDriver) -> float:
    """What the smallest kernel costs, one behind the other, as runs launch it: one by one, or captured together; whichever is less."""
    kernel = prepare_launches(pointwise_job(16))
    x, y = (torch.zeros(16, device="cuda") for _ in range(2))
    kernel.warm(((x,),), y)
    launch = kernel.bind(((x,),), y, driver.handle(COMPUTE)).call

    def one_by_one() -> None:
        for _ in range(SMALL):
            launch()

    return min(_best(driver, one_by_one), _best(driver, driver.capture(COMPUTE, [launch] * SMALL))) / SMALL


def _copy_seconds(driver: CudaDriver) -> float:
    """What the smallest copy to the device costs, one behind the other."""
    host = MappedArena(4096, touch=True).whole()
    with ExitStack() as closed:
        closed.callback(PinnedMemory(driver, host).close)
        copy = driver.bound_copy(H2D, driver.allocate(4096), host)
        first = driver.record(H2D)
        for _ in range(SMALL):
            copy()
        last = driver.record(H2D)
        driver.synchronize(last)
        return driver.seconds(first, last) / SMALL


def link_rates(driver: CudaDriver, *, huge: bool = True) -> tuple[float, float]:
    """Bytes/s of each link, alone or with the other busy, whichever was faster: bounds need rates that no run beats. `huge`: on huge
    pages, as runs have them."""
    arenas = [MappedArena(LINK_BYTES, huge=huge).whole() for _ in range(2)]
    with ExitStack() as closed:
        for host in arenas:
            closed.callback(PinnedMemory(driver, host).close)
        near = [driver.allocate(LINK_BYTES) for _ in range(2)]
        links = ((H2D, near[0], arenas[0]), (D2H, arenas[1], near[1]))
        best = dict.fromkeys((H2D, D2H), 0.0)
        for busy in (links[:1], links[1:], links) * SAMPLES:
            firsts = [driver.record(stream) for stream, _, _ in busy]
            for stream, target, source in busy:
                driver.copy(stream, target, source)
            lasts = [driver.record(stream) for stream, _, _ in busy]
            for (stream, _, _), first, last in zip(busy, firsts, lasts, strict=True):
                driver.synchronize(last)
                best[stream] = max(best[stream], LINK_BYTES / driver.seconds(first, last))
        return best[H2D], best[D2H]


def _best(driver: CudaDriver, call: Callable[[], object]) -> float:
    """The shortest of several runs of `call` on the compute stream, in seconds; one more before them does not count."""
    driver.launch(COMPUTE, call)
    samples: list[float] = []
    for _ in range(SAMPLES):
        first = driver.record(COMPUTE)
        driver.launch(COMPUTE, call)
        last = driver.record(COMPUTE)
        driver.synchronize(last)
        samples.append(driver.seconds(first, last))
    return min(samples)


def _rounded(rate: float) -> float:
    """Three digits: more would be noise."""
    return float(f"{rate:.3g}")
