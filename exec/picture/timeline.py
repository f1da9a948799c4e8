"""The picture of a plan: where every byte of the arena was over time, and what each engine did.

In: a MemGraph, when each of its nodes runs by the simulator's clock, and optionally when it ran. Out: a Picture, which `timeline_html`
and `timeline_svg` draw. A residency is a rectangle from the start of the node that creates it to the node that ends it; no two
rectangles of a valid plan overlap.

    offset
      512 ┤        ┌── w1 ────────────────┐┌─ w2 ──────
      256 ┤ ┌── x ────────────────────────────┐
        0 └─┴──────┴──────────────────────┴┴──┴────────► seconds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from einpage.einsum_front.base.units import format_bytes
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move, NodeId, ResidencyId
from einpage.memplan.graph.simulate import queue_numbers, queues_of
from einpage.memplan.machine.places import DEVICE, Queue

WORKSPACE = "workspace"
"""The kind of a rectangle that belongs to a task and not to a tensor."""
AT_START = -1
AT_END = -1
MOVE_WORDS = {Queue.H2D: "reload", Queue.D2H: "offload"}


class NodeTimes(Protocol):
    """When each node of a MemGraph starts and finishes, in seconds from the start of the run; NaN where that is not known."""

    @property
    def start_s(self) -> ArrayLike:
        """[node] when it starts."""

    @property
    def finish_s(self) -> ArrayLike:
        """[node] when it finishes."""


@dataclass(frozen=True, slots=True)
class ArenaRect:
    """One extent of the arena in use for one purpose."""

    residency: ResidencyId | None
    """None for a task's workspace."""
    name: str
    kind: str
    offset: int
    nbytes: int
    start: int
    """The node that creates it (it arrives while that node runs), or AT_START."""
    end: int
    """The node at whose start it ends, or AT_END; equal to `start` for a workspace, which ends at that node's finish."""
    reads: tuple[int, ...]
    """The nodes that read it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One node in the row of its engine."""

    node: NodeId
    engine: int
    """Index into the picture's engines."""
    what: str
    """compute | reload | offload | gather; `copy` between other places"""
    name: str
    """Of the task, or of the tensor moved."""
    kind: str
    nbytes: int
    """Sent over a link; 0 for a compute."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeClock:
    """Seconds at which each node starts and finishes."""

    name: str
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    horizon_s: float
    """When the last node has finished."""

    def span(self, rect: ArenaRect) -> tuple[float, float]:
        """When `rect` starts and ends."""
        start = 0.0 if rect.start == AT_START else float(self.start_s[rect.start])
        if rect.end == AT_END:
            return start, self.horizon_s
        return start, float(self.finish_s[rect.end] if rect.end == rect.start else self.start_s[rect.end])


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The rectangles and bars to draw, in whatever format."""

    title: str
    budget_bytes: int
    rects: tuple[ArenaRect, ...]
    bars: tuple[Bar, ...]
    clocks: tuple[NodeClock, ...]
    """Predicted, then measured where there is a measurement."""
    engines: tuple[Queue, ...]


def picture(memgraph: MemGraph, predicted: NodeTimes, measured: NodeTimes | None = None) -> Picture:
    """Rectangles and bars of a plan. `measured` may leave out nodes (NaN): they then run as soon as their edges allow."""
    clocks = [_clock("predicted", memgraph, predicted)]
    if measured is not None:
        clocks.append(_clock("measured", memgraph, measured))
    graph = memgraph.graph
    title = f"{graph.name}, {graph.dtype.value}, arena of {format_bytes(memgraph.budget_bytes)}"
    return Picture(title, memgraph.budget_bytes, _rects(memgraph), _bars(memgraph), tuple(clocks), queues_of(memgraph))


def to_json(seen: Picture) -> dict[str, object]:
    """The picture in columns; times in microseconds, one column of starts and one of finishes per clock."""
    names = {name: i for i, name in enumerate(dict.fromkeys([r.name for r in seen.rects] + [b.name for b in seen.bars]))}
    return {
        "title": seen.title,
        "budget": seen.budget_bytes,
        "names": list(names),
        "engines": [engine.name for engine in seen.engines],
        "titles": [engine.title for engine in seen.engines],
        "clocks": [
            {"name": c.name, "start": _micros(c.start_s), "finish": _micros(c.finish_s), "horizon": _micros([c.horizon_s])[0]}
            for c in seen.clocks
        ],
        "rects": {
            "residency": [r.residency for r in seen.rects],
            "name": [names[r.name] for r in seen.rects],
            "kind": [r.kind for r in seen.rects],
            "offset": [r.offset for r in seen.rects],
            "nbytes": [r.nbytes for r in seen.rects],
            "start": [r.start for r in seen.rects],
            "end": [r.end for r in seen.rects],
            "reads": [r.reads for r in seen.rects],
        },
        "bars": {
            "node": [b.node for b in seen.bars],
            "engine": [b.engine for b in seen.bars],
            "what": [b.what for b in seen.bars],
            "name": [names[b.name] for b in seen.bars],
            "kind": [b.kind for b in seen.bars],
            "nbytes": [b.nbytes for b in seen.bars],
        },
    }


def _micros(seconds: Sequence[float] | NDArray[np.float64]) -> list[float]:
    # Hundredths of a microsecond; rounding is monotonic, so what did not overlap still does not.
    rounded: list[float] = np.round(np.asarray(seconds, dtype=np.float64) * 1e6, 2).tolist()
    return rounded


def _clock(name: str, memgraph: MemGraph, times: NodeTimes) -> NodeClock:
    start = np.array(times.start_s, dtype=np.float64)
    finish = np.array(times.finish_s, dtype=np.float64)
    count = len(memgraph.nodes)
    assert start.shape == finish.shape == (count,), f"{name} times for {start.shape} and {finish.shape} of {count} nodes"
    if bool(np.isnan(start).any() or np.isnan(finish).any()):
        _fill(start, finish, memgraph)
    return NodeClock(name, start, finish, float(finish.max(initial=0.0)))


def _fill(start: NDArray[np.float64], finish: NDArray[np.float64], memgraph: MemGraph) -> None:
    """Nodes that were not timed (frees, mostly) take no time and run when their predecessors have finished."""
    edges = memgraph.edges
    first = np.searchsorted(edges.target, np.arange(len(start) + 1))
    for node in range(len(start)):
        if isnan(start[node]):
            start[node] = finish[edges.source[first[node] : first[node + 1]]].max(initial=0.0)
        if isnan(finish[node]):
            finish[node] = start[node]


def _rects(memgraph: MemGraph) -> tuple[ArenaRect, ...]:
    start, end, reads = _live_ranges(memgraph)
    graph = memgraph.graph
    rects = []
    for residency in memgraph.residencies:
        if residency.place != DEVICE:
            continue
        r, tensor = residency.id, graph.tensors[residency.tensor]
        for extent in residency.extents:
            live_range = (start.get(r, AT_START), end.get(r, AT_END), tuple(reads.get(r, ())))
            rects.append(ArenaRect(r, tensor.name, tensor.kind.value, extent.offset, extent.nbytes, *live_range))
    for n, node in enumerate(memgraph.nodes):
        if isinstance(node, Compute) and node.workspace is not None and node.workspace.nbytes > 0:
            name = f"workspace of {graph.tasks[node.task].name}"
            rects.append(ArenaRect(None, name, WORKSPACE, node.workspace.offset, node.workspace.nbytes, n, n, ()))
    return tuple(rects)


def _live_ranges(memgraph: MemGraph) -> tuple[dict[ResidencyId, int], dict[ResidencyId, int], dict[ResidencyId, list[int]]]:
    """By residency: the node that creates it, the node that ends it, the nodes that read it."""
    start: dict[ResidencyId, int] = {}
    end: dict[ResidencyId, int] = {}
    reads: dict[ResidencyId, list[int]] = {}
    for n, node in enumerate(memgraph.nodes):
        match node:
            case Free(residency):
                end[residency] = n
            case Move() as move:
                for source, target in move.copies:
                    start[target] = n
                    reads.setdefault(source, []).append(n)
            case Compute(_, operands, creates) | HostGather(_, operands, creates):
                made = (creates, *node.others) if isinstance(node, Compute) else (creates,)
                start.update(dict.fromkeys(made, n))
                for r in dict.fromkeys(r for operand in operands for r in operand):
                    reads.setdefault(r, []).append(n)
                    if isinstance(node, Compute) and any(_shares_bytes(memgraph, r, result) for result in made):
                        end[r] = n
    return start, end, reads


def _shares_bytes(memgraph: MemGraph, a: ResidencyId, b: ResidencyId) -> bool:
    """True where a compute's result `b` lies in the bytes of its operand `a`."""
    one, other = memgraph.residencies[a], memgraph.residencies[b]
    return any(x.offset < y.end and y.offset < x.end for x in one.extents for y in other.extents)


def _bars(memgraph: MemGraph) -> tuple[Bar, ...]:
    bars = []
    tasks, tensors = memgraph.graph.tasks, memgraph.graph.tensors
    numbers, queues = queue_numbers(memgraph).tolist(), queues_of(memgraph)
    for i, node in enumerate(memgraph.nodes):
        if isinstance(node, Free):
            continue
        made = node.target if isinstance(node, Move) else node.creates
        tensor = tensors[memgraph.residencies[made].tensor]
        match node:
            case Compute(task, _, _):
                what, name = "compute", tasks[task].name
            case HostGather(task, _, _):
                what, name = "gather", tasks[task].name
            case Move():
                more = f" and {len(node.others)} more" if node.others else ""
                what, name = MOVE_WORDS.get(queues[numbers[i]], "copy"), tensor.name + more
            case _:
                assert_never(node)
        bars.append(Bar(NodeId(i), numbers[i], what, name, tensor.kind.value, memgraph.moved_bytes(NodeId(i))))
    return tuple(bars)
