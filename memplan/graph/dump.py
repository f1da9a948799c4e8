"""A MemGraph as text: for golden tests, bug reports, and reading.

In: a MemGraph. Out: lines. Equal plans give equal text and different plans different text: it holds every offset, node, edge and list.
A node's incoming edges follow it, `<-` data and `<~` memory:

    8 move host->device r6 -> r9 e <- 3 <~ 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from einpage.einsum_front.graph.taskgraph import Task, TaskGraph, Tensor
from einpage.memplan.graph.memgraph import Compute, EdgeKind, Free, HostGather, MemGraph, Move, Node, NodeId, ResidencyId
from einpage.memplan.machine.places import Queue


def memgraph_text(memgraph: MemGraph) -> str:
    """The whole plan, ending in a newline."""
    return "".join(f"{line}\n" for line in _lines(memgraph))


def _lines(plan: MemGraph) -> Iterator[str]:
    graph = plan.graph
    loops = " loops" if plan.loops else ""
    yield f"memgraph {graph.name} {graph.dtype.value} budget {plan.budget_bytes} host {plan.host_bytes} alignment {plan.alignment}{loops}"
    yield from _graph_lines(graph)
    yield f"residencies {len(plan.residencies)}"
    for r in plan.residencies:
        extents = " ".join(f"{e.offset}+{e.nbytes}" for e in r.extents)
        yield f"  r{r.id} {r.place.kind.value}{r.place.index} {extents} {graph.tensors[r.tensor].name}"
    yield f"nodes {len(plan.nodes)}"
    before = _edges_by_target(plan)
    for n, node in enumerate(plan.nodes):
        yield f"  {n} {_node(plan, node)}{before[n]}"
    yield f"start {_ids(plan.start)}"
    yield f"end {_ids(plan.end)}"


def _graph_lines(graph: TaskGraph) -> Iterator[str]:
    yield "split " + (" ".join(f"{letter}={pieces}" for letter, pieces in graph.split) or "none")
    yield "outputs " + " ".join(f"{name}={value}" for name, value in graph.outputs)
    yield f"values {len(graph.values)}"
    for v in graph.values:
        sources = " ".join(f"{s.name}{s.groups}{f'+{s.plus:g}' if s.plus else ''}" for s in v.sources)
        default = "" if v.default is None else f" default {v.default!r}"
        yield f"  {v.name} ({v.base}) {v.kind.value} {v.element_type.value} {list(v.shape)}{default} {sources}".rstrip()
    yield f"ops {len(graph.ops)}"
    for op in graph.ops:
        given = "" if op.seconds is None else f" {op.seconds!r} seconds"
        note = f"; {op.description}" if op.description else ""
        yield f"  {op.id} {op.kind} {op.name} {op.flops} flops {op.bytes_touched} bytes{given}{note}"
    yield f"tensors {len(graph.tensors)}"
    for t in graph.tensors:
        yield f"  t{t.id} {_tensor(t)}"
    yield f"tasks {len(graph.tasks)}"
    for task in graph.tasks:
        yield f"  k{task.id} {_task(task)}"


def _tensor(t: Tensor) -> str:
    box = ",".join(f"{a}:{b}" for a, b in zip(t.box.start, t.box.end, strict=True))
    return f"{t.name} of {t.value} [{box}] {t.element_type.value} {t.kind.value}"


def _task(task: Task) -> str:
    reads = " ".join("(" + " ".join(f"t{t}" for t in operand) + ")" for operand in task.operands)
    made = ", ".join(
        f"t{one.tensor}" + (" inplace " + " ".join(f"t{t}" for t in one.inplace) if one.inplace else "") for one in task.written
    )
    word = "gather" if task.gathers else "task"
    given = "" if task.seconds is None else f" {task.seconds!r} seconds"
    figures = f"{task.flops} flops {task.bytes_touched} bytes {task.workspace_bytes} workspace{given}"
    return f"{word} {task.name} op {task.op} {reads} -> {made}; {figures}"


def _node(plan: MemGraph, node: Node) -> str:
    match node:
        case Compute():
            workspace = "" if node.workspace is None else f" workspace {node.workspace.offset}+{node.workspace.nbytes}"
            return f"compute k{node.task} {_operands(node.operands)} -> {_ids((node.creates, *node.others))}{workspace}"
        case HostGather():
            return f"gather k{node.task} {_operands(node.operands)} -> r{node.creates}"
        case Move():
            from_, to = plan.residencies[node.source].place, plan.residencies[node.target].place
            names = [plan.graph.tensors[plan.residencies[target].tensor].name for _, target in node.copies]
            copies = [f"r{source} -> r{target} {name}" for (source, target), name in zip(node.copies, names, strict=True)]
            return f"move {from_.kind.value}->{to.kind.value} {', '.join(copies)}"
        case Free():
            return f"free r{node.residency}"
    assert_never(node)


def _operands(operands: tuple[tuple[ResidencyId, ...], ...]) -> str:
    return " ".join("(" + _ids(operand) + ")" for operand in operands)


def _ids(residencies: Iterable[ResidencyId]) -> str:
    return " ".join(f"r{r}" for r in residencies)


def _edges_by_target(plan: MemGraph) -> list[str]:
    """[node] its incoming edges, data first."""
    data: list[list[str]] = [[] for _ in plan.nodes]
    memory: list[list[str]] = [[] for _ in plan.nodes]
    for source, target, kind in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), plan.edges.kind.tolist(), strict=True):
        (data if kind == EdgeKind.DATA else memory)[target].append(str(source))
    return [(f" <- {' '.join(d)}" if d else "") + (f" <~ {' '.join(m)}" if m else "") for d, m in zip(data, memory, strict=True)]


def describe(memgraph: MemGraph, node: NodeId) -> str:
    """A node in short: `compute h.4[0:64]`, `reload w1[0:64]`."""
    graph, residencies = memgraph.graph, memgraph.residencies
    match memgraph.nodes[node]:
        case Compute(task):
            return f"compute {graph.tasks[task].name}"
        case HostGather(task, _, _):
            return f"gather {graph.tasks[task].name}"
        case Move(source, target, others):
            name = graph.tensors[residencies[source].tensor].name + (f" and {len(others)} more" if others else "")
            match Queue(residencies[source].place, residencies[target].place):
                case Queue.H2D:
                    return f"reload {name}"
                case Queue.D2H:
                    return f"offload {name}"
                case queue:
                    return f"copy {name} from {queue.source} to {queue.target}"
        case Free(residency):
            place = residencies[residency].place.kind.value
            return f"free {graph.tensors[residencies[residency].tensor].name} on the {place}"
        case other:
            assert_never(other)
