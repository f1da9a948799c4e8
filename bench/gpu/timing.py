"""How long a call keeps the device: CUDA events around each of many calls, the L2 cache overwritten in between, the median of all.

Calls that are compared take turns, so that clocks and temperature are the same for all of them. On the CPU the wall clock is read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

FLUSH_BYTES = 512 << 20
"""More than any L2 holds. Overwriting it also takes longer than a launch, so that launches are never waited for."""
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Timing:
    seconds: float
    """The median."""
    least_s: float
    most_s: float
    count: int


class Clock:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._flush = torch.empty(FLUSH_BYTES if device.type == "cuda" else 1 << 20, dtype=torch.uint8, device=device)

    def compare(self, calls: Mapping[str, Callable[[], object]], seconds: float, least: int = 5, most: int = 60) -> dict[str, Timing]:
        """Time each call between `least` and `most` times, in turns, for about `seconds` in all; the first WARM_UP rounds do not count."""
        for _ in range(WARM_UP):
            round_s = sum(self._once(call) for call in calls.values())
        rounds = max(least, min(most, int(seconds / max(round_s, 1e-6))))
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                found[name].append(self._once(call))
        return {name: Timing(median(times), min(times), max(times), rounds) for name, times in found.items()}

    def _once(self, call: Callable[[], object]) -> float:
        self._flush.zero_()
        if self.device.type != "cuda":
            began = perf_counter()
            call()
            return perf_counter() - began
        start, stop = timed_event(), timed_event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3


def timed_event() -> torch.cuda.Event:
    """An event that knows when it was reached."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
