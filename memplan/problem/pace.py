"""How long a search goes on: it counts its steps, and ends in the middle of one that is over.

A step is a few dozen microseconds to a few dozen milliseconds of work, the same for the same input: whoever repeats a search with the count
of steps that another took finds what that found, on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from time import perf_counter


class SearchOver(Exception):
    """There are no steps or no time left; what was found until then stands."""


class Ended(Enum):
    """Why a search ended."""

    NEAR_BOUNDS = "the plan is within 1 % of its bounds"
    NOTHING_LEFT = "nothing was left to try"
    TIME = "its time was over"
    STEPS = "its steps were over"
    TOOK_AS_LONG = "it had taken as long as it could save"
    NOT_COVERED = "such a graph is not searched"


@dataclass(slots=True)
class Pace:
    """Of one search, while it goes on and when it has ended."""

    most_steps: float = inf
    until_s: float = inf
    """When it ends, by perf_counter."""
    passes: float = inf
    """How often the plan will run: with so many passes a search that has taken as long as they could become shorter ends."""
    began_s: float = field(default_factory=perf_counter)
    steps: int = 0
    """Begun so far, and none that is over."""
    ratio: float | None = None
    """The best makespan so far, in parts of its bound; None where there is neither yet."""
    ended: Ended | None = None

    def step(self) -> None:
        """Begin a step. Raises SearchOver where that is one too many, or time is up."""
        if self.is_over():
            raise SearchOver
        self.steps += 1

    def is_over(self, needed_s: float = 0.0) -> bool:
        """Whether no step may begin, or whoever needs `needed_s` for other things has no time for any; it has ended then."""
        if self.steps >= self.most_steps:
            self.ended = Ended.STEPS
        elif perf_counter() + needed_s >= self.until_s:
            self.ended = Ended.TIME
        else:
            return False
        return True

    @property
    def seconds_left(self) -> float:
        """For whoever has a clock of its own."""
        return max(0.0, self.until_s - perf_counter())

    def paused(self, seconds: float) -> None:
        """Its clock stood still for so long."""
        self.began_s += seconds
        self.until_s += seconds

    def pays(self, gap_s: float) -> bool:
        """Whether a plan that takes `gap_s` longer than its bound may still be worth the search."""
        return self.passes == inf or perf_counter() - self.began_s < self.passes * gap_s


def pace_in_steps(steps: int) -> Pace | None:
    """That ends after so many; None, no search, for 0."""
    return Pace(steps) if steps else None
