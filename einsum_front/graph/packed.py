"""A TaskGraph as flat arrays: equal to the graph it was made of, a fifth of its size, in a few blocks of memory.

For keeping a graph of many tiles that is read rarely, as in a run. Reading an entry makes it anew, which takes microseconds: planning,
which reads every entry many times, takes the graph as tuples.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.columns import Columns, Int32s, Int64s, UInt8s, frozen, ragged
from einpage.einsum_front.base.dtype import ElementType
from einpage.einsum_front.graph.job import Box, Job, MapJob, Range, View
from einpage.einsum_front.graph.taskgraph import Kind, Task, TaskGraph, Tensor, TensorId, Written, tile_name


def packed(graph: TaskGraph) -> TaskGraph:
    """`graph` with its tensors and tasks as columns."""
    shared = _SharedObjects()
    return replace(graph, tensors=_tensors(graph.tensors, shared), tasks=_tasks(graph.tasks, shared))


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts, concatenated."""

    utf8: bytes
    row: Int32s
    """[text + 1] where it starts"""

    @staticmethod
    def of(texts: Iterable[str]) -> Texts:
        """The texts, in order."""
        joined, row = bytearray(), array("i", (0,))
        for text in texts:
            joined += text.encode()
            row.append(len(joined))
        return Texts(bytes(joined), frozen(row))

    def entries(self, start: int, end: int) -> Iterator[str]:
        """Those at start ≤ i < end."""
        return (self.utf8[a:b].decode() for a, b in pairwise(self.row[start : end + 1].tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Tensors(Columns[Tensor]):
    """The tensors of a graph, a row each."""

    id: Int32s
    """[tensor] its id"""
    name_by_tensor: Mapping[int, str]
    """Of those whose name does not follow from value and box."""
    box: Int32s
    """[tensor] which of `boxes`"""
    origin: Int32s
    """[tensor] which of `origins`"""
    boxes: tuple[Box, ...]
    origins: tuple[tuple[str, ElementType, Kind], ...]
    """(value, dtype, kind)"""

    def __len__(self) -> int:
        return len(self.id)

    def entries(self, start: int, end: int) -> Iterator[Tensor]:
        """As in `Columns`."""
        ids, boxes, origins = (column[start:end].tolist() for column in (self.id, self.box, self.origin))
        for at, i, number, origin in zip(range(start, end), ids, boxes, origins, strict=True):
            (value, dtype, kind), box = self.origins[origin], self.boxes[number]
            yield Tensor(i, self.name_by_tensor.get(at) or tile_name(value, box), value, box, dtype, kind)


@dataclass(frozen=True, slots=True, eq=False)
class Tasks(Columns[Task]):
    """The tasks of a graph, a row each."""

    name: Texts
    integers: Int64s
    """[task, field] its id, op, result, flops, bytes_touched, workspace_bytes, and which of `jobs`"""
    operand_row: Int32s
    """[task + 1] where its operands start"""
    tile_row: Int32s
    """[operand + 1] where its tensors start"""
    reads: Int32s
    """[operand's tensor]"""
    inplace_row: Int32s
    """[task + 1]"""
    inplace: Int32s
    gathers: UInt8s
    """[task]"""
    seconds: NDArray[np.float64]
    """[task] NaN for None"""
    jobs: tuple[Job | None, ...]
    others_by_task: Mapping[int, tuple[Written, ...]]
    """By position, of tasks with several results."""

    def __len__(self) -> int:
        return len(self.integers)

    def entries(self, start: int, end: int) -> Iterator[Task]:
        """As in `Columns`."""
        names = self.name.entries(start, end)
        rows: list[int] = self.operand_row[start : end + 1].tolist()
        each: list[tuple[TensorId, ...]] = ragged(self.tile_row, self.reads, rows[0], rows[-1])
        inplaces: list[tuple[TensorId, ...]] = ragged(self.inplace_row, self.inplace, start, end)
        columns = (column[start:end].tolist() for column in (self.integers, self.gathers, self.seconds))
        others = map(self.others_by_task.get, range(start, end))
        for name, (a, b), inplace, integers, gathers, s, more in zip(names, pairwise(rows), inplaces, *columns, others, strict=True):
            number, op, result, flops, touched, workspace, job = integers
            seconds = None if isnan(s) else s
            operands = tuple(each[a - rows[0] : b - rows[0]])
            made = self.jobs[job], bool(gathers), seconds, more or ()
            yield Task(number, name, op, operands, result, inplace, flops, touched, workspace, *made)


class _SharedObjects:
    """One object for all equal boxes, ranges and views of jobs (hash consing): tiles are cut alike."""

    def __init__(self) -> None:
        self._boxes: dict[Box, Box] = {}
        self._ranges: dict[Range, Range] = {}
        self._views: dict[View, View] = {}

    def box(self, box: Box) -> Box:
        return self._boxes.setdefault(box, box)

    def job(self, job: Job) -> Job:
        ranges = tuple(self._ranges.setdefault(found, found) for found in job.ranges)
        job = replace(job, ranges=ranges, reads=tuple(map(self._view, job.reads)), result=self._view(job.result))
        return replace(job, others=tuple(map(self._view, job.others))) if isinstance(job, MapJob) and job.others else job

    def _view(self, view: View) -> View:
        if view not in self._views:
            self._views[view] = replace(view, boxes=tuple(map(self.box, view.boxes)))
        return self._views[view]


def _tensors(tensors: Sequence[Tensor], shared: _SharedObjects) -> Tensors:
    boxes: dict[Box, int] = {}
    origins: dict[tuple[str, ElementType, Kind], int] = {}
    ids, box, origin = array("i"), array("i"), array("i")
    for t in tensors:
        ids.append(t.id)
        box.append(boxes.setdefault(shared.box(t.box), len(boxes)))
        origin.append(origins.setdefault((t.value, t.element_type, t.kind), len(origins)))
    names = {i: t.name for i, t in enumerate(tensors) if t.name != tile_name(t.value, t.box)}
    return Tensors(frozen(ids), names, frozen(box), frozen(origin), tuple(boxes), tuple(origins))


def _tasks(tasks: Sequence[Task], shared: _SharedObjects) -> Tasks:
    integers, rows, tiles, reads = array("q"), array("i", (0,)), array("i", (0,)), array("i")
    inplace_rows, inplaces, gathers, seconds = array("i", (0,)), array("i"), array("B"), array("d")
    jobs: list[Job | None] = []
    number_by_job: dict[int, int] = {}
    for t in tasks:
        if id(t.job) not in number_by_job:  # equal layers share their jobs, and to compare two is slow
            number_by_job[id(t.job)] = len(jobs)
            jobs.append(None if t.job is None else shared.job(t.job))
        numbers = t.id, t.op, t.result, t.flops, t.bytes_touched, t.workspace_bytes, number_by_job[id(t.job)]
        integers.extend(numbers)
        for operand in t.operands:
            reads.extend(operand)
            tiles.append(len(reads))
        rows.append(len(tiles) - 1)
        inplaces.extend(t.inplace)
        inplace_rows.append(len(inplaces))
        gathers.append(t.gathers)
        seconds.append(nan if t.seconds is None else t.seconds)
    table = frozen(integers).reshape(len(gathers), -1) if gathers else np.empty((0, 7), np.int64)
    operand_row, tile_row, read, inplace_row, inplace = (frozen(column) for column in (rows, tiles, reads, inplace_rows, inplaces))
    names = Texts.of(t.name for t in tasks)
    others = {i: t.others for i, t in enumerate(tasks) if t.others}
    return Tasks(names, table, operand_row, tile_row, read, inplace_row, inplace, frozen(gathers), frozen(seconds), tuple(jobs), others)
