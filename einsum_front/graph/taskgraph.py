"""The TaskGraph: what is computed, before memory is planned.

Tensors are tiles: a tile has one writer, is packed row-major, and is the unit of paging. Tasks read ordered tuples of tiles and write
one, or several. They are in a topological order, the spec's. Values are single-assignment, so dependencies follow from reads and writes
alone.

    spec value  h [s=128, m=64] cut in two along s:

        tensor 7  h.0[0:64,0:64]      written by task 3
        tensor 8  h.0[64:128,0:64]    written by task 4
        task 5    reads ((7, 8), (2,)) -- operand 0 in two tiles, operand 1 in one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NewType

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType, ElementType, as_numbers
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box, GatherJob, Job, results_of
from einpage.einsum_front.graph.program import Source

TensorId = NewType("TensorId", int)
"""Index into TaskGraph.tensors."""
TaskId = NewType("TaskId", int)
"""Index into TaskGraph.tasks; ascending ids are a valid order."""
OpId = NewType("OpId", int)
"""Index into TaskGraph.ops."""


class Kind(Enum):
    """What a tensor is to the program; the value is the word used in plans and reports."""

    INPUT = "input"
    """On the host at the start, given by the caller; never written."""
    WEIGHT = "weight"
    """On the host at the start, from a checkpoint; never written."""
    CONSTANT = "constant"
    ACTIVATION = "activation"
    OUTPUT = "output"
    """Written by a task, and must be on the host at the end."""
    STATE = "state"


HOST_AT_START = frozenset((Kind.INPUT, Kind.WEIGHT, Kind.CONSTANT))
"""Kinds whose tensors have an immutable host copy: evicting them is free."""


@dataclass(frozen=True, slots=True)
class Value:
    """A whole value of which tensors are tiles."""

    name: str
    base: str
    shape: tuple[int, ...]
    element_type: ElementType
    kind: Kind
    sources: tuple[Source, ...] = ()
    """For a weight: where a checkpoint holds it."""
    default: float | int | None = None
    """For an input: its value when the caller gives none."""

    @property
    def dtype(self) -> DType:
        """Of a value that is numbers."""
        return as_numbers(self.element_type)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tile of a value: what a task writes, and the unit of paging."""

    id: TensorId
    name: str
    """`value[start:end,...]`, unique."""
    value: str
    """The key of its Value in TaskGraph.values."""
    box: Box
    element_type: ElementType
    kind: Kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return self.box.shape

    @property
    def dtype(self) -> DType:
        """Of a tile of numbers."""
        return as_numbers(self.element_type)

    @property
    def nbytes(self) -> Nbytes:
        """Bytes of the tile, packed; not aligned."""
        return Nbytes(self.element_type.bytes_of(self.box.size))


def tile_name(value: str, box: Box) -> str:
    """`value[start:end,...]`, the name of the tile of `value` that covers `box`."""
    return f"{value}[{','.join(f'{a}:{b}' for a, b in zip(box.start, box.end, strict=True))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """A fused operation before splitting: what bounds are made of, and what `show` prints."""

    id: OpId
    name: str
    """The value it defines, as `x.4`."""
    kind: str
    """map | contract | attention | pairs | gather | overflow; `traced` in a graph that was read from an access trace"""
    flops: int
    """Multiply-adds count two; an attention's masked blocks are not counted. A lower bound over every split."""
    bytes_touched: Nbytes
    """Distinct operand bytes plus result bytes on the device; for a gather, the bytes that cross the link."""
    description: str
    """What it computes and what was fused into it, for a person; may be empty."""
    seconds: float | None = None
    """Given time on the machine at hand, however it is cut; None: the machine's roofline."""


@dataclass(frozen=True, slots=True)
class Written:
    """A result of a task."""

    tensor: TensorId
    inplace: tuple[TensorId, ...] = ()
    """Operand tensors that it may be written into, in place, at their last use: same size, read element by element."""


@dataclass(frozen=True, slots=True)
class Task:
    """What writes a tensor, or several at once: the unit of scheduling."""

    id: TaskId
    name: str
    op: OpId
    operands: tuple[tuple[TensorId, ...], ...]
    """Parallel to job.reads; each inner tuple parallel to that view's boxes."""
    result: TensorId
    inplace: tuple[TensorId, ...]
    """Operand tensors that the result may be written into, in place, at their last use: same size, read element by element."""
    flops: int
    bytes_touched: Nbytes
    workspace_bytes: Nbytes
    job: Job | None
    """None only in a graph read back from a plan file."""
    gathers: bool
    """True for a host gather: its operands are read on the host and its result crosses the link."""
    seconds: float | None = None
    """Measured or given time, launch included; None: the machine's roofline."""
    others: tuple[Written, ...] = ()
    """Results beside the first; a gather has none."""

    @property
    def results(self) -> tuple[TensorId, ...]:
        """All that it writes, the first result first."""
        return (self.result, *(other.tensor for other in self.others)) if self.others else (self.result,)

    @property
    def written(self) -> tuple[Written, ...]:
        """All that it writes, each with what it may be written over."""
        return (Written(self.result, self.inplace), *self.others)

    def with_written(self, written: Sequence[Written]) -> Task:
        """The same task with these for its results."""
        first, *others = written
        return replace(self, result=first.tensor, inplace=first.inplace, others=tuple(others))

    def reads(self) -> tuple[TensorId, ...]:
        """Distinct operand tensors, in order of first appearance."""
        return tuple(dict.fromkeys(t for operand in self.operands for t in operand))


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tensors, the tasks that write them, and the ops the tasks were cut from; `verify` states the invariants."""

    name: str
    dtype: DType
    split: tuple[tuple[Letter, int], ...]
    """The pieces each split letter was cut into, sorted by letter; letters in one piece are absent."""
    values: tuple[Value, ...]
    tensors: Sequence[Tensor]
    tasks: Sequence[Task]
    """Immutable, both: tuples, or the columns of `packed`, where a large graph is kept."""
    ops: tuple[Op, ...]
    outputs: tuple[tuple[str, str], ...]
    """(output name, value name), as asked for. A state has the name of the input that it is at the start: the constant tiles of that are
    its own too."""

    def verify(self) -> None:
        """Prove that every tensor lies in its value, is written once and before it is read, that tasks agree with their jobs and
        that every output is covered.

        Raises AssertionError, naming task and tensor: a graph that breaks one is our bug, never the user's.
        """
        value_by_name = {v.name: v for v in self.values}
        written: set[TensorId] = set()
        read: set[TensorId] = set()
        for i, tensor in enumerate(self.tensors):
            assert tensor.id == i, f"tensor {tensor.name} has id {tensor.id} at position {i}"
            shape = value_by_name[tensor.value].shape
            inside = Box((0,) * len(shape), shape).contains(tensor.box)
            assert inside and tensor.box.size > 0, f"tensor {tensor.name} does not lie in its value {shape}"
            kind = value_by_name[tensor.value].kind
            is_part = kind is Kind.INPUT and tensor.kind is Kind.CONSTANT
            assert tensor.kind is kind or is_part, f"tensor {tensor.name} is {tensor.kind.value}, its value {kind.value}"
        for i, task in enumerate(self.tasks):
            assert task.id == i, f"task {task.name} has id {task.id} at position {i}"
            for t in task.reads():
                tensor = self.tensors[t]
                assert tensor.kind in HOST_AT_START or t in written, f"task {task.name} reads {tensor.name} before it is written"
                read.add(t)
            assert not (task.gathers and task.others), f"task {task.name} gathers several results"
            for one in task.written:
                result = self.tensors[one.tensor]
                assert result.kind not in HOST_AT_START, f"task {task.name} writes {result.kind.value} {result.name}"
                assert one.tensor not in written, f"{result.name} is written twice, the second time by {task.name}"
                written.add(one.tensor)
                for t in one.inplace:
                    assert t in task.reads(), f"task {task.name} would write in place of {self.tensors[t].name}, which it does not read"
                    assert self.tensors[t].nbytes == result.nbytes, f"task {task.name} would write in place of bytes of another size"
            assert 0 <= task.op < len(self.ops), f"task {task.name} names no op"
            if task.job is not None:
                self._verify_job(task)
        for tensor in self.tensors:
            if tensor.kind not in HOST_AT_START:
                assert tensor.id in written, f"nothing writes {tensor.name}"
        names, declared = [name for name, _ in self.outputs], {value for _, value in self.outputs}
        assert len(set(names)) == len(names), f"an output is named twice: {', '.join(names)}"
        outputs = {v.name for v in self.values if v.kind is Kind.OUTPUT}
        assert declared == outputs, f"the outputs name the values {sorted(declared)}, of kind output are {sorted(outputs)}"
        covered_by_value = Counter[str]()
        for tensor in self.tensors:
            covered_by_value[tensor.value] += tensor.box.size
        unchanged = Counter[str]()
        for tensor in self.tensors:
            if tensor.kind is Kind.CONSTANT:
                unchanged[tensor.value] += tensor.box.size
        for name, value in self.outputs:
            covered = covered_by_value[value] + unchanged[name]
            whole = Box((0,) * len(value_by_name[value].shape), value_by_name[value].shape).size
            assert covered == whole, f"output {name}: {covered} of {whole} elements are written"

    def _verify_job(self, task: Task) -> None:
        job = task.job
        assert job is not None
        assert task.gathers == isinstance(job, GatherJob), f"task {task.name}: `gathers` disagrees with its job"
        assert len(job.reads) == len(task.operands), f"task {task.name}: operands and job.reads differ in number"
        for view, operand in zip(job.reads, task.operands, strict=True):
            boxes = tuple(self.tensors[t].box for t in operand)
            assert boxes == view.boxes, f"task {task.name}: operand {view.name} has tiles {boxes}, its job expects {view.boxes}"
            for t in operand:
                assert self.tensors[t].element_type == view.element_type, f"task {task.name}: {view.name} has another dtype"
        views = results_of(job)
        assert len(views) == len(task.results), f"task {task.name}: results differ in number"
        assert len(views) == 1 or not any(view.is_checked for view in views), f"task {task.name}: a flag beside another result"
        for view, result in zip(views, map(self.tensors.__getitem__, task.results), strict=True):
            assert view.boxes == (result.box,) and view.element_type == result.element_type, f"task {task.name}: result box"
