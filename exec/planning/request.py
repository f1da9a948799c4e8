"""What is asked of a plan: every option that decides one, listed once for the command line, a run and the Python API.

In: options by name. Out: a PlanRequest; options that exclude each other raise UsageError before anything is read or planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import ALIGNMENT, refuse_outside, shown
from einpage.einsum_front.graph.program import WeightsAs
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.plan import PlanOptions
from einpage.memplan.problem.pace import Pace
from einpage.memplan.residency.resident_sets import Others, Start
from einpage.memplan.schedule.static_plans import Policy

SEARCHED = 0.85
"""Of the seconds of a plan, what the search may take: then its loads are issued anew, and it is judged, simulated and bounded."""
MOST_SECONDS, MOST_STEPS = 1e6, 10**12
"""Far more than anybody waits for; likewise ..."""
MOST_PASSES = 10**6
"""... so many."""


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
    weights_as: WeightsAs = WeightsAs.RUN
    """In which form weights wait and travel."""
    no_fuse: tuple[str, ...] = ()
    """Fusions to leave out."""
    plan_seconds: float = 0.0
    """For how long a better plan is searched for at most; 0: the online plan, at once."""
    plan_steps: int | None = None
    """Instead: in how many steps, which make the same plan on every machine."""
    plan_worth: bool = False
    """End the search where it has taken as long as the passes could become shorter."""
    policy: Policy = Policy.AUTO
    """Another than AUTO: a static plan in place of the planner's."""
    warm: bool = False
    """Start with weights on the device, as far as they fit."""
    passes: int | None = None
    """Plan a pass that ends as it began, to run so many times; None: one pass."""
    resident: tuple[str, ...] = ()
    """With `passes`: the names of weights that are resident whatever others are, from the arena's top downwards."""
    host_resident: tuple[str, ...] = ()
    """With `passes` and a host budget: the same of the host."""
    others: Others = Others.FASTEST
    """With `passes`: which are resident beside them."""
    resident_bytes: int | None = None
    """With `passes`: of all that are resident, about; None: what is best is searched for."""
    free_order: bool = False
    """Let independent tasks change places where that is faster."""
    recompute: Recompute = Recompute.NEVER
    """Which tensors are dropped and made again."""
    bound_effort: Effort = Effort.FAST
    """What the lower bounds of the report may cost."""
    alignment: int = ALIGNMENT
    """Of offsets, in bytes; 1 for a trace."""
    host_budget_bytes: int | None = None
    """Of the host arena, with the machine's disk behind it; None: the host has whatever it takes."""
    skew: Callable[[TaskGraph], Mapping[str, int]] | None = None
    """With a host budget, of a graph that is planned: the byte of a sector that a tensor begins at on the disk, by name; None: 0 of all."""

    def __post_init__(self) -> None:
        if self.warm and self.passes is not None:
            raise UsageError("--warm and --passes exclude each other: a pass begins with what the one before left on the device")
        if self.passes is not None and self.passes < 1:
            raise UsageError(f"--passes {shown(self.passes)} is not at least 1")
        if self.passes is not None and self.passes > MOST_PASSES:
            raise UsageError(f"--passes {shown(self.passes)} is more than {MOST_PASSES}")
        refuse_outside("--plan-seconds", self.plan_seconds, 0, MOST_SECONDS)
        if self.plan_steps is not None:
            refuse_outside("--plan-steps", self.plan_steps, 0, MOST_STEPS)
        if self.plan_seconds and self.plan_steps is not None:
            raise UsageError("--plan-seconds and --plan-steps exclude each other: a search ends by time, or by steps and can be repeated")
        if self.searches and self.warm:
            raise UsageError("--warm: a plan is searched for from an empty device; leave out --plan-seconds and --plan-steps")
        if self.searches and self.policy is not Policy.AUTO:
            raise UsageError(f"--policy {self.policy.value}: a static plan is not searched for; leave out --plan-seconds and --plan-steps")
        if self.policy is not Policy.AUTO and self.start is not Start.COLD:
            raise UsageError(f"--policy {self.policy.value}: a static plan starts with an empty device; leave out --warm and --passes")
        if self.recompute is not Recompute.NEVER and self.policy is not Policy.AUTO:
            raise UsageError(f"--policy {self.policy.value}: a static plan recomputes nothing; leave out --recompute")
        if self.recompute is not Recompute.NEVER and self.warm:
            raise UsageError("--warm: a warm plan recomputes nothing; leave out --recompute")
        if self.free_order and self.start is Start.LOOP:
            raise UsageError("--free-order: a loop is planned in the order as written; leave out --passes")

    def in_pieces(self, pieces: Mapping[Letter, int]) -> PlanRequest:
        """The same, with the pieces of more letters fixed."""
        return replace(self, pieces={**self.pieces, **pieces})

    @property
    def searches(self) -> bool:
        """Whether a better plan is searched for."""
        return bool(self.plan_seconds or self.plan_steps)

    def pace(self) -> Pace | None:
        """Of a search that begins now; None where there is none."""
        if not self.searches:
            return None
        until_s = perf_counter() + SEARCHED * self.plan_seconds if self.plan_steps is None else inf
        return Pace(inf if self.plan_steps is None else self.plan_steps, until_s, (self.passes or 1) if self.plan_worth else inf)

    @property
    def start(self) -> Start:
        """What is on the device before the first task."""
        return Start.LOOP if self.passes is not None else Start.WARM if self.warm else Start.COLD

    @property
    def planner(self) -> PlanOptions:
        """The options of the planner among these."""
        return PlanOptions(
            alignment=self.alignment,
            policy=self.policy,
            start=self.start,
            free_order=self.free_order,
            recompute=self.recompute,
            resident=self.resident,
            others=self.others,
            resident_bytes=self.resident_bytes,
            host_bytes=self.host_budget_bytes,
            skew=self.skew,
            host_resident=self.host_resident,
        )
