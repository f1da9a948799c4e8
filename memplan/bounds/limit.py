"""What a lower bound is made of, and which method gave it: the words of reports."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from einpage.memplan.machine.places import Queue


class Method(Enum):
    """Where a bound for the tasks at hand comes from."""

    SLOT_LP = "slot LP"
    WINDOW = "window"
    BUSIEST_ENGINE = "busiest engine"
    CRITICAL_PATH = "critical path"
    INTERVAL_LP = "interval LP"
    COMPULSORY = "compulsory"
    STEADY = "steady state"


class Cause(Enum):
    """What makes a bound, or a makespan, where no single engine does."""

    CRITICAL_PATH = "critical path"
    MEMORY = "memory"
    """The window bound or the slot LP: bytes that come again, or wait for memory, because the budget is small."""
    LATENCY = "latency"
    """Of a plan, never of a bound: nothing is busy."""


Limit: TypeAlias = "Queue | Cause"
"""What a bound is made of, or what would have to be faster or larger for a plan to be faster: an engine that is always busy, or a cause
that holds all of them up."""


def limit_name(limit: Limit) -> str:
    """As reports write it."""
    return limit.name if isinstance(limit, Queue) else limit.value
