"""Tasks with several results: every planner plans them, files and texts keep them, and the judge names what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.packed import packed
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId, Written
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.memgraph import Compute, Extent, MemGraph, Offset, ResidencyId
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, HOST
from einpage.memplan.plan import plan
from einpage.memplan.problem.footprint import donated_operands, footprint, last_use_by_tensor
from einpage.memplan.problem.pace import Pace
from strategies import a_machine
from test_memplan_plan import made

Change = Callable[[MemGraph], MemGraph]


def two_results() -> TaskGraph:
    """m2 and w2 of m, w and g in one task, each in place of what it replaces; then y of both."""
    graph = made(
        {
            "m": (1024, Kind.WEIGHT), "w": (1024, Kind.WEIGHT), "g": (1024, Kind.WEIGHT),
            "m2": (1024, Kind.OUTPUT), "w2": (1024, Kind.OUTPUT), "y": (1024, Kind.OUTPUT),
        },
        [("m2", ["m", "w", "g"], ["m"], 0), ("w2", ["w"], [], 0), ("y", ["m2", "w2"], [], 0)],
    )  # fmt: skip
    first, _, last = graph.tasks
    both = replace(first, others=(Written(TensorId(4), (TensorId(1),)),))
    graph = replace(graph, tasks=(both, replace(last, id=1)))
    graph.verify()
    return graph


def beside() -> TaskGraph:
    """The same, its second result in bytes of its own."""
    graph = two_results()
    return replace(graph, tasks=(replace(graph.tasks[0], others=(Written(TensorId(4)),)), graph.tasks[1]))


def planned(graph: TaskGraph | None = None) -> MemGraph:
    found = plan(graph or two_results(), a_machine(), 8192)
    assert judge(found) is None
    return found


def test_each_result_has_an_operand_of_its_own() -> None:
    graph = two_results()
    task, last = graph.tasks[0], last_use_by_tensor(graph)
    assert donated_operands(graph, task, last) == {3: 0, 4: 1}
    assert footprint(graph, task, last) == 3 * 1024
    greedy = replace(task, inplace=(TensorId(1),), others=(Written(TensorId(4), (TensorId(1), TensorId(2))),))
    assert donated_operands(graph, greedy, last) == {3: 1, 4: 2}, "one buffer is donated once"
    assert footprint(graph, replace(greedy, others=(Written(TensorId(4), (TensorId(1),)),)), last) == 4 * 1024


def test_the_smallest_budget_is_enough() -> None:
    for pace in (None, Pace(most_steps=200)):
        found = plan(two_results(), a_machine(), 3 * 1024, None, pace)
        assert judge(found) is None
        assert found.budget_bytes == 3 * 1024


def test_files_columns_and_texts_keep_all_results(tmp_path: Path) -> None:
    found = planned()
    save_plan(tmp_path / "plan.json", found, {})
    read = load_plan(tmp_path / "plan.json").memgraph
    assert tuple(read.nodes) == tuple(found.nodes) and tuple(read.graph.tasks) == tuple(found.graph.tasks)
    assert memgraph_text(read) == memgraph_text(found) != memgraph_text(with_others(found, ()))
    assert tuple(packed(found.graph).tasks) == tuple(found.graph.tasks)
    assert tuple(Nodes.of(tuple(found.nodes))) == tuple(found.nodes)


def compute(memgraph: MemGraph) -> tuple[int, Compute]:
    n, node = next((n, node) for n, node in enumerate(memgraph.nodes) if isinstance(node, Compute) and node.others)
    return n, node


def with_others(memgraph: MemGraph, others: tuple[ResidencyId, ...]) -> MemGraph:
    n, node = compute(memgraph)
    nodes = tuple(memgraph.nodes)
    return replace(memgraph, nodes=(*nodes[:n], replace(node, others=others), *nodes[n + 1 :]))


def moved(memgraph: MemGraph, r: int, offset: int) -> MemGraph:
    found = tuple(memgraph.residencies)
    extent = Extent(Offset(offset), found[r].extents[0].nbytes)
    return replace(memgraph, residencies=(*found[:r], replace(found[r], extents=(extent,)), *found[r + 1 :]))


def offset_of(memgraph: MemGraph, tensor: int) -> int:
    """On the device."""
    return next(r.extents[0].offset for r in memgraph.residencies if r.tensor == tensor and r.place == DEVICE)


def both_over_one() -> MemGraph:
    """Both results lie where the first operand did."""
    found = planned(beside())
    return moved(found, compute(found)[1].others[0], offset_of(found, 0))


def without_an_edge_to(memgraph: MemGraph, reader_of: int) -> MemGraph:
    """No edge from the task of several results to whoever copies its result `reader_of` away or reads it."""
    n, node = compute(memgraph)
    readers = [
        k
        for k, other in enumerate(memgraph.nodes)
        if getattr(other, "source", None) == node.others[reader_of]
        or node.others[reader_of] in [r for operand in getattr(other, "operands", ()) for r in operand]
    ]
    edges = memgraph.edges
    kept = ~((edges.source == n) & np.isin(edges.target, readers))
    return replace(memgraph, edges=replace(edges, source=edges.source[kept], target=edges.target[kept], kind=edges.kind[kept]))


MUTANTS: dict[str, tuple[Reason, Change]] = {
    "a result is missing": (Reason.WRONG_RESULT, lambda m: with_others(m, ())),
    "no such residency": (Reason.BAD_REFERENCE, lambda m: with_others(m, (ResidencyId(len(m.residencies)),))),
    "results change places": (
        Reason.WRONG_RESULT,
        lambda m: replace(with_others(m, (compute(m)[1].creates,)), nodes=_swapped(m)),
    ),
    "over an operand that only the first may have": (Reason.DONATION_UNDECLARED, lambda m: replace(m, graph=beside())),
    "both over one": (Reason.OVERLAP, lambda _: both_over_one()),
    "on the host": (Reason.WRONG_PLACE, lambda m: _on_host(m, compute(m)[1].others[0])),
    "read without waiting": (Reason.SOURCE_MISSING, lambda m: without_an_edge_to(m, 0)),
}


def _swapped(memgraph: MemGraph) -> tuple[object, ...]:
    n, node = compute(memgraph)
    nodes = tuple(memgraph.nodes)
    return (*nodes[:n], replace(node, creates=node.others[0], others=(node.creates,)), *nodes[n + 1 :])


def _on_host(memgraph: MemGraph, r: int) -> MemGraph:
    free = memgraph.host_bytes
    found = Residencies.of(memgraph.residencies)
    place = found.place.copy()
    place[r] = 1 - place[r]
    offset = found.offset.copy()
    offset[found.extent_row[r]] = free
    return replace(memgraph, residencies=replace(found, place=place, offset=offset)).with_arena(HOST, Nbytes(free + 1024))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_named(name: str) -> None:
    reason, change = MUTANTS[name]
    violation = judge(change(planned()))
    assert violation is not None and violation.reason is reason, violation
