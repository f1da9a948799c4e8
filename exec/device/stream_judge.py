"""The judge of what was put on streams: does the order in which they may run keep every edge of the MemGraph?

In: the MemGraph, and what the host did, in order: a piece of a node put on a stream, a mark recorded, a stream told to wait for a
mark, a mark seen to have passed. Out: the edges that nothing enforces. Two things only order work on streams: lying
one behind the other on one stream, and a wait; what the host has seen pass is behind everything it puts afterwards. Smaller and
dumber than the dispatchers, and shares no code with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from einpage.memplan.graph.memgraph import Free, MemGraph, NodeId

STREAMS = 3


@dataclass(frozen=True, slots=True)
class Put:
    stream: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Recorded:
    stream: int
    mark: Hashable


@dataclass(frozen=True, slots=True)
class Waited:
    stream: int
    mark: Hashable


@dataclass(frozen=True, slots=True)
class Seen:
    """The host knows that the mark has passed."""

    mark: Hashable


Act: TypeAlias = "Put | Recorded | Waited | Seen"


def unenforced(memgraph: MemGraph, acts: Iterable[Act]) -> list[tuple[int, int]]:
    """Edges (source, target) of `memgraph` that the acts do not keep, and (node, node) for every node but a Free that was never put."""
    count = [0] * STREAMS
    """Per stream: pieces put so far."""
    behind = [[0] * STREAMS for _ in range(STREAMS)]
    """Per stream: how many pieces of each stream are surely done when its next piece starts."""
    seen = [0] * STREAMS
    nothing = [0] * STREAMS
    """What a mark says that was recorded before the acts began."""
    at_mark: dict[Hashable, list[int]] = {}
    before: dict[int, list[int]] = {}
    """Per node: what is surely done when its first piece starts."""
    last: dict[int, tuple[int, int]] = {}
    """Per node: the stream and number of its last piece."""
    for act in acts:
        match act:
            case Put(stream, put):
                known = [max(a, b) for a, b in zip(behind[stream], seen, strict=True)]
                before.setdefault(put, known)
                count[stream] += 1
                last[put] = (stream, count[stream])
                behind[stream] = [count[stream] if s == stream else known[s] for s in range(STREAMS)]
            case Recorded(stream, mark):
                at_mark[mark] = list(behind[stream])
            case Waited(stream, mark):
                behind[stream] = [max(a, b) for a, b in zip(behind[stream], at_mark.get(mark, nothing), strict=True)]
            case Seen(mark):
                seen = [max(a, b) for a, b in zip(seen, at_mark.get(mark, nothing), strict=True)]
    missing = [(i, i) for i, node in enumerate(memgraph.nodes) if not isinstance(node, Free) and i not in last]
    if missing:
        return missing
    needs: list[list[int]] = []
    """Per node: what must be done for it to be done; a Free is done when what it comes after is."""
    sources: list[list[int]] = [[] for _ in memgraph.nodes]
    for source, target in zip(memgraph.edges.source.tolist(), memgraph.edges.target.tolist(), strict=True):
        sources[target].append(source)
    broken: list[tuple[int, int]] = []
    for i, node in enumerate(memgraph.nodes):
        if isinstance(node, Free):
            needs.append([max((needs[s][k] for s in sources[i]), default=0) for k in range(STREAMS)])
            continue
        stream, number = last[i]
        needs.append([number if k == stream else 0 for k in range(STREAMS)])
        broken += [(s, i) for s in sources[i] if any(need > had for need, had in zip(needs[s], before[i], strict=True))]
    return broken
