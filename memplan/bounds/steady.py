"""Lower bounds on one pass of many: what repeats when a graph runs again and again, and weights may stay on the device in between.

In: a TaskGraph, a Machine, the arena's bytes C. Out: Bounds on a steady pass, one that ends as it began. Let W be the bytes of weights that
tasks read. A weight that is not on the device for the whole pass is loaded in it at least once; those that are lie beside whatever any
task needs besides weights, f at most, so together they have at most C - f bytes:

    seconds >= max(every op and its launch, (what comes anew + max(0, W - (C - f))) / link)

What comes anew are inputs and gathered rows. `bound_s` takes f = 0 and one launch an op, for no split has less; `bound_order_s` takes f and
the launches of the tasks at hand.
"""

from __future__ import annotations

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.bounds.bounds import Bounds
from einpage.memplan.bounds.compulsory import compulsory_load_bytes, compulsory_store_bytes
from einpage.memplan.bounds.limit import Method
from einpage.memplan.machine.machine import Machine, all_task_seconds, op_seconds
from einpage.memplan.machine.places import Queue
from einpage.memplan.problem.accesses import accesses

SAME_EVERY_PASS = frozenset((Kind.WEIGHT, Kind.CONSTANT))
"""Kinds that are the same in every pass."""


def steady_bounds(graph: TaskGraph, machine: Machine, budget_bytes: int) -> Bounds:
    """Lower bounds on the makespan of one pass of any plan that ends as it began."""
    weights = weights_read(graph)
    anew, bytes_out = compulsory_load_bytes(graph, weights), compulsory_store_bytes(graph)
    all_in = compulsory_load_bytes(graph)
    bytes_in = anew + max(0, all_in - anew - budget_bytes)
    gathering = {task.op for task in graph.tasks if task.gathers}
    launches = sum(op.seconds is None and op.id not in gathering for op in graph.ops)
    compute_s = sum((op_seconds(machine, graph, op) for op in graph.ops), 0.0) + launches * machine.launch_latency_s
    loads, stores = machine.link(Queue.H2D), machine.link(Queue.D2H)
    for_all = {Queue.COMPUTE: compute_s, Queue.H2D: bytes_in / loads.bytes_per_s, Queue.D2H: bytes_out / stores.bytes_per_s}
    limit = max(for_all, key=lambda queue: for_all[queue])
    seconds = all_task_seconds(machine, graph)
    order_in = anew + max(0, all_in - anew - (budget_bytes - _extra_bytes(graph, machine, weights)))
    here = {
        Queue.COMPUTE: max(compute_s, sum(seconds[task.id] for task in graph.tasks if not task.gathers)),
        Queue.H2D: order_in / loads.bytes_per_s,
        Queue.D2H: for_all[Queue.D2H],
    }
    limit_order = max(here, key=lambda queue: here[queue])
    return Bounds(
        busy_s=tuple(for_all.items()),
        bytes_bound=((Queue.H2D, Nbytes(bytes_in)), (Queue.D2H, bytes_out)),
        critical_path_s=0.0,
        bound_s=for_all[limit],
        bound_order_s=here[limit_order],
        limit=limit,
        limit_order=limit_order,
        order_by=Method.STEADY,
        bytes_bound_order=Nbytes(order_in + bytes_out),
        bytes_order_by=Method.STEADY,
    )


def weights_read(graph: TaskGraph) -> frozenset[TensorId]:
    """What tasks read on the device and every pass has again."""
    read = {t for task in graph.tasks if not task.gathers for t in task.reads()}
    return frozenset(t for t in read if graph.tensors[t].kind in SAME_EVERY_PASS)


def _extra_bytes(graph: TaskGraph, machine: Machine, weights: frozenset[TensorId]) -> int:
    """The most bytes that a task needs in addition to weights."""
    tasks = [task for task in graph.tasks if not task.gathers]
    needs = accesses(graph, machine).footprint.tolist()
    return max(
        (n - sum(graph.tensors[t].nbytes for t in task.reads() if t in weights) for task, n in zip(tasks, needs, strict=True)), default=0
    )
