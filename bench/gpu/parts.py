"""The parts of the measurement in the order of their worth on a short lease, and the time each may take. Needs Python alone.

First what says that anything works here, then right answers, then how fast; what looks for something better comes before the peers. A part
is a process of its own (one.py); what one leaves of its time the later ones may use.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    limit_s: float
    module: str = ""
    """Of bench.gpu, where it is not called as the part is."""
    function: str = "measure"
    optional: bool = False
    """It looks for something better, and proves nothing of what is used: the exit status does not depend on it."""
    by_name: bool = False
    """Only where `--only` names it: it takes a call of its own."""


PARTS = (
    Part("preflight", 20.0),
    Part("links", 30.0),
    Part("tests", 70.0, "kernel_tests"),
    Part("first", 80.0, "models", "measure_first"),
    Part("smollm2", 30.0),
    Part("compile", 60.0),
    Part("kernels", 75.0),
    Part("tiles", 50.0, optional=True),
    Part("models", 80.0),
    Part("peers", 75.0),
    Part("large", 240.0, "models", "measure_large", by_name=True),
)
GO_ON = 75
"""Exit status of a part's process where a new one is to go on."""
PART_BY_NAME = {part.name: part for part in PARTS}
TOTAL_S = 575.0
"""For everything, where `--seconds` says nothing: a command on a lent machine has ten minutes."""


def usual() -> list[str]:
    """The parts that a call without `--only` runs."""
    return [part.name for part in PARTS if not part.by_name]
