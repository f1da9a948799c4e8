"""The clock of a machine whose engines slow each other down: kernels while copies are in flight, copies while kernels run.

In: the nodes of a plan as durations on an idle machine, and factors. Out: when each starts and finishes. Every queue takes its nodes in
order; what is in flight advances at the rate that the others leave it, until the next node finishes (processor sharing). Copies of a disk
overlap: each begins when it may, and its latency passes while those before it are in flight.

    compute   |====k0====|=====k1 at 1/1.2=====|          a copy begins: k1 slows down
    h2d                  |----------m0---------|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.columns import Floats
from einpage.memplan.graph.memgraph import Edges

NO_QUEUE = -1
"""The queue number of a Free."""
COMPUTE_QUEUE = 0
"""The position of the computes among the engines."""


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    start_s: float
    """From the start of a run to its first node."""
    wakeup_s: float
    """Until a queue that has waited for another goes on."""
    beside: Floats
    """[node] how many times as long a compute takes while copies are in flight."""
    slows: Floats
    """[node] how many times as long copies take while a compute runs."""
    together: float
    """How many times longer a copy takes while copies of other links are in flight; at least 1."""


def shared_clock(
    edges: Edges, queues: NDArray[np.int8], latencies: Sequence[float | None], seconds: Floats, sharing: Sharing
) -> tuple[Floats, Floats]:  # fmt: skip
    """[node] start and finish. `queues` [node] are positions among engines, or NO_QUEUE; `latencies` [engine] are those of copies that
    overlap, None of other engines. Node order is a valid execution."""
    return _SharedClock(edges, queues, latencies, seconds, sharing).run()


class _SharedClock:
    def __init__(
        self, edges: Edges, queues: NDArray[np.int8], latencies: Sequence[float | None], seconds: Floats, sharing: Sharing
    ) -> None:  # fmt: skip
        count, engines = len(seconds), len(latencies)
        self.latencies = latencies
        self.ready_at = [sharing.start_s] * count
        """[node] when its last predecessor was done"""
        self.begun_at = [0.0] * engines
        """[engine] when the last of its copies began that overlap; they begin in order"""
        order = np.argsort(edges.source, kind="stable")
        self.targets = edges.target[order].tolist()
        self.row = np.searchsorted(edges.source[order], np.arange(count + 1)).tolist()
        self.missing = np.bincount(edges.target, minlength=count).tolist()
        """[node] predecessors that are not done"""
        self.queue_of = queues.tolist()
        self.nodes = [np.flatnonzero(queues == engine).tolist() for engine in range(engines)]
        self.next = [0] * engines
        """[engine] how many of its nodes have started"""
        self.seconds, self.beside, self.slows, self.sharing = seconds.tolist(), sharing.beside.tolist(), sharing.slows.tolist(), sharing
        self.active: dict[int, int] = {}
        """What is in flight: a node by its engine."""
        self.left = [0.0] * engines
        """[engine] seconds that its node would still take on an idle machine"""
        self.start, self.finish, self.free_at = [0.0] * count, [0.0] * count, [sharing.start_s] * engines

    def run(self) -> tuple[Floats, Floats]:
        now = self.sharing.start_s
        self._done([node for node, queue in enumerate(self.queue_of) if queue == NO_QUEUE and not self.missing[node]], now)
        self._start_ready(now)
        while self.active:
            factors = self._factors()
            first = min(self.active, key=lambda engine: self.left[engine] * factors[engine])
            passed = self.left[first] * factors[first]
            now += passed
            for engine in self.active:
                self.left[engine] = max(0.0, self.left[engine] - passed / factors[engine])
            node = self.active.pop(first)
            self.free_at[first] = now
            self._done([node], now)
            self._start_ready(now)
        assert all(at == len(nodes) for at, nodes in zip(self.next, self.nodes, strict=True)), "node order is no valid execution"
        return np.array(self.start), np.array(self.finish)

    def _factors(self) -> dict[int, float]:
        """By engine in flight, how many times longer its node takes at the moment. A disk writes to memory itself: it does without the
        cores that the factors are of."""
        computing = self.active.get(COMPUTE_QUEUE)
        copies = sum(engine != COMPUTE_QUEUE and self.latencies[engine] is None for engine in self.active)
        factors: dict[int, float] = {}
        for engine, node in self.active.items():
            if engine == COMPUTE_QUEUE:
                factors[engine] = self.beside[node] if copies else 1.0
            elif self.latencies[engine] is not None:
                factors[engine] = 1.0
            else:
                slowed = 1.0 if computing is None else self.slows[computing]
                factors[engine] = slowed * (self.sharing.together if copies > 1 else 1.0)
        return factors

    def _start_ready(self, now: float) -> None:
        """Start the next node of every idle engine whose predecessors are done."""
        for engine, nodes in enumerate(self.nodes):
            at = self.next[engine]
            if engine in self.active or at == len(nodes) or self.missing[nodes[at]]:
                continue
            waited = self.sharing.wakeup_s if now > self.free_at[engine] else 0.0
            if (latency_s := self.latencies[engine]) is not None:
                self.begun_at[engine] = begun_at = max(self.begun_at[engine], self.ready_at[nodes[at]])
                waited = max(0.0, begun_at + waited + latency_s - now)
            self.next[engine] += 1
            self.active[engine], self.start[nodes[at]], self.left[engine] = nodes[at], now + waited, waited + self.seconds[nodes[at]]

    def _done(self, nodes: list[int], now: float) -> None:
        """Nodes that finish now, with the Frees that follow."""
        while nodes:
            node = nodes.pop()
            self.finish[node] = now
            if self.queue_of[node] == NO_QUEUE:
                self.start[node] = now
            for target in self.targets[self.row[node] : self.row[node + 1]]:
                self.missing[target] -= 1
                self.ready_at[target] = now
                if not self.missing[target] and self.queue_of[target] == NO_QUEUE:
                    nodes.append(target)
