"""The row that leaves, found near what is needed last and near holes, is the row that a sweep over the arena finds: at every call."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from einpage.memplan import row
from einpage.memplan.arena import Segment
from einpage.memplan.footprint import largest_footprint
from einpage.memplan.memgraph import ALIGNMENT
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.row import PriceOf, RowFinder, cheapest_row
from einpage.memplan.victim import VictimPolicy
from strategies import a_machine, random_graph


def owners(found: list[Segment] | None) -> list[int]:
    return [owner for _, _, owner in found or () if owner is not None]


def test_what_is_found_near_is_what_a_sweep_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random graphs, aligned or not, in arenas from tight to roomy."""
    monkeypatch.setattr(row, "FEW", 0)
    search = RowFinder.cheapest
    calls = nothing = 0

    def both(self: RowFinder, wanted: int, leaving: PriceOf, price_of: PriceOf, candidates: Iterable[tuple[int, int]]) -> object:
        nonlocal calls, nothing
        swept = cheapest_row(self.arena, wanted, leaving)
        found = search(self, wanted, leaving, price_of, candidates)
        assert owners(found) == owners(swept)
        assert (found is None) == (swept is None)
        calls, nothing = calls + 1, nothing + (found is None)
        return found

    monkeypatch.setattr(RowFinder, "cheapest", both)
    for seed in range(80):
        graph = random_graph(seed, most_ops=14, largest_extent=30, most_pieces=5)
        alignment = (ALIGNMENT, 1)[seed % 2]
        least = largest_footprint(graph, alignment)[1]
        victim = (VictimPolicy.WEIGHTED, VictimPolicy.FARTHEST)[seed // 2 % 2]
        for extra in (0, 4, 16, 64):
            plan(graph, a_machine(), least + extra * (ALIGNMENT if alignment > 1 else 64), PlanOptions(victim=victim, alignment=alignment))
    assert calls > 1000
    assert nothing > 10
