"""The plain loop: one node after the other. Slow, obvious, and what the other dispatchers are compared with.

Any order that respects the edges is correct, so the order may be given; `random_order` makes one for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Dispatcher, Measured, Run, predecessor_counts, successors, supervise
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.memplan.graph.memgraph import MemGraph, NodeId


class SerialDispatcher(Dispatcher):
    """Runs one node after the other, on one thread."""

    def __init__(self, memgraph: MemGraph, order: Sequence[NodeId] | None = None) -> None:
        """The order of the plan, or `order`, a permutation of the nodes that respects the edges (asserted)."""
        super().__init__(memgraph)
        self._order = [NodeId(i) for i in range(len(memgraph.nodes))] if order is None else order
        _assert_order(memgraph, self._order)

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        run = Run(self, device, hooks)

        def loop() -> None:
            for node in self._order:
                run.execute(node)

        return supervise(run, {"serial": loop})


def random_order(memgraph: MemGraph, seed: int) -> tuple[NodeId, ...]:
    """Some order of all nodes that respects the edges; the same one for the same seed."""
    random = Random(seed)
    after = successors(memgraph)
    unfinished = predecessor_counts(memgraph)
    ready = [NodeId(i) for i, count in enumerate(unfinished) if count == 0]
    order: list[NodeId] = []
    while ready:
        pick = random.randrange(len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        node = ready.pop()
        order.append(node)
        for target in after[node]:
            unfinished[target] -= 1
            if unfinished[target] == 0:
                ready.append(target)
    return tuple(order)


def _assert_order(memgraph: MemGraph, order: Sequence[NodeId]) -> None:
    position = {node: i for i, node in enumerate(order)}
    assert len(order) == len(position) == len(memgraph.nodes), "an order names every node once"
    for source, target in zip(memgraph.edges.source.tolist(), memgraph.edges.target.tolist(), strict=True):
        assert position[source] < position[target], f"the order has node {target} before node {source}, against an edge"
