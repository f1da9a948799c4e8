"""Steps of training as access traces: from a file, or from a model's shapes; and a run of several of them as one TaskGraph.

A step is kernels in order, each with its seconds and the tensors that it reads and writes; weights and the optimiser's states live from
step to step. A run of steps is one trace, in which what a step leaves is what the next finds: a plan of it is steady from its second step
on. Every tensor is cut into pieces of at most a page, as tiles of a split are: a task writes one, and has its share of its kernel's
seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value, tile_name

BF16, MASTER_AND_MOMENTS = 2, 12
"""Bytes of an element; of a weight's master copy and its two moments in fp32."""


@dataclass(frozen=True, slots=True)
class Kernel:
    seconds: float
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    """What it reads too, it writes over."""


@dataclass(frozen=True, slots=True)
class Step:
    nbytes: dict[str, int]
    states: frozenset[str]
    kernels: tuple[Kernel, ...]

    @property
    def ideal_s(self) -> float:
        """With room for everything: all kernels, one after the other."""
        return sum(k.seconds for k in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """With room for everything: states throughout, others from their first use to their last."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for i, kernel in enumerate(self.kernels):
            for name in (*kernel.reads, *kernel.writes):
                first.setdefault(name, i)
                last[name] = i
        change = [0] * (len(self.kernels) + 1)
        for name in first.keys() - self.states:
            change[first[name]] += self.nbytes[name]
            change[last[name] + 1] -= self.nbytes[name]
        live = most = sum(self.nbytes[name] for name in self.states)
        for delta in change:
            live += delta
            most = max(most, live)
        return most

    def slower(self, factor: float) -> Step:
        """The same kernels, each taking `factor` times as long."""
        return Step(self.nbytes, self.states, tuple(Kernel(factor * k.seconds, k.reads, k.writes) for k in self.kernels))


def step_of_file(path: Path) -> Step:
    """As the file of data says it: `tensors` with name, bytes, global; `kernels` with seconds, reads, writes."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    return Step(
        {t["name"]: t["bytes"] for t in facts["tensors"]},
        frozenset(t["name"] for t in facts["tensors"] if t["global"]),
        tuple(Kernel(k["seconds"], tuple(k["reads"]), tuple(k["writes"])) for k in facts["kernels"]),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a LLaMA, and of what it is trained on."""

    layers: int
    width: int
    kv_width: int
    ffn: int
    tokens: int
    """In a step."""
    context: int


def step_of_shape(shape: Shape, flops_per_s: float, device_bytes_per_s: float) -> Step:
    """Per layer two kernels forwards, which save what their gradients read, two backwards, and two updates, which are as fast as the
    device's memory. Weights, gradients and activations are of two bytes."""
    d, kv, f, tokens = shape.width, shape.kv_width, shape.ffn, shape.tokens
    weights = {"attention": 2 * d * d + 2 * d * kv, "mlp": 3 * d * f}
    saved = {"attention": tokens * (2 * d + 2 * kv), "mlp": tokens * (2 * f + d)}
    flops = {"attention": 2 * weights["attention"] * tokens + 2 * tokens * shape.context * d, "mlp": 2 * weights["mlp"] * tokens}
    nbytes, states, forwards, backwards, updates = {"x": BF16 * tokens * d}, set[str](), list[Kernel](), list[Kernel](), list[Kernel]()
    before, gradient = "x", "g"
    nbytes[gradient] = BF16 * tokens * d
    for layer in range(shape.layers):
        for half, count in weights.items():
            w, m, g, a = (f"{what}.{half}{layer}" for what in "WMGa")
            nbytes |= {w: BF16 * count, m: MASTER_AND_MOMENTS * count, g: BF16 * count, a: BF16 * saved[half]}
            states |= {w, m}
            seconds = flops[half] / flops_per_s
            forwards.append(Kernel(seconds, (before, w), (a,)))
            backwards.append(Kernel(2 * seconds, (gradient, before, a, w), (gradient, g)))
            updates.append(Kernel(2 * (BF16 + MASTER_AND_MOMENTS) * count / device_bytes_per_s, (g, m, w), (m, w)))
            before = a
    loss = Kernel(flops["mlp"] / flops_per_s, (before,), (gradient,))
    return Step(nbytes, frozenset(states), (Kernel(0.0, (), ("x",)), *forwards, loss, *reversed(backwards), *updates))


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    graph: TaskGraph
    ends: tuple[TaskId, ...]
    """[step] its last task."""
    layer: tuple[str, ...]
    """[tensor] the name of what it is a piece of."""


def run_of(step: Step, steps: int, page_bytes: int) -> Run:
    """The graph of so many steps, in pieces of at most `page_bytes`. States come from the host; where the last step leaves them is not
    asked, as another step would follow."""
    return _Builder(step, page_bytes).run(steps)


class _Builder:
    def __init__(self, step: Step, page_bytes: int) -> None:
        self.step, self.page_bytes = step, page_bytes
        self.values: list[Value] = []
        self.tensors: list[Tensor] = []
        self.piece_of: list[str] = []
        self.tasks: list[Task] = []
        self.ops: list[Op] = []
        self.current: dict[str, list[TensorId]] = {}
        """By name, its pieces."""

    def run(self, steps: int) -> Run:
        ends = []
        for name in sorted(self.step.states):
            self.current[name] = list(self.pieces(name, Kind.WEIGHT))
        for number in range(steps):
            for k, kernel in enumerate(self.step.kernels):
                self.kernel(kernel, f"{number}.{k}")
            ends.append(TaskId(len(self.tasks) - 1))
        graph = TaskGraph("steps", DType.BYTE, (), tuple(self.values), tuple(self.tensors), tuple(self.tasks), tuple(self.ops), ())
        graph.verify()
        return Run(graph, tuple(ends), tuple(self.piece_of))

    def pieces(self, name: str, kind: Kind) -> Iterator[TensorId]:
        nbytes = self.step.nbytes[name]
        value = f"{name}.{len(self.values)}"
        self.values.append(Value(value, value, (nbytes,), DType.BYTE, kind))
        count = -(-nbytes // self.page_bytes)
        for i in range(count):
            box = Box((nbytes * i // count,), (nbytes * (i + 1) // count,))
            self.tensors.append(Tensor(TensorId(len(self.tensors)), tile_name(value, box), value, box, DType.BYTE, kind))
            self.piece_of.append(name)
            yield self.tensors[-1].id

    def kernel(self, kernel: Kernel, name: str) -> None:
        """A task a piece; each holds all that the kernel touches so far."""
        op = OpId(len(self.ops))
        self.ops.append(Op(op, name, "traced", 0, Nbytes(0), "", kernel.seconds))
        there = {x: list(self.current[x]) for x in kernel.reads}
        all_bytes = sum(self.step.nbytes[w] for w in kernel.writes)
        for w in sorted(kernel.writes, key=lambda w: w in kernel.reads):
            for i, made in enumerate(self.pieces(w, Kind.ACTIVATION)):
                old = there[w][i] if w in kernel.reads else None
                operands = tuple(tuple(pieces) for pieces in there.values())
                seconds = kernel.seconds * self.tensors[made].nbytes / all_bytes
                number, in_place = TaskId(len(self.tasks)), () if old is None else (old,)
                self.tasks.append(
                    Task(number, f"{name}.{w}.{i}", op, operands, made, in_place, 0, Nbytes(0), Nbytes(0), None, False, seconds)
                )
                if old is None:
                    there.setdefault(w, []).append(made)
                else:
                    there[w][i] = made
        self.current |= {w: there[w] for w in kernel.writes}
