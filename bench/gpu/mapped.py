"""Host memory as runs have it, on huge pages, and the same on ordinary ones, to be measured beside each other.

In: bytes. Out: a tensor over a mapping, and how much of one lies on huge pages, by the system's own account.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from einpage.exec.device.arena import MappedArena


def mapped(nbytes: int, huge: bool) -> Tensor:
    """uint8 [nbytes] of anonymous memory, no page of it backed; without `huge`, on no huge page whatever the system's habit is. Raises
    MemoryError."""
    if huge:
        return MappedArena(nbytes, huge=True).whole()
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes of memory are wanted") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def huge_bytes(memory: Tensor) -> int | None:
    """How much of `memory` lies on huge pages; None where the system does not say."""
    start, end, found, inside = memory.data_ptr(), memory.data_ptr() + memory.nbytes, 0, False
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(area[1], 16) < end and start < int(area[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) * 1024
    return min(found, memory.nbytes)


def filled(memory: Tensor, seed: int) -> None:
    """Numbers that are known by `seed`, so that what arrives elsewhere can be compared."""
    words = memory.numpy().view(np.uint64)
    words[:] = np.arange(seed, seed + len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
