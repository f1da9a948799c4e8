"""Reuse distances against a plain list of each tensor's uses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.problem.order import random_topological
from strategies import task_graphs


@given(task_graphs(), st.integers(0, 100))
def test_reuse_knows_the_next_use_at_every_step(graph: TaskGraph, seed: int) -> None:
    order = random_topological(graph, seed)
    tasks = [graph.tasks[t] for t in order]
    uses = {t.id: [s for s, task in enumerate(tasks) if not task.gathers and t.id in task.reads()] for t in graph.tensors}
    reuse = Reuse(graph, order)
    for step, task in enumerate(tasks):
        for t, steps in uses.items():
            later = [s for s in steps if s >= step]
            assert reuse.is_dead(t) == (not later)
            if later:
                assert reuse.next_use(t) == later[0]
                assert reuse.is_last(t, Step(step)) == (later == [step])
        for t in () if task.gathers else task.reads():
            reuse.execute(t)
