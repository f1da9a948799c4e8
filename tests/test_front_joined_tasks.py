"""Tasks that become one: each gradient is read once, the same bits come out on every backend, and what must stay apart does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Num, Reduce, Reduction, loads
from einpage.einsum_front.base.dtype import RUN_DTYPES, Checked, DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.choose.joined_tasks import joined_tasks
from einpage.einsum_front.differentiate.training import for_training, training_step
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.job import Box, MapJob, Part, Range, View, results_of
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.kernels.instructions import bind
from einpage.kernels.on_llvm.compile import why_not_llvm
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.prepare import Backend, prepare
from einpage.memplan.machine.machine import task_seconds
from einpage.memplan.plan import plan
from real_bytes import Data, direct, run_on_bytes
from single_runs import run_dynamic
from strategies import a_machine
from test_front_training import batch, given, read, step_of

FLAGGED = (
    "optimiser: adamw",
    "numbers: {rate: 0.01, b: 0.9}\n  state: [m, v]\n  update:\n    - m = where(step < 3, b * m + (1 - b) * g, m)\n"
    "    - v = where(step < 3, b * v + (1 - b) * g * g, v)\n    - w = where(step < 3, w - rate * m / (sqrt(v) + 1e-8), w)",
)
N = Letter("n")


def step_graph(edits: tuple[tuple[str, str], ...]) -> tuple[TaskGraph, Data]:
    """A step in 4 KiB, and data for it."""
    step = step_of(read(edits))
    whole, weights = step.program.with_states_as_outputs(), given(step)
    request = PlanRequest(4096, DType.FP32, outputs=tuple(output.name for output in whole.outputs))
    defaults = {i.name: np.full(i.shape, i.default) for i in whole.inputs if i.default is not None}
    return build_graph(whole, request).graph, {**defaults, **{name: x.numpy() for name, x in {**batch(0), **weights}.items()}}


def updates_of(graph: TaskGraph) -> list[Task]:
    """Tasks that make the next value of a weight or of what is kept for it."""
    return [task for task in graph.tasks if graph.tensors[task.result].value.startswith("next_") and graph.tensors[task.result].shape]


@pytest.mark.parametrize("edits", [(), (FLAGGED,)], ids=["adamw", "under a condition"])
def test_an_update_reads_each_gradient_once(edits: tuple[tuple[str, str], ...]) -> None:
    """And each weight and moment; it writes each once."""
    graph, values = step_graph(edits)
    apart, one = updates_of(graph), updates_of(joined_tasks(graph))
    assert len(apart) == 3 * len(one) and all(len(task.results) == 3 for task in one)
    for task in one:
        assert task.job is not None
        views = [view for view, operand in zip(task.job.reads, task.operands, strict=True) if graph.tensors[operand[0]].shape]
        assert len(views) == 4, "w, m, v and the gradient"
        assert len(set(task.reads())) == len(task.operands)
        shape = graph.tensors[task.result].shape
        nbytes = sum(t.nbytes for t in map(graph.tensors.__getitem__, (*task.reads(), *task.results)))
        assert task.bytes_touched <= nbytes and all(graph.tensors[t].shape == shape for t in task.results)
    gradients = {t for task in apart for t in task.reads() if graph.tensors[t].kind is Kind.ACTIVATION and graph.tensors[t].shape}
    readers = [task for task in joined_tasks(graph).tasks for t in task.reads() if t in gradients]
    assert gradients and len(readers) == len(gradients)
    expected = direct(graph, values)
    for backend in Backend:
        found = direct(joined_tasks(graph), values, backend)
        for name, x in expected.items():
            assert torch.equal(found[name], x) if backend is Backend.TORCH else torch.allclose(found[name], x, rtol=1e-5, atol=1e-7), name


def test_joined_updates_run_in_little_memory_and_take_less_time() -> None:
    graph, values = step_graph(())
    one, machine = joined_tasks(graph), a_machine()
    expected = direct(graph, values)
    found = run_on_bytes(plan(one, machine, 8192), values, run_dynamic)
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    assert sum(task_seconds(machine, one, t) for t in one.tasks) < sum(task_seconds(machine, graph, t) for t in graph.tasks)
    assert sum(op.bytes_touched for op in one.ops) <= sum(task.bytes_touched for task in one.tasks)


ELEMENTWISE = """\
einpage: 1
name: elementwise
sizes: {batch: 3, inner: 4}
axes: {b: batch, i: inner}
inputs: {x: {axes: b i}}
weights: {a: {axes: b i, from: a}, c: {axes: b i, from: c}}
body: ["u[b,i] = x[b,i] * c[b,i]", "y[b,i] = tanh(u[b,i] * a[b,i])"]
outputs: {y: {axes: b i}}
train:
  body: ["loss = mean[b,i](y[b,i] ** 2)"]
  loss: loss
  numbers: {rate: 0.01}
  state: [m]
  update: ["m = 0.9 * m + g", "w = w - rate * m"]
  scale: SCALE
"""
"""Gradients of its weights are pointwise, and read what others make of the same elements. Updates are sums and products, which compiled
loops and torch round alike."""


def elementwise_graph(dtype: DType, scale: str) -> TaskGraph:
    document = read_document(ELEMENTWISE.replace("SCALE", scale), "elementwise.yaml")
    whole = training_step(elaborate(for_training(document)), document, dtype).program.with_states_as_outputs()
    return build_graph(whole, PlanRequest(1 << 20, dtype, outputs=tuple(output.name for output in whole.outputs))).graph


@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
def test_what_is_rounded_is_read_rounded(dtype: DType) -> None:
    """The bits are those of tasks apart, in every dtype: budgets in which updates do not fit as one task give the same."""
    graph, rng = elementwise_graph(dtype, "none"), np.random.default_rng(0)
    one = joined_tasks(graph)
    assert len(one.tasks) < len(graph.tasks)
    values = {v.name: rng.uniform(0.5, 1, v.shape) for v in graph.values if v.kind in (Kind.WEIGHT, Kind.INPUT)}
    expected, found = direct(graph, values), direct(one, values)
    assert [name for name, x in expected.items() if not torch.equal(found[name], x)] == []


@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
def test_a_tile_with_a_flag_has_a_task_of_its_own(dtype: DType) -> None:
    graph = joined_tasks(elementwise_graph(dtype, "{start: 8}"))
    graph.verify()
    makers = [task for task in graph.tasks if any(isinstance(graph.tensors[t].element_type, Checked) for t in task.results)]
    assert len(makers) == 2 and not any(task.others for task in makers)
    assert any(task.others for task in graph.tasks)


def view(name: str, extent: int = 5) -> View:
    return View(name, DType.FP32, (Box((0,), (extent,)),))


def load(name: str) -> Load:
    return Load(name, (Axis(N),))


def row(*statements: tuple[str, Expr], outputs: tuple[str, ...]) -> TaskGraph:
    """Statements over five elements, each a task, of weights where no statement makes what they read."""
    made = [name for name, _ in statements]
    names = [*dict.fromkeys(x.name for _, e in statements for x in loads(e) if x.name not in made), *made]
    kinds = {name: Kind.OUTPUT if name in outputs else Kind.ACTIVATION if name in made else Kind.WEIGHT for name in names}
    ids = {name: TensorId(n) for n, name in enumerate(names)}
    tensors = tuple(Tensor(ids[name], name, name, Box((0,), (5,)), DType.FP32, kinds[name]) for name in names)
    tasks = []
    for n, (name, e) in enumerate(statements):
        reads = [*dict.fromkeys(x.name for x in loads(e))]
        job = MapJob((Range(N, 0, 5),), tuple(map(view, reads)), view(name), (Part((Axis(N),), e),))
        figures = 5, Nbytes(20 * (len(reads) + 1)), Nbytes(0)
        operands, inplace = tuple((ids[r],) for r in reads), tuple(ids[r] for r in reads)
        tasks.append(Task(TaskId(n), name, OpId(n), operands, ids[name], inplace, *figures, job, False))
    ops = tuple(Op(OpId(n), t.name, "map", t.flops, t.bytes_touched, "") for n, t in enumerate(tasks))
    values = tuple(Value(name, name, (5,), DType.FP32, kinds[name]) for name in names)
    graph = TaskGraph("row", DType.FP32, (), values, tensors, tuple(tasks), ops, tuple((name, name) for name in outputs))
    graph.verify()
    return graph


def results(graph: TaskGraph) -> list[list[str]]:
    return [[graph.tensors[t].name for t in task.results] for task in graph.tasks]


PLUS = Binary("+", load("x"), load("g"))
TIMES = Binary("*", load("p"), load("g"))


def test_what_is_joined_and_what_stays_apart() -> None:
    assert results(joined_tasks(row(("p", PLUS), ("q", TIMES), outputs=("p", "q")))) == [["q", "p"]]
    between = row(("p", PLUS), ("r", Binary("-", load("p"), Num(1))), ("q", Binary("*", load("r"), load("p"))), outputs=("p", "q", "r"))
    assert results(joined_tasks(between)) == [["q", "r", "p"]], "all three, one after the other"
    summed = Binary("*", load("p"), Reduce(Reduction.SUM, (N,), load("p")))
    assert results(joined_tasks(row(("p", PLUS), ("q", summed), outputs=("p", "q")))) == [["p"], ["q"]]
    assert results(joined_tasks(row(("p", load("x")), ("q", TIMES), outputs=("p", "q")))) == [["p"], ["q"]], "a copy"
    lookers = ("s", Binary("+", Reduce(Reduction.SUM, (N,), load("p")), load("x")))
    needed = row(("p", PLUS), lookers, ("q", Binary("*", load("s"), load("p"))), outputs=("p", "q", "s"))
    assert results(joined_tasks(needed)) == [["p"], ["s"], ["q"]], "s reads p, and q reads s"
    shifted = Binary("+", Load("p", (Binary("-", Num(4), Axis(N)),)), load("g"))
    assert results(joined_tasks(row(("p", PLUS), ("q", shifted), outputs=("p", "q")))) == [["p"], ["q"]], "another element"


def test_results_may_be_written_over_operands_that_others_read() -> None:
    """p over x, q over g: each is made of both as they were."""
    graph = joined_tasks(row(("p", PLUS), ("q", Binary("-", load("x"), load("p"))), outputs=("p", "q")))
    (task,) = graph.tasks
    assert task.job is not None and [view.name for view in results_of(task.job)] == ["q", "p"]
    for backend in Backend:
        x, g = torch.arange(5.0), torch.full((5,), 10.0)
        where = {view.name: tile for view, tile in zip(task.job.reads, (x, g), strict=True)}
        prepare(task.job, backend)(((where["x"],), (where["g"],)), where["x"], None, where["g"])
        assert torch.equal(where["g"], torch.arange(5.0) + 10) and torch.equal(where["x"], torch.full((5,), -10.0)), backend


def test_no_result_is_written_over_a_tile_that_is_read_elsewhere_too() -> None:
    """x in two tiles: p, of the first five elements, is made of both, and q of p and the first, which q alone may be written over."""
    graph = row(("p", PLUS), ("q", Binary("*", load("p"), load("x"))), outputs=("p", "q"))
    first, last = graph.tasks
    assert isinstance(first.job, MapJob)
    x = next(t for t in graph.tensors if t.name == "x")
    second = replace(x, id=TensorId(len(graph.tensors)), name="x[5:10]", box=Box((5,), (10,)))
    mirrored = Binary("+", load("g"), Load("x", (Binary("-", Num(9), Axis(N)),)))
    reads = view("g"), View("x", DType.FP32, (x.box, second.box))
    operands, job = (first.operands[1], (x.id, second.id)), replace(first.job, reads=reads, parts=(Part((Axis(N),), mirrored),))
    tasks = replace(first, operands=operands, inplace=first.operands[1], job=job), replace(last, inplace=(x.id,))
    values = tuple(replace(v, shape=(10,)) if v.name == "x" else v for v in graph.values)
    graph = replace(graph, values=values, tensors=(*graph.tensors, second), tasks=tasks)
    graph.verify()
    (task,) = joined_tasks(graph).tasks
    assert [one.inplace for one in task.written] == [(), first.operands[1]]


def test_without_compiled_loops_too() -> None:
    """Two statements that share nothing but their operands, each written over one of them."""
    views = View("x", DType.FP32, (Box((0,), (5,)),)), View("g", DType.FP32, (Box((0,), (5,)),))
    parts = Part((Axis(N),), PLUS), Part((Axis(N),), Binary("-", load("x"), load("g")), 1)
    job = MapJob((Range(N, 0, 5),), views, view("p"), parts, (view("q"),))
    for why_not in (why_not_llvm(), "a test"):
        with patch.object(bind, "why_not_llvm", partial(str, why_not) if why_not else why_not_llvm):
            x, g = torch.arange(5.0), torch.full((5,), 10.0)
            prepare_map(job)(((x,), (g,)), x, None, g)
        assert x.tolist() == [10, 11, 12, 13, 14] and g.tolist() == [-10, -9, -8, -7, -6]


def test_names_of_operands_stay_apart() -> None:
    """Two tasks that call other tensors by the same name."""
    graph = row(("p", PLUS), ("q", Binary("*", load("p"), load("y"))), outputs=("p", "q"))
    last = graph.tasks[1]
    assert isinstance(last.job, MapJob)
    renamed = replace(last.job, reads=(view("p"), view("x")), parts=(Part((Axis(N),), Binary("*", load("p"), load("x"))),))
    graph = joined_tasks(replace(graph, tasks=(graph.tasks[0], replace(last, job=renamed))))
    graph.verify()
    data = {"x": np.array([1, 2, 3, 4, 5], np.float32), "g": np.ones(5, np.float32), "y": np.full(5, 3, np.float32)}
    assert direct(graph, data)["q"].tolist() == [6, 9, 12, 15, 18]
