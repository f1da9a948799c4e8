"""The judge of what was enqueued on streams: does every order in which they may run respect each edge of the MemGraph?

In: the MemGraph, and what the host did, in order: a chunk of a node enqueued, an event recorded, a stream told to wait for an event, an
event seen to have passed. Out: the edges that nothing enforces. Only two things order work on streams: the order on one stream, and a
wait; an event that the host has seen pass precedes all it enqueues afterwards. Smaller and dumber than the dispatchers, and shares no
code with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from einpage.memplan.graph.memgraph import Free, MemGraph, NodeId

STREAMS = 3


@dataclass(frozen=True, slots=True)
class Enqueued:
    stream: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Recorded:
    stream: int
    event: Hashable


@dataclass(frozen=True, slots=True)
class Waited:
    stream: int
    event: Hashable


@dataclass(frozen=True, slots=True)
class Seen:
    """The host knows that the event has passed."""

    event: Hashable


HostAction: TypeAlias = "Enqueued | Recorded | Waited | Seen"


def unenforced(memgraph: MemGraph, actions: Iterable[HostAction]) -> list[tuple[int, int]]:
    """Edges (source, target) of `memgraph` that the actions do not enforce, and (node, node) for a node, not a Free, never enqueued."""
    count = [0] * STREAMS
    """Per stream: chunks enqueued so far."""
    done = [[0] * STREAMS for _ in range(STREAMS)]
    """Per stream, a vector clock: how many chunks of each stream are surely done when its next chunk starts."""
    seen = [0] * STREAMS
    none_done = [0] * STREAMS
    """Of an event recorded before the first action."""
    at_event: dict[Hashable, list[int]] = {}
    before: dict[int, list[int]] = {}
    """Per node: what is surely done when its first chunk starts."""
    last: dict[int, tuple[int, int]] = {}
    """Per node: the stream and number of its last chunk."""
    for action in actions:
        match action:
            case Enqueued(stream, node_id):
                known = [max(a, b) for a, b in zip(done[stream], seen, strict=True)]
                before.setdefault(node_id, known)
                count[stream] += 1
                last[node_id] = (stream, count[stream])
                done[stream] = [count[stream] if s == stream else known[s] for s in range(STREAMS)]
            case Recorded(stream, event):
                at_event[event] = list(done[stream])
            case Waited(stream, event):
                done[stream] = [max(a, b) for a, b in zip(done[stream], at_event.get(event, none_done), strict=True)]
            case Seen(event):
                seen = [max(a, b) for a, b in zip(seen, at_event.get(event, none_done), strict=True)]
    missing = [(i, i) for i, node in enumerate(memgraph.nodes) if not isinstance(node, Free) and i not in last]
    if missing:
        return missing
    needs: list[list[int]] = []
    """Per node: what must be done for it to be done; a Free is done when its predecessors are."""
    sources: list[list[int]] = [[] for _ in memgraph.nodes]
    for source, target in zip(memgraph.edges.source.tolist(), memgraph.edges.target.tolist(), strict=True):
        sources[target].append(source)
    violated: list[tuple[int, int]] = []
    for i, node in enumerate(memgraph.nodes):
        if isinstance(node, Free):
            needs.append([max((needs[s][k] for s in sources[i]), default=0) for k in range(STREAMS)])
            continue
        stream, number = last[i]
        needs.append([number if k == stream else 0 for k in range(STREAMS)])
        violated += [(s, i) for s in sources[i] if any(need > known for need, known in zip(needs[s], before[i], strict=True))]
    return violated
