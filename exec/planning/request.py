"""What is asked of a plan: every option that decides one, listed once for the command line, a run and the Python API.

In: options by name. Out: a PlanRequest; options that exclude each other raise UsageError before anything is read or planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import ALIGNMENT, shown
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.plan import PlanOptions
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.schedule.static_plans import Policy

MOST_PASSES = 10**9
"""Far more than anybody waits for."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Raises UsageError for options that exclude each other."""

    budget_bytes: int
    """Of the device arena."""
    dtype: DType = DType.FP32
    """Of weights and activations; a trace has its own."""
    outputs: tuple[str, ...] = ()
    """By name; empty: the first that the spec declares."""
    pieces: Mapping[Letter, int] = field(default_factory=dict)
    """The number of pieces of each letter that is fixed; the budget decides about the others."""
    no_fuse: tuple[str, ...] = ()
    """Fusions to leave out."""
    effort: int = 0
    """0 to 3: how long a faster plan is searched for (PlanOptions.effort)."""
    policy: Policy = Policy.AUTO
    """Another than AUTO: a static plan in place of the planner's."""
    warm: bool = False
    """Start with weights on the device, as far as they fit."""
    passes: int | None = None
    """Plan a pass that ends as it began, to run so many times; None: one pass."""
    free_order: bool = False
    """Let independent tasks change places where that is faster."""
    bound_effort: Effort = Effort.FAST
    """What the lower bounds of the report may cost."""
    alignment: int = ALIGNMENT
    """Of offsets, in bytes; 1 for a trace."""

    def __post_init__(self) -> None:
        if self.warm and self.passes is not None:
            raise UsageError("--warm and --passes exclude each other: a pass begins with what the one before left on the device")
        if self.passes is not None and self.passes < 1:
            raise UsageError(f"--passes {shown(self.passes)} is not at least 1")
        if self.passes is not None and self.passes > MOST_PASSES:
            raise UsageError(f"--passes {shown(self.passes)} is more than {MOST_PASSES}")
        if self.effort and self.warm:
            raise UsageError(f"--warm is planned at --effort 0 only; leave --effort {self.effort} out")
        if self.policy is not Policy.AUTO and self.start is not Start.COLD:
            raise UsageError(f"--policy {self.policy.value}: a static plan starts with an empty device; leave out --warm and --passes")
        if self.free_order and self.start is Start.LOOP:
            raise UsageError("--free-order: a loop is planned in the order as written; leave out --passes")

    @property
    def start(self) -> Start:
        """What is on the device before the first task."""
        return Start.LOOP if self.passes is not None else Start.WARM if self.warm else Start.COLD

    @property
    def planner(self) -> PlanOptions:
        """The options of the planner among these."""
        return PlanOptions(alignment=self.alignment, effort=self.effort, policy=self.policy, start=self.start, free_order=self.free_order)
