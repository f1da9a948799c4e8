"""The device that does nothing: it writes down what it was asked to do, and counts the bytes the plan names.

For dry runs and for tests of the dispatchers.
"""

from __future__ import annotations

from einpage.memplan.graph.memgraph import MemGraph, NodeId, Queue


class NullDevice:
    """Records `calls` in the order they came."""

    name = "null"
    outside_arena_bytes = 0

    def __init__(self, memgraph: MemGraph) -> None:
        self._memgraph = memgraph
        self.arena_bytes: int = memgraph.budget_bytes
        self.begin()

    def begin(self) -> None:
        self.h2d_bytes = 0
        self.d2h_bytes = 0
        self.calls: list[NodeId] = []

    def enter(self) -> None:
        pass

    def bring(self) -> None:
        pass

    def compute(self, node: NodeId) -> None:
        self.calls.append(node)

    def copy(self, node: NodeId) -> None:
        self._transfer(node)

    def gather(self, node: NodeId) -> None:
        self._transfer(node)

    def free(self, node: NodeId) -> None:
        self.calls.append(node)

    def _transfer(self, node: NodeId) -> None:
        nbytes = self._memgraph.moved_bytes(node)
        if self._memgraph.queue(node) is Queue.H2D:
            self.h2d_bytes += nbytes
        else:
            self.d2h_bytes += nbytes
        self.calls.append(node)
