"""Work and bytes of operations against those of their tasks: what bounds are made of is never more than what any split does.

Of random specs, masks over a head's own letter among them, in random pieces: so that no plan takes less than its bound says.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Axis, Call, Letter, Load, Num, loads, walk
from einpage.einsum_front.algebra.masks import pairs
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, Job, MapJob
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.plan import plan
from einpage.memplan.problem.footprint import largest_footprint
from front_text import over_letters
from spec_strategies import random_spec
from strategies import a_machine
from test_front_intervals import value

S, T, H = map(Letter, "sth")
MASKS = {
    "t <= s": lambda s, t, h: t <= s,
    "t <= s and s - t < 2 + 3 * h": lambda s, t, h: t <= s and s - t < 2 + 3 * h,
    "t + h <= s": lambda s, t, h: t + h <= s,
    "t % 2 == h % 2": lambda s, t, h: t % 2 == h % 2,
    "h == 0 or t == s": lambda s, t, h: h == 0 or t == s,
    "not (t > s and h == 1)": lambda s, t, h: not (t > s and h == 1),
    "h < 9": lambda s, t, h: h < 9,
    "t > s + 40 * (1 - h)": lambda s, t, h: t > s + 40 * (1 - h),
}


@given(st.sampled_from(sorted(MASKS)), *(st.tuples(st.integers(0, 6), st.integers(1, 6)) for _ in range(3)))
def test_pairs_of_a_head_lie_between_what_is_surely_and_what_is_perhaps_seen(
    mask: str, s: tuple[int, int], t: tuple[int, int], h: tuple[int, int]
) -> None:
    """For every head of the region, whatever the mask does with heads."""
    region = {x: (start, start + extent) for x, (start, extent) in ((S, s), (T, t), (H, h))}
    score = Call("where", (over_letters(mask), Num(0), Num(float("-inf"))))
    least, most = (pairs(score, S, T, region, at_least) for at_least in (True, False))
    seen = [sum(bool(MASKS[mask](a, b, c)) for a in range(*region[S]) for b in range(*region[T])) for c in range(*region[H])]
    assert least <= min(seen) and max(seen) <= most


def attention_spec(mask: str) -> str:
    return f"""einpage: 1
name: heads
sizes: {{seq: 24, heads: 3, head: 4}}
axes: {{s: seq, t: seq, h: heads, d: head, e: head}}
inputs:
  q: {{axes: h s d}}
  k: {{axes: h t d}}
  v: {{axes: h t e}}
body:
  - a[h,s,t] = softmax[t](where({mask}, q[h,s,d] * k[h,t,d] / 2, -inf))
  - o[h,s,e] = a[h,s,t] * v[h,t,e]
outputs:
  o: {{axes: h s e}}
"""


def in_pieces(text: str, seed: int, grain: int) -> TaskGraph:
    """The graph of a spec, its letters cut at random."""
    program = elaborate(read_document(text, "work.yaml"))
    opgraph = fuse(program, [o.name for o in program.outputs])
    random = Random(seed)
    with patch.object(tiling, "GRAIN", grain), patch.object(template, "GRAIN", grain):
        most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
        return split(opgraph, {x: n for x, top in most.items() if (n := random.randint(1, min(top, 4))) > 1}, DType.FP32)


def assert_tasks_do_no_less(graph: TaskGraph) -> None:
    """Every op: at most the work and the bytes of its tasks; and the sums that one task hands to the next are bytes of both."""
    flops, nbytes, carried = Counter[int](), Counter[int](), Counter[int]()
    for task in graph.tasks:
        flops[task.op] += task.flops
        nbytes[task.op] += task.bytes_touched
        if isinstance(task.job, ContractJob) and not task.job.last:
            carried[task.op] += 2 * graph.tensors[task.result].nbytes
        if isinstance(task.job, ContractJob):
            spans = {r.letter: r.extent for r in task.job.ranges}
            least = sum(2 * int(np.prod([spans[x] for x in {*task.job.target, *c.letters} if x in spans])) for c in task.job.contractions)
            assert task.flops >= least, f"{task.name}: a multiplication and an addition for each term"
    for op in graph.ops:
        assert op.flops <= flops[op.id], f"{op.name}: {op.flops} FLOPs, its tasks {flops[op.id]}"
        assert op.bytes_touched + carried[op.id] <= nbytes[op.id], f"{op.name}: {op.bytes_touched} bytes, its tasks {nbytes[op.id]}"


def assert_every_tile_is_read(graph: TaskGraph) -> None:
    """Of operands read by letters and numbers: each tile of a task shares an element with what some load of it touches."""
    for task in graph.tasks:
        assert task.job is not None
        spans = {r.letter: (r.start, r.end) for r in task.job.ranges}
        loads_by_name: dict[str, list[Load]] = {}
        for load in loads_of(task.job):
            loads_by_name.setdefault(load.name, []).append(load)
        for view in task.job.reads:
            reads = loads_by_name.get(view.name, [])
            if reads and all(isinstance(i, Axis | Num) for load in reads for i in load.indices):
                touched = [[spans[i.letter] if isinstance(i, Axis) else (i.value, i.value + 1) for i in load.indices] for load in reads]  # type: ignore[union-attr]
                for box in view.boxes:
                    here = zip(box.start, box.end, strict=True)
                    edges = list(here)
                    assert any(all(a < d and c < b for (a, b), (c, d) in zip(edges, at, strict=True)) for at in touched), task.name


def assert_all_that_is_read_is_there(graph: TaskGraph, most_points: int = 2000) -> None:
    """Every element that a load points at, at any point of its task, lies in a tile of the task; loads of too many points are left out."""
    for task in graph.tasks:
        assert task.job is not None
        spans = {r.letter: range(r.start, r.end) for r in task.job.ranges}
        boxes = {view.name: view.boxes for view in task.job.reads}
        for load in loads_of(task.job):
            letters = sorted({n.letter for i in load.indices for n in walk(i) if isinstance(n, Axis)})
            if prod(len(spans[x]) for x in letters) > most_points or any(isinstance(n, Load) for i in load.indices for n in walk(i)):
                continue
            for point in product(*(spans[x] for x in letters)):
                at = [int(value(i, dict(zip(letters, point, strict=True)))) for i in load.indices]
                inside = [all(a <= x < b for a, x, b in zip(box.start, at, box.end, strict=True)) for box in boxes[load.name]]
                assert any(inside), f"{task.name} reads {load.name} at {at}, in {boxes[load.name]}"


def loads_of(job: Job) -> tuple[Load, ...]:
    """Every load of a job's expressions."""
    match job:
        case MapJob():
            return tuple(load for part in job.parts for load in loads(part.expr))
        case ContractJob():
            return (*(side for c in job.contractions for side in (c.x, c.y)), *loads(job.epilogue))
        case AttentionJob():
            return (job.q, job.k, job.v, *loads(job.score), *loads(job.epilogue))
        case _:
            return ()


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_over_heads_is_no_reason_to_beat_the_bound(mask: str) -> None:
    for seed in range(4):
        graph = in_pieces(attention_spec(mask), seed, (1, 2, 4, 64)[seed])
        assert any(isinstance(task.job, AttentionJob) for task in graph.tasks)
        assert_tasks_do_no_less(graph)
        machine = a_machine(flops_per_s=tuple((dtype, 1e6) for dtype in (DType.FP32, DType.BF16, DType.FP16)), launch_latency_s=0.0)
        memgraph = plan(graph, machine, 2 * largest_footprint(graph)[1])
        found = bounds(graph, machine, memgraph.budget_bytes)
        assert simulate(memgraph, machine).makespan_s >= max(found.bound_s, found.bound_order_s) * (1 - 1e-9)


LAST = {
    "the last row": "y[f] = h[seq - 1,f]",
    "two rows": "y[f] = h[0,f] + h[seq - 1,f]",
    "a window": "y[f] = sum[k](h[k + 3,f])",
    "the last row of a sum": "y[f] = u[seq - 1,f]",
    "a diagonal": "y[f] = h[f + 0,f]",
    "all": "y[f] = mean[s](h[s,f])",
}


@pytest.mark.parametrize("name", LAST)
def test_what_nobody_reads_is_no_part_of_a_bound(name: str) -> None:
    """Tasks whose tile no output needs are left out of the finest splits."""
    text = f"""einpage: 1
name: last
sizes: {{seq: 24, model: 6, wide: 8, few: 4}}
axes: {{s: seq, m: model, f: wide, k: few}}
inputs:
  x: {{axes: s m}}
weights:
  w: {{axes: f m, from: w}}
body:
  - h[s,f] = x[s,m] * w[f,m]
  - u[s,f] = tanh(h[s,f]) + s
  - {LAST[name]}
outputs:
  y: {{axes: f}}
"""
    for seed in range(6):
        graph = in_pieces(text, seed, 1)
        assert_tasks_do_no_less(graph)
        assert max(op.flops for op in graph.ops) > 0 or name == "a diagonal"


@given(st.integers(0, 2**17))
@example(70010)  # a diagonal
@example(70566)  # an operand that is read by two loads, of which a part is needed
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_operations_are_no_more_than_their_tasks_and_tasks_read_what_they_use(seed: int) -> None:
    graph = in_pieces(random_spec(seed, most_statements=5), seed, (1, 2, 4, 64)[seed % 4])
    assert_tasks_do_no_less(graph)
    assert_every_tile_is_read(graph)
    assert_all_that_is_read_is_there(graph)


SHIFTS = ("x[i + 1]", "x[i + 2] - x[i]", "x[6 - i]", "x[2 * i]", "x[min(i + 1, 3)]", "x[i // 2 + 4]", "x[(i + 3) % 7]", "x[i] * x[i + j]")


@pytest.mark.parametrize("expression", SHIFTS)
def test_what_a_shifted_load_points_at_is_there(expression: str) -> None:
    text = f"""einpage: 1
name: shifts
sizes: {{n: 4, long: 7}}
axes: {{i: n, j: n, a: long}}
inputs:
  x0: {{axes: a}}
body:
  - x[a] = tanh(x0[a])
  - y[i,j] = {expression.replace("x[i]", "x[i + 0]")} + j
  - z[i,j] = {expression.replace("x[i]", "x[i + 0]").replace("x[", "x0[")} + j
outputs:
  y: {{axes: i j}}
  z: {{axes: i j}}
"""
    for seed in range(8):
        assert_all_that_is_read_is_there(in_pieces(text, seed, 1))
