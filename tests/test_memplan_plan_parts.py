"""The planner's small parts: prices and windows against brute force, reuse distances, orders, edges, host slots."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.units import ALIGNMENT, aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskGraph
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.host_slots import HostSlots
from einpage.memplan.graph.memgraph import EdgeKind
from einpage.memplan.graph.recorder import AT_START, EdgeList, Recorder
from einpage.memplan.horizons import victim
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.horizons.victim import (
    FAR,
    FEW,
    HOLE_TRAFFIC,
    LARGE,
    Price,
    VictimPolicy,
    cheapest_window,
    farthest,
    price_of,
    traffic,
    weighted,
)
from einpage.memplan.problem.order import as_written, random_topological
from einpage.memplan.problem.places import HOST
from einpage.memplan.problem.problem import problem_of
from strategies import a_machine, random_graph, task_graphs

PINNED = -1
segments = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([PINNED, 0, 1, 2, 3, 9])), max_size=9)


@given(segments, st.integers(1, 12), st.sampled_from([np.int64, object]), st.sampled_from([0, FEW]))
def test_the_cheapest_window_is_what_brute_force_finds(tiling: list[tuple[int, int]], wanted: int, dtype: type, few: int) -> None:
    sizes, prices = [s for s, _ in tiling], [p for _, p in tiling]
    ranges = [(a, b) for a in range(len(tiling)) for b in range(a + 1, len(tiling) + 1)]
    possible = [(a, b) for a, b in ranges if PINNED not in prices[a:b] and sum(sizes[a:b]) >= wanted]
    leftmost = min(possible, key=lambda ab: (sum(prices[slice(*ab)]), ab[1], -ab[0]), default=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim, "FEW", few)
        candidates = np.array([i for i, p in enumerate(prices) if p != PINNED], np.int64)
        assert cheapest_window(np.cumsum([0, *sizes]), candidates, np.array(prices, dtype)[candidates], wanted) == leftmost


def one(price: Price, nbytes: int, distance: int, dirty: bool) -> int:
    return int(price(np.array([traffic(nbytes, dirty)]), np.array([distance]))[0])


@pytest.mark.parametrize("price", [weighted, farthest])
def test_farther_is_cheaper(price: Price) -> None:
    assert one(price, 1024, 100, False) < one(price, 1024, 10, False)


def test_weighted_prefers_clean_and_small() -> None:
    assert one(weighted, 1024, 10, False) < one(weighted, 1024, 10, True)
    assert one(weighted, 1024, 10, False) < one(weighted, 2048, 10, False)
    assert one(weighted, 1024, 10, True) > one(weighted, 1024, 15, False), "a clean tensor leaves before a dirty one of comparable distance"


def test_prices_of_an_arena_that_is_not_large_are_exact() -> None:
    """What costs most: as many bytes as there are, dirty, wanted at once."""
    assert one(weighted, LARGE - 1, 1, True) == int(weighted(np.array([traffic(LARGE - 1, True)], object), np.array([1]))[0]) > LARGE


@pytest.mark.parametrize("price", [*map(partial(price_of, seed=0), VictimPolicy)])
def test_a_hole_has_no_price(price: Price) -> None:
    assert price(np.array([HOLE_TRAFFIC, traffic(1, False)]), np.array([FAR, 1 << 40])).tolist()[0] == 0
    assert one(price, 1, 1 << 40, False) > 0


def test_farthest_looks_at_the_nearest_of_a_window_only() -> None:
    assert one(farthest, 1, 50, False) > 3 * one(farthest, 1, 100, False)


def test_random_prices_repeat_with_their_seed() -> None:
    def draw(seed: int) -> list[int]:
        price = price_of(VictimPolicy.RANDOM, seed)
        return [one(price, 1, 1, False) for _ in range(20)]

    assert draw(3) == draw(3) != draw(4)
    assert min(draw(3)) > 0


@given(task_graphs(), st.integers(0, 100))
def test_orders_put_producers_first(graph: TaskGraph, seed: int) -> None:
    for order in (as_written(graph), random_topological(graph, seed)):
        assert sorted(order) == list(range(len(graph.tasks)))
        known = {t.id for t in graph.tensors if t.kind in HOST_AT_START}
        for task_id in order:
            assert known.issuperset(graph.tasks[task_id].reads())
            known.add(graph.tasks[task_id].result)


def test_random_orders_differ_and_repeat() -> None:
    graph = random_graph(5, most_ops=8)
    orders = {random_topological(graph, seed) for seed in range(20)}
    assert len(orders) > 1
    assert random_topological(graph, 1) == random_topological(graph, 1)


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


def test_edges_are_sorted_and_data_wins() -> None:
    edges = EdgeList()
    edges.memory(2, 5)
    edges.data(1, 5)
    edges.data(2, 5)
    edges.memory(0, 3)
    edges.memory(-1, 4)
    edges.memory(0, 3)
    flat = edges.finish()
    got = list(zip(flat.source.tolist(), flat.target.tolist(), flat.kind.tolist(), strict=True))
    assert got == [(0, 3, EdgeKind.MEMORY), (1, 5, EdgeKind.DATA), (2, 5, EdgeKind.DATA)]
    assert [a.dtype.name for a in (flat.source, flat.target, flat.kind)] == ["int32", "int32", "uint8"]


def test_edges_keep_large_node_numbers_apart() -> None:
    edges = EdgeList()
    edges.data(2**31 - 2, 2**31 - 1)
    flat = edges.finish()
    assert (int(flat.source[0]), int(flat.target[0]), int(flat.kind[0])) == (2**31 - 2, 2**31 - 1, EdgeKind.DATA)


def test_an_edge_that_points_backwards_is_our_bug() -> None:
    edges = EdgeList()
    edges.data(3, 3)
    with pytest.raises(AssertionError, match="backwards"):
        edges.finish()


def _host(host_bytes: int, unit: int = ALIGNMENT) -> tuple[HostSlots, Recorder, TaskGraph]:
    graph = random_graph(3, most_ops=6)
    recorder = Recorder(graph)
    return HostSlots(problem_of(graph, a_machine(host_bytes=host_bytes), 0, alignment=unit), recorder), recorder, graph


def _permanent_bytes(graph: TaskGraph, unit: int = ALIGNMENT) -> int:
    return sum(aligned(t.nbytes, unit) for t in graph.tensors if t.kind in HOST_AT_START or t.kind is Kind.OUTPUT)


def test_the_host_refuses_what_it_cannot_hold_at_the_start() -> None:
    graph = random_graph(3, most_ops=6)
    permanent = _permanent_bytes(graph)
    host, *_ = _host(permanent)
    assert host.nbytes == permanent
    with pytest.raises(DoesNotFit) as refused:
        _host(permanent - 1)
    misfit = refused.value.misfit
    assert (misfit.place, misfit.budget, misfit.smallest_budget) == ("host", permanent - 1, None)
    assert misfit.wanted > misfit.free


@pytest.mark.parametrize("unit", [ALIGNMENT, 1])
def test_a_spill_slot_is_used_again_and_a_full_host_names_what_fills_it(unit: int) -> None:
    graph = random_graph(3, most_ops=6)
    a, b = [t.id for t in graph.tensors if t.kind is Kind.ACTIVATION][:2]
    largest = max(aligned(graph.tensors[t].nbytes, unit) for t in (a, b))
    host, recorder, graph = _host(_permanent_bytes(graph, unit) + largest, unit)
    from_a, from_b = (recorder.residency(t, HOST, 0, AT_START) for t in (a, b))
    host.spill(a, from_a, "t")
    host.spill(a, from_a, "t")
    assert len(recorder.nodes) == 1, "a second spill of the same tensor copies nothing"
    with pytest.raises(DoesNotFit) as refused:
        host.spill(b, from_b, "some task")
    misfit = refused.value.misfit
    assert (misfit.task, misfit.place, misfit.smallest_budget) == ("some task", "host", None)
    assert (graph.tensors[a].name, aligned(graph.tensors[a].nbytes, unit)) in misfit.pinned
    slot = recorder.residencies.finish()[host.copy[a]].extents[0].offset
    host.drop(a)
    host.spill(b, from_b, "t")
    assert recorder.residencies.finish()[host.copy[b]].extents[0].offset == slot
    after = recorder.edges.finish()
    assert (after.source[-1], after.target[-1], after.kind[-1]) == (1, 2, EdgeKind.MEMORY), "the slot's Free comes before its next use"
