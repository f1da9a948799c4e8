"""What is here, and does it work? Everything is tried: modules by importing them, Triton by a kernel, host memory by registering it.

Gate of each case: it works. A module that may be missing is absent, with the name of its wheel and the parts that it costs. How long pages
of the host take to back, to register and to give back says what later parts spend their time on; sizes that 20 s do not suffice for are
left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module, metadata
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench import results
from bench.gpu.report import Report
from bench.gpu.wheels import NEEDED, Needed, cure

if TYPE_CHECKING:
    from einpage.exec.device.driver import Driver

BASE = ("numpy", "torch", "triton")
GB = 10**9
SIZES = (GB, 13 * GB, 40 * GB)
"""Bytes registered: the smallest that says anything, LLaMA-7B's weights, those of 24 layers of 65B."""
DRY_SIZES = (1 << 20,)
SECONDS_PER_GB = {True: 0.4, False: 0.9}
"""What a size is expected to take, with and without huge pages, before a smaller one has told."""
LEAST_FREE = 2 << 30
"""Bytes of disk for compiled kernels and the joined model."""


def measure(report: Report) -> None:
    for name in BASE:
        _case(report, f"import {name}", lambda name=name: _imported(name))  # type: ignore[misc]
    for needed in NEEDED:
        _wheel(report, needed)
    _case(report, "commit", lambda: (results.commit() != results.UNKNOWN or "give --commit ID", {"commit": results.commit()}))
    _case(report, "disk", lambda: _disk(report))
    _case(report, "device", lambda: _device(report))
    _case(report, "a generated kernel", lambda: _kernel(report))
    _host_memory(report)


def _case(report: Report, what: str, call: Callable[[], tuple[bool | str, dict[str, Any]]]) -> None:
    """`call` answers whether it is right, or what to do about it, and what it found."""
    if not report.begin(what):
        return
    try:
        ok, found = call()
    except Exception as error:
        report.failed(what, error)
        return
    if isinstance(ok, str):
        report.lacks(what, ok)
    else:
        line = ", ".join(f"{key} {value}" for key, value in found.items())
        report.row(what, ok, line, {}, found, line)


def _imported(name: str) -> tuple[bool, dict[str, Any]]:
    began = perf_counter()
    module = import_module(name)
    return True, {"version": str(getattr(module, "__version__", "unknown")), "import_s": round(perf_counter() - began, 2)}


def _wheel(report: Report, needed: Needed) -> None:
    what = f"import {needed.module}"
    if not report.begin(what):
        return
    try:
        import_module(needed.module)
    except Exception as error:  # one that is broken raises what it likes
        costs = ", ".join(needed.parts)
        lost = f"without it {costs} will be absent, or some of it" if costs else f"it is good for this: {needed.use}"
        missing = isinstance(error, ModuleNotFoundError) and cure(error.name)
        report.lacks(what, f"{missing or f'{type(error).__name__}: {error}'}; {lost}")
    else:
        try:
            version = metadata.version(needed.distribution)
        except metadata.PackageNotFoundError:
            version = "unknown"
        report.row(what, True, "it imports", {}, {"version": version}, version)


def _disk(report: Report) -> tuple[bool, dict[str, Any]]:
    free = shutil.disk_usage(report.setting.out).free
    return free >= LEAST_FREE, {"free_bytes": free}


def _device(report: Report) -> tuple[bool | str, dict[str, Any]]:
    import torch

    if report.setting.dry:
        return "dry run on the CPU", {}
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here; --dry-run goes without one")
    free, total = torch.cuda.mem_get_info()
    x = torch.arange(1000, device="cuda")
    return int(x.sum()) == 499500, {"name": torch.cuda.get_device_name(0), "free_bytes": free, "bytes": total}


def _kernel(report: Report) -> tuple[bool, dict[str, Any]]:
    """One product, compiled and run."""
    import torch

    from einpage.einsum_front.base.dtype import DType
    from einpage.exec.measure.products import product_job
    from einpage.kernels.prepare import Backend, prepare

    device = report.setting.device
    x, w = (torch.randn(n, 96, device=device) for n in (80, 112))
    result = torch.full((80, 112), torch.nan, device=device)
    began = perf_counter()
    prepare(product_job(80, 96, 112, DType.FP32), Backend.TORCH if report.setting.dry else Backend.TRITON)(((x,), (w,)), result, None)
    wanted = x.double() @ w.double().T
    error = float((result.double() - wanted).abs().max() / wanted.abs().max())
    return error <= 1e-5, {"error": f"{error:.1e}", "first_call_s": round(perf_counter() - began, 2)}


def _host_memory(report: Report) -> None:
    try:
        from bench.gpu.drivers import new_driver
    except Exception as error:
        report.failed("host memory", error)
        return
    sizes = DRY_SIZES if report.setting.dry else SIZES
    expected = dict(SECONDS_PER_GB)
    for nbytes in sizes:
        for huge in (True, False):
            what = f"register {nbytes / GB:g} GB, {'huge pages' if huge else '4 KiB pages'}"
            if not report.begin(what, 1.0 + expected[huge] * nbytes / GB):
                continue
            try:
                driver = new_driver(report.setting)
                if driver is None:
                    report.lacks(what, "dry run on the CPU")
                    continue
                found = registered(driver, nbytes, huge)
            except Exception as error:
                report.failed(what, error)
                continue
            expected[huge] = 1.2 * sum(found[key] for key in ("touch_s", "register_s", "unregister_s")) / (nbytes / GB)
            line = f"touch {found['touch_s']:.2f} s, register {found['register_s']:.2f} s, unregister {found['unregister_s']:.2f} s"
            report.row(what, True, "registered and given back", {"bytes": nbytes, "huge": huge}, found, line)


def registered(driver: Driver, nbytes: int, huge: bool) -> dict[str, Any]:
    """Seconds to back, register and unregister so much memory, and how much of it lay in huge pages. Raises UsageError."""
    from bench.gpu.mapped import huge_bytes, mapped
    from einpage.exec.device.stream_memory import PinnedMemory, backed

    memory = mapped(nbytes, huge)
    touch_s = _seconds(lambda: backed(memory))
    began = perf_counter()
    pinned = PinnedMemory(driver, memory)
    register_s, in_huge = perf_counter() - began, huge_bytes(memory)
    return {"touch_s": touch_s, "register_s": register_s, "unregister_s": _seconds(pinned.close), "huge_bytes": in_huge}


def _seconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began
