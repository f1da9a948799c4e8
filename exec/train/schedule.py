"""Learning rates: one for each step, from 1. A run may be continued to more steps only under a schedule that does not look at the last.

constant  ▁▆██████     linear  ▁▆█▇▅▄▂▁     cosine  ▁▆██▆▄▂▁        each after `warmup` steps that rise in a line
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import cos, inf, pi

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import refuse_outside

LARGEST_RATE = 1e6
"""Far more than anybody trains with."""


class RateShape(Enum):
    """How the rate falls after the warmup; the value is the word of `--schedule`."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class RateSchedule:
    rate: float
    """The largest."""
    steps: int
    """Of the whole run."""
    shape: RateShape = RateShape.CONSTANT
    warmup: int = 0
    """Steps in which the rate rises in a line; in the last of them it is `rate`."""

    def __post_init__(self) -> None:
        refuse_outside("--lr", self.rate, 0, LARGEST_RATE)
        refuse_outside("--warmup", self.warmup, 0, inf)
        if self.warmup > self.steps:
            raise UsageError(f"--warmup {self.warmup} is more than the {self.steps} steps of --steps")

    def at(self, step: int) -> float:
        """Of the step of this number, from 1."""
        if step <= self.warmup:
            return self.rate * step / self.warmup
        done = (step - 1 - self.warmup) / max(1, self.steps - self.warmup)
        match self.shape:
            case RateShape.CONSTANT:
                share = 1.0
            case RateShape.LINEAR:
                share = 1 - done
            case RateShape.COSINE:
                share = (1 + cos(pi * done)) / 2
        return self.rate * share
