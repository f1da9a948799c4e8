"""Plans over device, host and disk: judged, right on bytes in any order that respects their edges, in exactly the host's budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, TensorId
from einpage.memplan.bounds import bounds as limits
from einpage.memplan.bounds.compulsory import disk_bound
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Compute, HostGather, Move, NodeId
from einpage.memplan.graph.simulate import read_cost_s, sector_bytes, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Link, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.tiers.plan_tiers import cheapest_reads
from einpage.memplan.tiers.prologue import prologue
from hand_plan import hand_graph
from numpy_jobs import evaluate
from plain_plan import random_order
from strategies import a_machine, budgets, data, task_graphs
from three_places import Bytes, least_host, weights_in_a_row, with_disk

MACHINE = with_disk(a_machine())
STARTS = st.sampled_from([Start.COLD, Start.LOOP])


@settings(max_examples=60, deadline=None)
@given(draw=st.data(), start=STARTS)
def test_any_order_that_respects_the_edges_is_right(draw: st.DataObject, start: Start) -> None:
    graph = draw.draw(task_graphs(most_ops=5, dtypes=(DType.FP32,), joined=True))
    budget, options = draw.draw(budgets(graph)), PlanOptions(start=start)
    skew = {t.name: draw.draw(st.integers(0, SECTOR - 1)) for t in graph.tensors} if draw.draw(st.booleans()) else {}
    options = replace(options, host_bytes=1, skew=lambda _: skew)
    host = least_host(graph, budget, options) + SECTOR * draw.draw(st.integers(0, 40))
    made = plan(graph, MACHINE, budget, replace(options, host_bytes=host))
    assert judge(made) is None
    assert (made.budget_bytes, made.host_bytes, made.loops) == (budget, host, start is Start.LOOP)
    expected, given_data = evaluate(graph, data(graph)), data(graph)
    for seed in range(3):
        memory = Bytes(made)
        memory.write(made, DISK, given_data)
        if made.loops:
            first = prologue(made)
            assert judge(first) is None
            memory.run(first, random_order(first, seed))
        for _ in range(1 + made.loops):
            memory.write(made, HOST, given_data)
            found = memory.run(made, random_order(made, seed))
            assert all((found[t] == expected[t]).all() for t in found)  # type: ignore[index]


@settings(max_examples=40, deadline=None)
@given(draw=st.data(), start=STARTS)
def test_the_least_host_is_the_least(draw: st.DataObject, start: Start) -> None:
    graph = draw.draw(task_graphs(most_ops=4, joined=True))
    budget = draw.draw(budgets(graph))
    least = least_host(graph, budget, PlanOptions(start=start, host_bytes=1))
    assert judge(plan(graph, MACHINE, budget, PlanOptions(start=start, host_bytes=least))) is None
    with pytest.raises(DoesNotFit, match=f"smallest host budget that works: {least} bytes"):
        plan(graph, MACHINE, budget, PlanOptions(start=start, host_bytes=least - SECTOR))


def test_a_machine_without_a_disk_is_refused() -> None:
    with pytest.raises(UsageError, match="has no link disk → host: list it under `links:`"):
        plan(hand_graph(), a_machine(), 2048, PlanOptions(host_bytes=4096))


@settings(max_examples=40, deadline=None)
@given(draw=st.data(), start=STARTS)
def test_tiers_are_exclusive_and_clean_copies_are_dropped_free(draw: st.DataObject, start: Start) -> None:
    """No weight is on the host while it stays on the device; only what tasks wrote is written, to the host and to the disk once each."""
    graph = draw.draw(task_graphs(most_ops=6, joined=True))
    budget, options = draw.draw(budgets(graph)), PlanOptions(start=start, host_bytes=1)
    host = least_host(graph, budget, options) + SECTOR * draw.draw(st.integers(0, 9))
    made = plan(graph, MACHINE, budget, replace(options, host_bytes=host))
    there = {place: {made.residencies[r].tensor for r in made.start if made.residencies[r].place == place} for place, _ in made.arenas}
    assert not there[DEVICE] & there[HOST]
    assert all(graph.tensors[t].kind is Kind.WEIGHT for t in there[DISK])
    written: list[tuple[int, Queue]] = []
    for n, node in enumerate(made.nodes):
        queue = made.queue(NodeId(n))
        if isinstance(node, Move) and queue in (Queue.D2H, Queue.WRITE):
            assert queue is not None
            written += [(made.residencies[target].tensor, queue) for _, target in node.copies]
    assert len(written) == len(set(written))
    assert not any(graph.tensors[t].kind is Kind.WEIGHT for t, _ in written)


@settings(max_examples=40, deadline=None)
@given(task_graphs(most_ops=5, joined=True))
def test_gathers_of_weights_read_rows_from_the_disk(graph: object) -> None:
    made = plan(graph, MACHINE, 1 << 20, PlanOptions(host_bytes=1 << 20))  # type: ignore[arg-type]
    tables = {r for node in made.nodes if isinstance(node, HostGather) for operand in node.operands for r in operand}
    kinds = {r: made.graph.tensors[made.residencies[r].tensor].kind for r in tables}
    assert all((made.residencies[r].place == DISK) == (kinds[r] is Kind.WEIGHT) for r in tables)
    reads = {source for node in made.nodes if isinstance(node, Move) for source, _ in node.copies}
    computed = {made.residencies[r].tensor for node in made.nodes if isinstance(node, Compute) for o in node.operands for r in o}
    for r in tables:
        assert kinds[r] is not Kind.WEIGHT or r not in reads or made.residencies[r].tensor in computed, "nobody asks for a whole table"


def test_a_pass_reads_what_fits_neither_and_the_prologue_the_rest() -> None:
    """Forty weights of 64 KiB, each read once a pass, of which the device holds some and the host others: the disk has the rest."""
    graph = weights_in_a_row(count=40, nbytes=64 * 1024)
    total = 40 * 64 * 1024
    made = plan(graph, MACHINE, 10 * 64 * 1024, PlanOptions(start=Start.LOOP, host_bytes=14 * 64 * 1024))
    read = sector_bytes(made, Queue.READ)
    ideal = total - 24 * 64 * 1024
    assert ideal <= read <= ideal + 6 * 64 * 1024
    assert read + sector_bytes(prologue(made), Queue.READ) == total
    line = simulate(made, MACHINE)
    assert line.makespan_s <= 1.05 * max(seconds for _, seconds in line.busy_s)


def test_of_plans_as_fast_the_one_whose_reads_cost_least_is_taken() -> None:
    """Twice as many tensors of half as many bytes: the same sectors, twice as many reads."""
    few, many = (
        plan(weights_in_a_row(count, nbytes), MACHINE, 4096, PlanOptions(host_bytes=64 * SECTOR))
        for count, nbytes in ((8, 2048), (16, 1024))
    )
    link = Link(Queue.READ, 1e6, 1e-4, 1e-3)
    assert sector_bytes(few, Queue.READ) == sector_bytes(many, Queue.READ) == 16384
    assert [read_cost_s(it, link) for it in (few, many)] == pytest.approx([0.016384 + 0.008, 0.016384 + 0.016])
    tried = [(1.0, read_cost_s(many, link), many), (1.005, read_cost_s(few, link), few), (2.0, 0.0, many)]
    assert cheapest_reads(tried) is few


def test_a_disk_that_writes_while_it_reads_is_no_faster_than_its_bound() -> None:
    """Each result is read by the next task, and by one long after: one is spilled while another is read back."""
    count, later, nbytes = 120, 30, 64 * 1024
    graph = weights_in_a_row(count, nbytes)
    tensors = tuple(replace(t, box=Box((0,), (nbytes,))) for t in graph.tensors)
    values = tuple(replace(v, shape=(nbytes,)) for v in graph.values)
    tasks = tuple(
        replace(t, operands=((TensorId(0),), *((TensorId(count + t.id - n),) for n in (1, later) if t.id >= n))) for t in graph.tasks
    )
    machine = MACHINE.with_links(Link(Queue.WRITE, 2e7))
    graph = replace(graph, tensors=tensors, values=values, tasks=tasks)
    made = plan(graph, machine, 8 * nbytes, PlanOptions(host_bytes=8 * nbytes))
    disk, line = disk_bound(made), simulate(made, machine)
    assert disk.for_all < disk.here <= sum(sector_bytes(made, queue) for queue in (Queue.READ, Queue.WRITE))
    found = limits.with_disk(limits.bounds(graph, machine.at_best()), disk, machine)
    assert found.bound_s < found.bound_order_s <= line.makespan_s
