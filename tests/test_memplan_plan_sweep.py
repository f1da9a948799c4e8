"""Thousands of random plans, each judged: graphs × budgets from the tightest on × every policy. It reports how many."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from einpage.einsum_front.base.units import ALIGNMENT
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.arena import FitPolicy
from einpage.memplan.horizons.victim import VictimPolicy
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.order import OrderPolicy
from strategies import a_machine, random_graph

POLICIES = list(product(OrderPolicy, VictimPolicy, FitPolicy, (True, False), (True, False)))


def sweep(graphs: range) -> Counter[str]:
    """Plan and judge each graph under five budgets, each under the next policies in turn; answers what became of them."""
    outcomes: Counter[str] = Counter()
    turn = 0
    for seed in graphs:
        graph = random_graph(seed, most_ops=2 + seed % 9, largest_extent=8 + seed % 40)
        alignment = (ALIGNMENT, 1)[seed // 3 % 2]
        _, least = largest_footprint(graph, alignment)
        for extra in (-1, 0, 1, 4, 32):
            order, victim, fit, prefetch, evict_ahead = POLICIES[turn % len(POLICIES)]
            turn += 1
            options = PlanOptions(
                order=order, victim=victim, fit=fit, prefetch=prefetch, evict_ahead=evict_ahead, alignment=alignment, seed=seed
            )
            where = f"graph {seed}, {extra} blocks, {options}"
            try:
                fault = judge(plan(graph, a_machine(), least + extra * alignment, options))
            except DoesNotFit as refused:
                smallest = refused.misfit.smallest_budget
                outcomes["refused" if extra == -1 and smallest == least else f"wrongly refused: {where}"] += 1
            else:
                outcomes["judged" if extra >= 0 and fault is None else f"wrongly planned: {where}: {fault}"] += 1
    assert set(outcomes) == {"judged", "refused"}, outcomes
    return outcomes


def test_every_policy_has_its_turn() -> None:
    outcomes = sweep(range(len(POLICIES)))
    assert outcomes["judged"] == 4 * outcomes["refused"] == 4 * len(POLICIES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_random_plans_are_judged_right(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = sweep(range(1000, 3600))
    with capsys.disabled():
        print(f"\nrandom plans judged right: {outcomes['judged']}; rightly refused: {outcomes['refused']}")
    assert outcomes["judged"] >= 10_000
