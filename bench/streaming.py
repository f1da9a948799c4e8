"""What a per-layer streaming system, such as ZeRO-Inference, would take for one pass under the same profile, and where it cannot run.

Assumed, each in its favour or as it works: the same fused kernels and roofline times as ours, one launch an op; every layer's weights are
streamed whole in every pass, one layer prefetched ahead into the second of two buffers, each as large as the largest layer; the head is a
layer of its own; the embedding is gathered on the host. The activations of the whole batch are resident on the device, freed at their
last use, results in place where they may be; nothing is split and nothing is spilled. So it runs where two layers' weights and the
largest set of live activations fit the budget, and then its time does not depend on the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, Task, TaskGraph, TensorId
from einpage.einsum_front.tile.split import split
from einpage.memplan.machine.machine import Machine, task_seconds
from einpage.memplan.machine.places import Queue


@dataclass(frozen=True, slots=True)
class Streaming:
    seconds: float
    """One pass, where it runs."""
    least_bytes: int
    """The smallest budget it runs in."""


def streaming(program: Program, dtype: DType, machine: Machine) -> Streaming:
    """One pass of `program`, layer by layer."""
    graph = split(fuse(program, None), {}, dtype)
    layers = _layers(graph)
    compute_s = [sum(task_seconds(machine, graph, task) for task in layer if not task.gathers) for layer in layers]
    weights = [
        {t for task in layer if not task.gathers for t in task.reads() if graph.tensors[t].kind in HOST_AT_START} for layer in layers
    ]
    gather_s = sum(task_seconds(machine, graph, task) for task in graph.tasks if task.gathers)
    load_s = [sum(machine.link(Queue.H2D).seconds(graph.tensors[t].nbytes) for t in sorted(layer)) for layer in weights]
    loaded = computed = before = 0.0
    for i, (load, compute) in enumerate(zip(load_s, compute_s, strict=True)):
        free_at = before  # the buffer was that of the layer before the last
        loaded = max(loaded, free_at) + load + (0.0 if i else gather_s)
        before, computed = computed, max(computed, loaded) + compute
    out_s = sum(machine.link(Queue.D2H).seconds(t.nbytes) for t in graph.tensors if t.kind is Kind.OUTPUT)
    largest = max(sum(aligned(graph.tensors[t].nbytes) for t in layer) for layer in weights)
    return Streaming(computed + out_s, 2 * largest + _most_live(graph))


def _layers(graph: TaskGraph) -> list[list[Task]]:
    """The tasks in runs: a new one begins where a task reads a weight of another repetition (`wq@3`: of 3) than those before."""
    layers: list[list[Task]] = [[]]
    current = None
    for task in graph.tasks:
        names = [] if task.gathers else [graph.tensors[t].value for t in task.reads() if graph.tensors[t].kind is Kind.WEIGHT]
        repetition = names[0].partition("@")[2] if names else current
        if current is not None and repetition != current:
            layers.append([])
        current = repetition
        layers[-1].append(task)
    return layers


def _most_live(graph: TaskGraph) -> int:
    """Bytes of activations at the worst moment, workspaces included."""
    last: dict[TensorId, int] = {}
    for task in graph.tasks:
        last.update(dict.fromkeys((*task.reads(), task.result), task.id))
    live = most = 0
    for task in graph.tasks:
        tensors = graph.tensors
        taken = any(last[t] == task.id and tensors[t].kind is Kind.ACTIVATION for t in task.inplace)
        result = aligned(tensors[task.result].nbytes)
        most = max(most, live + (0 if taken else result) + aligned(task.workspace_bytes))
        live += result
        live -= sum(
            aligned(tensors[t].nbytes)
            for t in dict.fromkeys((*task.reads(), task.result))
            if last[t] == task.id and tensors[t].kind not in HOST_AT_START
        )
    return most
