"""Problems as tests state them: a view of slots in an arena of another size."""

from __future__ import annotations

from dataclasses import replace

from einpage.einsum_front.base.units import Nbytes
from einpage.memplan.problem.slots import Slots


def in_arena(slots: Slots, budget_bytes: int) -> Slots:
    """`slots` with that many bytes of arena; they do not depend on them."""
    return replace(slots, problem=replace(slots.problem, budget_bytes=Nbytes(budget_bytes)))
