"""Times that are not what a plan was made for: what is drawn, what a knowing planner is told, and how little not knowing costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.perturbation import Noise, Spread, drawn, factors, known, loss
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.machine.machine import links_only
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.pace import Pace
from specs_small import SPECS
from strategies import a_machine, changed, random_graph

DATA = Path(__file__).parent / "data"
SHARE = 0.25
STEPS = 3000


@pytest.mark.parametrize("spread", Spread)
def test_factors_are_drawn_from_the_seed_within_the_share(spread: Spread) -> None:
    graph = random_graph(3, most_ops=12)
    noise, again, other = (drawn(graph, SHARE, seed, spread) for seed in (1, 1, 2))
    for of in ("task", "load", "store"):
        found: np.ndarray = getattr(noise, of)
        assert np.array_equal(found, getattr(again, of)) and not np.array_equal(found, getattr(other, of))
        assert bool((np.abs(found - 1) <= SHARE).all()) and found.max() != 1.0
        assert len(set(found.tolist())) == (1 if spread is Spread.ENGINE else len(found))
    assert noise.load[0] != noise.store[0] != noise.task[0]


def test_no_noise_changes_nothing() -> None:
    graph, machine = random_graph(3, most_ops=12), a_machine()
    memgraph = plan(graph, machine, largest_footprint(graph)[1])
    noise = drawn(graph, 0.0, 0, Spread.EACH)
    assert bool((factors(memgraph, noise) == 1).all())
    assert loss(memgraph, machine, noise, steps=STEPS) >= 1


@pytest.mark.parametrize("seed", range(8))
def test_what_is_known_is_what_happens(seed: int) -> None:
    """Under one factor an engine, the nominal plan's clock with factors is the clock of the same plan on what `known` tells."""
    graph, machine = random_graph(seed, most_ops=12), changed(a_machine(), copy_latency_s=0.0)
    memgraph = plan(graph, machine, largest_footprint(graph)[1] + 512)
    noise = drawn(graph, SHARE, seed, Spread.ENGINE)
    real_graph, real_machine = known(graph, machine, noise)
    with_factors = simulate(memgraph, machine, factors(memgraph, noise))
    told = simulate(replace(memgraph, graph=real_graph), real_machine)
    assert told.finish_s == pytest.approx(with_factors.finish_s)
    assert with_factors.makespan_s != simulate(memgraph, machine).makespan_s
    assert bounds(real_graph, real_machine, memgraph.budget_bytes).bound_s <= told.makespan_s * (1 + 1e-9)


def test_a_slow_task_is_slow_where_it_stands() -> None:
    graph, machine = random_graph(5, most_ops=12), a_machine()
    memgraph = plan(graph, machine, largest_footprint(graph)[1])
    task = next(t.id for t in graph.tasks if not t.gathers)
    ones = np.ones(len(graph.tensors))
    noise = Noise(np.where(np.arange(len(graph.tasks)) == task, 3.0, 1.0), ones, ones)
    assert sorted(set(factors(memgraph, noise).tolist())) == [1.0, 3.0] and factors(memgraph, noise).sum() == len(memgraph.nodes) + 2
    real = known(graph, machine, noise)[0]
    before, after = (simulate(replace(memgraph, graph=g), machine).makespan_s for g in (graph, real))
    assert after > before


def llama() -> TaskGraph:
    program = open_model(SPECS / "llama.yaml", {"layers": 6, "seq": 4096}).program
    return build_graph(program, PlanRequest(2 << 30, DType.FP16)).graph


@pytest.mark.parametrize(
    ("name", "graph", "budget", "options"),
    [
        ("llama", llama, 2 << 30, PlanOptions()),
        ("squeezenet", lambda: read_trace(DATA / "squeezenet.json.gz"), 6_308_352, PlanOptions(alignment=1)),
        ("squeezenet, more room", lambda: read_trace(DATA / "squeezenet.json.gz"), 6_939_187, PlanOptions(alignment=1)),
        ("vgg19", lambda: read_trace(DATA / "vgg19.json.gz"), 411_174_912, PlanOptions(alignment=1)),
    ],
)
@pytest.mark.parametrize("spread", Spread)
def test_little_is_lost_by_not_knowing(
    name: str, graph: Callable[[], TaskGraph], budget: int, options: PlanOptions, spread: Spread
) -> None:
    tasks = graph()
    machine = load_machine("a100") if name == "llama" else links_only("12GB/s", None, budget)
    nominal = plan(tasks, machine, budget, options, Pace(STEPS))
    found = [loss(nominal, machine, drawn(tasks, SHARE, seed, spread), options, STEPS) for seed in range(4)]
    assert max(found) <= 1.05, found
