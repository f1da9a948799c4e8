"""States of random specs on real bytes, in pieces and in small arenas, against numpy that writes row by row; what their graphs promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.judged_plan import plan_graph
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.problem.footprint import largest_footprint
from real_bytes import direct, run_on_bytes
from state_specs import Run, StateSpec, state_specs

RUNS = 3
CPU = load_machine("cpu")


def check_promises(graph: TaskGraph) -> None:
    """An op promises no more work than its tasks do; rows before the first that may be written have no task."""
    for op in graph.ops:
        tasks = [task for task in graph.tasks if task.op == op.id]
        assert op.flops <= sum(task.flops for task in tasks), op
        assert op.bytes_touched <= sum(task.bytes_touched for task in tasks), op


def check_on_bytes(spec: StateSpec, data: st.DataObject) -> None:
    """Runs in a row, planned in the largest task's bytes, equal the oracle's, bit for bit what a graph without paging gives."""
    program = elaborate(read_document(spec.text, "random.yaml")).with_states_as_outputs()
    names = ("x", *(state.name for state in program.states))
    opgraph = fuse(program, names)
    most = WorkingSets(opgraph, DType.FP32).most
    pieces = {letter: data.draw(st.integers(1, n), label=letter) for letter, n in most.items()}
    graph = split(opgraph, pieces, DType.FP32)
    check_promises(graph)
    memgraph = plan_graph(graph, CPU, largest_footprint(graph)[1]).memgraph
    rng, z = np.random.default_rng(data.draw(st.integers(0, 99))), spec.sizes
    w = rng.standard_normal((z["model"], z["model"])).astype(np.float32)
    shapes = dict(spec.body.keys())
    name_by_key = {key: f"{key[0]}@{'.'.join(map(str, key[1]))}" if key[1] else key[0] for key in shapes}
    oracle = {key: rng.standard_normal(shape).astype(np.float32).astype(np.float64) for key, shape in shapes.items()}
    held = {name_by_key[key]: value.astype(np.float32) for key, value in oracle.items()}
    for _ in range(RUNS):
        x = rng.standard_normal((z["batch"], z["seq"], z["model"])).astype(np.float32)
        at = rng.integers(z["past"], z["past"] + z["room"] + 1, z["batch"]).astype(np.int32)
        run = Run(x.astype(np.float64), at.astype(np.int64), w.astype(np.float64), dict(oracle))
        spec.body.run(run, ())
        given_values = {"x0": x, "at": at, "w": w, **held}
        found = run_on_bytes(memgraph, given_values)
        unpaged = direct(graph, given_values)
        assert all(np.array_equal(found[name].numpy(), unpaged[name].numpy()) for name in names), spec.text
        np.testing.assert_allclose(found["x"].numpy(), run.x, rtol=2e-3, atol=2e-3, err_msg=spec.text)
        for key, expected in run.states.items():
            np.testing.assert_allclose(found[name_by_key[key]].numpy(), expected, rtol=2e-3, atol=2e-3, err_msg=f"{key}\n{spec.text}")
        oracle = {key: found[name_by_key[key]].numpy().astype(np.float64) for key in shapes}
        held = {name: found[name].numpy() for name in held}
    event("rows without a task" if any(t.kind is Kind.CONSTANT for t in graph.tensors) else "all rows written")


@given(state_specs(), st.data())
@settings(max_examples=60, deadline=None)
def test_random_states_on_real_bytes(spec: StateSpec, data: st.DataObject) -> None:
    check_on_bytes(spec, data)


@pytest.mark.slow
@given(state_specs(), st.data())
@settings(max_examples=1500, deadline=None)
def test_many_random_states_on_real_bytes(spec: StateSpec, data: st.DataObject) -> None:
    check_on_bytes(spec, data)


TWICE = """\
einpage: 1
name: twice
sizes: {past: 6, room: 2, reach: past + room + 1}
axes: {t: reach, n: 8}
inputs:
  x: {axes: n}
  at: {axes: "", dtype: int32, default: past, range: past .. past + room}
state: {k: {axes: t n, along: t}}
body:
  - k[at - 3,n] = 2 * x[n]
  - k[at,n] = x[n]
  - y[n] = k[at,n] + k[at-3,n] + k[0,n]
outputs: {y: {axes: n}}
"""


def test_rows_before_every_write_are_shared() -> None:
    """Of two writes the first begins three rows earlier: what no write touches are the first three rows."""
    program = elaborate(read_document(TWICE, "twice.yaml")).with_states_as_outputs()
    graph = split(fuse(program, ["y", "k"]), {}, DType.FP32)
    constant = [t for t in graph.tensors if t.kind is Kind.CONSTANT]
    assert [(t.value, t.box.start, t.box.end) for t in constant] == [("k", (0, 0), (3, 8))]
    k, x = np.arange(72, dtype=np.float32).reshape(9, 8), np.ones(8, np.float32)
    memgraph = plan_graph(graph, CPU, 1 << 12).memgraph
    found = run_on_bytes(memgraph, {"k": k, "x": x, "at": np.array(7, np.int32)})
    expected = k.copy()
    expected[7], expected[4] = 1, 2
    assert np.array_equal(found["k"].numpy(), expected) and np.array_equal(found["y"].numpy(), 3 + k[0])
