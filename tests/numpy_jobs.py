"""Jobs of generated graphs evaluated with plain numpy, tile by tile: an oracle that shares nothing with the kernels.

In: a TaskGraph with jobs and its data (fp32, int32). Out: every tensor. It knows what `strategies.task_graphs` makes and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Expr, Letter, Load, Num, Reduce
from einpage.einsum_front.graph.job import ContractJob, GatherJob, MapJob, Range, View
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Task, TaskGraph, TensorId

Array = NDArray[Any]


def evaluate(graph: TaskGraph, data: Mapping[str, Array]) -> dict[TensorId, Array]:
    """Every tensor of `graph`, computed in graph order, from whole weights and inputs by name."""
    tensors: dict[TensorId, Array] = {}
    for t in graph.tensors:
        if t.kind in HOST_AT_START:
            tensors[t.id] = data[t.value][tuple(slice(a, b) for a, b in zip(t.box.start, t.box.end, strict=True))]
    for task in graph.tasks:
        made = run_task(task, [[tensors[t] for t in operand] for operand in task.operands])
        for t, found in zip(task.results, made, strict=True):
            tensors[t] = found
            assert found.shape == graph.tensors[t].shape
    return tensors


def run_task(task: Task, operands: list[list[Array]]) -> list[Array]:
    """All of one task's results from its operands' tiles."""
    if isinstance(task.job, MapJob) and task.job.others:
        parts = sorted(task.job.parts, key=lambda part: part.result)
        return [run_job(replace(task, job=replace(task.job, parts=(part,), others=())), operands) for part in parts]
    return [run_job(task, operands)]


def run_job(task: Task, operands: list[list[Array]]) -> Array:
    """One task's result from its operands' tiles."""
    job = task.job
    assert job is not None
    wholes = {view.name: _whole(view, tiles) for view, tiles in zip(job.reads, operands, strict=True)}
    ranges = {r.letter: r for r in job.ranges}
    match job:
        case MapJob():
            target = [_axis(e) for e in job.parts[0].target]
            return _broadcast(job.parts[0].expr, target, ranges, wholes, [])
        case GatherJob():
            rows = _broadcast(job.load.indices[0], [job.target[0]], ranges, wholes, [])
            columns = ranges[_axis(job.load.indices[1])]
            return wholes[job.load.name][rows.astype(np.int64)][:, columns.start : columns.end]
        case ContractJob():
            letters = list(job.target)
            product = _contract(job, ranges, wholes, letters)
            if job.carry is not None:
                product = product + operands[job.carry][0][0]
            return _broadcast(job.epilogue, letters, ranges, wholes, [product]) if job.last else product[None]
    raise AssertionError(f"{task.name}: no such job is generated")


def _contract(job: ContractJob, ranges: Mapping[Letter, Range], wholes: Mapping[str, Array], letters: list[Letter]) -> Array:
    (contraction,) = job.contractions
    every = letters + list(contraction.letters)
    x, y = (_broadcast(load, every, ranges, wholes, []) for load in (contraction.x, contraction.y))
    return np.asarray((x * y).sum(axis=tuple(range(len(letters), len(every)))))


def _whole(view: View, tiles: list[Array]) -> Array:
    """The tiles at their place in the value, NaN (or a huge row number) where the job has no tile."""
    stop = [max(box.end[d] for box in view.boxes) for d in range(len(view.boxes[0].end))]
    whole = np.full(stop, np.nan if tiles[0].dtype == np.float32 else 2**30, tiles[0].dtype)
    for box, tile in zip(view.boxes, tiles, strict=True):
        whole[tuple(slice(a, b) for a, b in zip(box.start, box.end, strict=True))] = tile
    return whole


def _axis(e: Expr) -> Letter:
    assert isinstance(e, Axis)
    return e.letter


def _broadcast(e: Expr, letters: list[Letter], ranges: Mapping[Letter, Range], wholes: Mapping[str, Array], accs: list[Array]) -> Array:
    """`e` over all of `letters`, in that order."""
    match e:
        case Num():
            return np.full([ranges[x].extent for x in letters], e.value, np.float32)
        case Acc():
            return accs[e.index]
        case Load():
            own = [_axis(i) for i in e.indices]
            part = wholes[e.name][tuple(slice(ranges[x].start, ranges[x].end) for x in own)]
            order = sorted(range(len(own)), key=lambda d: letters.index(own[d]))
            shape = [ranges[x].extent if x in own else 1 for x in letters]
            return np.broadcast_to(part.transpose(order).reshape(shape), [ranges[x].extent for x in letters])
        case Reduce():
            inner = _broadcast(e.body, letters + list(e.letters), ranges, wholes, accs)
            return np.asarray(inner.sum(axis=tuple(range(len(letters), inner.ndim))))
        case Binary():
            x, y = (_broadcast(side, letters, ranges, wholes, accs) for side in (e.x, e.y))
            operations = {"+": np.add, "-": np.subtract, "*": np.multiply, "%": np.mod}
            return np.asarray(operations[e.op](x, y))
    raise AssertionError(f"{e} is not generated")
