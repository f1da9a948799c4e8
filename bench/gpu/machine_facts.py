"""This machine, in a line and by versions: its GPU and driver, its processor, and the versions of what the figures depend on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata

PACKAGES = (
    *("torch", "triton", "transformers", "accelerate", "deepspeed", "flextensor"),
    *("numpy", "scipy", "hypothesis", "gguf", "tokenizers", "jsonschema"),
)


@cache
def machine_line() -> str:
    """The GPU where there is one, the driver, cores and memory; as far as is known where torch, or the device, is broken."""
    gpu, cuda = "no GPU", None
    try:
        import torch

        cuda = torch.version.cuda
        if torch.cuda.is_available():
            p = torch.cuda.get_device_properties(0)
            gpu = f"{p.name}, {p.total_memory / 2**30:.1f} GiB, sm_{p.major}{p.minor}, driver {smi('driver_version') or 'unknown'}"
    except Exception as error:  # a broken library raises what it likes
        gpu = f"torch does not work: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{gpu}; {platform.machine()}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}; CUDA {cuda}"


@cache
def versions() -> dict[str, str | None]:
    """By package; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def smi(field: str) -> str | None:
    """One field of nvidia-smi for the first GPU; None where there is no such tool. Needs no CUDA context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def device_used_before() -> int | None:
    """Device memory in use by others, as the driver counts it: to be called first before this process touches the device."""
    text = smi("memory.used")
    return int(text) << 20 if text is not None and text.isdigit() else None
