"""A transformer-like graph by hand, in layers and chunks: the plan stays near the compulsory bytes, and its edges grow with its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from strategies import a_machine

MODEL, FFN, ROWS, PIECES = 256, 1024, 32, 4


@dataclass(slots=True)
class Growing:
    values: list[Value] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def tensor(self, name: str, shape: tuple[int, ...], kind: Kind = Kind.ACTIVATION) -> TensorId:
        t = TensorId(len(self.tensors))
        self.values.append(Value(name, name, shape, DType.FP16, kind))
        self.tensors.append(Tensor(t, name, name, Box((0,) * len(shape), shape), DType.FP16, kind))
        return t

    def task(self, result: TensorId, operands: list[tuple[TensorId, ...]], takes: tuple[TensorId, ...] = ()) -> TensorId:
        i, name = TaskId(len(self.tasks)), self.tensors[result].name
        self.tasks.append(Task(i, name, OpId(0), tuple(operands), result, takes, 1000, Nbytes(1000), Nbytes(0), None, False))
        return result


def layered(layers: int, chunks: int) -> TaskGraph:
    """Layer by layer, within a layer weight by weight, for each weight all chunks; attention of a chunk reads all chunks before it."""
    g = Growing()
    x = [g.tensor(f"x.{c}", (ROWS, MODEL), Kind.INPUT) for c in range(chunks)]
    for layer in range(layers):
        wqkv, wo = (g.tensor(f"{n}.{layer}", (MODEL, MODEL), Kind.WEIGHT) for n in ("wqkv", "wo"))
        w13 = [g.tensor(f"w13.{layer}.{p}", (FFN // PIECES, MODEL), Kind.WEIGHT) for p in range(PIECES)]
        w2 = [g.tensor(f"w2.{layer}.{p}", (FFN // PIECES, MODEL), Kind.WEIGHT) for p in range(PIECES)]
        qkv = [g.task(g.tensor(f"qkv.{layer}.{c}", (ROWS, MODEL)), [(x[c],), (wqkv,)]) for c in range(chunks)]
        o = [g.task(g.tensor(f"o.{layer}.{c}", (ROWS, MODEL)), [(qkv[c],), tuple(qkv[: c + 1])]) for c in range(chunks)]
        h = [g.task(g.tensor(f"h.{layer}.{c}", (ROWS, MODEL)), [(x[c],), (o[c],), (wo,)], (x[c],)) for c in range(chunks)]
        acc = list(h)
        for p in range(PIECES):
            kind = Kind.OUTPUT if layer == layers - 1 and p == PIECES - 1 else Kind.ACTIVATION
            for c in range(chunks):
                up = g.task(g.tensor(f"up.{layer}.{p}.{c}", (ROWS, FFN // PIECES)), [(h[c],), (w13[p],)])
                total = g.tensor(f"acc.{layer}.{p}.{c}", (ROWS, MODEL), kind)
                acc[c] = g.task(total, [(acc[c],), (up,), (w2[p],)], (acc[c],))
        x = acc
    outputs = tuple((v.name, v.name) for v in g.values if v.kind is Kind.OUTPUT)
    op = Op(OpId(0), "all", "contract", 1000, Nbytes(1000), "")
    return TaskGraph("layered", DType.FP16, (), tuple(g.values), tuple(g.tensors), tuple(g.tasks), (op,), outputs)


def loaded_bytes(memgraph: MemGraph) -> int:
    return sum(memgraph.moved_bytes(NodeId(n)) for n in range(len(memgraph.nodes)) if memgraph.queue(NodeId(n)) == Queue.H2D)


def test_the_hand_made_graph_is_valid() -> None:
    layered(3, 3).verify()


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("kib", [1024, 4096])
def test_a_stream_of_weights_comes_in_once(chunks: int, kib: int) -> None:
    """Chunks wait in the arena while a layer's weights pass by: each weight comes in once, whatever the budget above that."""
    graph = layered(12, chunks)
    on_host = sum(t.nbytes for t in graph.tensors if t.kind in (Kind.WEIGHT, Kind.INPUT))
    memgraph = plan(graph, a_machine(), kib * 1024)
    assert judge(memgraph) is None
    assert on_host > 2 * kib * 1024
    assert loaded_bytes(memgraph) == on_host


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(prefetch=False), PlanOptions(evict_ahead=False)])
def test_the_smallest_budget_plans_at_depth(options: PlanOptions) -> None:
    graph = layered(12, 4)
    assert judge(plan(graph, a_machine(), largest_footprint(graph)[1], options)) is None


@pytest.mark.parametrize("kib", [300, 1024, 4096])
def test_edges_grow_with_nodes(kib: int) -> None:
    small, large = (plan(layered(layers, 4), a_machine(), kib * 1024) for layers in (16, 32))
    assert len(large.edges) < 5 * len(large.nodes)
    assert len(large.edges) / len(small.edges) < 1.05 * len(large.nodes) / len(small.nodes)
