"""Shares found by Lagrange multipliers: what they are where it is plain, and how near the interval LP what is rounded from them comes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.bounds.interval_lp import bytes_bound
from einpage.memplan.machine.machine import links_only
from einpage.memplan.problem.accesses import Accesses, from_lists
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.residency.policies import Headroom, ResidentIntervals, and_nearest, evened, nearest, rounded
from einpage.memplan.residency.shadow_prices import Relaxation
from strategies import a_machine, random_graph

TILED = Path(__file__).parents[2] / "shared" / "data" / "paging" / "tiled-7B-S16384-8x4-dfs.json.gz"
"""Where a checkout has it beside it."""


def loop(tensors: int, passes: int) -> Accesses:
    """So many weights of 10 bytes, each read by one task of every pass."""
    slots = tensors * passes
    return from_lists(
        reads=[(k % tensors,) for k in range(slots)], writes=[()] * slots, seconds=[1.0] * slots, extra_bytes=[0] * slots,
        nbytes=[10] * tensors, clean=[True] * tensors, output=[False] * tensors,
    )  # fmt: skip


def moved(a: Accesses, resident: ResidentIntervals) -> int:
    """Bytes over both links."""
    evicted = ~resident
    written = np.unique(a.tensor[evicted & a.dirty[a.tensor]])
    return int(a.compulsory_load_bytes + a.compulsory_store_bytes + a.nbytes[a.tensor[evicted]].sum() + a.nbytes[written].sum())


def test_the_shares_of_a_loop_are_the_headroom_s() -> None:
    """8 weights, 20 passes: of the 7 that are not in use there is headroom for 4."""
    a = loop(8, 20)
    headroom = np.full(a.slots, 40)
    share = Relaxation(a).shares(headroom)
    assert abs(share.mean() - 4 / 7) < 0.1
    for rounding in (rounded, evened):
        assert moved(a, and_nearest(a, headroom, rounding(a, headroom, share))) < 1.15 * bytes_bound(a, 50).total


def test_where_all_fits_all_are_resident_and_where_nothing_does_none() -> None:
    a = loop(5, 3)
    relaxation = Relaxation(a)
    everything, nothing = (relaxation.shares(np.full(a.slots, n, np.int64)) for n in (1000, 0))
    assert (everything == 1).all()
    assert nothing.max() < 0.3


def near_lp(a: Accesses, capacity: int) -> float:
    """The fewer bytes of the two roundings, as a multiple of the interval LP's."""
    headroom: Headroom = capacity - a.footprint
    share = Relaxation(a).shares(headroom)
    return (
        min(moved(a, and_nearest(a, headroom, rounding(a, headroom, share))) for rounding in (rounded, evened))
        / bytes_bound(a, capacity).total
    )


def test_random_graphs_come_near_the_lp() -> None:
    ratios = []
    for seed in range(120):
        graph = random_graph(seed, most_ops=12)
        slots = slots_of(problem_of(graph, a_machine(), 0))
        if slots is None or not len(slots.accesses.tensor):
            continue
        a = slots.accesses
        ratios.append(near_lp(a, int(a.footprint.max()) + 1024))
    assert len(ratios) >= 20
    assert np.mean(ratios) < 1.03, np.mean(ratios)


@pytest.mark.skipif(not TILED.exists(), reason="the traces are not beside this checkout")
@pytest.mark.parametrize(("which", "most", "nearest_moves"), [(0, 1.02, 1.015), (1, 1.01, 1.05)])
def test_a_tight_tiled_trace_comes_nearer_the_lp_than_by_reuse_distance(which: int, most: float, nearest_moves: float) -> None:
    reference = json.loads(gzip.decompress(TILED.read_bytes()))["reference"][which]
    graph, capacity = read_trace(TILED), int(reference["capacity"])
    slots = slots_of(problem_of(graph, links_only(reference["bw_h2d"], reference["bw_d2h"], capacity), 0, alignment=1))
    assert slots is not None
    a = slots.accesses
    assert near_lp(a, capacity) < most
    assert moved(a, nearest(a, capacity - a.footprint)) / bytes_bound(a, capacity).total > nearest_moves
