"""Keep, offload or recompute: graphs in which tasks run twice, their plans as plans of the graph itself, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Compute, HostGather, MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, second_runs, simulate
from einpage.memplan.horizons.recompute import Recompute, of_one_graph
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.second_runs import Dropped, may_run_again, with_second_runs
from einpage.memplan.report import tasks_in_order
from strategies import a_machine, budgets, task_graphs

MIB = 1 << 20


def step(layers: int, seconds: float = 1e-3, size: int = 8 * MIB) -> TaskGraph:
    """A chain of layers and its way back: layer i makes a.i of a.i-1 and w.i; on the way back g.i reads a.i-1, w.i and g.i+1."""
    rows = [(f"w.{i}", MIB, Kind.WEIGHT) for i in range(layers)] + [("x", size, Kind.INPUT)]
    rows += [(f"a.{i}", size, Kind.ACTIVATION) for i in range(layers)] + [(f"g.{i}", size, Kind.ACTIVATION) for i in range(1, layers)]
    rows.append(("g.0", size, Kind.OUTPUT))
    number = {name: TensorId(n) for n, (name, _, _) in enumerate(rows)}
    made = [(f"a.{i}", ("x" if i == 0 else f"a.{i - 1}", f"w.{i}"), seconds) for i in range(layers)]
    for i in reversed(range(layers)):
        after = f"g.{i + 1}" if i + 1 < layers else f"a.{i}"
        made.append((f"g.{i}", (after, "x" if i == 0 else f"a.{i - 1}", f"w.{i}"), 2 * seconds))
    values = tuple(Value(name, name, (nbytes,), DType.BYTE, kind) for name, nbytes, kind in rows)
    tensors = tuple(Tensor(number[n], n, n, Box((0,), (nbytes,)), DType.BYTE, kind) for n, nbytes, kind in rows)
    tasks = tuple(
        Task(TaskId(n), name, OpId(n), tuple((number[x],) for x in reads), number[name], (), 0, Nbytes(0), Nbytes(0), None, False, s)
        for n, (name, reads, s) in enumerate(made)
    )
    ops = tuple(Op(OpId(n), name, "traced", 0, Nbytes(0), "", s) for n, (name, _, s) in enumerate(made))
    graph = TaskGraph("step", DType.BYTE, (), values, tensors, tasks, ops, (("g.0", "g.0"),))
    graph.verify()
    return graph


def machine(bytes_per_s: float, host_bytes: int = 1 << 40) -> Machine:
    links = (Link(Queue.H2D, bytes_per_s, 1e-5), Link(Queue.D2H, bytes_per_s, 1e-5))
    return replace(a_machine(), links=links, host_bytes=host_bytes, launch_latency_s=0.0)


def seconds(memgraph: MemGraph, of: Machine) -> float:
    return simulate(memgraph, of).makespan_s


@given(task_graphs(joined=True), st.integers(0, 1 << 30))
def test_whatever_is_dropped_there_is_a_right_plan(graph: TaskGraph, seed: int) -> None:
    """Of the graph itself, in which tasks run again; in the smallest budget of the graph that it was made of."""
    rng = Random(seed)
    made = {task.result: task.id for task in graph.tasks if may_run_again(task)}
    may = [t.id for t in graph.tensors if t.kind is Kind.ACTIVATION and t.id in made]
    dropped = {Dropped(t, TaskId(rng.randrange(made[t], len(graph.tasks)))) for t in may if rng.random() < 0.6}
    runs = with_second_runs(graph, dropped)
    runs.graph.verify()
    memgraph = of_one_graph(plan(runs.graph, a_machine(), 1 << 30), graph, runs)
    assert judge(memgraph) is None
    assert second_runs(memgraph) == len(runs.graph.tasks) - len(graph.tasks)
    assert sorted(tasks_in_order(memgraph)) == [task.id for task in graph.tasks]
    for task, original in zip(runs.graph.tasks, runs.task_of, strict=True):
        reads = tuple(tuple(runs.tensor_of[t] for t in operand) for operand in task.operands)
        assert reads == graph.tasks[original].operands, "a second run reads the same versions"
        assert runs.tensor_of[task.result] == graph.tasks[original].result


@given(task_graphs(joined=True), st.data())
def test_never_slower(graph: TaskGraph, data: st.DataObject) -> None:
    budget, of = data.draw(budgets(graph)), a_machine()
    alone = plan(graph, of, budget)
    found = plan(graph, of, budget, PlanOptions(recompute=Recompute.FASTEST))
    assert judge(found) is None
    assert seconds(found, of) <= seconds(alone, of)


def test_what_a_second_run_reads_is_made_again_before_it() -> None:
    graph = step(4)
    number = {t.name: t.id for t in graph.tensors}
    forward = TaskId(3)
    both = with_second_runs(graph, {Dropped(number["a.1"], forward), Dropped(number["a.2"], forward)})
    names = [task.name for task in both.graph.tasks]
    assert names == ["a.0", "a.1", "a.2", "a.3", "a.1~again", "a.2~again", "g.3", "g.2", "g.1", "g.0"]
    one = with_second_runs(graph, {Dropped(number["a.2"], forward)})
    assert [task.name for task in one.graph.tasks] == ["a.0", "a.1", "a.2", "a.3", "a.2~again", "g.3", "g.2", "g.1", "g.0"]
    unread = with_second_runs(graph, {Dropped(number["a.2"], TaskId(7))})
    assert unread.graph.tasks == graph.tasks, "nobody reads it later"


def second(ran: Sequence[int], before: Mapping[TaskId, TaskId]) -> list[int]:
    """The tasks that run again in `ran`, each proven to stand before the first run of the one that it has to."""
    first = {task: n for n, task in reversed([*enumerate(ran)])}
    found = [(n, task) for n, task in enumerate(ran) if n != first[task]]
    assert all(n < first[before[TaskId(task)]] for n, task in found if task in before)
    return [task for _, task in found]


@given(task_graphs(joined=True), st.integers(0, 1 << 30))
def test_what_is_overwritten_is_not_read_again(graph: TaskGraph, seed: int) -> None:
    """Whatever tasks run again before which others alone: the plan has each second run there, or none."""
    rng = Random(seed)
    tasks = [task.id for task in graph.tasks]
    before = {t: rng.choice([task.id for task in graph.tasks[t:] if not task.gathers] or [t]) for t in tasks if rng.random() < 0.7}
    made = {task.result: task.id for task in graph.tasks if may_run_again(task)}
    dropped = {Dropped(t.id, rng.choice(tasks[made[t.id] :])) for t in graph.tensors if t.kind is Kind.ACTIVATION and t.id in made}
    runs = with_second_runs(graph, dropped, before)
    runs.graph.verify()
    again = second(runs.task_of, before)
    assert len(again) == len(runs.graph.tasks) - len(graph.tasks)
    memgraph = of_one_graph(plan(runs.graph, a_machine(), 1 << 30), graph, runs)
    assert judge(memgraph) is None
    found = plan(graph, a_machine(), 1 << 30, PlanOptions(recompute=Recompute.ALL, again_before=before))
    assert judge(found) is None
    for it in (memgraph, found):
        second(tasks_run(it), before)


def tasks_run(memgraph: MemGraph) -> list[int]:
    """In the order in which they are planned to, second runs among them."""
    return [int(node.task) for node in memgraph.nodes if isinstance(node, Compute | HostGather)]


def test_what_is_made_of_what_will_be_overwritten_is_made_again_before() -> None:
    """Of layers whose weights are overwritten after the fourth step of the way back, those are made again that are read until then."""
    graph, of, budget = step(12), machine(2e9), 40 * MIB
    before = {TaskId(n): TaskId(16) for n in range(12)}
    alone = plan(graph, of, budget)
    for policy in (Recompute.FASTEST, Recompute.ALL):
        found = plan(graph, of, budget, PlanOptions(recompute=policy, again_before=before))
        assert judge(found) is None
        assert second(tasks_run(found), before)
        assert policy is Recompute.ALL or seconds(found, of) < seconds(alone, of)
    number = {t.name: t.id for t in graph.tensors}
    a5, a6 = (Dropped(number[name], TaskId(11)) for name in ("a.5", "a.6"))
    assert with_second_runs(graph, {a5}, before).graph.tasks == graph.tasks, "g.6, task 17, reads it first"
    names = [task.name for task in with_second_runs(graph, {a5, a6}, before).graph.tasks]
    assert names[16:20] == ["a.5~again", "a.6~again", "g.7", "g.6"] and len(names) == 26, "g.6 reads what was made for a.6"


def test_where_links_are_slow_a_plan_is_faster_by_a_tenth() -> None:
    graph, of, budget = step(12), machine(2e9), 40 * MIB
    alone = plan(graph, of, budget)
    found = plan(graph, of, budget, PlanOptions(recompute=Recompute.FASTEST))
    assert second_runs(found) > 0
    assert judge(found) is None
    assert seconds(alone, of) > 1.1 * seconds(found, of)
    assert all_moved_bytes(found) < all_moved_bytes(alone)
    named = [plan(graph, of, budget, PlanOptions(recompute=policy)) for policy in (Recompute.ALL, Recompute.RATIO)]
    assert all(judge(it) is None and second_runs(it) > 0 for it in named)
    assert seconds(found, of) <= min(seconds(it, of) for it in named)


def test_where_links_are_fast_nothing_runs_twice() -> None:
    graph, of = step(12, seconds=1.0), machine(1e12)
    assert second_runs(plan(graph, of, 40 * MIB, PlanOptions(recompute=Recompute.FASTEST))) == 0


def test_a_host_with_little_room_for_activations_needs_it() -> None:
    """The weights, the input, the output, and six more."""
    graph = step(12)
    of = machine(2e9, host_bytes=12 * MIB + (2 + 6) * 8 * MIB)
    with pytest.raises(DoesNotFit, match="host"):
        plan(graph, of, 40 * MIB)
    found = plan(graph, of, 40 * MIB, PlanOptions(recompute=Recompute.FASTEST))
    assert judge(found) is None
    assert second_runs(found) > 0


def test_a_search_at_a_pace_is_no_slower_than_without_second_runs() -> None:
    graph, of, budget = step(10), machine(4e9), 40 * MIB
    alone = plan(graph, of, budget, pace=Pace(200))
    found = plan(graph, of, budget, PlanOptions(recompute=Recompute.FASTEST), Pace(200))
    assert judge(found) is None
    assert seconds(found, of) <= seconds(alone, of)
    again = plan(graph, of, budget, PlanOptions(recompute=Recompute.FASTEST), Pace(200))
    assert seconds(again, of) == seconds(found, of)
