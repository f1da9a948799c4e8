"""What the times of kernels depend on beside the machine: the text of the kernels and of what runs them, and torch's libraries.

In: nothing. Out: a short text, another one whenever one of these has changed. Milliseconds.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import torch

FILES = (
    *("kernels/layout/*.py", "kernels/instructions/*.py", "kernels/on_torch/*.py"),
    *("exec/device/cpu.py", "exec/dispatch/*.py", "exec/measure/*.py"),
)
"""Kernels, what runs them, and how they are measured."""
LIBRARY_VARIABLES = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Choices of the libraries' users that change rates."""


def kernels_version() -> str:
    """Of the files as they are."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for pattern in FILES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def blas() -> str:
    """The libraries of products: torch's, whether it has oneDNN, numpy's, and what the environment asks of them."""
    built = re.findall(r"(?:BLAS_INFO|USE_MKLDNN)=\w+", torch.__config__.show())
    chosen = [f"{name}={value}" for name in LIBRARY_VARIABLES if (value := os.environ.get(name))]
    return " ".join((*built, f"numpy={np.__version__}", *chosen))
