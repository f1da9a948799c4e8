"""The LP bounds: figures by hand, the published figures of the traces, and below every plan and every search."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import TooMany, fewest_bytes, least_seconds
from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.bounds.compulsory import compulsory_load_bytes, compulsory_store_bytes
from einpage.memplan.bounds.interval_lp import all_resident, bytes_bound
from einpage.memplan.bounds.slot_lp import time_bound
from einpage.memplan.graph.memgraph import Compute, MemGraph
from einpage.memplan.graph.simulate import moved_bytes, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Link, Queue, host_links
from einpage.memplan.plan import PlanOptions
from einpage.memplan.plan import plan as make_plan
from einpage.memplan.problem.accesses import Accesses, accesses, from_lists
from einpage.memplan.report import tasks_in_order
from hand_plan import hand_graph, hand_plan
from plain_plan import plain_plan
from strategies import a_machine, alignments, budgets, machines, random_graph, task_graphs

NEAR = 1 + 1e-9
DATA = Path(__file__).parent / "data"
TRACES = Path(__file__).parents[2] / "shared" / "data" / "paging"
"""All traces with their figures, where a checkout has them beside it."""


def links_of(machine: Machine) -> tuple[Link, ...]:
    return machine.links[:2]


def drawing() -> Accesses:
    """The drawing of accesses.py: w of 10 bytes, h of 4, a task result of 1 byte each."""
    reads = [(0,), (0,), (), (0,), (), (1,)]
    writes = [(2,), (1,), (3,), (4,), (5,), (6,)]
    nbytes = [10, 4, 1, 1, 1, 1, 1]
    return from_lists(
        reads=reads, writes=writes, seconds=[1.0] * 6, extra_bytes=[0] * 6, nbytes=nbytes, clean=[t == 0 for t in range(7)],
        output=[t == 6 for t in range(7)],
    )  # fmt: skip


def test_the_drawing() -> None:
    a = drawing()
    assert list(zip(a.loaded, a.load_at, strict=True)) == [(0, 0)]
    assert list(zip(a.tensor, a.start, a.end, a.is_first, strict=True)) == [(0, 1, 3, True), (1, 1, 5, True)]
    assert a.footprint.tolist() == [11, 14, 1, 11, 1, 5]
    assert (a.made_at[1], a.last_at[1], a.last_at[6]) == (1, 5, 5)
    assert (a.compulsory_load_bytes, a.compulsory_store_bytes) == (10, 1)
    assert a.dirty.tolist() == [False, True, True, True, True, True, False]


def test_bytes_of_the_drawing_by_hand() -> None:
    """Through slot 3 (11 bytes) h can keep `capacity` - 11 of its 4 bytes; what it loses is written and read again. Whole, it loses all."""
    for capacity, lost in ((14, 1), (15, 0), (100, 0)):
        assert bytes_bound(drawing(), capacity, cut=True).total == pytest.approx(11 + 2 * lost)
        assert bytes_bound(drawing(), capacity).total == pytest.approx(11 + (8 if lost else 0))
        assert all_resident(drawing(), capacity) == (lost == 0)
    cut = bytes_bound(drawing(), 14, cut=True)
    assert cut.resident == pytest.approx([1, 0.75]) and cut.written[1] == pytest.approx(0.25)
    assert bytes_bound(drawing(), 14, omega=3.0, cut=True).total == pytest.approx(10 + 3 + 1 + 3)
    for whole in (bytes_bound(drawing(), 14), bytes_bound(drawing(), 14, integer=True)):
        assert whole.total == pytest.approx(11 + 8) and (whole.loaded, whole.stored) == pytest.approx((14, 5))


def test_time_of_the_drawing_by_hand() -> None:
    """10 bytes in, six tasks of a second, a byte out; with 14 bytes of arena, h leaves a byte in slot 2 and gets it again in slot 4."""
    assert time_bound(drawing(), 100, host_links(10.0, 4.0)).seconds == pytest.approx(1 + 6 + 1 / 4)
    tight = time_bound(drawing(), 14, host_links(10.0, 4.0), cut=True)
    assert tight.seconds == pytest.approx(1 + 6 + 1 / 4)
    slow = time_bound(drawing(), 14, host_links(10.0, 0.5), cut=True)
    assert slow.seconds == pytest.approx(1 + 6 + 0.05 + 2), "half of h's byte waits after slot 2: half a byte of w goes, and comes again"
    assert slow.stall_s.sum() == pytest.approx(1.05) and slow.written[1] == pytest.approx(0.25)
    whole = time_bound(drawing(), 14, host_links(10.0, 0.5))
    assert (whole.seconds, whole.written[1]) == pytest.approx((10, 1)), "all of h is written: 5 bytes with the output"
    later = time_bound(drawing(), 14, host_links(10.0, 0.5), stretch=(0, 5), cut=True)
    assert later.seconds == pytest.approx(5 + 0.05), "what comes before slot 0, and the tail, are outside"
    late = time_bound(drawing(), 100, host_links(10.0, 4.0, 2.0))
    assert late.seconds == pytest.approx(2 + 1 + 6 + 1 / 4)


def test_a_spill_may_be_written_before_it_leaves() -> None:
    """A tensor that is read right after it was made is written under that read: no wait, though the next task wants all the room."""
    a = from_lists(
        reads=[(), (0,), (1,), (0,)], writes=[(0,), (2,), (3,), (4,)], seconds=[1.0, 1.0, 0.0, 1.0], extra_bytes=[0] * 4,
        nbytes=[4, 4, 1, 1, 1], clean=[False, True, False, False, False], output=[False] * 4 + [True],
    )  # fmt: skip
    bound = time_bound(a, 5, host_links(1e9, 4.0))
    assert bound.seconds == pytest.approx(3 + 1 / 4, rel=1e-6)


def test_a_gather_is_a_load_without_a_slot() -> None:
    a = accesses(hand_graph(), a_machine())
    assert a.slots == 3
    assert a.footprint.tolist() == [512 + 256 + 100, 512 + 256, 512 + 512], "results take over an operand where the task offers one"
    assert list(zip(a.loaded, a.load_at, strict=True)) == [(3, 0), (2, 0)]
    assert a.compulsory_load_bytes == 768
    assert bytes_bound(a, hand_plan().budget_bytes).total == 768 + 1024, "768 in, two outputs of 512 out"


def reference_cases(path: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["reference"]
    return cases


def check_trace(path: Path) -> None:
    """Every figure that the file gives."""
    a = accesses(read_trace(path), a_machine())
    for case in reference_cases(path):
        where = f"{path.name} at {case['capacity']}"
        found = bytes_bound(a, case["capacity"], cut=True)
        assert found.total == pytest.approx(case["lp_total"], rel=1e-4), where
        assert found.loaded + found.stored == pytest.approx(case["lp_total"], rel=1e-4), where
        reads_cost_more = bytes_bound(a, case["capacity"], omega=1.001, cut=True)
        assert reads_cost_more.loaded == pytest.approx(case["lp_h2d"], rel=0.01), f"{where}: the cheapest solutions split alike"
        links = host_links(case["bw_h2d"], case["bw_d2h"])
        seconds = time_bound(a, case["capacity"], links, cut=True).seconds
        assert seconds == pytest.approx(case["lp_makespan_s"], rel=1e-4), where
        assert seconds <= time_bound(a, case["capacity"], links).seconds * NEAR
        if "mip_total" in case:
            whole = bytes_bound(a, case["capacity"], integer=True, time_limit_s=60)
            assert whole.loaded + whole.stored == pytest.approx(case["mip_total"], rel=1e-4), where
            assert found.total <= bytes_bound(a, case["capacity"]).total * NEAR <= whole.total * NEAR**2
            assert whole.total <= case["mip_total"] * NEAR


@pytest.mark.parametrize("name", ["squeezenet", "vgg19"])
def test_the_figures_of_a_small_trace(name: str) -> None:
    given_in = TRACES / f"{name}.json.gz"
    check_trace(DATA / f"{name}.json.gz")
    assert not given_in.exists() or reference_cases(given_in) == reference_cases(DATA / f"{name}.json.gz")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_figures_of_all_traces() -> None:
    paths = sorted(TRACES.glob("*.json.gz"))
    if not paths:
        pytest.skip("the folder of traces is not beside this checkout")
    for path in paths:
        check_trace(path)


def check_plan(plan: MemGraph, machine: Machine) -> None:
    a = accesses(plan.graph, machine, tasks_in_order(plan))
    h2d, d2h = moved_bytes(plan, Queue.H2D), moved_bytes(plan, Queue.D2H)
    for omega in (0.0, 1.0, 2.5):
        assert bytes_bound(a, plan.budget_bytes, omega).total <= (h2d + omega * d2h) * NEAR
    found = bytes_bound(a, plan.budget_bytes)
    assert found.total >= compulsory_load_bytes(plan.graph) + compulsory_store_bytes(plan.graph)
    whole = bytes_bound(a, plan.budget_bytes, integer=True)
    assert found.total <= whole.total * NEAR and whole.total <= (h2d + d2h) * NEAR
    if a.slots:
        seconds = time_bound(a, plan.budget_bytes, links_of(machine)).seconds
        assert a.seconds.sum() <= seconds * NEAR
        line = simulate(plan, machine)
        assert seconds <= line.makespan_s * NEAR
        ends = [line.finish_s[n] for n, node in enumerate(plan.nodes) if isinstance(node, Compute)]
        for i, j in ((0, a.slots - 1), (a.slots // 3, a.slots // 2)):
            between = time_bound(a, plan.budget_bytes, links_of(machine), stretch=(i, j)).seconds
            assert a.seconds[i + 1 : j + 1].sum() <= between * NEAR + 1e-9
            assert between <= (ends[j] - ends[i]) * NEAR + 1e-9


@settings(max_examples=60, deadline=None)
@given(data=st.data(), machine=machines())
def test_no_plan_beats_an_lp(data: st.DataObject, machine: Machine) -> None:
    graph = data.draw(task_graphs(most_ops=5))
    alignment = data.draw(alignments)
    budget = data.draw(budgets(graph, alignment))
    check_plan(make_plan(graph, machine, budget, PlanOptions(alignment=alignment)), machine)
    if alignment == ALIGNMENT:
        check_plan(plain_plan(graph, budget), machine)


def check_search(graph: TaskGraph, seed: int) -> bool:
    """Both bounds against both searches, in an arena of (nearly) the largest footprint. Whether the searches came to an end."""
    rng = np.random.default_rng(seed)
    rates = 10.0 ** rng.uniform(1, 3, 4)
    latency, launch = rng.choice([0.0, 0.1, 1.0], 2)
    machine = a_machine(
        flops_per_s=((graph.dtype, rates[0]),), device_bytes_per_s=rates[1], h2d_bytes_per_s=rates[2], d2h_bytes_per_s=rates[3],
        copy_latency_s=latency, launch_latency_s=launch,
    )  # fmt: skip
    a = accesses(graph, machine)
    if not a.slots:
        return False
    least = int(max(a.footprint.max(), *(t.nbytes for t in graph.tensors)))
    capacity = least + int(rng.choice([0, 0, int(rng.integers(0, least + 1))]))
    try:
        moved, seconds = fewest_bytes(graph, capacity, 20_000), least_seconds(graph, machine, capacity, 20_000)
    except TooMany:
        return False
    assert bytes_bound(a, capacity).total <= moved * NEAR, seed
    assert bytes_bound(a, capacity, integer=True).total <= moved * NEAR, seed
    assert time_bound(a, capacity, links_of(machine)).seconds <= seconds * NEAR, seed
    return True


def sweep(seeds: range) -> int:
    """How many graphs of the seeds were small enough, all of them in order."""
    small = (random_graph(seed, most_ops=3, most_pieces=2, largest_extent=6) for seed in seeds)
    return sum(check_search(graph, seed) for seed, graph in zip(seeds, small, strict=True) if len(graph.tensors) <= 8)


def test_no_search_beats_an_lp() -> None:
    assert sweep(range(60)) >= 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_search_beats_an_lp_at_length(capsys: pytest.CaptureFixture[str]) -> None:
    small = sweep(range(6000))
    assert small >= 2000
    with capsys.disabled():
        print(f"\n{small} graphs: no bound above the best that was found")
