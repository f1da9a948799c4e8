"""What copies take: alone, and together with those of the other link; the smallest, and the fastest.

In: seconds to spend on each. Out: CopySamples. Blocks are as large as tiles usually are, and their sources more than caches hold. What is
usual is the median, as for kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.units import Nbytes
from einpage.exec.device.arena import MappedArena
from einpage.exec.measure.probe_runs import USUAL, rounded
from einpage.memplan.graph.memgraph import Extent, Offset
from einpage.memplan.machine.kernel_times import AtDistance

RINGS = (16, 32, 64, 128)
"""Blocks that are written one after the other, and again: a cache holds some of them. As many as the first are what an arena has beside its
residents where the link is what a run waits for."""
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
    at_distances: tuple[AtDistance, ...]
    """How many times longer where as much is copied before the same place is written again."""


def measured_copies(seconds: float) -> CopySamples:
    """Copy for about `seconds` in each of these ways."""
    small, small_to = np.zeros(SMALL, np.uint8), np.zeros(SMALL, np.uint8)
    with copying_thread() as one, copying_thread() as other:
        alone = _block_seconds(one, lambda: sleep(seconds))
        with other.going():
            together = _block_seconds(one, lambda: sleep(seconds))
    usual, at_distances = float(np.quantile(alone, USUAL)), [AtDistance(RINGS[0] * CopyingThread.BLOCK, 1.0)]
    for ring in RINGS[1:]:
        with copying_thread(ring) as one:
            of_ring = _block_seconds(one, lambda: sleep(seconds))[ring:] or [usual]
        longer = max(at_distances[-1].times_longer, float(np.quantile(of_ring, USUAL)) / usual)
        at_distances.append(AtDistance(ring * CopyingThread.BLOCK, rounded(longer)))
    least_s = min(_seconds_each(seconds / SAMPLES, lambda: np.copyto(small_to, small)) for _ in range(SAMPLES))
    twice = float(np.quantile(together, USUAL)) / usual
    return CopySamples(CopyingThread.BLOCK / usual, CopyingThread.BLOCK / min(alone), least_s, twice, tuple(at_distances))


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


class CopyingThread:
    """Copies blocks as a link's engine does, while it is let go, and times them."""

    BLOCK, BLOCKS = 1 << 20, 64
    """More than caches hold is copied."""

    def __init__(self, targets: int) -> None:
        """To so many places, one after the other."""
        self.seconds: list[float] = []
        """Of each block so far."""
        self._targets = targets
        self._go, self._ended = threading.Event(), False
        self._source, self._target = (_bytes(self.BLOCK * blocks) for blocks in (self.BLOCKS, targets))
        self.thread = threading.Thread(target=self._copy, name="einpage-probe-copies", daemon=True)

    def _copy(self) -> None:
        turn = 0
        while not self._ended:
            self._go.wait()
            source, target = turn % self.BLOCKS * self.BLOCK, turn % self._targets * self.BLOCK
            started = perf_counter()
            np.copyto(self._target[target : target + self.BLOCK], self._source[source : source + self.BLOCK])
            self.seconds.append(perf_counter() - started)
            turn += 1

    @contextmanager
    def going(self) -> Iterator[None]:
        """Copies are in flight until the block of code ends."""
        self._go.set()
        try:
            yield
        finally:
            self._go.clear()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._go.set()
        self.thread.join()


def _bytes(nbytes: int) -> NDArray[np.uint8]:
    return MappedArena(nbytes, touch=True).bytes(Extent(Offset(0), Nbytes(nbytes)))


@contextmanager
def copying_thread(targets: int = RINGS[0]) -> Iterator[CopyingThread]:
    """A thread that copies to so many places when it is told to, until the block of code ends."""
    copies = CopyingThread(targets)
    copies.thread.start()
    try:
        yield copies
    finally:
        copies.end()
