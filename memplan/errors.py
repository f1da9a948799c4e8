"""The errors of the planner, with everything a person needs to act on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einpage.einsum_front.base.errors import EinpageError


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a task cannot be placed. All figures in bytes."""

    task: str
    place: str
    """`device` or `host`."""
    wanted: int
    free: int
    largest_hole: int
    budget: int
    pinned: tuple[tuple[str, int], ...]
    """(tensor name, bytes) of what may not be evicted."""
    smallest_budget: int | None
    """The smallest budget that works, with the finest split where the split is free; None where it is the host that is full, or where
    there are too many tasks to count them all."""
    at_least: int | None = None
    """A lower bound on the budget of every split, where it is not `smallest_budget` itself: the search for a smaller one was given up."""
    or_else: str = ""
    """What helps instead of a larger host, as a user says it."""

    def of_task(self, where: str) -> Misfit:
        """The same, with more after the name of the task."""
        return replace(self, task=self.task + where)


class DoesNotFit(EinpageError):
    """No plan exists under this budget. Carries the Misfit."""

    exit_status = 3

    def __init__(self, misfit: Misfit) -> None:
        self.misfit = misfit
        pinned = ", ".join(f"{name} {nbytes}" for name, nbytes in misfit.pinned) or "nothing"
        if misfit.smallest_budget is None:
            instead = f", or {misfit.or_else}" if misfit.or_else else ""
            cure = f"a larger host is needed{instead}" if misfit.at_least is None else f"no budget under {misfit.at_least} bytes works"
        elif misfit.at_least is None or misfit.at_least >= misfit.smallest_budget:
            which = "host budget" if misfit.place == "host" else "budget"
            cure = f"smallest {which} that works: {misfit.smallest_budget} bytes"
        else:
            cure = f"smallest budget found to work: {misfit.smallest_budget} bytes (none under {misfit.at_least} bytes does)"
        super().__init__(
            f"does not fit: task {misfit.task} wants {misfit.wanted} bytes on the {misfit.place}; budget {misfit.budget}, "
            f"free {misfit.free}, largest hole {misfit.largest_hole}; pinned: {pinned}; {cure}"
        )


class PackingDoesNotFit(EinpageError):
    """No packing of these buffers within the capacity was found, or there is none."""

    exit_status = 3

    def __init__(self, height: int, capacity: int, lower_bound: int, proven_bound: int) -> None:
        why = "none exists" if proven_bound > capacity else "none was found in time"
        super().__init__(
            f"does not fit: no packing within {capacity} bytes ({why}); best height found: {height} bytes; "
            f"lower bound: {lower_bound} bytes alive at once"
        )
