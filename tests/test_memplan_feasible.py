"""What the planner refuses cannot be done: confirmed on small graphs by a search that tries everything.

The search knows nothing of footprints: it walks over what is on the device, one load, eviction or task at a time. It ignores offsets, links
and time, so what it cannot reach no plan can; that what it reaches can be laid out, the judged plan shows.
Tasks run in graph order, as the planner's default; a result is in place of an operand that no later task reads and that is no output.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from einpage.einsum_front.base.units import ALIGNMENT, aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Task, TaskGraph, TensorId
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.judge.validate import judge
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from strategies import a_machine, alignments, random_graph, task_graphs

MOST_TENSORS = 11
"""What the search can walk through: it visits subsets of the tensors."""

State = tuple[int, frozenset[TensorId]]
"""The next task, and what is on the device. What has been made and is not there is on the host."""


def can_be_done(graph: TaskGraph, budget: int, alignment: int) -> bool:
    """Whether any sequence of loads, evictions and tasks in graph order ends with all tasks run within `budget` bytes."""
    size = [aligned(t.nbytes, alignment) for t in graph.tensors]
    seen: set[State] = {(0, frozenset())}
    edge: list[State] = [(0, frozenset())]
    while edge:
        k, there = edge.pop()
        if k == len(graph.tasks):
            return True
        task = graph.tasks[k]
        free = budget - sum(size[t] for t in there)
        made = {t.id for t in graph.tensors if t.kind in HOST_AT_START} | {earlier.result for earlier in graph.tasks[:k]}
        after: list[State] = [(k, there - {t}) for t in there]
        after += [(k, there | {t}) for t in made - there if size[t] <= free]
        after += [(k + 1, ends) for ends in _runs(graph, task, there, free, size, alignment)]
        for state in after:
            if state not in seen:
                seen.add(state)
                edge.append(state)
    return False


def _runs(
    graph: TaskGraph, task: Task, there: frozenset[TensorId], free: int, size: list[int], alignment: int
) -> list[frozenset[TensorId]]:
    """What is on the device after `task`, for each way in which it can run now."""
    result = size[task.result]
    if task.gathers:
        return [there | {task.result}] if result <= free else []
    if not there.issuperset(task.reads()):
        return []
    workspace = aligned(task.workspace_bytes, alignment)
    ends = [there | {task.result}] if result + workspace <= free else []
    read_later = {t for later in graph.tasks[task.id + 1 :] if not later.gathers for t in later.reads()}
    for t in task.inplace:
        if t not in read_later and graph.tensors[t].kind is not Kind.OUTPUT and workspace <= free:
            ends.append(there - {t} | {task.result})
    return ends


def check(graph: TaskGraph, budget: int, alignment: int) -> None:
    """The planner plans exactly what can be done."""
    try:
        memgraph = plan(graph, a_machine(), budget, PlanOptions(alignment=alignment))
    except DoesNotFit:
        assert not can_be_done(graph, budget // alignment * alignment, alignment), f"refused at {budget} bytes, and possible"
    else:
        assert judge(memgraph) is None
        assert can_be_done(graph, budget, alignment), f"planned at {budget} bytes, and impossible"


@given(task_graphs(most_ops=3, most_pieces=2), st.integers(-6, 6), alignments)
def test_what_is_refused_cannot_be_done(graph: TaskGraph, near: int, alignment: int) -> None:
    assume(len(graph.tensors) <= MOST_TENSORS)
    least = largest_footprint(graph, alignment)[1]
    for budget in (least - 1, least, max(0, least + near * alignment)):
        check(graph, budget, alignment)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_refused_cannot_be_done_at_length(capsys: pytest.CaptureFixture[str]) -> None:
    """Every small graph of 6,000, at, just below and around its smallest budget."""
    small = 0
    for seed in range(6000):
        graph = random_graph(seed, most_ops=3, most_pieces=2)
        if len(graph.tensors) > MOST_TENSORS:
            continue
        small += 1
        alignment = (ALIGNMENT, 1)[seed % 2]
        least = largest_footprint(graph, alignment)[1]
        for budget in (least - 1, least, max(0, least + (seed % 9 - 4) * alignment)):
            check(graph, budget, alignment)
    assert small >= 2000
    with capsys.disabled():
        print(f"\n{small} graphs, {3 * small} budgets: refused exactly where impossible")
