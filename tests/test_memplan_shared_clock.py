"""The clock of engines that slow each other down: by hand, and against the plain one where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.memplan.graph.memgraph import Edges
from einpage.memplan.graph.shared_clock import NO_QUEUE, Sharing, shared_clock
from einpage.memplan.graph.simulate import durations, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import ENGINES
from hand_plan import hand_plan
from kernel_time_figures import kernel_times, nothing_usual
from plain_plan import plain_plan
from strategies import budgets, machines, task_graphs
from test_memplan_simulate import SECONDS

COMPUTE, H2D, D2H = range(len(ENGINES))
ALONE = Sharing(0.0, 0.0, np.ones(9), np.ones(9), 1.0)


def clock(queues: list[int], seconds: list[float], edges: list[tuple[int, int]], sharing: Sharing) -> list[tuple[float, float]]:
    """(start, finish) of each node."""
    by_target = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    source, target = (np.array([edge[i] for edge in by_target], np.int32) for i in (0, 1))
    found = shared_clock(
        Edges(source, target, np.zeros(len(edges), np.uint8)), np.array(queues, np.int8), [None] * 3, np.array(seconds), sharing
    )
    return list(zip(*(column.tolist() for column in found), strict=True))


def test_a_kernel_is_slowed_down_for_as_long_as_a_copy_is_in_flight() -> None:
    """A copy of 4 s beside a kernel of 10 s that takes twice as long meanwhile: 2 s of it are done after 4, and 8 are left."""
    sharing = Sharing(0.0, 0.0, np.array([2.0, 1.0]), np.ones(2), 1.0)
    assert clock([COMPUTE, H2D], [10.0, 4.0], [], sharing) == [(0.0, 12.0), (0.0, 4.0)]


def test_both_are_slowed_down() -> None:
    """Kernel of 10 s at 1/2, copy of 4 s at 1/1.5 until it ends at 6: 3 s of the kernel are done."""
    sharing = Sharing(0.0, 0.0, np.array([2.0, 1.0]), np.array([1.5, 1.0]), 1.0)
    assert clock([COMPUTE, H2D], [10.0, 4.0], [], sharing) == [(0.0, 13.0), (0.0, 6.0)]


def test_copies_of_two_links_are_slowed_down_together() -> None:
    """4 s and 2 s at 1/2: the shorter ends at 4, and 2 s of the longer are left."""
    sharing = Sharing(0.0, 0.0, np.ones(2), np.ones(2), 2.0)
    assert clock([H2D, D2H], [4.0, 2.0], [], sharing) == [(0.0, 6.0), (0.0, 4.0)]


def test_an_engine_that_waited_has_to_wake_up() -> None:
    """The run starts at 1; the kernel waits for the copy, through a Free; the second kernel follows at once."""
    sharing = Sharing(1.0, 0.5, np.ones(4), np.ones(4), 1.0)
    found = clock([H2D, NO_QUEUE, COMPUTE, COMPUTE], [3.0, 0.0, 2.0, 2.0], [(0, 1), (1, 2)], sharing)
    assert found == [(1.0, 4.0), (4.0, 4.0), (4.5, 6.5), (6.5, 8.5)]


def test_a_queue_keeps_its_order() -> None:
    """The second copy could start at once, and waits for the first, which waits for the kernel."""
    assert clock([COMPUTE, H2D, H2D], [2.0, 1.0, 1.0], [(0, 1)], replace(ALONE, beside=np.ones(3))) == [(0.0, 2.0), (2.0, 3.0), (3.0, 4.0)]


def test_an_order_that_cannot_run_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="no valid execution"):
        clock([COMPUTE, COMPUTE], [1.0, 1.0], [(1, 0)], replace(ALONE, beside=np.ones(2)))


def test_a_machine_that_knows_no_more_than_its_rates_is_simulated_as_one_without_kernel_times() -> None:
    plain, shared = (simulate(hand_plan(), machine) for machine in (SECONDS, replace(SECONDS, kernel_times=nothing_usual())))
    assert np.allclose(plain.start_s, shared.start_s) and np.allclose(plain.finish_s, shared.finish_s)
    assert dict(plain.busy_s) == pytest.approx(dict(shared.busy_s))


@settings(max_examples=40, deadline=None)
@given(st.data(), machines())
def test_the_two_clocks_agree_where_nothing_slows_down(data: st.DataObject, machine: Machine) -> None:
    graph = data.draw(task_graphs(most_ops=4, joined=True))
    plan = plain_plan(graph, data.draw(budgets(graph)))
    plain, shared = (simulate(plan, m) for m in (machine, replace(machine, kernel_times=nothing_usual())))
    for one, other in ((plain.start_s, shared.start_s), (plain.finish_s, shared.finish_s)):
        assert np.allclose(one, other, rtol=1e-9, atol=1e-9 * plain.makespan_s)


@settings(max_examples=40, deadline=None)
@given(st.data(), machines())
def test_edges_and_queues_are_kept_and_nothing_is_faster_than_alone(data: st.DataObject, machine: Machine) -> None:
    graph = data.draw(task_graphs(most_ops=4, joined=True))
    plan = plain_plan(graph, data.draw(budgets(graph)))
    usual = replace(machine, kernel_times=data.draw(kernel_times()))
    line = simulate(plan, usual)
    slack = 1e-9 * line.makespan_s
    assert (line.start_s[plan.edges.target] >= line.finish_s[plan.edges.source] - slack).all()
    assert (line.finish_s - line.start_s >= durations(plan, usual) * (1 - 1e-9) - slack).all()
    assert line.makespan_s == line.finish_s.max() and line.start_s.min() >= usual.kernel_times.start_s - slack  # type: ignore[union-attr]
    assert all(busy <= line.makespan_s * (1 + 1e-9) for _, busy in line.busy_s)


def test_the_latency_of_a_read_passes_while_others_are_in_flight() -> None:
    """Reads of 4, 4 and 1 s, latency 1: the second may begin at once, the third when the kernel of 8.5 s is done, half a second before the
    second has ended, so half of its latency is left."""
    read, nowhere = len(ENGINES), np.zeros(1, np.uint8)
    edges = Edges(np.array([2], np.int32), np.array([3], np.int32), nowhere)
    queues, seconds = np.array([read, read, COMPUTE, read], np.int8), np.array([4.0, 4.0, 8.5, 1.0])
    start, finish = shared_clock(edges, queues, [None, None, None, 1.0], seconds, ALONE)
    assert finish.tolist() == [5.0, 9.0, 8.5, 10.5] and start.tolist() == [1.0, 5.0, 0.0, 9.5]


@pytest.mark.parametrize("latency_s", [0.0, 1e-12])
def test_a_disk_without_latency_is_one_with_next_to_none(latency_s: float) -> None:
    """It does without the cores as every disk does: a kernel beside its reads is as fast as alone, and so are they."""
    read, sharing = len(ENGINES), Sharing(0.0, 0.0, np.full(3, 2.0), np.full(3, 2.0), 2.0)
    no_edges = Edges(*np.zeros((2, 0), np.int32), np.zeros(0, np.uint8))
    _, finish = shared_clock(
        no_edges, np.array([COMPUTE, read, read], np.int8), [None, None, None, latency_s], np.array([3.0, 1.0, 1.0]), sharing
    )
    assert finish.tolist() == pytest.approx([3.0, 1.0, 2.0])
