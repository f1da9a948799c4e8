"""What the judge says of plans with a disk: a hand-made one and a planned loop pass, and each mutant is named rightly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from einpage.einsum_front.graph.taskgraph import Kind
from einpage.memplan.graph.memgraph import Edges, Free, MemGraph, Move, Node, NodeId, Offset, Residency, ResidencyId
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Place, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.tiers.plan_tiers import plan_tiers
from strategies import a_machine
from test_memplan_third_place import plan_with_disk
from three_places import weights_in_a_row, with_disk

Mutant = Callable[[MemGraph], MemGraph]


def a_loop() -> MemGraph:
    """Forty weights of 4 KiB, of which the device and the host begin with some."""
    return plan(weights_in_a_row(40, 4096), with_disk(a_machine()), 40 * 1024, PlanOptions(start=Start.LOOP, host_bytes=56 * 1024))


def moves(made: MemGraph, queue: Queue) -> list[int]:
    return [n for n in range(len(made.nodes)) if made.queue(NodeId(n)) == queue and isinstance(made.nodes[n], Move)]


def at_start(made: MemGraph, place: Place) -> ResidencyId:
    """The first residency that is there from the start; on the host, a copy of what the disk has."""
    stored = {made.residencies[r].tensor for r in made.start if made.residencies[r].place == DISK}
    return next(r for r in made.start if made.residencies[r].place == place and made.residencies[r].tensor in stored)


def moved(made: MemGraph, r: ResidencyId, offset: int) -> MemGraph:
    """Residency `r` lies at `offset`."""
    found = made.residencies[r]
    changed = replace(found, extents=(replace(found.extents[0], offset=Offset(offset)),))
    return replace(made, residencies=tuple(changed if it.id == r else it for it in made.residencies))


def with_node(made: MemGraph, n: int, node: Node) -> MemGraph:
    return replace(made, nodes=tuple(node if i == n else it for i, it in enumerate(made.nodes)))


def without_edges(made: MemGraph, target: int) -> MemGraph:
    """No edge leads to `target` any more."""
    kept = made.edges.target != target
    return replace(made, edges=Edges(made.edges.source[kept], made.edges.target[kept], made.edges.kind[kept]))


def and_more(made: MemGraph, place: Place, source: ResidencyId, offset: int, node: Callable[[ResidencyId], Node]) -> MemGraph:
    """Another residency of the tensor of `source`, and a last node with it, after all others."""
    like, number = made.residencies[source], ResidencyId(len(made.residencies))
    more = Residency(number, like.tensor, place, (replace(like.extents[0], offset=Offset(offset)),))
    count = len(made.nodes)
    pairs = np.unique(np.concatenate((made.edges.target * (count + 1) + made.edges.source, count * (count + 1) + np.arange(count))))
    kinds = dict(zip((made.edges.target * (count + 1) + made.edges.source).tolist(), made.edges.kind.tolist(), strict=True))
    edges = Edges(
        (pairs % (count + 1)).astype(np.int32),
        (pairs // (count + 1)).astype(np.int32),
        np.array([kinds.get(pair, 1) for pair in pairs.tolist()], np.uint8),
    )
    return replace(made, residencies=(*made.residencies, more), nodes=(*made.nodes, node(number)), edges=edges, end=(*made.end, number))


def read_of_what_was_written(made: MemGraph) -> int:
    """The read of what was spilled to the disk."""
    written = {target for n in moves(made, Queue.WRITE) for _, target in made.nodes[n].copies}  # type: ignore[union-attr]
    return next(n for n in moves(made, Queue.READ) if made.nodes[n].source in written)  # type: ignore[union-attr]


def beside(made: MemGraph) -> MemGraph:
    """A read lands four bytes farther than where its sector begins."""
    target = made.nodes[moves(made, Queue.READ)[0]].target  # type: ignore[union-attr]
    return moved(made, target, made.residencies[target].extents[0].offset + 4)


def past_the_host(made: MemGraph) -> MemGraph:
    """A load of the device takes its bytes from the disk."""
    n, on_disk = moves(made, Queue.H2D)[0], {made.residencies[r].tensor: r for r in made.start if made.residencies[r].place == DISK}
    target = made.nodes[n].target  # type: ignore[union-attr]
    return with_node(made, n, Move(on_disk[made.residencies[target].tensor], target))


def changed_every_pass(made: MemGraph) -> MemGraph:
    """What the host begins with is an input."""
    t = made.residencies[at_start(made, HOST)].tensor
    tensors = tuple(replace(it, kind=Kind.INPUT) if it.id == t else it for it in made.graph.tensors)
    return replace(made, graph=replace(made.graph, tensors=tensors))


def dropped_at_the_end(made: MemGraph) -> MemGraph:
    """A resident of the host is no longer there after the pass."""
    resident = at_start(made, HOST)
    return replace(made, end=tuple(r for r in made.end if r != resident))


OF_A_LOOP: list[tuple[str, Reason, Mutant]] = [
    ("disk extents that overlap", Reason.OVERLAP, lambda p: moved(p, at_start(p, DISK), SECTOR)),
    ("host over budget", Reason.OUTSIDE_ARENA, lambda p: p.with_arena(HOST, p.host_bytes - SECTOR)),
    ("a part of a sector beyond the budget", Reason.OUTSIDE_ARENA, lambda p: p.with_arena(HOST, p.host_bytes - 1)),
    ("stale host copy", Reason.STALE_COPY, changed_every_pass),
    ("host copy lost", Reason.LOOP_OPEN, dropped_at_the_end),
    ("device copy without a host source", Reason.NO_HOST_SOURCE, past_the_host),
    ("landing beside its sector", Reason.SECTOR_APART, beside),
    ("landing on what is still read", Reason.RACE, lambda p: without_edges(p, moves(p, Queue.READ)[-1])),
    ("stored copy freed", Reason.HOST_COPY_FREED, lambda p: with_node(p, len(p.nodes) - 1, Free(at_start(p, DISK)))),
    ("written though stored", Reason.CLEAN_OFFLOAD, lambda p: and_more(
        p, DISK, at_start(p, HOST), p.stored_bytes, lambda new: Move(at_start(p, HOST), new)).with_arena(DISK, p.stored_bytes + 4096)),
]  # fmt: skip
OF_A_SPILL: list[tuple[str, Reason, Mutant]] = [
    ("read before written", Reason.SOURCE_MISSING, lambda p: without_edges(p, read_of_what_was_written(p))),
]
REASONS = {reason for _, reason, _ in (*OF_A_LOOP, *OF_A_SPILL)}


def test_the_plans_pass() -> None:
    made = a_loop()
    assert judge(made) is None and judge(plan_with_disk()) is None
    assert {DEVICE, HOST, DISK} == {made.residencies[r].place for r in made.start}
    assert moves(made, Queue.READ) and not moves(made, Queue.WRITE)


@pytest.mark.parametrize(("name", "reason", "mutate"), OF_A_LOOP, ids=[name for name, _, _ in OF_A_LOOP])
def test_mutant_of_a_loop_is_named(name: str, reason: Reason, mutate: Mutant) -> None:
    violation = judge(mutate(a_loop()))
    assert violation is not None and violation.reason is reason, violation


@pytest.mark.parametrize(("name", "reason", "mutate"), OF_A_SPILL, ids=[name for name, _, _ in OF_A_SPILL])
def test_mutant_of_a_spill_is_named(name: str, reason: Reason, mutate: Mutant) -> None:
    violation = judge(mutate(plan_with_disk()))
    assert violation is not None and violation.reason is reason, violation


def test_two_tensors_of_one_sector_overlap() -> None:
    """The second begins at byte 400 of a sector; bytes 300 to 400 are nobody's, and yet that is not its sector."""
    graph, machine = weights_in_a_row(2, 300), with_disk(a_machine())
    made = plan_tiers(graph, machine, 8192, lambda slower, even: plan(graph, slower, 4096), {"w001": 400})
    assert judge(made) is None
    second = next(r for r in made.start if made.residencies[r].extents[0].offset % SECTOR == 400)
    violation = judge(moved(made, second, 400))
    assert violation is not None and violation.reason is Reason.OVERLAP
