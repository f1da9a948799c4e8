"""Footprints by hand, and the generators' own promise: cut into tiles or not, a graph computes the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TaskId, TensorId
from einpage.memplan.problem.footprint import donated_operands, footprint, largest_footprint, last_use_by_tensor
from hand_plan import hand_graph
from numpy_jobs import Array, evaluate
from strategies import Pick, build_graph, data, random_graph, task_graphs


def test_footprints_of_the_hand_made_graph() -> None:
    graph = hand_graph()
    gathered = 512
    a = 512 + 256 + 512 + 256
    b = 512 + 256
    c = 512 + 512
    assert [footprint(graph, task) for task in graph.tasks] == [gathered, a, b, c]
    assert largest_footprint(graph) == (TaskId(1), a)


def test_which_operand_may_be_donated() -> None:
    graph = hand_graph()
    e, a, b = 3, 4, 5
    last = last_use_by_tensor(graph)
    assert [donated_operands(graph, task, last).get(task.result) for task in graph.tasks] == [None, None, a, e], (
        "e is read later by c; b is an output"
    )
    only_b = tuple(replace(t, inplace=tuple(x for x in t.inplace if x == b)) for t in graph.tasks)
    assert not donated_operands(graph, only_b[3], last), "an output is not donated"
    b_is_no_output = replace(graph, tensors=tuple(replace(t, kind=Kind.ACTIVATION) if t.id == b else t for t in graph.tensors))
    assert list(donated_operands(b_is_no_output, only_b[3], last).values()) == [b]


def test_an_operand_read_twice_counts_once_and_a_device_copy_of_a_weight_may_be_donated() -> None:
    graph = hand_graph()
    task = replace(graph.tasks[2], operands=((graph.tensors[2].id,), (graph.tensors[2].id,)), inplace=())
    assert footprint(graph, task) == 256 + 512
    in_place = replace(task, inplace=(graph.tensors[2].id,))
    assert list(donated_operands(graph, in_place, last_use_by_tensor(graph)).values()) == [2]


def test_no_tasks_need_nothing() -> None:
    assert largest_footprint(replace(hand_graph(), tasks=())) == (TaskId(-1), Nbytes(0))


@given(task_graphs(joined=True))
def test_a_footprint_lies_between_its_operands_and_everything(graph: TaskGraph) -> None:
    last = last_use_by_tensor(graph)
    for task in graph.tasks:
        reads = 0 if task.gathers else sum(aligned(graph.tensors[t].nbytes) for t in task.reads())
        most = reads + sum(aligned(graph.tensors[t].nbytes) for t in task.results) + aligned(task.workspace_bytes)
        assert reads <= footprint(graph, task, last) <= most


def replayed(picks: list[tuple[int, int, int]], whole: bool) -> Pick:
    """The same decisions again; `whole` cuts no letter (the second decision for each of the three letters)."""
    left = iter(enumerate(picks))

    def pick(low: int, high: int) -> int:
        i, (_, _, answer) = next(left)
        return 1 if whole and i in (1, 3, 5) else min(max(answer, low), high)

    return pick


def joined(graph: TaskGraph, tensors: dict[TensorId, Array], value: str) -> Array:
    whole = np.full(next(v.shape for v in graph.values if v.name == value), np.nan, np.float32)
    for t in graph.tensors:
        if t.value == value:
            whole[tuple(slice(a, b) for a, b in zip(t.box.start, t.box.end, strict=True))] = tensors[t.id]
    return whole


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_generated_graphs_compute_the_same_in_one_piece_and_in_tiles(seed: int) -> None:
    random = Random(seed)
    picks: list[tuple[int, int, int]] = []

    def recorded(low: int, high: int) -> int:
        picks.append((low, high, random.randint(low, high)))
        return picks[-1][2]

    tiled = build_graph(recorded, DType.FP32, 8, 24, 3, False)
    whole = build_graph(replayed(picks, whole=True), DType.FP32, 8, 24, 3, False)
    given_data = data(tiled, seed)
    by_tile = evaluate(tiled, given_data)
    leaves = zip(*([v for v in g.values if v.kind in (Kind.WEIGHT, Kind.INPUT)] for g in (tiled, whole)), strict=True)
    by_whole = evaluate(whole, {w.name: given_data[t.name] for t, w in leaves})
    for op_tiled, op_whole in zip(tiled.ops, whole.ops, strict=True):
        left, right = joined(tiled, by_tile, op_tiled.name), joined(whole, by_whole, op_whole.name)
        assert np.array_equal(left, right), op_tiled.name
        assert not np.isnan(left).any()
        assert (left == np.round(left)).all()


def test_seeds_give_graphs_and_the_same_ones() -> None:
    assert random_graph(7) == random_graph(7)
    kinds = {op.kind for seed in range(20) for op in random_graph(seed).ops}
    assert kinds == {"map", "contract", "gather"}
