"""Lower bounds: figures by hand, and never above the simulated time of any plan at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.bounds.bounds import Effort, Reached, bounds
from einpage.memplan.bounds.compulsory import compulsory_load_bytes
from einpage.memplan.bounds.limit import Cause, Method
from einpage.memplan.bounds.window import window_bound
from einpage.memplan.graph.memgraph import Compute, HostGather, MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import plan as make_plan
from hand_plan import hand_graph, hand_plan
from plain_plan import plain_plan
from strategies import a_machine, budgets, changed, machines, task_graphs

SECONDS = a_machine(
    flops_per_s=((DType.FP32, 128.0),), device_bytes_per_s=1e12, h2d_bytes_per_s=256.0, d2h_bytes_per_s=128.0,
    copy_latency_s=0.5, launch_latency_s=2.0,
)  # fmt: skip


def order_of(plan: MemGraph) -> list[TaskId]:
    return [n.task for n in plan.nodes if isinstance(n, Compute | HostGather)]


def test_the_hand_made_graph_by_hand() -> None:
    b = bounds(hand_graph(), SECONDS)
    assert (b.busy(Queue.COMPUTE), b.busy(Queue.H2D), b.busy(Queue.D2H)) == (3.0, 3.0, 8.0), (
        "three tasks of 1 s; 512 gathered + 256; two outputs of 512"
    )
    assert (b.compulsory(Queue.H2D), b.compulsory(Queue.D2H)) == (768, 1024)
    assert (b.bound_s, b.limit) == (8.0, Queue.D2H)
    assert b.critical_path_s == 2.5 + 3 + 3 + 3 + 4.5, "gather, a, b, c, store"
    d2h_path = 2.5 + 3 + 3 + 4.5 + 4.5
    assert b.bound_order_s == d2h_path, "gather, a, b, and both stores"
    assert b.limit_order == Queue.COMPUTE, "as long as the D2H bound, and as busy"
    assert b.bound_order_s <= simulate(hand_plan(), SECONDS).makespan_s


def test_compute_counts_the_first_loads_and_the_last_store() -> None:
    slow = replace(SECONDS, launch_latency_s=20.0)
    b = bounds(hand_graph(), slow)
    assert b.bound_order_s == (2.5 + 1.5) + 3 * 21.0 + 4.5
    assert b.limit_order == Queue.COMPUTE


def test_loads_count_what_must_follow_them() -> None:
    slow = changed(SECONDS, copy_latency_s=0.0, h2d_bytes_per_s=1.0, d2h_bytes_per_s=1e9)
    b = bounds(hand_graph(), slow)
    assert b.bound_order_s == pytest.approx(512 + 256 + 9.0), "after the last of the two loads, a, b and c run"
    assert b.limit_order == Queue.H2D


def test_a_table_smaller_than_its_gathered_rows_is_the_bound() -> None:
    graph = hand_graph()
    table = replace(graph.tensors[0], box=Box((0, 0), (1, 64)))
    smaller = replace(graph, tensors=(table, *graph.tensors[1:]))
    assert compulsory_load_bytes(smaller) == 256 + 256


def cut_twice(boxes: tuple[tuple[tuple[int, int], tuple[int, int]], ...]) -> TaskGraph:
    """One task that reads a weight of 8 x 8 through tiles that may overlap."""
    values = (Value("w", "w", (8, 8), DType.FP32, Kind.WEIGHT), Value("y", "y", (1,), DType.FP32, Kind.OUTPUT))
    tiles = tuple(Tensor(TensorId(i), f"w{i}", "w", Box(*zip(*box, strict=True)), DType.FP32, Kind.WEIGHT) for i, box in enumerate(boxes))
    y = Tensor(TensorId(len(tiles)), "y", "y", Box((0,), (1,)), DType.FP32, Kind.OUTPUT)
    reads = (tuple(t.id for t in tiles),)
    task = Task(TaskId(0), "y", OpId(0), reads, y.id, (), 1, Nbytes(1), Nbytes(0), None, False)
    return TaskGraph("cut", DType.FP32, (), values, (*tiles, y), (task,), (Op(OpId(0), "y", "map", 1, Nbytes(1), ""),), (("y", "y"),))


def test_overlapping_tiles_count_each_element_once() -> None:
    left, top = ((0, 8), (0, 4)), ((0, 4), (0, 8))
    assert compulsory_load_bytes(cut_twice((left,))) == 4 * 32
    assert compulsory_load_bytes(cut_twice((left, top))) == 4 * 48
    assert compulsory_load_bytes(cut_twice((left, ((0, 8), (4, 8))))) == 4 * 64
    assert compulsory_load_bytes(cut_twice((left, ((2, 3), (1, 2))))) == 4 * 32


def loop(passes: int, weights: int) -> TaskGraph:
    """`passes` times over `weights` weights of 1024 bytes each, adding each to a running value of 256 bytes."""
    values = [Value(f"w{i}", "w", (256,), DType.FP32, Kind.WEIGHT) for i in range(weights)]
    values += [Value(f"x{k}", "x", (64,), DType.FP32, Kind.ACTIVATION) for k in range(passes * weights)]
    values[-1] = replace(values[-1], kind=Kind.OUTPUT)
    tensors = tuple(Tensor(TensorId(i), v.name, v.name, Box((0,), v.shape), v.dtype, v.kind) for i, v in enumerate(values))
    tasks, ops = [], []
    for k in range(passes * weights):
        before = ((TensorId(weights + k - 1),),) if k else ()
        reads = ((TensorId(k % weights),), *before)
        tasks.append(Task(TaskId(k), f"x{k}", OpId(k), reads, TensorId(weights + k), (), 0, Nbytes(0), Nbytes(0), None, False))
        ops.append(Op(OpId(k), f"x{k}", "map", 0, Nbytes(0), ""))
    graph = TaskGraph("loop", DType.FP32, (), tuple(values), tensors, tuple(tasks), tuple(ops), (("x", values[-1].name),))
    graph.verify()
    return graph


def test_window_bound_of_passes_over_weights() -> None:
    """H2D >= W + (P - 1) * (W - C), the closed form for P passes over W clean bytes (and a little for the value they change)."""
    graph, passes, whole = loop(passes=5, weights=8), 5, 8 * 1024
    machine = changed(SECONDS, launch_latency_s=0.0, h2d_bytes_per_s=1.0)
    order = [t.id for t in graph.tasks]
    for budget in (2048, 4096, 6144):
        seconds = window_bound(graph, machine, budget, order)
        assert seconds >= whole + (passes - 1) * (whole - budget)
        assert seconds <= whole + (passes - 1) * (whole - budget + 256 * 2)
        b = bounds(graph, machine, budget, order)
        assert b.limit_order is Cause.MEMORY
        assert b.bound_order_s == seconds
        assert seconds <= simulate(plain_plan(graph, budget), machine).makespan_s
    roomy = window_bound(graph, machine, 10**6, order)
    assert roomy == whole


@pytest.mark.parametrize("planner", [plain_plan, None], ids=["plain", "planner"])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), machine=machines(), effort=st.sampled_from(Effort))
def test_no_plan_beats_its_bounds(
    planner: Callable[[TaskGraph, int], MemGraph] | None, data: st.DataObject, machine: Machine, effort: Effort
) -> None:
    graph = data.draw(task_graphs(most_ops=5, joined=True))
    budget = data.draw(budgets(graph))
    plan = planner(graph, budget) if planner else make_plan(graph, machine, budget)
    b = bounds(graph, machine, plan.budget_bytes, order_of(plan), effort)
    makespan = simulate(plan, machine).makespan_s * (1 + 1e-9)
    assert b.compulsory(Queue.H2D) + b.compulsory(Queue.D2H) <= b.bytes_bound_order <= all_moved_bytes(plan)
    assert b.bound_s <= b.bound_order_s <= makespan
    assert b.critical_path_s <= makespan
    assert bounds(graph, machine).bound_order_s <= b.bound_order_s


def test_the_linear_programmes_are_asked_only_where_they_are_worth_it() -> None:
    """Four weights of which two and a half fit, three times over: links and compute are each nearly busy, the windows say less. Beside the
    weight that a task reads only one fits as a whole, and that over three of eleven tasks: of twelve loads three are saved."""
    graph = loop(passes=3, weights=4)
    machine = changed(SECONDS, h2d_bytes_per_s=1024.0, launch_latency_s=0.5, copy_latency_s=0.0)
    order, budget = [t.id for t in graph.tasks], 2 * 1024 + 3 * 256
    fast = bounds(graph, machine, budget, order)
    assert fast.order_by is not Method.SLOT_LP and fast.bytes_order_by is Method.COMPULSORY
    best = bounds(graph, machine, budget, order, Effort.LP)
    assert (best.order_by, best.bytes_order_by) == (Method.SLOT_LP, Method.INTERVAL_LP)
    assert (fast.bound_order_s, best.bound_order_s) == (10.5, pytest.approx(12.25)) and best.limit_order is Cause.MEMORY
    assert (fast.bytes_bound_order, best.bytes_bound_order) == (4 * 1024 + 256, 9 * 1024 + 256)
    assert best == bounds(graph, machine, budget, order, Effort.AUTO)
    assert best == bounds(graph, machine, budget, order, Effort.AUTO, Reached(2 * fast.bound_order_s, 10**6))
    assert best == bounds(graph, machine, budget, order, Effort.LP, Reached(fast.bound_order_s, fast.bytes_bound_order))
    assert fast == bounds(graph, machine, budget, order, Effort.AUTO, Reached(fast.bound_order_s, fast.bytes_bound_order))
    assert bounds(graph, machine, None, order, Effort.LP) == bounds(graph, machine, None, order)


def test_where_the_slot_lp_is_too_dear_the_least_bytes_in_bound_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = loop(passes=3, weights=4), changed(SECONDS, h2d_bytes_per_s=512.0, launch_latency_s=0.0, copy_latency_s=0.0)
    order, budget = [t.id for t in graph.tasks], 2 * 1024 + 3 * 256
    slot = bounds(graph, machine, budget, order, Effort.AUTO)
    monkeypatch.setattr("einpage.memplan.bounds.bounds.CHEAP_SLOTS_TIME", 11)
    b = bounds(graph, machine, budget, order, Effort.AUTO)
    assert (b.order_by, b.bound_order_s) == (Method.INTERVAL_LP, pytest.approx(9 * 1024 / 512))
    assert slot.order_by is Method.SLOT_LP and slot.bound_order_s > b.bound_order_s


def test_without_a_solver_the_window_bound_is_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = loop(passes=5, weights=8), changed(SECONDS, launch_latency_s=0.0, h2d_bytes_per_s=1.0)
    order = [t.id for t in graph.tasks]
    monkeypatch.setattr("einpage.memplan.bounds.lp.find_spec", lambda name: None)
    b = bounds(graph, machine, 4096, order, Effort.LP)
    assert b == bounds(graph, machine, 4096, order, Effort.FAST)
    assert b.order_by is Method.WINDOW
