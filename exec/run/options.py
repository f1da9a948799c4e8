"""How a model is run: the plan that is asked for, the device, how nodes are dispatched."""

from __future__ import annotations

from dataclasses import dataclass

from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import DeviceKind, Dispatch


@dataclass(frozen=True, slots=True)
class RunOptions:
    plan: PlanRequest
    """`warm` and `free_order` are of no use to a run; with `passes`, the plan is run so many times."""
    perplexity: bool = False
    """Adds the output that has logits for every position, and the text's perplexity."""
    dispatch: Dispatch = Dispatch.DYNAMIC
    device: DeviceKind = DeviceKind.CPU
    kernels: str = "torch"
    """torch | triton; CUDA runs triton alone, the CPU runs that only under Triton's interpreter."""
    poison: bool = False
    """Overwrite memory whose contents have ended, to show any read of it."""
    find_nan: bool = False
    """Look at every result as it is made: one node after the other, whatever `dispatch` says."""
