"""The first pass of a loop: from an empty device to where the loop begins, each resident loaded once, in the order of its use."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.device.device import left_there
from einpage.exec.dispatch.serial import random_order
from einpage.memplan.graph.memgraph import Free, HostGather, MemGraph, Move, Node, NodeId, ResidencyId
from einpage.memplan.graph.simulate import durations, moved_bytes, simulate
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.residency.loading import loading
from einpage.memplan.residency.resident_sets import Start
from hand_plan import hand_graph
from real_bytes import differences, direct, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, alignments, budgets, data, machines, random_graph, task_graphs

LOOP = PlanOptions(start=Start.LOOP)


def on_device(memgraph: MemGraph, listed: tuple[ResidencyId, ...]) -> set[tuple[int, int]]:
    """(tensor, offset)"""
    there = [memgraph.residencies[r] for r in listed]
    return {(r.tensor, int(r.extents[0].offset)) for r in there if r.place == DEVICE}


@settings(max_examples=80, deadline=None)
@given(st.data(), task_graphs(joined=True), machines(), alignments)
def test_a_first_pass_ends_where_its_loop_begins(drawn: st.DataObject, graph: TaskGraph, machine: Machine, alignment: int) -> None:
    loop = plan(graph, machine, drawn.draw(budgets(graph, alignment)), replace(LOOP, alignment=alignment))
    first = loading(loop)
    assert judge(first) is None
    assert not on_device(first, first.start)
    assert on_device(first, first.end) == on_device(loop, loop.start)
    assert left_there(first, loop) == {r for r in loop.start if loop.residencies[r].place == DEVICE}
    assert not first.loops
    resident = sum(graph.tensors[t].nbytes for t in loop.resident)
    assert moved_bytes(first, Queue.H2D) == moved_bytes(loop, Queue.H2D) + resident, "each is loaded once"
    assert moved_bytes(first, Queue.D2H) == moved_bytes(loop, Queue.D2H)
    load_s = sum(durations(first, machine)) - sum(durations(loop, machine))
    later_s = simulate(first, machine).makespan_s - simulate(loop, machine).makespan_s
    assert later_s <= load_s * (1 + 1e-9) + 1e-12, "no load waits for what is wanted later"


@settings(max_examples=60, deadline=None)
@given(st.data(), task_graphs(joined=True), machines(), alignments)
def test_what_is_wanted_sooner_is_loaded_sooner(drawn: st.DataObject, graph: TaskGraph, machine: Machine, alignment: int) -> None:
    """Of residents, and of a resident and what is loaded in every pass; the order of these among themselves is the loop's."""
    loop = plan(graph, machine, drawn.draw(budgets(graph, alignment)), replace(LOOP, alignment=alignment))
    first = loading(loop)
    wanted = first_readers(first)
    residents = {r for r in loop.start if loop.residencies[r].place == DEVICE}
    loaded = [made(node) for n, node in enumerate(first.nodes) if first.queue(NodeId(n)) == Queue.H2D]
    assert [rs for rs in loaded if not residents & {*rs}] == [
        made(node) for n, node in enumerate(loop.nodes) if loop.queue(NodeId(n)) == Queue.H2D
    ]

    def wanted_at(rs: tuple[ResidencyId, ...]) -> float:
        return min(wanted[r] for r in rs)

    for at, rs in enumerate(loaded):
        if residents & {*rs}:
            assert all(wanted_at(sooner) <= wanted_at(rs) for sooner in loaded[:at] if residents & {*sooner})
        elif wanted_at(rs) < inf:
            assert all(wanted_at(later) > wanted_at(rs) for later in loaded[at:] if residents & {*later})
    following: int | None = None
    for n in reversed(range(len(first.nodes))):
        is_h2d = first.queue(NodeId(n)) == Queue.H2D
        if is_h2d and residents & {*(rs := made(first.nodes[n]))}:
            assert following is None or following == wanted_at(rs) or wanted_at(made(first.nodes[following])) >= wanted_at(rs), (
                "no sooner than it must"
            )
        else:
            following = n


def first_readers(memgraph: MemGraph) -> dict[ResidencyId, float]:
    """By residency, the first node that reads it."""
    found = {r.id: inf for r in memgraph.residencies}
    for n, node in enumerate(memgraph.nodes):
        copies = node.copies if isinstance(node, Move) else ()
        operands = () if isinstance(node, Move | Free) else node.operands
        for r in (*(source for source, _ in copies), *(r for operand in operands for r in operand)):
            found[r] = min(found[r], n)
    return found


def made(node: Node) -> tuple[ResidencyId, ...]:
    assert isinstance(node, Move | HostGather)
    return tuple(target for _, target in node.copies) if isinstance(node, Move) else (node.creates,)


@pytest.mark.parametrize("seed", range(25))
def test_on_real_bytes_it_gives_the_direct_result(seed: int) -> None:
    graph = random_graph(seed, most_ops=10)
    values = data(graph, seed)
    expected = direct(graph, values)
    for budget in budgets_of(graph, seed):
        first = loading(plan(graph, a_machine(), budget, LOOP))
        for name, dispatch in (("serial", run_serial), ("dynamic", run_dynamic), ("static", run_static)):
            assert differences(run_on_bytes(first, values, dispatch), expected) == [], name
        shuffled = partial(run_serial, order=random_order(first, seed))
        assert differences(run_on_bytes(first, values, shuffled), expected) == [], "random order"


def budgets_of(graph: TaskGraph, seed: int) -> list[int]:
    """One in which a few weights stay, and one for all."""
    least = largest_footprint(graph)[1]
    return [least + 256 * (seed % 5 + 1), 1 << 20]


def test_a_load_that_nobody_waits_for_is_found_by_the_judge() -> None:
    first = loading(plan(hand_graph(), a_machine(), 2048, LOOP))
    loads = [n for n, node in enumerate(first.nodes) if isinstance(node, Move) and first.residencies[node.target].place == DEVICE]
    edges = first.edges
    for n in loads:
        kept = edges.source != n
        broken = replace(first, edges=replace(edges, source=edges.source[kept], target=edges.target[kept], kind=edges.kind[kept]))
        found = judge(broken)
        assert found is not None and found.reason is Reason.READ_BEFORE_CREATED
    assert loads
