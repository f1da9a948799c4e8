"""The first pass of a loop, where nothing is on the device yet: the loop's own plan, which loads each resident before its first reader.

In: a loop. Out: a plan of the same tasks at the same offsets that begins with an empty device and ends as the loop begins. A resident's
bytes are nobody else's throughout, so its load waits for nothing; what the loop loads itself stays in its order, and a resident is loaded
before what is wanted later.

    h2d        loop        . x0 . . . x1 . . x2          x: what the loop loads in every pass
               first pass  w1 x0 w3 . x1 w6 . x2         w: residents
    compute                t0 . t1 t2 t3 . t4
"""

from __future__ import annotations

from dataclasses import replace

from einpage.memplan.graph.memgraph import Compute, EdgeKind, Free, HostGather, MemGraph, Move, Node, NodeId, ResidencyId
from einpage.memplan.graph.packed import Nodes
from einpage.memplan.graph.recorder import EdgeList
from einpage.memplan.machine.places import DEVICE


def loading(loop: MemGraph) -> MemGraph:
    """The plan of the first pass of `loop`."""
    assert loop.loops, "what begins with residents and ends otherwise has no pass before the first"
    nodes, residencies = tuple(loop.nodes), tuple(loop.residencies)
    readers: list[list[NodeId]] = [[] for _ in residencies]
    for n, node in enumerate(nodes):
        for r in _reads(node):
            readers[r].append(NodeId(n))
    residents = {r for r in loop.start if residencies[r].place == DEVICE}
    host_copy = {residencies[r].tensor: r for r in loop.start if r not in residents}
    first_use = [read[0] if read else len(nodes) for read in readers]
    waiting = sorted(residents, key=lambda r: (first_use[r], r), reverse=True)

    found: list[Node] = []
    number: list[int] = []
    load_by_resident: dict[ResidencyId, int] = {}

    def load() -> None:
        r = waiting.pop()
        load_by_resident[r] = len(found)
        found.append(Move(host_copy[residencies[r].tensor], r))

    for n, node in enumerate(nodes):
        wanted = n
        if isinstance(node, Move | HostGather) and residencies[(made := _made(node))[0]].place == DEVICE:
            wanted = min(first_use[r] for r in made)
        while waiting and first_use[waiting[-1]] <= wanted:
            load()
        number.append(len(found))
        found.append(node)
    while waiting:
        load()

    edges = EdgeList()
    for source, target, kind in zip(*(column.tolist() for column in (loop.edges.source, loop.edges.target, loop.edges.kind)), strict=True):
        (edges.data if kind == EdgeKind.DATA else edges.memory)(number[source], number[target])
    for r, at in load_by_resident.items():
        for reader in readers[r]:
            edges.data(at, number[reader])
    return replace(
        loop,
        nodes=Nodes.of(found),
        edges=edges.finish(),
        start=tuple(r for r in loop.start if r not in residents),
        loops=False,
    )


def _reads(node: Node) -> set[ResidencyId]:
    match node:
        case Compute(_, operands) | HostGather(_, operands):
            return {r for operand in operands for r in operand}
        case Move() as move:
            return {source for source, _ in move.copies}
        case Free():
            return set()


def _made(node: Move | HostGather) -> tuple[ResidencyId, ...]:
    return tuple(target for _, target in node.copies) if isinstance(node, Move) else (node.creates,)
