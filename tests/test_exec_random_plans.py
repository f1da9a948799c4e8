"""Random task graphs, planned for random budgets, run in random orders on poisoned memory: the result is that of never moving anything.

The third oracle in a row: `direct` (no paging), the plain loop, and the overlapped engines. All arithmetic is exact (see
strategies), so equal means bitwise equal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.dispatch.serial import random_order
from einpage.memplan.machine.machine import Machine
from einpage.memplan.plan import plan
from einpage.memplan.problem.footprint import largest_footprint
from real_bytes import differences, direct, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, budgets, data, machines, random_graph, task_graphs

relaxed = partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(graph: TaskGraph, machine: Machine, budget: int, seed: int) -> None:
    """Plan, run under every dispatcher, compare."""
    memgraph = plan(graph, machine, budget)
    values = data(graph, seed)
    expected = direct(graph, values)
    for name, dispatch in (("serial", run_serial), ("dynamic", run_dynamic), ("static", run_static)):
        assert differences(run_on_bytes(memgraph, values, dispatch), expected) == [], name
    for order in range(seed, seed + 3):
        shuffled = partial(run_serial, order=random_order(memgraph, order))
        assert differences(run_on_bytes(memgraph, values, shuffled), expected) == [], f"random order {order}"


@given(st.data(), task_graphs(joined=True), machines(), st.integers(0, 2**16))
@relaxed(max_examples=60)
def test_any_plan_in_any_order_gives_the_direct_result(drawn: Any, graph: TaskGraph, machine: Machine, seed: int) -> None:
    check(graph, machine, drawn.draw(budgets(graph)), seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_plans_in_random_orders(block: int) -> None:
    """200 graphs a block, each under its smallest budget and under a roomier one."""
    for seed in range(200 * block, 200 * (block + 1)):
        graph = random_graph(seed, most_ops=10, joined=seed % 2 == 1)
        least = largest_footprint(graph)[1]
        check(graph, a_machine(), least, seed)
        check(graph, a_machine(), least + (seed % 7 + 1) * ALIGNMENT, seed)
