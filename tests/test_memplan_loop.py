"""Plans that end as they started: right, the same at both ends, and rejected for what breaks that; the bound on a steady pass."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.judged_plan import plan_graph
from einpage.memplan import plan as planner
from einpage.memplan.bounds.limit import Method
from einpage.memplan.bounds.steady import steady_bounds
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.memgraph import Free, MemGraph, Move, Offset, Residency, ResidencyId
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.graph.recorder import EdgeList
from einpage.memplan.graph.simulate import moved_bytes, simulate
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, HOST, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.order import OrderPolicy
from einpage.memplan.problem.pace import Pace
from einpage.memplan.residency.resident_sets import Start
from hand_plan import hand_graph
from specs_small import small_program
from strategies import a_machine, alignments, budgets, machines, task_graphs

LOOP = PlanOptions(start=Start.LOOP)


def hand_loop(budget: int = 2048) -> MemGraph:
    """`w` is resident in the topmost 256 bytes."""
    return plan(hand_graph(), a_machine(), budget, LOOP)


def on_device(plan: MemGraph, listed: tuple[ResidencyId, ...]) -> list[Residency]:
    return [plan.residencies[r] for r in listed if plan.residencies[r].place == DEVICE]


@settings(max_examples=80, deadline=None)
@given(st.data(), task_graphs(joined=True), machines(), alignments)
def test_loops_are_right_and_end_as_they_started(data: st.DataObject, graph: TaskGraph, machine: Machine, alignment: int) -> None:
    order, pace = data.draw(st.sampled_from(OrderPolicy)), data.draw(st.sampled_from((None, None, Pace(300))))
    found = plan(graph, machine, data.draw(budgets(graph, alignment)), replace(LOOP, alignment=alignment, order=order), pace)
    assert judge(found) is None
    assert found.loops
    assert on_device(found, found.start) == on_device(found, found.end)
    assert all(graph.tensors[t].kind is Kind.WEIGHT for t in found.resident), "an input is another in the next pass"
    freed = {found.residencies[n.residency].id for n in found.nodes if isinstance(n, Free)}
    assert not freed & set(found.start)
    b = steady_bounds(graph, machine, found.budget_bytes)
    assert simulate(found, machine).makespan_s >= b.bound_order_s * (1 - 1e-9) >= b.bound_s * (1 - 2e-9)
    assert moved_bytes(found, Queue.H2D) + moved_bytes(found, Queue.D2H) >= b.bytes_bound_order
    assert moved_bytes(found, Queue.H2D) >= b.compulsory(Queue.H2D)


@pytest.mark.parametrize("name", ["matmul_chain", "mlp", "llama"])
def test_no_loop_moves_less_than_its_bound_whatever_the_arena_holds(name: str) -> None:
    """From the smallest budget to one in which every weight stays, where links are slow and so decide."""
    graph = split(fuse(small_program(name)), {}, DType.FP32)
    machine = a_machine(h2d_bytes_per_s=1e3, d2h_bytes_per_s=1e3)
    least = largest_footprint(graph)[1]
    weights = sum(aligned(t.nbytes) for t in graph.tensors if t.kind is Kind.WEIGHT)
    moved = []
    for budget in range(least, least + weights + 4096, max(256, weights // 24)):
        found = plan(graph, machine, budget, LOOP)
        b = steady_bounds(graph, machine, found.budget_bytes)
        moved.append(moved_bytes(found, Queue.H2D) + moved_bytes(found, Queue.D2H))
        assert moved[-1] >= b.bytes_bound_order
        assert simulate(found, machine).makespan_s >= b.bound_order_s * (1 - 1e-9)
    assert moved[-1] < moved[0]


def alone(memgraph: MemGraph, machine: Machine) -> tuple[MemGraph, float]:
    """Instead of joined_loads.with_joined_loads."""
    return memgraph, simulate(memgraph, machine).makespan_s


def test_small_weights_stay_where_a_copy_has_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many bytes they are the most copies: where these alone take time, nearly as many weights stay as the arena can hold, if each is
    loaded by itself; and no more loads are needed where they go together."""
    graph = split(fuse(small_program("llama", {"seq": 1, "batch": 1, "layers": 4})), {}, DType.FP32)
    machine = a_machine(h2d_bytes_per_s=1e12, d2h_bytes_per_s=1e12, copy_latency_s=1.0)
    weights = sorted(aligned(t.nbytes) for t in graph.tensors if t.kind is Kind.WEIGHT)
    least = largest_footprint(graph)[1]
    for share in (0.3, 0.5, 0.7):
        together = plan(graph, machine, least + int(share * sum(weights)), LOOP)
        with monkeypatch.context() as patched:
            patched.setattr(planner, "with_joined_loads", alone)
            found = plan(graph, machine, least + int(share * sum(weights)), LOOP)
        most = bisect_right([*accumulate(weights)], share * sum(weights))
        assert len(on_device(found, found.start)) >= 0.9 * most, share
        assert simulate(together, machine).makespan_s <= simulate(found, machine).makespan_s


@settings(max_examples=60, deadline=None)
@given(st.data(), task_graphs(joined=True))
def test_a_loop_that_is_broken_is_rejected(data: st.DataObject, graph: TaskGraph) -> None:
    found = plan(graph, a_machine(), data.draw(budgets(graph)), LOOP)
    for r in on_device(found, found.end):
        violation = judge(replace(found, end=tuple(x for x in found.end if x != r.id)))
        assert violation is not None
        assert violation.reason is Reason.WRONG_END, "it never ends, and is not listed"
        moved = replace(r, id=ResidencyId(len(found.residencies)))
        elsewhere = replace(found, residencies=(*found.residencies, moved), start=tuple(moved.id if x == r.id else x for x in found.start))
        violation = judge(elsewhere)
        assert violation is not None, "another residency at the start, and the first one from nowhere"
        assert violation.reason is Reason.NEVER_CREATED


def freed(plan: MemGraph, again_at: int | None) -> MemGraph:
    """`w` is freed at the end of a hand loop and, if `again_at` is given, loaded again there."""
    (w,) = on_device(plan, plan.start)
    on_host = next(r for r in plan.start if plan.residencies[r].tensor == w.tensor and plan.residencies[r].place == HOST)
    extent = replace(w.extents[0], offset=Offset(again_at or 0))
    copy = Residency(ResidencyId(len(plan.residencies)), w.tensor, DEVICE, (extent,))
    end = tuple(r for r in plan.end if r != w.id)
    if again_at is None:
        return chained(replace(plan, nodes=(*plan.nodes, Free(w.id)), end=end))
    nodes = (*plan.nodes, Free(w.id), Move(on_host, copy.id))
    return chained(replace(plan, residencies=(*plan.residencies, copy), nodes=nodes, end=(*end, copy.id)))


def chained(plan: MemGraph) -> MemGraph:
    """Every node after the one before it, of the kind that the judge expects: only the loop can be wrong."""
    edges = EdgeList()
    creator: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for n, node in enumerate(plan.nodes):
        edges.memory(n - 1, n)
        reads: list[int] = []
        made: list[int] = []
        if isinstance(node, Free):
            for user in (*readers.get(node.residency, []), creator.get(node.residency, -1)):
                edges.data(user, n)
        elif isinstance(node, Move):
            reads, made = [source for source, _ in node.copies], [target for _, target in node.copies]
        else:
            reads, made = [r for operand in node.operands for r in operand], [node.creates]
        for r in reads:
            edges.data(creator.get(r, -1), n)
            readers.setdefault(r, []).append(n)
        creator |= dict.fromkeys(made, n)
    return replace(plan, edges=edges.finish())


def test_a_loop_that_ends_elsewhere_is_rejected() -> None:
    found = hand_loop()
    assert judge(chained(found)) is None
    w = on_device(found, found.start)[0].extents[0].offset
    assert judge(freed(found, w)) is None, "out and in again at its place: a loop"
    for broken in (freed(found, None), freed(found, w - 256)):
        assert judge(replace(broken, loops=False)) is None, "right, if it runs once"
        violation = judge(broken)
        assert violation is not None
        assert violation.reason is Reason.LOOP_OPEN


@pytest.mark.parametrize("loops", [True, False])
def test_what_is_on_the_device_at_the_start_is_accounted_for_to_the_end(loops: bool) -> None:
    """It ends, or it is listed: each resident of a loop left out alone, whether the plan says that it is a loop or not."""
    found = replace(hand_loop(), loops=loops)
    assert on_device(found, found.start)
    for resident in on_device(found, found.start):
        violation = judge(replace(found, end=tuple(r for r in found.end if r != resident.id)))
        assert violation is not None and violation.reason is Reason.WRONG_END


def test_an_input_is_not_resident_from_pass_to_pass() -> None:
    found = hand_loop()
    graph = hand_graph()
    tensors = tuple(replace(t, kind=Kind.INPUT) if t.name == "w" else t for t in graph.tensors)
    violation = judge(replace(found, graph=replace(graph, tensors=tensors)))
    assert violation is not None
    assert violation.reason is Reason.WRONG_START
    assert plan(replace(graph, tensors=tensors), a_machine(), 2048, LOOP).resident == frozenset()


def test_the_bound_on_a_steady_pass_by_hand() -> None:
    """Anew come 512 bytes of rows. The 256 of w fit beside e and b, 1024, in 2048 bytes; in 1200 all but 80; 56 are too many for 200."""
    machine = a_machine(launch_latency_s=1.0)
    roomy, tight = steady_bounds(hand_graph(), machine, 2048), steady_bounds(hand_graph(), machine, 200)
    assert (roomy.compulsory(Queue.H2D), tight.compulsory(Queue.H2D)) == (512, 512 + 56)
    assert roomy.busy(Queue.COMPUTE) == pytest.approx(3 * 1.0, rel=1e-3), "three launches; the gather has none"
    assert (roomy.limit, roomy.order_by, roomy.bytes_order_by) == (Queue.COMPUTE, Method.STEADY, Method.STEADY)
    assert roomy.bytes_bound_order == 512 + 1024
    assert steady_bounds(hand_graph(), machine, 1200).bytes_bound_order == 512 + 80 + 1024


def test_a_loop_survives_its_file_and_says_so_in_text(tmp_path: object) -> None:
    found = hand_loop()
    save_plan(f"{tmp_path}/loop.json", found, {})
    read = load_plan(f"{tmp_path}/loop.json").memgraph
    assert read.loops
    assert memgraph_text(read) == memgraph_text(found)
    assert memgraph_text(found).splitlines()[0].endswith(" loops")


def test_the_report_of_a_loop() -> None:
    planned = plan_graph(hand_graph(), a_machine(), 4096, LOOP)
    assert planned.report.start is Start.LOOP
    assert planned.report.resident_bytes == 256
    assert planned.report.h2d_bytes == planned.report.bytes_bound_h2d == 512
    assert planned.bounds == steady_bounds(hand_graph(), a_machine(), 4096)
