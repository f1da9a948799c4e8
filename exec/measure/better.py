"""A machine's best rates made those of a run that beat them, so that no bound made from now on exceeds what was measured.

In: a Machine, a plan, what its passes took. Out: a Machine whose rates nothing in them beat; the same one where nothing did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.exec.dispatch.engine import Measured
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import COMPUTE, MOVE, Nodes
from einpage.memplan.graph.simulate import copied_bytes, queue_numbers, queues_of
from einpage.memplan.machine.machine import Machine

ROUNDING = 1.001
"""Rates are kept with three digits and more: a run that beats them by less does not."""


def bettered(machine: Machine, memgraph: MemGraph, passes: Sequence[Measured]) -> Machine:
    """`machine` with each rate, and the launch, that some node of the passes beat set to what that node reached."""
    nodes, graph = Nodes.of(memgraph.nodes), memgraph.graph
    took: Floats = np.min([m.finish_s - m.start_s for m in passes], axis=0)
    computes = np.flatnonzero((nodes.kind == COMPUTE) & (took > 0))
    tasks = [graph.tasks[t] for t in nodes.subject[computes].tolist()]
    flops_per_s = _fastest([task.flops for task in tasks], took[computes])
    bytes_per_s = _fastest([task.bytes_touched for task in tasks], took[computes])
    rates = {dtype: _better(rate, flops_per_s) if dtype is graph.dtype else rate for dtype, rate in machine.flops_per_s}
    better = replace(
        machine,
        flops_per_s=tuple(rates.items()),
        device_bytes_per_s=_better(machine.device_bytes_per_s, bytes_per_s),
        launch_latency_s=min(machine.launch_latency_s, float(took[computes].min(initial=np.inf))),
    )
    queues, numbers = queues_of(memgraph), queue_numbers(memgraph)
    links = []
    for link in machine.links:
        if link.queue in queues:
            copies = np.flatnonzero((nodes.kind == MOVE) & (numbers == queues.index(link.queue)) & (took > 0))
            best = _better(link.bytes_per_s, _fastest(copied_bytes(memgraph)[copies].tolist(), took[copies]))
            least_s = min(link.latency_s, float(took[copies].min(initial=np.inf)))
            links.append(replace(link, bytes_per_s=best, latency_s=link.latency_s if link.overlaps else least_s))
    by_queue = {link.queue: link for link in links}
    return replace(better, links=tuple(by_queue.get(link.queue, link) for link in machine.links))


def faster(before: Machine, after: Machine) -> list[tuple[str, float, float]]:
    """Which rates of `after` are higher: what they are of, in FLOP/s or bytes/s, before and after."""
    pairs = [(f"{dtype.value} products", rate, after.flops_of(dtype)) for dtype, rate in before.flops_per_s]
    pairs.append(("memory", before.device_bytes_per_s, after.device_bytes_per_s))
    pairs += [(f"{link.queue.name} copies", link.bytes_per_s, after.link(link.queue).bytes_per_s) for link in before.links]
    return [pair for pair in pairs if pair[2] > pair[1]]


def _fastest(amounts: Sequence[int], seconds: Floats) -> float:
    return float((np.array(amounts) / seconds).max(initial=0.0)) if len(amounts) else 0.0


def _better(rate: float, reached: float) -> float:
    return reached if reached > ROUNDING * rate else rate
