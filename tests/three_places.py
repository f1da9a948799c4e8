"""Plans over three places on plain bytes, with a disk that reads and writes whole sectors; and random ones of them.

An arena each of device, host and disk starts as NaN; a Free writes NaN over what it frees, on the host and the disk over whole sectors. A
read copies all sectors that its source touches over all that its target touches, as a disk does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move, NodeId, ResidencyId
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR, Link, Place, Queue
from einpage.memplan.plan import PlanOptions, plan
from numpy_jobs import run_task
from strategies import a_machine

Data = Mapping[str, NDArray[Any]]
NAN_BYTE = 0xFF


def with_disk(machine: Machine, bytes_per_s: float = 2e7) -> Machine:
    """`machine` with a disk that is slower than its other links."""
    return machine.with_links(Link(Queue.READ, bytes_per_s, 1e-4), Link(Queue.WRITE, bytes_per_s / 2, 1e-4))


def least_host(graph: TaskGraph, budget: int, options: PlanOptions) -> int:
    """The smallest host budget of `graph` on a device of `budget` bytes: what a host of one byte is refused with."""
    with pytest.raises(DoesNotFit) as refused:
        plan(graph, with_disk(a_machine()), budget, options)
    misfit = refused.value.misfit
    assert misfit.place == "host" and misfit.smallest_budget is not None
    return misfit.smallest_budget


class Bytes:
    """The three arenas, from one plan to the next."""

    def __init__(self, plan: MemGraph) -> None:
        self.arenas = {place: np.full(nbytes, NAN_BYTE, np.uint8) for place, nbytes in plan.arenas}

    def raw(self, plan: MemGraph, r: ResidencyId, sectors: bool = False) -> NDArray[np.uint8]:
        """The bytes of a residency, or all the sectors that it touches."""
        residency = plan.residencies[r]
        start, end = residency.extents[0].offset, residency.extents[0].end
        if sectors and residency.place != DEVICE:
            start, end = start // SECTOR * SECTOR, -(-end // SECTOR) * SECTOR
        return self.arenas[residency.place][start:end]

    def tile(self, plan: MemGraph, r: ResidencyId) -> NDArray[Any]:
        tensor = plan.graph.tensors[plan.residencies[r].tensor]
        return self.raw(plan, r).view(np.int32 if tensor.dtype is DType.INT32 else np.float32).reshape(tensor.shape)

    def write(self, plan: MemGraph, place: Place, given: Data) -> None:
        """What is at `place` before the first node: what is given, but no copies on the host of what the disk has."""
        stored = {plan.residencies[r].tensor for r in plan.start if plan.residencies[r].place == DISK}
        for r in plan.start:
            residency = plan.residencies[r]
            if residency.place == place and (place == DISK or residency.tensor not in stored):
                tensor = plan.graph.tensors[residency.tensor]
                cut = tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))
                self.tile(plan, r)[...] = given[tensor.value][cut]

    def run(self, plan: MemGraph, order: Sequence[NodeId]) -> dict[int, NDArray[Any]]:
        """Run the nodes in this order; every output that is on the host at the end."""
        for n in order:
            match plan.nodes[n]:
                case Compute() | HostGather() as node:
                    operands = [[self.tile(plan, r).copy() for r in operand] for operand in node.operands]
                    results = run_task(plan.graph.tasks[node.task], operands)
                    if isinstance(node, Compute) and node.workspace is not None:
                        self.arenas[DEVICE][node.workspace.offset : node.workspace.end] = NAN_BYTE
                    for r, result in zip((node.creates, *(node.others if isinstance(node, Compute) else ())), results, strict=True):
                        self.tile(plan, r)[...] = result
                case Move() as move:
                    for source, target in move.copies:
                        on_disk = DISK in (plan.residencies[source].place, plan.residencies[target].place)
                        self.raw(plan, target, on_disk)[...] = self.raw(plan, source, on_disk)
                case Free(r):
                    self.raw(plan, r, True)[...] = NAN_BYTE
        ends = {plan.residencies[r].tensor: r for r in plan.end if plan.residencies[r].place == HOST}
        return {t.id: self.tile(plan, ends[t.id]).copy() for t in plan.graph.tensors if t.kind is Kind.OUTPUT}


def weights_in_a_row(count: int, nbytes: int, seconds: float = 0.0) -> TaskGraph:
    """Tasks of `seconds`, each of which reads a weight of its own and the result of the one before; the last result is an output."""
    names = [f"w{i:03}" for i in range(count)] + [f"x{i:03}" for i in range(count)]
    sizes = [nbytes] * count + [SECTOR] * count
    kinds = [Kind.WEIGHT] * count + [Kind.ACTIVATION] * (count - 1) + [Kind.OUTPUT]
    rows = tuple(zip(names, sizes, kinds, strict=True))
    tensors = tuple(Tensor(TensorId(i), n, n, Box((0,), (size,)), DType.BYTE, kind) for i, (n, size, kind) in enumerate(rows))
    values = tuple(Value(n, n, (size,), DType.BYTE, kind) for n, size, kind in rows)
    tasks = []
    for i in range(count):
        reads = ((TensorId(i),), *(((TensorId(count + i - 1),),) if i else ()))
        name, touched = f"task {i}", Nbytes(nbytes)
        tasks.append(Task(TaskId(i), name, OpId(i), reads, TensorId(count + i), (), 0, touched, Nbytes(0), None, False, seconds))
    ops = tuple(Op(OpId(i), t.name, "traced", 0, t.bytes_touched, "", seconds) for i, t in enumerate(tasks))
    return TaskGraph("row", DType.FP32, (), values, tensors, tuple(tasks), ops, (("out", names[-1]),))
