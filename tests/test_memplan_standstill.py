"""No plan over three places comes to a standstill, however long its copies and tasks take: and what would is found.

right       a store has a slot on the host before it begins; each queue takes its nodes in node order
mutants     a queue without order; a store whose slot is found when something later leaves the host; a trace in clock order
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Free, HostGather, MemGraph, Move, NodeId
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, HOST, SECTOR, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.tiers.plan_tiers import AS_FAST, PlanDevice, _tier_machine, plan_tiers
from einpage.memplan.tiers.trace import TierTrace, events_of, tier_trace
from queues_with_delays import ended, queues_of_plan
from strategies import a_machine, random_graph
from three_places import with_disk

MACHINE = with_disk(a_machine())
ABOVE = 1.05
"""Budgets are this multiple of the smallest that is feasible."""


def tight(nbytes: int, unit: int) -> int:
    return -(-int(ABOVE * nbytes) // unit) * unit


def planned_once(graph: TaskGraph, budget: int, start: Start) -> PlanDevice:
    """Plans of the device, for the host that is too small and for the one that is not."""
    of_device: dict[bool, MemGraph] = {}

    def plan_device(machine: Machine, even: bool) -> MemGraph:
        if even not in of_device:
            of_device[even] = plan(graph, machine, budget, PlanOptions(start=start, even=even, as_fast=AS_FAST))
        return of_device[even]

    return plan_device


def random_plans(seeds: range) -> Iterator[MemGraph]:
    """Cold plans and loops of random graphs, on device and host hardly larger than they have to be."""
    for seed in seeds:
        graph = random_graph(seed, most_ops=5)
        budget, start = tight(largest_footprint(graph)[1], 256), Start.LOOP if seed % 2 else Start.COLD
        plan_device = planned_once(graph, budget, start)
        try:
            yield plan_tiers(graph, MACHINE, 1, plan_device)
        except DoesNotFit as error:
            host = tight(error.misfit.smallest_budget or 0, SECTOR)
        yield plan_tiers(graph, MACHINE, host, plan_device)


def stands_still(made: MemGraph, seed: int) -> bool:
    queues, free, waits = queues_of_plan(made)
    return len(ended(list(queues.values()), free, waits, seed)) < len(made.nodes)


def sweep(seeds: range) -> None:
    plans = spills = 0
    for seed, made in enumerate(random_plans(seeds)):
        assert not stands_still(made, seed), f"plan {seed}"
        plans += 1
        spills += any(made.queue(NodeId(n)) == Queue.WRITE for n in range(len(made.nodes)))
    assert plans == len(seeds) and spills > plans // 100, f"{spills} of {plans} plans write to the disk"


def test_no_plan_stands_still() -> None:
    sweep(range(200))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_none_of_ten_thousand_plans_stands_still() -> None:
    sweep(range(10_000))


def without_order(made: MemGraph, seed: int) -> bool:
    """The queue to the device takes its nodes as they come, and not in node order: whether that stands still."""
    queues, free, waits = queues_of_plan(made)
    Random(seed).shuffle(queues.get(Queue.H2D, []))
    return len(ended(list(queues.values()), free, waits, seed)) < len(made.nodes)


def without_landing_slot(made: MemGraph, seed: int) -> bool:
    """A store waits until the next tensor after it in node order has left the host, as if it had no slot before: whether that
    stands still."""
    queues, free, waits = queues_of_plan(made)
    everything = enumerate(made.nodes)
    frees = [n for n, node in everything if isinstance(node, Free) and made.residencies[node.residency].place == HOST]
    for n in queues.get(Queue.D2H, []):
        later = [f for f in frees if f > n]
        if later:
            waits.setdefault(n, []).append(later[0])
    return len(ended(list(queues.values()), free, waits, seed)) < len(made.nodes)


def test_the_harness_finds_a_queue_without_order() -> None:
    assert any(without_order(made, seed) for seed, made in enumerate(random_plans(range(60))))


def test_the_harness_finds_a_store_without_a_landing_slot() -> None:
    assert any(without_landing_slot(made, seed) for seed, made in enumerate(random_plans(range(60))))


class Apart:
    """A plan of the device and one of the tier behind it, whose queues run together although nobody joined them: a copy of the device's
    plan is a task of the tier's. Items are nodes of the one, then those of the other."""

    def __init__(self, device: MemGraph, trace: TierTrace, tier: MemGraph) -> None:
        queues, free, waits = queues_of_plan(device)
        on_host = {
            n for n, node in enumerate(device.nodes) if isinstance(node, Free) and device.residencies[node.residency].place != DEVICE
        }
        offset = len(device.nodes)
        self.waits = {n: [w for w in before if w not in on_host] for n, before in waits.items() if n not in on_host}
        self.free = [n for n in free if n not in on_host]
        number = {}
        for m, node in enumerate(tier.nodes):
            event = None if isinstance(node, Move | Free) else trace.events[node.task]
            number[m] = offset + m if event is None else event[0]
        tier_queues, tier_free, tier_waits = queues_of_plan(tier)
        for m, before in tier_waits.items():
            self.waits.setdefault(number[m], []).extend(number[w] for w in before if number[w] != number[m])
        self.free += [number[m] for m in tier_free]
        self.queues = [*queues.values(), *([number[m] for m in q] for name, q in tier_queues.items() if name is not Queue.COMPUTE)]
        self.count = len({*self.free, *(n for q in self.queues for n in q)})

    def stands_still(self, seed: int) -> bool:
        return len(ended(self.queues, self.free, self.waits, seed)) < self.count


def in_clock_order(trace: TierTrace, device: MemGraph) -> TierTrace:
    """The tasks of a trace as a clock has them wanted: by when what reads a copy begins, and not by node."""
    start_s, reader_s = simulate(device, MACHINE).start_s, np.full(len(device.nodes), np.inf)
    np.minimum.at(reader_s, device.edges.source, start_s[device.edges.target])
    order = sorted(range(len(trace.events)), key=lambda k: reader_s[trace.events[k][0]])  # type: ignore[index]
    tasks = tuple(replace(trace.graph.tasks[k], id=n) for n, k in enumerate(order))  # type: ignore[arg-type]
    return replace(trace, graph=replace(trace.graph, tasks=tasks), events=tuple(trace.events[k] for k in order))


def plans_apart(seeds: range, by_clock: bool) -> Iterator[tuple[int, Apart]]:
    """Of random graphs without gathers; those that a clock has read before they are written are left out."""
    for seed in seeds:
        graph = random_graph(seed, most_ops=8)
        device = plan(graph, MACHINE, tight(largest_footprint(graph)[1], 256))
        if any(isinstance(node, HostGather) for node in device.nodes):
            continue
        count = len(events_of(device))
        found = tier_trace(device, [1e-3] * count, [0] * len(graph.tensors)) if count else None
        if found is None or not found.events:
            continue
        if by_clock:
            found = in_clock_order(found, device)
            written: set[int] = {t.id for t in found.graph.tensors if t.kind.value == "weight"}
            if any(not set(t.reads()) <= written or written.add(t.result) for t in found.graph.tasks):
                continue
        host = tight(largest_footprint(found.graph, SECTOR)[1], SECTOR)
        tier = plan_by_horizons(problem_of(found.graph, _tier_machine(MACHINE), host, alignment=SECTOR), HorizonOptions())
        yield seed, Apart(device, found, tier)


def test_a_trace_in_node_order_never_stands_still_though_not_joined() -> None:
    assert not any(apart.stands_still(seed) for seed, apart in plans_apart(range(200), by_clock=False))


def test_the_harness_finds_a_trace_in_clock_order() -> None:
    assert any(apart.stands_still(seed) for seed, apart in plans_apart(range(200), by_clock=True))
