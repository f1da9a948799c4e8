"""What copies take: alone, and together with those of the other link; the smallest, and the fastest.

In: seconds to spend on each. Out: CopySamples. Blocks are as large as tiles usually are, and their sources more than caches hold. What is
usual is the median, as for kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np

from einpage.exec.measure.probe_runs import USUAL, CopyingThread, copying_thread

SMALL = 4096
"""Bytes of the smallest copy."""
SAMPLES = 5
"""Of the smallest copy."""


@dataclass(frozen=True, slots=True)
class CopySamples:
    alone_bytes_per_s: float
    best_bytes_per_s: float
    """Of the fastest block."""
    least_s: float
    """Of the smallest copy."""
    together: float
    """How many times longer beside other copies."""


def measured_copies(seconds: float) -> CopySamples:
    """Copy for about `seconds` in each of these ways."""
    small, small_to = np.zeros(SMALL, np.uint8), np.zeros(SMALL, np.uint8)
    with copying_thread() as one, copying_thread() as other:
        alone = _block_seconds(one, lambda: sleep(seconds))
        with other.going():
            together = _block_seconds(one, lambda: sleep(seconds))
    least_s = min(_seconds_each(seconds / SAMPLES, lambda: np.copyto(small_to, small)) for _ in range(SAMPLES))
    usual = float(np.quantile(alone, USUAL))
    twice = float(np.quantile(together, USUAL)) / usual
    return CopySamples(CopyingThread.BLOCK / usual, CopyingThread.BLOCK / min(alone), least_s, twice)


def _block_seconds(copies: CopyingThread, meanwhile: Callable[[], object]) -> list[float]:
    """What each block takes that the thread copies meanwhile, and at least one."""
    before = len(copies.seconds)
    with copies.going():
        meanwhile()
        while len(copies.seconds) == before:
            sleep(1e-3)
    return copies.seconds[before:]


def _repeat(seconds: float, call: Callable[[], object]) -> int:
    """Call again and again for so long; how often."""
    until, calls = perf_counter() + seconds, 0
    while perf_counter() < until:
        call()
        calls += 1
    return max(1, calls)


def _seconds_each(seconds: float, call: Callable[[], object]) -> float:
    """The mean time of a call."""
    started = perf_counter()
    calls = _repeat(seconds, call)
    return (perf_counter() - started) / calls
