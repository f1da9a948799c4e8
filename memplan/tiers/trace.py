"""The copies of a plan as an access trace of the host: what the next tier away from the device is planned for.

In: a plan of the device, whose host holds everything; the bytes of a sector that each weight begins at on the disk. Out: a TaskGraph in
which the host is the device and the disk is the host. Each copy is a task, in node order (never by a clock: queues are first in, first out,
and that order has no cycle), which reads a tensor on the host, or writes one. Inputs and outputs are pinned, so no task says that it reads
them.

    device plan    load w1    gather e          compute    offload x    load w2    load x
    trace          read w1    rows of e, read e            write x      read w2    read x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.graph.memgraph import HostGather, MemGraph, Move, ResidencyId
from einpage.memplan.machine.places import HOST, SECTOR

CopyAt = tuple[int, int]
"""A node of the device plan, and which of its copies."""
_BYTES = "bytes"
"""The value that all tensors of a trace are tiles of."""


@dataclass(frozen=True, slots=True, eq=False)
class TierTrace:
    graph: TaskGraph
    """Its first tensors have the numbers of the device plan's."""
    events: tuple[CopyAt | None, ...]
    """[task] the copy that it stands for; None for rows that come from the disk, which the next task reads."""
    gathered: Mapping[TensorId, TensorId]
    """Rows that come from the disk: the tensor of the trace by that of the device plan."""
    skew: Sequence[int]
    """[tensor of the device plan] the byte of a sector at which it begins on the disk, and so on the host."""


def is_pinned(kind: Kind) -> bool:
    """Whether the host has a tensor throughout: it is given or asked for there."""
    return kind not in (Kind.WEIGHT, Kind.ACTIVATION)


def tier_trace(plan: MemGraph, seconds: Sequence[float], skew: Sequence[int]) -> TierTrace:
    """The trace of `plan`, whose copies take `seconds` [event, in order] each."""
    return _Tracer(plan, seconds, skew).traced()


def events_of(plan: MemGraph) -> list[CopyAt]:
    """The copies of a plan of the device, gathers among them, in node order: those that a tier has a task for."""
    found = []
    for n, node in enumerate(plan.nodes):
        if isinstance(node, Move):
            found += [(n, i) for i, copy in enumerate(node.copies) if not is_pinned(_kind(plan, copy[1]))]
        elif isinstance(node, HostGather):
            found.append((n, 0))
    return found


def sector_bytes_of(nbytes: int, skew: int) -> Nbytes:
    """Of a tensor that begins at byte `skew` of a sector: all the sectors that it touches."""
    return aligned(skew + nbytes, SECTOR)


def _kind(plan: MemGraph, residency: ResidencyId) -> Kind:
    return plan.graph.tensors[plan.residencies[residency].tensor].kind


class _Tracer:
    def __init__(self, plan: MemGraph, seconds: Sequence[float], skew: Sequence[int]) -> None:
        self.plan, self.seconds, self.skew = plan, seconds, skew
        self.tensors = [
            _of_bytes(t.id, t.name, sector_bytes_of(t.nbytes, skew[t.id]), Kind.WEIGHT if t.kind is Kind.WEIGHT else Kind.ACTIVATION)
            for t in plan.graph.tensors
        ]
        self.tasks: list[Task] = []
        self.events: list[CopyAt | None] = []
        self.gathered: dict[TensorId, TensorId] = {}

    def traced(self) -> TierTrace:
        plan = self.plan
        nodes = tuple(plan.nodes)
        for event, seconds in zip(events_of(plan), self.seconds, strict=True):
            node = nodes[event[0]]
            if isinstance(node, HostGather):
                self._gather(event, node, seconds)
                continue
            assert isinstance(node, Move)
            target = plan.residencies[node.copies[event[1]][1]]
            if target.place == HOST:
                self._task(event, (), target.tensor, seconds)
            else:
                self._read(event, (target.tensor,), seconds)
        largest = max((t.nbytes for t in self.tensors), default=Nbytes(0))
        value = Value(_BYTES, _BYTES, (largest,), DType.BYTE, Kind.ACTIVATION)
        op = Op(OpId(0), "copies", "traced", 0, Nbytes(0), "", 0.0)
        graph = TaskGraph(plan.graph.name, plan.graph.dtype, (), (value,), tuple(self.tensors), tuple(self.tasks), (op,), ())
        return TierTrace(graph, tuple(self.events), self.gathered, self.skew)

    def _gather(self, event: CopyAt, node: HostGather, seconds: float) -> None:
        """Rows of weights come from the disk, and the next task reads them; of what the host has, it reads that."""
        read = {self.plan.residencies[r].tensor for operand in node.operands for r in operand}
        kinds = {t: self.plan.graph.tensors[t].kind for t in read}
        tables = tuple(t for t in sorted(read) if kinds[t] is Kind.WEIGHT)
        on_host = tuple(t for t in sorted(read) if kinds[t] is not Kind.WEIGHT and not is_pinned(kinds[t]))
        if not tables:
            self._read(event, on_host, seconds)
            return
        rows = self.plan.graph.tensors[self.plan.residencies[node.creates].tensor]
        here = self._tensor(f"rows of {rows.name}", aligned(rows.nbytes, SECTOR))
        self.gathered[rows.id] = here
        self._task(None, on_host or tables, here, 0.0, gathers=not on_host)
        self._read(event, (here,), seconds)

    def _read(self, event: CopyAt, tensors: tuple[TensorId, ...], seconds: float) -> None:
        """A task that reads; every task writes something, this one a sector that nobody reads."""
        self._task(event, tensors, self._tensor(f"read {len(self.tasks)}", SECTOR), seconds)

    def _tensor(self, name: str, nbytes: int) -> TensorId:
        number = TensorId(len(self.tensors))
        self.tensors.append(_of_bytes(number, name, nbytes, Kind.ACTIVATION))
        return number

    def _task(self, event: CopyAt | None, reads: tuple[TensorId, ...], result: TensorId, seconds: float, gathers: bool = False) -> None:
        number = TaskId(len(self.tasks))
        name = f"copy {number} of {self.tensors[result if event is None or not reads else reads[0]].name}"
        given = None if gathers else seconds
        self.tasks.append(Task(number, name, OpId(0), (reads,), result, (), 0, Nbytes(0), Nbytes(0), None, gathers, given))
        self.events.append(event)


def _of_bytes(number: TensorId, name: str, nbytes: int, kind: Kind) -> Tensor:
    return Tensor(number, name, _BYTES, Box((0,), (nbytes,)), DType.BYTE, kind)
