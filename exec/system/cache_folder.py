"""Where einpage caches what it may lose: profiles of machines, tiles of GPUs, packed weights, machine code."""

from __future__ import annotations

import os
from pathlib import Path

from einpage.checkpoints.disk.cache_files import CacheFolder

CODE_LIMIT = 16 << 20
"""Bytes of machine code that are kept: a kernel has some 2 to 8 KiB."""


def cache_folder() -> Path:
    """$EINPAGE_CACHE, else einpage/ in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("EINPAGE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "einpage"


def blocks_folder() -> CacheFolder:
    """Where packed tiles of weights are cached."""
    return CacheFolder(cache_folder() / "blocks")


def code_folder() -> CacheFolder:
    """Where the machine code of the processor's kernels is cached."""
    return CacheFolder(cache_folder() / "code", ".code", CODE_LIMIT)
