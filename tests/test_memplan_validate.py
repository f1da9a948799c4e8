"""The judge: a hand-made plan passes, one mutant for every reason it can give is named rightly, and brute force agrees on random plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import test_memplan_judge_tiers
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind, TaskId, TensorId
from einpage.memplan.graph.memgraph import (
    Compute,
    Edges,
    Extent,
    Free,
    HostGather,
    MemGraph,
    Move,
    Node,
    NodeId,
    Offset,
    Residency,
    ResidencyId,
)  # fmt: skip
from einpage.memplan.judge.last_user import LastUsers
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, HOST, Place, PlaceKind
from hand_plan import EDGES, MEMORY, edges_of, hand_plan
from plain_plan import plain_plan
from strategies import alignments, budgets, task_graphs

Mutant = Callable[[MemGraph], MemGraph]
R = ResidencyId


def with_node(plan: MemGraph, at: int, node: Node) -> MemGraph:
    return replace(plan, nodes=(*plan.nodes[:at], node, *plan.nodes[at + 1 :]))


def with_residency(plan: MemGraph, at: int, residency: Residency) -> MemGraph:
    return replace(plan, residencies=(*plan.residencies[:at], residency, *plan.residencies[at + 1 :]))


def moved(plan: MemGraph, at: int, offset: int) -> MemGraph:
    """Residency `at` lies at `offset`."""
    extent = replace(plan.residencies[at].extents[0], offset=Offset(offset))
    return with_residency(plan, at, replace(plan.residencies[at], extents=(extent,)))


def without(plan: MemGraph, *dropped: tuple[int, int]) -> MemGraph:
    assert set(dropped) <= set(EDGES)
    return replace(plan, edges=edges_of(tuple(e for e in EDGES if e not in dropped), MEMORY))


def swapped_edges(plan: MemGraph) -> MemGraph:
    order = np.arange(len(plan.edges))
    order[[0, 1]] = [1, 0]
    return replace(plan, edges=Edges(plan.edges.source[order], plan.edges.target[order], plan.edges.kind[order]))


def doubled_edge(plan: MemGraph) -> MemGraph:
    order = np.array([0, *range(len(plan.edges))])
    return replace(plan, edges=Edges(plan.edges.source[order], plan.edges.target[order], plan.edges.kind[order]))


def with_memory(plan: MemGraph, *memory: tuple[int, int]) -> MemGraph:
    """The same edges, of which `memory` and no others are said to be of that kind."""
    return replace(plan, edges=edges_of(EDGES, frozenset(memory)))


def with_kind(plan: MemGraph, tensor: int, kind: Kind) -> MemGraph:
    tensors = list(plan.graph.tensors)
    tensors[tensor] = replace(tensors[tensor], kind=kind)
    return replace(plan, graph=replace(plan.graph, tensors=tuple(tensors)))


def nothing_donatable(plan: MemGraph) -> MemGraph:
    tasks = tuple(replace(t, inplace=()) for t in plan.graph.tasks)
    return replace(plan, graph=replace(plan.graph, tasks=tasks))


def offloaded_again(plan: MemGraph) -> MemGraph:
    """Instead of being freed, c is offloaded to a second slot on the host."""
    again = Residency(R(12), TensorId(6), HOST, (Extent(Offset(2560), Nbytes(512)),))
    plan = with_node(plan, 13, Move(R(10), R(12)))
    return replace(plan.with_arena(HOST, 3072), residencies=(*plan.residencies, again), end=(*plan.end, R(10), R(12)))


def left_on_the_device(plan: MemGraph) -> MemGraph:
    """c is not freed: right, but the next pass cannot start with it."""
    fewer = tuple(e for e in EDGES if e[1] != 13)
    return replace(plan, nodes=plan.nodes[:13], edges=edges_of(fewer, MEMORY), end=(*plan.end, R(10)))


def loaded_for_nobody(plan: MemGraph) -> MemGraph:
    """At the end, c comes back to where e was, and is freed with no edge from one to the other."""
    again = Residency(R(12), TensorId(6), DEVICE, (Extent(Offset(0), Nbytes(512)),))
    nodes = (*plan.nodes, Move(R(11), R(12)), Free(R(12)))
    return replace(plan, residencies=(*plan.residencies, again), nodes=nodes, edges=edges_of((*EDGES, (4, 14), (11, 14)), MEMORY))


def gathered_again(plan: MemGraph, *, rows: int = 1) -> MemGraph:
    """e is not loaded again, but gathered again, from the rows that residency `rows` names."""
    plan = with_node(plan, 8, HostGather(TaskId(0), ((R(0),), (R(rows),)), R(9)))
    return replace(plan, edges=edges_of(tuple(e for e in EDGES if e not in ((3, 8), (8, 9))), MEMORY))


def gathered_while_there(plan: MemGraph) -> MemGraph:
    """And the first e is still where it was."""
    plan = gathered_again(plan)
    number = {old: new for new, old in enumerate(n for n in range(14) if n != 4)}
    pairs = tuple((number[a], number[b]) for a, b in EDGES if a in number and b in number and (a, b) not in ((3, 8), (8, 9)))
    memory = frozenset((number[a], number[b]) for a, b in MEMORY)
    return replace(plan, nodes=(*plan.nodes[:4], *plan.nodes[5:]), edges=edges_of(pairs, memory), end=(*plan.end, R(3)))


def gathered_for_nobody(plan: MemGraph) -> MemGraph:
    """At the end e is gathered once more, and freed."""
    again = Residency(R(12), TensorId(3), DEVICE, (Extent(Offset(0), Nbytes(512)),))
    nodes = (*plan.nodes, HostGather(TaskId(0), ((R(0),), (R(1),)), R(12)), Free(R(12)))
    edges = edges_of((*EDGES, (4, 14), (14, 15)), MEMORY | {(4, 14)})
    return replace(plan, residencies=(*plan.residencies, again), nodes=nodes, edges=edges)


def added_again(plan: MemGraph) -> MemGraph:
    """Before e is freed, e and b are added once more, where c is in place of b."""
    again = Residency(R(12), TensorId(6), DEVICE, (Extent(Offset(0), Nbytes(512)),))
    nodes = (*plan.nodes[:12], Compute(TaskId(3), ((R(9),), (R(7),)), R(12), None), *plan.nodes[12:])
    pairs = (*((a, b + (b >= 12)) for a, b in EDGES), (4, 12), (8, 12), (10, 12), (12, 13))
    return replace(
        plan, residencies=(*plan.residencies, again), nodes=nodes, edges=edges_of(pairs, MEMORY | {(4, 12)}), end=(*plan.end, R(12))
    )


def with_other_copy(plan: MemGraph, tensor: int, source: int, place: Place, offset: int) -> MemGraph:
    """The move of e to the host copies another residency too, to a new one of `tensor`."""
    extent = Extent(Offset(offset), plan.graph.tensors[tensor].nbytes)
    other = Residency(R(12), TensorId(tensor), place, (extent,))
    plan = with_node(plan, 3, Move(R(3), R(6), ((R(source), R(12)),)))
    return replace(plan.with_arena(HOST, 4096), residencies=(*plan.residencies, other), end=(*plan.end, R(12)))


def compute(plan: MemGraph, at: int) -> Compute:
    node = plan.nodes[at]
    assert isinstance(node, Compute)
    return node


def clean_beside_dirty(plan: MemGraph) -> MemGraph:
    """w goes to the host, which has it, in the move of e; all else is in order."""
    plan = with_other_copy(plan, 2, 4, HOST, 2560)
    return replace(plan, edges=edges_of((*EDGES, (1, 3), (3, 6)), MEMORY))


MUTANTS: list[tuple[Reason, tuple[int | None, int | None], Mutant]] = [
    (Reason.EDGE_OUT_OF_RANGE, (13, 14), lambda p: replace(p, edges=edges_of((*EDGES, (13, 14)), MEMORY))),
    (Reason.EDGE_BACKWARD, (5, 5), lambda p: replace(p, edges=edges_of((*EDGES, (5, 5)), MEMORY))),
    (Reason.EDGE_BACKWARD, (8, 5), lambda p: replace(p, edges=edges_of((*EDGES, (8, 5)), MEMORY))),
    (Reason.EDGES_UNSORTED, (0, 2), swapped_edges),
    (Reason.EDGES_UNSORTED, (0, 2), doubled_edge),
    (Reason.BAD_REFERENCE, (12, 12), lambda p: with_node(p, 12, Free(R(99)))),
    (Reason.BAD_REFERENCE, (3, 3), lambda p: with_node(p, 3, Move(R(3), R(6), ((R(3), R(99)),)))),
    (Reason.BAD_REFERENCE, (3, 3), lambda p: with_node(p, 3, Move(R(3), R(6), ((R(-1), R(8)),)))),
    (Reason.BAD_REFERENCE, (10, 10), lambda p: with_node(p, 10, replace(compute(p, 10), task=TaskId(4)))),
    (Reason.BAD_REFERENCE, (None, None), lambda p: replace(p, end=(*p.end, R(-1)))),
    (Reason.UNKNOWN_PLACE, (0, 0), lambda p: with_residency(p, 3, replace(p.residencies[3], place=Place(PlaceKind.DISK)))),
    (Reason.UNKNOWN_PLACE, (0, 0), lambda p: with_residency(p, 3, replace(p.residencies[3], place=Place(PlaceKind.DEVICE, 1)))),
    (Reason.WRONG_SIZE, (2, 2), lambda p: with_residency(p, 5, replace(p.residencies[5], extents=(Extent(Offset(768), Nbytes(508)),)))),
    (Reason.MISALIGNED, (2, 2), lambda p: moved(p, 5, 772)),
    (Reason.MISALIGNED, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=Extent(Offset(1284), Nbytes(100))))),
    (Reason.MISALIGNED, (None, None), lambda p: replace(p, alignment=512)),
    (Reason.OUTSIDE_ARENA, (8, 8), lambda p: p.with_arena(DEVICE, 1791)),
    (Reason.OUTSIDE_ARENA, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=Extent(Offset(2048), Nbytes(100))))),
    (Reason.OUTSIDE_ARENA, (7, 7), lambda p: p.with_arena(HOST, 2559)),
    (Reason.WORKSPACE_SIZE, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=None))),
    (Reason.WORKSPACE_SIZE, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=Extent(Offset(1280), Nbytes(99))))),
    (Reason.TASK_MISSING, (None, None), lambda p: with_node(p, 10, compute(p, 5))),
    (Reason.OTHER_VERSION, (0, 8), lambda p: gathered_again(p, rows=2)),
    (Reason.COMPUTED_WHILE_THERE, (0, 7), gathered_while_there),
    (Reason.COMPUTED_FOR_NOBODY, (14, 14), gathered_for_nobody),
    (Reason.TASK_MISSING, (None, None), lambda p: with_node(p, 10, Free(R(10)))),
    (Reason.WRONG_NODE, (0, 0), lambda p: with_node(p, 0, Compute(TaskId(0), ((R(0),), (R(1),)), R(3), None))),
    (Reason.WRONG_NODE, (5, 5), lambda p: with_node(p, 5, HostGather(TaskId(2), ((R(5),), (R(4),)), R(7)))),
    (Reason.WRONG_OPERANDS, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), operands=((R(4),), (R(3),))))),
    (Reason.WRONG_OPERANDS, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), operands=((R(3),),)))),
    (Reason.WRONG_RESULT, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), creates=R(10)))),
    (Reason.WRONG_PLACE, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), operands=((R(3),), (R(2),))))),
    (Reason.WRONG_MOVE, (3, 3), lambda p: with_node(p, 3, Move(R(3), R(9)))),
    (Reason.WRONG_MOVE, (3, 3), lambda p: with_node(p, 3, Move(R(3), R(8)))),
    (Reason.WRONG_MOVE, (3, 3), lambda p: with_other_copy(p, 2, 3, HOST, 2560)),  # e becomes w
    (Reason.MOVED_APART, (3, 3), lambda p: with_other_copy(p, 2, 2, DEVICE, 1536)),  # to the host, and from it
    (Reason.MOVED_APART, (3, 3), lambda p: with_other_copy(p, 2, 4, Place(PlaceKind.HOST, 1), 0).with_arena(Place(PlaceKind.HOST, 1), 256)),
    (Reason.CREATED_TWICE, (None, 1), lambda p: replace(p, start=(*p.start, R(4)))),
    (Reason.CREATED_TWICE, (None, None), lambda p: replace(p, start=(*p.start, R(2)))),
    (Reason.CREATED_TWICE, (3, 3), lambda p: with_node(p, 3, Move(R(3), R(6), ((R(3), R(6)),)))),
    (Reason.CREATED_TWICE, (3, 12), lambda p: with_node(p, 12, Move(R(9), R(6)))),
    (Reason.NEVER_CREATED, (None, 0), lambda p: replace(p, start=(R(0), R(2)))),
    (Reason.FREED_TWICE, (9, 12), lambda p: with_node(p, 12, Free(R(6)))),
    (Reason.HOST_COPY_FREED, (12, 12), lambda p: with_node(p, 12, Free(R(2)))),
    (Reason.WRONG_START, (None, None), lambda p: replace(p, start=(*p.start, R(5)))),
    (Reason.DONATION_UNDECLARED, (2, 5), nothing_donatable),
    (Reason.DONATION_UNDECLARED, (2, 5), lambda p: moved(p, 7, 1024)),
    (Reason.WRONG_END, (12, None), lambda p: replace(p, end=(*p.end, R(9)))),
    (Reason.WRONG_END, (10, None), lambda p: replace(p, end=(*p.end, R(7)))),
    (Reason.WRONG_END, (11, None), lambda p: replace(p, end=p.end[:-1])),
    (Reason.WRONG_END, (None, None), lambda p: replace(p, end=(*p.end, R(11)))),
    (Reason.READ_BEFORE_CREATED, (1, 2), lambda p: without(p, (1, 2))),
    (Reason.SOURCE_MISSING, (3, 8), lambda p: without(p, (3, 8))),
    (Reason.FREED_BEFORE_CREATED, (14, 15), loaded_for_nobody),
    (Reason.FREED_IN_USE, (2, 4), lambda p: without(p, (2, 4))),
    (Reason.DONATED_IN_USE, (7, 10), lambda p: without(p, (7, 10))),
    (Reason.RUN_AFTER_UPDATE, (12, 10), added_again),
    (Reason.OVERLAP, (0, 1), lambda p: moved(p, 4, 256)),
    (Reason.OVERLAP, (0, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=Extent(Offset(256), Nbytes(100))))),
    (Reason.OVERLAP, (2, 2), lambda p: with_node(p, 2, replace(compute(p, 2), workspace=Extent(Offset(768), Nbytes(100))))),
    (Reason.OVERLAP, (None, None), lambda p: moved(p, 2, 768)),
    (Reason.OVERLAP, (3, 3), lambda p: with_other_copy(p, 3, 3, HOST, 1792)),  # the two that one move makes
    (Reason.SOURCE_MISSING, (2, 3), lambda p: with_other_copy(p, 4, 5, HOST, 2560)),  # a, which task 2 may still be making
    (Reason.OVERLAP, (None, 3), lambda p: moved(p, 6, 1280)),
    (Reason.RACE, (2, 8), lambda p: without(p, (2, 8))),
    (Reason.RACE, (9, 11), lambda p: without(p, (9, 11))),
    (Reason.RACE, (4, 8), lambda p: moved(p, 9, 0)),
    (Reason.CLEAN_OFFLOAD, (11, 13), offloaded_again),
    (Reason.CLEAN_OFFLOAD, (None, 3), clean_beside_dirty),
    (Reason.OUTPUT_MISSING, (None, None), lambda p: with_kind(p, 4, Kind.OUTPUT)),
    (Reason.LOOP_OPEN, (None, None), lambda p: replace(left_on_the_device(p), loops=True)),
    (Reason.CARRIED_ELSEWHERE, (None, None), lambda p: replace(p, carried=((p.residencies[0].tensor, p.residencies[p.end[-1]].tensor),))),
    (Reason.EDGE_KIND, (1, 2), lambda p: with_memory(p, *MEMORY, (1, 2))),  # creation to read
    (Reason.EDGE_KIND, (2, 4), lambda p: with_memory(p, *MEMORY, (2, 4))),  # read to Free
    (Reason.EDGE_KIND, (0, 4), lambda p: with_memory(p, *MEMORY, (0, 4))),  # creation to Free
    (Reason.EDGE_KIND, (2, 8), lambda p: with_memory(p, (7, 10), (9, 11))),  # end of a workspace to the next user of its bytes
    (Reason.EDGE_KIND, (7, 10), lambda p: with_memory(p, (2, 8), (9, 11))),  # read to the node that writes in place
    (Reason.EDGE_KIND, (9, 11), lambda p: with_memory(p, (2, 8), (7, 10))),  # Free to the next user of its bytes
]  # fmt: skip


def test_hand_made_plan_passes() -> None:
    assert judge(hand_plan()) is None


@pytest.mark.parametrize(("reason", "nodes", "mutate"), MUTANTS, ids=[f"{m[0].name}-{i}" for i, m in enumerate(MUTANTS)])
def test_mutant_is_named(reason: Reason, nodes: tuple[NodeId | None, NodeId | None], mutate: Mutant) -> None:
    violation = judge(mutate(hand_plan()))
    assert violation is not None
    assert (violation.reason, violation.nodes) == (reason, nodes), violation.message
    assert reason.value in violation.message


def test_every_reason_has_a_mutant() -> None:
    assert {reason for reason, *_ in MUTANTS} | test_memplan_judge_tiers.REASONS == set(Reason)


def test_a_task_may_run_again() -> None:
    """Once what it made is gone; what it makes is a new residency of the same tensor."""
    assert judge(gathered_again(hand_plan())) is None
    plan = gathered_again(hand_plan())
    violation = judge(with_node(plan, 8, HostGather(TaskId(0), ((R(0),), (R(1),)), R(3))))
    assert violation is not None
    assert violation.reason is Reason.CREATED_TWICE


def test_a_path_is_as_good_as_an_edge() -> None:
    assert judge(without(hand_plan(), (5, 10))) is None, "5 -> 7 -> 10 orders them"
    assert judge(without(hand_plan(), (10, 13))) is None, "10 -> 11 -> 13 orders them"
    violation = judge(without(hand_plan(), (5, 10), (7, 10)))
    assert violation is not None
    assert violation.reason is Reason.READ_BEFORE_CREATED


def test_a_load_for_nobody_is_right_if_wasteful() -> None:
    plan = loaded_for_nobody(hand_plan())
    assert judge(replace(plan, edges=edges_of((*EDGES, (4, 14), (11, 14), (14, 15)), MEMORY | {(4, 14)}))) is None


def test_device_residency_at_the_end_is_wrong_only_for_a_loop() -> None:
    assert judge(left_on_the_device(hand_plan())) is None
    assert judge(replace(hand_plan(), loops=True)) is None, "nothing at the start, nothing at the end"


def test_host_copies_present_at_the_start_may_be_left_out_of_the_end() -> None:
    plan = hand_plan()
    assert judge(replace(plan, end=plan.end[3:])) is None


def test_device_copies_of_weights_may_be_there_at_the_start() -> None:
    """A warm plan: w is on the device at the start and at the end."""
    plan = hand_plan()
    nodes = tuple(n for i, n in enumerate(plan.nodes) if i not in (1, 6))
    number = {old: new for new, old in enumerate(i for i in range(14) if i not in (1, 6))}
    pairs = {(number[a], number[b]): (a, b) in MEMORY for a, b in EDGES if a in number and b in number}
    edges = edges_of(tuple(pairs), frozenset(pair for pair, memory in pairs.items() if memory))
    warm = replace(plan, nodes=nodes, edges=edges, start=(*plan.start, R(4)), end=(*plan.end, R(4)))
    assert judge(warm) is None


def accesses(plan: MemGraph) -> list[tuple[int, bool, int, int, bool]]:
    """(node, on device, start, stop, writes) of everything a node touches; a Free writes, for it may be followed by poison."""
    out = []

    def add(n: int, residency: int, writes: bool) -> None:
        r = plan.residencies[residency]
        out.append((n, r.place.kind is PlaceKind.DEVICE, int(r.extents[0].offset), r.extents[0].end, writes))

    for n, node in enumerate(plan.nodes):
        match node:
            case Compute() | HostGather():
                for r in {r for operand in node.operands for r in operand}:
                    add(n, r, False)
                for made in (node.creates, *(node.others if isinstance(node, Compute) else ())):
                    add(n, made, True)
                if isinstance(node, Compute) and node.workspace:
                    out.append((n, True, int(node.workspace.offset), node.workspace.end, True))
            case Move():
                for source, target in node.copies:
                    add(n, source, False)
                    add(n, target, True)
            case Free():
                add(n, node.residency, True)
    return out


def brute_force_orders_everything(plan: MemGraph) -> bool:
    """Whether the transitive closure of the edges orders every two accesses to a common byte of which one writes."""
    ancestors = [0] * len(plan.nodes)
    for source, target in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True):
        ancestors[target] |= ancestors[source] | 1 << source
    everything = accesses(plan)
    for i, (n, place, start, stop, writes) in enumerate(everything):
        for m, place2, start2, stop2, writes2 in everything[:i]:
            clash = n != m and place == place2 and start < stop2 and start2 < stop and (writes or writes2)
            if clash and not (ancestors[n] >> m & 1 or ancestors[m] >> n & 1):
                return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_brute_force_agrees_when_edges_go_missing(data: st.DataObject) -> None:
    graph = data.draw(task_graphs(most_ops=3, joined=True))
    plan = plain_plan(graph, data.draw(budgets(graph)))
    assert judge(plan) is None
    assert brute_force_orders_everything(plan)
    drop = data.draw(st.lists(st.integers(0, len(plan.edges) - 1), min_size=1, max_size=3, unique=True))
    keep = np.setdiff1d(np.arange(len(plan.edges)), drop)
    fewer = replace(plan, edges=Edges(plan.edges.source[keep], plan.edges.target[keep], plan.edges.kind[keep]))
    assert (judge(fewer) is None) == brute_force_orders_everything(fewer)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=30), alignments)
def test_last_users_match_an_array_of_units(claims: list[tuple[int, int]], unit: int) -> None:
    last_users, model = LastUsers(unit), [-1] * 20
    for user, (start, units) in enumerate(claims):
        expected = [u for i, u in enumerate(model[start : start + units]) if u >= 0 and u not in model[start : start + i]]
        assert list(dict.fromkeys(last_users.claim(start * unit, (start + units) * unit - unit // 3, user))) == expected
        model[start : start + units] = [user] * units
