"""Pieces that phases have in common, of phases whose every split needs bytes of its own: nothing is assumed of finer ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from einpage.exec.planning.common_pieces import PhaseOps, Pieces, common_pieces, refusal
from einpage.memplan.errors import Misfit

LETTERS = "fk"


@dataclass(frozen=True)
class TablePhase:
    """In place of PhaseOps: bytes by split, the pieces of each letter."""

    need_by_split: Mapping[tuple[int, ...], int]
    budget_bytes: int
    limits: Pieces

    def splits(self, fixed: Pieces) -> list[tuple[int, ...]]:
        """The coarsest first."""
        found = [split for split in self.need_by_split if all(fixed.get(x, n) == n for x, n in zip(LETTERS, split, strict=True))]
        return sorted(found, key=lambda split: (prod(split), split))

    def pieces(self, common: Pieces) -> Pieces | None:
        fits = [split for split in self.splits(common) if self.need_by_split[split] <= self.budget_bytes]
        return cut(fits[0]) if fits else None

    def least(self, common: Pieces) -> tuple[Pieces, Misfit]:
        split = min(self.splits(common), key=self.need_by_split.__getitem__)
        need, budget = self.need_by_split[split], self.budget_bytes
        return cut(split), Misfit("", "device", need, budget, budget, budget, (), need, need)

    def unsearched(self) -> None:
        return None


def cut(split: tuple[int, ...]) -> Pieces:
    return {letter: n for letter, n in zip(LETTERS, split, strict=True) if n > 1}


@st.composite
def table_phases(draw: st.DrawFn) -> TablePhase:
    limits = {letter: draw(st.sampled_from([1, 2, 4])) for letter in LETTERS}
    splits = product(*([n for n in (1, 2, 4) if n <= limits[letter]] for letter in LETTERS))
    return TablePhase({split: draw(st.integers(1, 20)) for split in splits}, draw(st.integers(1, 20)), limits)


ONE_NEEDS_LEAST_WHOLE = [
    TablePhase({(1, 1): 1, (1, 2): 3, (1, 4): 2}, 1, {"f": 1, "k": 4}),
    TablePhase({(1, 1): 3, (1, 2): 2, (1, 4): 1}, 1, {"f": 1, "k": 4}),
]


@example(ONE_NEEDS_LEAST_WHOLE, 1)
@given(st.lists(table_phases(), min_size=1, max_size=3), st.integers(1, 20))
def test_common_pieces_fit_all_and_so_does_the_budget_that_a_refusal_names(drawn: list[TablePhase], budget: int) -> None:
    phases, found = in_common(drawn, budget)
    if found is None:
        misfit = refusal(phases).misfit
        assert misfit.at_least is not None and misfit.at_least <= misfit.wanted and misfit.smallest_budget == misfit.wanted > budget
        assert all(min(phase.need_by_split.values()) <= misfit.wanted for phase in drawn)
        assert any(min(phase.need_by_split.values()) >= misfit.at_least for phase in drawn), "less than that works for none"
        budget = misfit.wanted
        _, found = in_common(drawn, budget)
    assert found is not None
    whole = {letter: found.get(letter, 1) for letter in LETTERS}
    for phase in drawn:
        assert any(phase.need_by_split[split] <= budget for split in phase.splits(whole)), "all letters as they are found, others whole"


def in_common(drawn: list[TablePhase], budget: int) -> tuple[list[PhaseOps], Pieces | None]:
    """The phases under a budget, and what they have in common."""
    phases = cast(list[PhaseOps], [replace(phase, budget_bytes=budget) for phase in drawn])
    return phases, common_pieces(phases)


@pytest.mark.parametrize("budget", range(1, 6))
def test_the_coarsest_that_fit_are_taken(budget: int) -> None:
    splits = [*product((1, 2, 4), (1, 2))]
    needs = [{(f, k): 4 // f for f, k in splits}, {(f, k): 6 // f // k + 1 for f, k in splits}]
    _, found = in_common([TablePhase(need, budget, {"f": 4, "k": 2}) for need in needs], budget)
    assert found == [{"f": 4, "k": 2}, {"f": 2, "k": 2}, {"f": 2, "k": 2}, {"k": 2}, {"k": 2}][budget - 1]
