"""The planner: every plan is judged right, every refusal is truly infeasible, and each option does what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.arena import HOLE, FitPolicy
from einpage.memplan.graph.memgraph import Compute, MemGraph, Move, NodeId
from einpage.memplan.graph.recorder import NO_RESIDENCY
from einpage.memplan.horizons.horizons import Horizons
from einpage.memplan.horizons.malloc import Allocator
from einpage.memplan.horizons.memory import NO_STEP
from einpage.memplan.horizons.reuse import Step
from einpage.memplan.horizons.victim import FAR, HOLE_TRAFFIC, VictimPolicy, traffic
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.order import OrderPolicy
from einpage.memplan.problem.problem import problem_of
from strategies import a_machine, alignments, budgets, machines, random_graph, task_graphs

all_options = st.builds(
    PlanOptions,
    order=st.sampled_from(OrderPolicy),
    victim=st.sampled_from(VictimPolicy),
    fit=st.sampled_from(FitPolicy),
    prefetch=st.booleans(),
    evict_ahead=st.booleans(),
    prefetch_bytes=st.none() | st.integers(0, 8192).map(Nbytes),
    alignment=alignments,
    seed=st.integers(0, 1000),
)


def made(sizes: dict[str, tuple[int, Kind]], tasks: list[tuple[str, list[str], list[str], int]]) -> TaskGraph:
    """A graph by hand. sizes: name → (bytes, kind); tasks: (result, operands, those donated to it, workspace bytes)."""
    ids = {name: TensorId(i) for i, name in enumerate(sizes)}
    values = tuple(Value(n, n, (nbytes // 4,), DType.FP32, kind) for n, (nbytes, kind) in sizes.items())
    tensors = tuple(Tensor(ids[v.name], v.name, v.name, Box((0,), v.shape), v.dtype, v.kind) for v in values)
    made_tasks = tuple(
        Task(
            TaskId(i), f"make {r}", OpId(0), tuple((ids[o],) for o in operands), ids[r], tuple(ids[t] for t in donated),
            100, Nbytes(100), Nbytes(workspace), None, False,
        )
        for i, (r, operands, donated, workspace) in enumerate(tasks)
    )  # fmt: skip
    outputs = tuple((v.name, v.name) for v in values if v.kind is Kind.OUTPUT)
    graph = TaskGraph("by hand", DType.FP32, (), values, tensors, made_tasks, (Op(OpId(0), "all", "map", 0, Nbytes(0), ""),), outputs)
    graph.verify()
    return graph


def moves(memgraph: MemGraph, queue: Queue) -> list[str]:
    """Names of the tensors that cross a link, in node order."""
    out = []
    for n, node in enumerate(memgraph.nodes):
        if isinstance(node, Move) and memgraph.queue(NodeId(n)) == queue:
            out += [memgraph.graph.tensors[memgraph.residencies[source].tensor].name for source, _ in node.copies]
    return out


def position(memgraph: MemGraph, what: str) -> int:
    """The node that first creates the device's copy of a tensor."""
    for n, node in enumerate(memgraph.nodes):
        created = [target for _, target in node.copies] if isinstance(node, Move) else [node.creates] if isinstance(node, Compute) else []
        if what in [memgraph.graph.tensors[memgraph.residencies[r].tensor].name for r in created]:
            return n
    raise AssertionError(f"{what} is never created")


@given(task_graphs(joined=True), machines(), all_options, st.data())
def test_every_plan_is_judged_right(graph: TaskGraph, machine: Machine, options: PlanOptions, data: st.DataObject) -> None:
    memgraph = plan(graph, machine, data.draw(budgets(graph, options.alignment)), options)
    assert judge(memgraph) is None


@given(task_graphs(joined=True), all_options)
def test_the_largest_footprint_is_the_smallest_budget(graph: TaskGraph, options: PlanOptions) -> None:
    task, least = largest_footprint(graph, options.alignment)
    assert judge(plan(graph, a_machine(), least + options.alignment - 1, options)) is None
    with pytest.raises(DoesNotFit) as refused:
        plan(graph, a_machine(), least - 1, options)
    misfit = refused.value.misfit
    assert (misfit.place, misfit.task, misfit.smallest_budget) == ("device", graph.tasks[task].name, least)
    assert misfit.wanted > misfit.free == misfit.largest_hole
    assert misfit.free + sum(nbytes for _, nbytes in misfit.pinned) == (least - 1) // options.alignment * options.alignment


@given(task_graphs(joined=True), all_options, st.data())
def test_a_plan_keeps_its_alignment(graph: TaskGraph, options: PlanOptions, data: st.DataObject) -> None:
    """On the device and on the host; with an alignment of one byte, bytes lie without gaps, so a host holds exactly what it must."""
    memgraph = plan(graph, a_machine(), data.draw(budgets(graph, options.alignment)), options)
    assert memgraph.alignment == options.alignment
    assert all(e.offset % options.alignment == 0 for r in memgraph.residencies for e in r.extents)
    permanent = sum(aligned(t.nbytes, options.alignment) for t in graph.tensors if t.kind in HOST_AT_START or t.kind is Kind.OUTPUT)
    spilled = set(moves(memgraph, Queue.D2H)) - {t.name for t in graph.tensors if t.kind is Kind.OUTPUT}
    assert memgraph.host_bytes >= permanent and (memgraph.host_bytes == permanent) == (not spilled)


@given(task_graphs(joined=True), all_options, st.data())
def test_no_clean_byte_is_offloaded_and_each_dirty_tensor_once(graph: TaskGraph, options: PlanOptions, data: st.DataObject) -> None:
    written = Counter(moves(plan(graph, a_machine(), data.draw(budgets(graph, options.alignment)), options), Queue.D2H))
    kinds = {t.name: t.kind for t in graph.tensors}
    assert all(kinds[name] not in HOST_AT_START for name in written)
    assert not written or max(written.values()) == 1
    assert {name for name, kind in kinds.items() if kind is Kind.OUTPUT} <= set(written)


@given(task_graphs(joined=True), all_options)
def test_where_all_fits_only_what_must_moves(graph: TaskGraph, options: PlanOptions) -> None:
    sizes = [*(t.nbytes for t in graph.tensors), *(t.workspace_bytes for t in graph.tasks)]
    memgraph = plan(graph, a_machine(), sum(aligned(nbytes, options.alignment) for nbytes in sizes), options)
    read = {graph.tensors[t].name for task in graph.tasks if not task.gathers for t in task.reads()}
    on_host = {t.name for t in graph.tensors if t.kind in HOST_AT_START}
    assert sorted(moves(memgraph, Queue.H2D)) == sorted(read & on_host)
    assert sorted(moves(memgraph, Queue.D2H)) == sorted(t.name for t in graph.tensors if t.kind is Kind.OUTPUT)


@given(task_graphs(joined=True), all_options, st.data())
def test_the_same_input_gives_the_same_plan(graph: TaskGraph, options: PlanOptions, data: st.DataObject) -> None:
    budget = data.draw(budgets(graph, options.alignment))
    a, b = (plan(graph, a_machine(), budget, options) for _ in range(2))
    assert (a.nodes, a.residencies, a.start, a.end, a.host_bytes) == (b.nodes, b.residencies, b.start, b.end, b.host_bytes)
    for x, y in ((a.edges.source, b.edges.source), (a.edges.target, b.edges.target), (a.edges.kind, b.edges.kind)):
        assert np.array_equal(x, y)


@given(task_graphs(joined=True), all_options, st.data())
def test_a_full_host_is_refused_and_never_overrun(graph: TaskGraph, options: PlanOptions, data: st.DataObject) -> None:
    permanent = sum(aligned(t.nbytes, options.alignment) for t in graph.tensors if t.kind in HOST_AT_START or t.kind is Kind.OUTPUT)
    machine = a_machine(host_bytes=permanent + data.draw(st.integers(0, 4096)))
    try:
        memgraph = plan(graph, machine, data.draw(budgets(graph, options.alignment)), options)
    except DoesNotFit as refused:
        misfit = refused.misfit
        assert (misfit.place, misfit.smallest_budget, misfit.budget) == ("host", None, machine.host_bytes)
        assert misfit.wanted > misfit.largest_hole
    else:
        assert memgraph.host_bytes <= machine.host_bytes
        assert judge(memgraph) is None


@given(task_graphs(joined=True), all_options, st.data())
def test_the_simulation_counts_what_it_may_evict(graph: TaskGraph, options: PlanOptions, data: st.DataObject) -> None:
    budget = data.draw(budgets(graph, options.alignment))
    horizons = Horizons(problem_of(graph, a_machine(), budget, alignment=options.alignment), options)
    memory = horizons.memory
    for step, task in enumerate(horizons.order):
        horizons.allocate(Step(step), task)
        evictable = [t.id for t in graph.tensors if memory.offset[t.id] >= 0 and not memory.pins[t.id]]
        assert memory.evictable_bytes == sum(memory.size[t] for t in evictable)
        until = {t.id: memory.evictable_until[t.id] for t in graph.tensors if memory.evictable_until[t.id] != NO_STEP}
        assert until == {t: memory.reuse.next_use(t) for t in evictable}
        assert all(memory.evictable_traffic[t] == traffic(memory.size[t], memory.host.copy[t] == NO_RESIDENCY) for t in evictable)
        assert (memory.evictable_until[HOLE], memory.evictable_traffic[HOLE]) == (FAR, HOLE_TRAFFIC)
        assert horizons.prefetched_bytes == sum(task.prefetched_bytes for task in horizons.in_flight)
        assert not any(memory.reuse.is_dead(t) for t in evictable)
        if horizons.in_flight[-1].runs_at_once or options.prefetch is False:
            horizons.execute_one()


def test_random_graphs_reach_every_routine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the properties above might never meet fragmentation or a donation before the last use."""
    calls: Counter[str] = Counter()
    for name in ("sim_malloc", "sim_malloc_offload", "sim_malloc_force_reload", "_donate_early"):
        routine = getattr(Allocator, name)

        def counted(*args: object, name: str = name, routine: object = routine, **words: object) -> object:
            assert callable(routine)
            answer = routine(*args, **words)
            calls[name] += answer is not False
            return answer

        monkeypatch.setattr(Allocator, name, counted)
    for seed in range(210):
        graph = random_graph(seed)
        options = PlanOptions(order=OrderPolicy.RANDOM, fit=list(FitPolicy)[seed % 3], seed=seed)
        assert judge(plan(graph, a_machine(), largest_footprint(graph)[1], options)) is None
    assert set(calls) == {"sim_malloc", "sim_malloc_offload", "sim_malloc_force_reload", "_donate_early"}
    assert min(calls.values()) > 0


# Two weights are streamed past a running state: x is 1 KiB, each weight 1 KiB.
W, A, OUT = Kind.WEIGHT, Kind.ACTIVATION, Kind.OUTPUT


def streamed(weights: int) -> TaskGraph:
    sizes = {"x0": (1024, Kind.INPUT)} | {f"w{i}": (1024, W) for i in range(weights)}
    sizes |= {f"x{i + 1}": (1024, OUT if i == weights - 1 else A) for i in range(weights)}
    return made(sizes, [(f"x{i + 1}", [f"x{i}", f"w{i}"], [], 0) for i in range(weights)])


def test_prefetch_loads_the_next_weight_before_the_task_before_runs() -> None:
    graph = streamed(4)
    ahead = plan(graph, a_machine(), 5 * 1024)
    in_step = plan(graph, a_machine(), 5 * 1024, PlanOptions(prefetch=False))
    assert position(ahead, "w1") < position(ahead, "x1")
    assert position(in_step, "w1") > position(in_step, "x1")
    assert judge(ahead) is None and judge(in_step) is None


def read_again(again: int) -> TaskGraph:
    """A weight `k` that the first task and the task at step `again` read; every task reads a weight of its own too."""
    sizes = {"k": (1024, W), "x0": (1024, Kind.INPUT)} | {f"w{i}": (1024, W) for i in range(9)}
    sizes |= {f"x{i}": (1024, OUT if i == 9 else A) for i in range(1, 10)}
    return made(sizes, [(f"x{i + 1}", [f"x{i}", f"w{i}"] + ["k"] * (i in (0, again)), [f"x{i}"] * (i > 0), 0) for i in range(9)])


def test_evict_ahead_frees_bytes_for_a_reload_while_tasks_run() -> None:
    graph = read_again(again=8)
    eager = PlanOptions(prefetch_bytes=Nbytes(4096))
    waiting, early = (plan(graph, a_machine(), 4 * 1024, o) for o in (replace(eager, evict_ahead=False), eager))
    assert judge(waiting) is None and judge(early) is None
    assert moves(waiting, Queue.H2D).count("k") == 1
    assert moves(early, Queue.H2D).count("k") == 2
    assert position(early, "x5") - position(early, "w4") > position(waiting, "x5") - position(waiting, "w4")


def test_evict_ahead_evicts_nothing_that_is_needed_soon() -> None:
    eager = PlanOptions(prefetch_bytes=Nbytes(4096))
    assert moves(plan(read_again(again=4), a_machine(), 4 * 1024, eager), Queue.H2D).count("k") == 1
    assert moves(plan(read_again(again=8), a_machine(), 4 * 1024, replace(eager, prefetch_bytes=Nbytes(0))), Queue.H2D).count("k") == 1


def test_evict_ahead_serves_reloads_only() -> None:
    """For a result it pays to wait: the next task to run frees bytes, and no link is idle meanwhile."""
    sizes = {"k": (1024, W)} | {f"x{i}": (1024, OUT if i == 9 else A) for i in range(1, 10)}
    tasks: list[tuple[str, list[str], list[str], int]]
    tasks = [(f"x{i + 1}", [f"x{i}"] * (i > 0) + ["k"] * (i in (0, 8)), [], 0) for i in range(9)]
    graph = made(sizes, tasks)
    assert moves(plan(graph, a_machine(), 4 * 1024, PlanOptions(prefetch_bytes=Nbytes(4096))), Queue.H2D) == ["k"]


def test_the_farthest_next_use_is_evicted_first() -> None:
    """Both weights are clean and of one size; b needs the bytes of one."""
    sizes = {"near": (1024, W), "far": (1024, W), "a": (1024, A), "b": (1024, A), "c": (1024, A), "y": (1024, OUT)}
    graph = made(sizes, [("a", ["far", "near"], [], 0), ("b", ["a"], [], 1024), ("c", ["b", "near"], [], 0), ("y", ["c", "far"], [], 0)])
    for victim in (VictimPolicy.WEIGHTED, VictimPolicy.FARTHEST):
        reloads = Counter(moves(plan(graph, a_machine(), 4 * 1024, PlanOptions(victim=victim, evict_ahead=False)), Queue.H2D))
        assert reloads == {"far": 2, "near": 1}


def test_a_clean_tensor_is_evicted_before_a_dirty_one() -> None:
    sizes = {"w": (1024, W), "h": (1024, A), "a": (1024, A), "b": (1024, A), "y": (1024, OUT), "z": (1024, OUT)}
    graph = made(
        sizes, [("h", ["w"], [], 0), ("a", ["h"], [], 0), ("b", ["a"], [], 1024), ("y", ["b", "h"], [], 0), ("z", ["y", "w"], [], 0)]
    )
    memgraph = plan(graph, a_machine(), 4 * 1024)
    assert sorted(moves(memgraph, Queue.D2H)) == ["y", "z"]
    assert moves(memgraph, Queue.H2D) == ["w", "w"]


def test_a_result_in_place_needs_no_bytes_of_its_own() -> None:
    graph = made(
        {"x": (1024, Kind.INPUT), "w": (1024, W), "y": (1024, A), "z": (1024, OUT)}, [("y", ["x", "w"], ["x"], 0), ("z", ["y"], ["y"], 0)]
    )
    memgraph = plan(graph, a_machine(), 2048)
    assert judge(memgraph) is None
    with pytest.raises(DoesNotFit):
        plan(graph, a_machine(), 2047)
    violation = judge(replace(memgraph, graph=replace(graph, tasks=tuple(replace(t, inplace=()) for t in graph.tasks))))
    assert violation is not None and violation.reason is Reason.DONATION_UNDECLARED


def test_an_output_is_not_donated() -> None:
    """A result in place of an output would have to wait for the link."""
    graph = made({"x": (1024, Kind.INPUT), "y": (1024, OUT), "z": (1024, OUT)}, [("y", ["x"], [], 0), ("z", ["y"], ["y"], 0)])
    memgraph = plan(graph, a_machine(), 8 * 1024)
    at = {graph.tensors[r.tensor].name: r.extents[0].offset for r in memgraph.residencies if r.place == DEVICE}
    assert at["y"] != at["z"]


def test_an_operand_that_is_read_again_is_donated_once_the_host_has_it() -> None:
    """In graph order y is the last to read x, and may be written in place; run first, it is donated x early, and x is reloaded for u."""
    sizes = {"w": (1024, W), "x": (1024, A), "u": (1024, OUT), "y": (1024, OUT)}
    graph = made(sizes, [("x", ["w"], [], 0), ("u", ["x"], [], 0), ("y", ["x"], ["x"], 1024)])
    plans = [plan(graph, a_machine(), 2048, PlanOptions(order=OrderPolicy.RANDOM, seed=seed)) for seed in range(10)]
    early = [p for p in plans if position(p, "y") < position(p, "u")]
    assert early and len(early) < len(plans)
    assert all(judge(p) is None for p in plans)
    assert all(sorted(moves(p, Queue.D2H)) == ["u", "x", "y"] and moves(p, Queue.H2D)[-1] == "x" for p in early)


def test_a_refusal_says_everything() -> None:
    graph = made({"a": (1024, W), "b": (2048, W), "y": (512, OUT)}, [("y", ["a", "b"], [], 100)])
    with pytest.raises(DoesNotFit, match="make y wants 2048 bytes on the device; budget 2000, free 768, largest hole 768; pinned: a 1024; "
                       "smallest budget that works: 3840 bytes"):  # fmt: skip
        plan(graph, a_machine(), 2000)
    with pytest.raises(DoesNotFit, match=r"make y wants 768 bytes on the device; budget 3800, free 512, .* pinned: a 1024, b 2048; "):
        plan(graph, a_machine(), 3800)
    assert judge(plan(graph, a_machine(), 3840)) is None
    odd = made({"a": (1004, W), "b": (2004, W), "y": (512, OUT)}, [("y", ["a", "b"], [], 101)])
    with pytest.raises(DoesNotFit, match=r"wants 613 bytes .* budget 3620, free 612, .* pinned: a 1004, b 2004; .* works: 3621 bytes"):
        plan(odd, a_machine(), 3620, PlanOptions(alignment=1))
    assert judge(plan(odd, a_machine(), 3621, PlanOptions(alignment=1))) is None


@pytest.mark.parametrize("budget", [0, -1, 255])
def test_no_budget_at_all_is_refused(budget: int) -> None:
    with pytest.raises(DoesNotFit):
        plan(streamed(2), a_machine(), budget)
