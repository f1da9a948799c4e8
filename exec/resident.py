"""How much memory this process has had resident at most.

The kernel's own mark of the process image is read where there is one: what `getrusage` says also counts the process that started this one,
whose memory a child shares until it executes a program of its own.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_resident_bytes() -> int:
    """The most bytes that were resident at any time, code and libraries included."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    marks = [line.split() for line in lines if line.startswith("VmHWM:")]
    if marks:
        return int(marks[0][1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
