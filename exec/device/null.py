"""The device that does nothing: it records the nodes it was given, and counts the bytes the plan names.

For dry runs and for tests of the dispatchers.
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.exec.device.device import MovedBytes, Rested
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.machine.places import Queue


class NullDevice:
    """`calls` are the nodes in the order in which they were dispatched."""

    name = "null"
    outside_arena_bytes = 0

    def __init__(self, memgraph: MemGraph) -> None:
        self._memgraph = memgraph
        self.arena_bytes: int = memgraph.budget_bytes
        self._counted = MovedBytes(memgraph)
        self.calls: list[NodeId] = []

    @property
    def moved_bytes(self) -> Mapping[Queue, int]:
        return self._counted.by_link()

    def start_run(self, rested: Rested) -> None:
        self._counted.clear()
        self.calls = []

    def end_run(self) -> None:
        pass

    def init_thread(self) -> None:
        pass

    def preload(self) -> int:
        return 0

    def compute(self, node: NodeId) -> None:
        self.calls.append(node)

    def copy(self, node: NodeId) -> None:
        self._transfer(node)

    def gather(self, node: NodeId) -> None:
        self._transfer(node)

    def free(self, node: NodeId) -> None:
        self.calls.append(node)

    def _transfer(self, node: NodeId) -> None:
        self._counted.add(node, self._memgraph.moved_bytes(node))
        self.calls.append(node)
