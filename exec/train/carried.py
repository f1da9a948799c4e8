"""States at home: what a step makes of a state goes back to where the state came from, so that the next step finds it there.

In: a plan of one step, in which a state at the start and the value that carries it at the end are two tensors, each with its own bytes on
the host. Out: the same plan with one home for both, proven by the judge: all reads of the first end before the move that writes the last.

    host    | w w w w w w | Free w | next_w |          one extent
    moves      w ▲  w ▲            ▲ next_w
                 (loads)          (offload, after both)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph, TensorId
from einpage.memplan.graph.memgraph import Compute, EdgeKind, Free, HostGather, MemGraph, Move, Node, ResidencyId
from einpage.memplan.graph.packed import NodeList, Nodes, Residencies
from einpage.memplan.graph.recorder import edges_of
from einpage.memplan.machine.places import DEVICE, HOST

StatePairs = tuple[tuple[TensorId, TensorId], ...]
"""Tiles of states: at the start, at the end."""


def state_tiles(program: Program, graph: TaskGraph) -> StatePairs:
    """The tiles of every state of `program`, which puts them out under their names, in `graph`."""
    value_by_output = dict(graph.outputs)
    tiles: dict[str, dict[object, TensorId]] = {}
    for tensor in graph.tensors:
        tiles.setdefault(tensor.value, {})[tensor.box] = tensor.id
    pairs: list[tuple[TensorId, TensorId]] = []
    for state in program.states:
        first, last = tiles[state.name], tiles[value_by_output[state.name]]
        assert first.keys() == last.keys(), f"{state.name} is cut otherwise at the end than at the start"
        pairs += [(first[box], last[box]) for box in first]
    return tuple(pairs)


def states_on_device(memgraph: MemGraph) -> Iterator[tuple[TensorId, ResidencyId]]:
    """Tiles of states at the start, and where on the device they are at the end, of those that stay there."""
    on_device = Residencies.of(memgraph.residencies).at(DEVICE)
    there = {memgraph.residencies[r].tensor: r for r in memgraph.end if on_device[r]}
    return ((first, there[last]) for first, last in memgraph.carried if last in there)


def at_home(memgraph: MemGraph, pairs: StatePairs) -> MemGraph:
    """`memgraph`, a plan of one step, with the last of each pair, which it moves to the host, written where the first was."""
    residencies, nodes = Residencies.of(memgraph.residencies), Nodes.of(memgraph.nodes)
    on_host = residencies.at(HOST)
    first_home = {int(residencies.tensor[r]): int(r) for r in memgraph.start if on_host[r]}
    last_home = {int(residencies.tensor[r]): int(r) for r in memgraph.end if on_host[r]}
    homes = [(first_home[first], last_home[last]) for first, last in pairs]
    moved, host_bytes = _offsets(memgraph, residencies, homes)
    before = _written_at(nodes, homes)
    plan = replace(memgraph, residencies=moved, carried=(*memgraph.carried, *pairs)).with_arena(HOST, host_bytes)
    ended = {first for first, _ in homes}
    plan = replace(plan, end=tuple(r for r in plan.end if r not in ended))
    return with_frees(plan, nodes, before)


def _offsets(memgraph: MemGraph, residencies: Residencies, homes: Sequence[tuple[int, int]]) -> tuple[Residencies, int]:
    """The residencies with the last of each pair at the offset of the first, others on the host moved down into the bytes that are left."""
    at, alignment = residencies.extent_row[:-1], memgraph.alignment
    last = np.array([r for _, r in homes], np.int64)
    first = np.array([r for r, _ in homes], np.int64)
    offset = residencies.offset.copy()
    given_up = np.sort(offset[at[last]])
    sizes = -(-residencies.nbytes[at[last]][np.argsort(offset[at[last]], kind="stable")] // alignment) * alignment
    below = np.concatenate(([0], np.cumsum(sizes)))
    on_host = np.flatnonzero(residencies.at(HOST))
    offset[at[on_host]] -= below[np.searchsorted(given_up, offset[at[on_host]])]
    offset[at[last]] = offset[at[first]]
    return replace(residencies, offset=offset), int(memgraph.host_bytes - below[-1])


def _written_at(nodes: Nodes, homes: Sequence[tuple[int, int]]) -> Mapping[int, list[int]]:
    """By the node that writes the last of a pair, the firsts that end before it."""
    copies = nodes.copies()
    node_by_target = dict(zip(copies.target.tolist(), copies.node.tolist(), strict=True))
    found: dict[int, list[int]] = {}
    for first, last in homes:
        found.setdefault(node_by_target[last], []).append(first)
    return found


def with_frees(plan: MemGraph, nodes: Nodes, before: Mapping[int, list[int]]) -> MemGraph:
    """`plan` with a Free of each residency right before its node, after all that read it."""
    frees = np.zeros(len(nodes) + 1, np.int64)
    for writer, ending in before.items():
        frees[writer] = len(ending)
    number: Int64s = np.arange(len(nodes) + 1) + np.cumsum(frees)
    made = NodeList()
    source, target, kind = (list[int]() for _ in range(3))
    readers = node_readers(nodes, {r for residencies in before.values() for r in residencies})

    def edge(earlier: int, later: int, of: EdgeKind) -> None:
        source.append(earlier)
        target.append(later)
        kind.append(int(of))

    for n, node in enumerate(nodes):
        for r in before.get(n, ()):
            free = len(made)
            made.free(ResidencyId(r))
            assert all(reader < n for reader in readers.get(r, ())), "a state is read after what comes of it is at home"
            for reader in readers.get(r, ()):
                edge(int(number[reader]), free, EdgeKind.DATA)
            edge(free, int(number[n]), EdgeKind.MEMORY)
        _append(made, node)
    edges = plan.edges
    joined = edges_of(
        np.concatenate((number[edges.source], np.array(source, np.int64))),
        np.concatenate((number[edges.target], np.array(target, np.int64))),
        np.concatenate((edges.kind, np.array(kind, np.uint8))).astype(np.int64),
    )
    return replace(plan, nodes=made.finish(), edges=joined)


def _append(made: NodeList, node: Node) -> None:
    match node:
        case Compute(task, operands, creates, workspace, others):
            made.compute(task, operands, creates, None if workspace is None else (workspace.offset, workspace.nbytes), others)
        case HostGather(task, operands, creates):
            made.gather(task, operands, creates)
        case Move(source, target, others):
            made.move(source, target, others)
        case Free(residency):
            made.free(residency)


def node_readers(nodes: Nodes, residencies: Collection[int]) -> Mapping[int, list[int]]:
    """The nodes that read each of `residencies`, ascending."""
    copies, found = nodes.copies(), dict[int, list[int]]()
    by_tile = np.repeat(np.repeat(np.arange(len(nodes)), np.diff(nodes.operand_row)), np.diff(nodes.tile_row))
    node, read = np.concatenate((by_tile, copies.node)), np.concatenate((nodes.reads, copies.source))
    for at in np.flatnonzero(np.isin(read, np.array(sorted(residencies), np.int64))).tolist():
        found.setdefault(int(read[at]), []).append(int(node[at]))
    return {r: sorted(set(readers)) for r, readers in found.items()}
