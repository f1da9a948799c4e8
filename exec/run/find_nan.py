"""`--find-nan`: from which task the NaN or inf in an output comes.

In: a device, whose every result is looked at as it is made (nodes run one after the other), and the host arena with weights and inputs.
Out: a FoundNan. Of the tasks whose results are not finite and lead to an output that is not, the first is named that read no such result.

    scores  -inf      softmax  finite      x  NaN ◄─ first      y  NaN      logits  NaN
                                           └ reads w3, in which a value is NaN
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.files import read_text
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Task, TaskGraph, TaskId, Tensor, TensorId
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.device import Rested
from einpage.exec.device.streams import StreamDevice
from einpage.exec.system.finite import NumberCounts, merged, number_counts
from einpage.kernels.prepare import numbers_of
from einpage.memplan.graph.memgraph import Compute, HostGather, MemGraph, NodeId
from einpage.memplan.machine.places import Queue

_MOST_SPEC = 1 << 20
"""Characters of a spec that are read to show one line of it."""


@dataclass(frozen=True, slots=True)
class FirstTask:
    """The first task whose result is not finite, and all that a person needs to see why."""

    task: int
    tile: str
    """`y.3[0:2,0:64]`, the result."""
    kind: str
    """contract, map, attention, gather"""
    place: str
    """`llama.yaml:104`, the line that defines its value."""
    statement: str
    """That line."""
    iteration: tuple[int, ...]
    """Of the repeats around it, outermost first."""
    result: str
    operands: tuple[tuple[str, str], ...]
    """What each value that it read held, by name."""


@dataclass(frozen=True, slots=True)
class FoundNan:
    """What looking at every result found."""

    tasks: int
    """How many results were looked at."""
    not_finite: int
    """How many of them held NaN or inf."""
    first: FirstTask | None
    """None where every output is finite."""

    def text(self) -> str:
        """One line."""
        looked = f"{self.tasks} results looked at, one node after the other (slower than a usual run)"
        if self.first is None:
            unused = f"; {self.not_finite} results held NaN or inf that reach none" if self.not_finite else ""
            return f"{looked}: every output is finite{unused}"
        f = self.first
        iteration = f", iteration {'.'.join(map(str, f.iteration))}" if f.iteration else ""
        operands = "; ".join(f"{name} {values}" for name, values in f.operands)
        where = f"{f.place}{iteration}: {f.statement}" if f.statement else f"{f.place}{iteration}"
        return f"{looked}: the first that is not finite is {f.tile} (task {f.task}, {f.kind}; {where}): {f.result}; it read {operands}"


class CheckedDevice:
    """`device`, with the result of every task looked at when it is there."""

    def __init__(self, memgraph: MemGraph, device: CpuDevice | StreamDevice) -> None:
        self._memgraph, self._device = memgraph, device
        self.name = device.name
        self.counts_by_task: dict[TaskId, NumberCounts] = {}
        """Of the last pass."""

    @property
    def arena_bytes(self) -> int:
        return self._device.arena_bytes

    @property
    def outside_arena_bytes(self) -> int:
        return self._device.outside_arena_bytes

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        return self._device.moved_bytes

    def start_run(self, rested: Rested) -> None:
        self._device.start_run(rested)

    def end_run(self) -> None:
        self._device.end_run()

    def init_thread(self) -> None:
        self._device.init_thread()

    def preload(self) -> int:
        return self._device.preload()

    def compute(self, node: NodeId) -> None:
        self._device.compute(node)
        self._look(node)

    def copy(self, node: NodeId) -> None:
        self._device.copy(node)

    def gather(self, node: NodeId) -> None:
        self._device.gather(node)
        self._look(node)

    def free(self, node: NodeId) -> None:
        self._device.free(node)

    def _look(self, node: NodeId) -> None:
        ran = self._memgraph.nodes[node]
        assert isinstance(ran, Compute | HostGather)
        results = (ran.creates, *ran.others) if isinstance(ran, Compute) else (ran.creates,)
        counts = [number_counts(self._device.contents(r)) for r in results]
        self.counts_by_task[ran.task] = next((found for found in counts if found.bad), counts[0])


def find_nan(
    program: Program, graph: TaskGraph, counts_by_task: Mapping[TaskId, NumberCounts], host: Mapping[TensorId, torch.Tensor]
) -> FoundNan:
    """Where NaN and inf in the outputs come from. `host` has the weight and input tiles; `counts_by_task` the result of every task."""
    bad = {task for task, counts in counts_by_task.items() if counts.bad}
    first = _first(graph, counts_by_task, bad)
    found = None if first is None else _described(program, graph, first, counts_by_task, host)
    return FoundNan(len(counts_by_task), len(bad), found)


def _first(graph: TaskGraph, counts_by_task: Mapping[TaskId, NumberCounts], bad: set[TaskId]) -> Task | None:
    """Back from the outputs through results that are not finite, to those whose task read none; NaN and inf before a mere -inf,
    which masks are made of."""
    writer = {t: task for task in bad for t in graph.tasks[task].results}
    outputs = {value for _, value in graph.outputs}
    reached = {task for tensor, task in writer.items() if graph.tensors[tensor].value in outputs}
    stack, origins = [*reached], []
    while stack:
        task = stack.pop()
        before = {writer[t] for t in graph.tasks[task].reads() if t in writer}
        if not before:
            origins.append(task)
        stack += before - reached
        reached |= before
    return graph.tasks[min(origins, key=lambda t: (not (counts_by_task[t].nan or counts_by_task[t].plus_inf), t))] if origins else None


def _described(
    program: Program, graph: TaskGraph, task: Task, counts_by_task: Mapping[TaskId, NumberCounts], host: Mapping[TensorId, torch.Tensor]
) -> FirstTask:
    op, result = graph.ops[task.op], graph.tensors[task.result]
    definition = next((d for d in program.definitions if d.name == op.name.partition("~")[0]), None)
    writer = {t: task.id for task in graph.tasks for t in task.results}
    parts_by_value: dict[str, list[tuple[NumberCounts, tuple[int, ...]]]] = {}
    for read in task.reads():
        tensor = graph.tensors[read]
        counts = counts_by_task[writer[read]] if read in writer else number_counts(_numbers(tensor, host[read]))
        parts_by_value.setdefault(tensor.value, []).append((counts, tensor.box.start))
    return FirstTask(
        task=task.id,
        tile=result.name,
        kind=op.kind,
        place=program.path if definition is None else f"{program.path}:{definition.span.line}",
        statement="" if definition is None else _line(program.path, definition.span.line),
        iteration=() if definition is None else definition.loop,
        result=merged([(counts_by_task[task.id], result.box.start)]).text(),
        operands=tuple((value, merged(parts).text()) for value, parts in parts_by_value.items()),
    )


def _numbers(tensor: Tensor, tile: torch.Tensor) -> torch.Tensor:
    """A tile on the host as numbers, also where it is kept as it is stored."""
    return numbers_of(tile, tensor.element_type, tensor.shape) if isinstance(tensor.element_type, Stored) else tile


def _line(path: str, line: int) -> str:
    """A line of the spec, as it is in the file now; nothing where it cannot be read any more."""
    try:
        lines = read_text(Path(path), path, _MOST_SPEC).splitlines()
    except EinpageError:
        return ""
    return lines[line - 1].strip().removeprefix("- ") if line <= len(lines) else ""
