"""A machine: the few figures a plan is made for, and how long tasks and copies take on it. No device is needed to plan for it.

Rates are sustained, with the engines busy together. Task times are the roofline model's (Williams, Waterman and Patterson 2009): the larger
of arithmetic and memory traffic, and a launch. Invariant: one link a queue; `links` begins with those between the host and the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.onednn import NO_ONEDNN, OneDnn
from einpage.einsum_front.base.units import parse_rate
from einpage.einsum_front.graph.taskgraph import Op, Task, TaskGraph
from einpage.memplan.machine.places import Link, Queue, host_links

_ANY_HOST = 2**60
"""Bytes of host memory where nobody said how many."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    device_bytes: int
    host_bytes: int
    flops_per_s: tuple[tuple[DType, float], ...]
    """Matrix products, by run dtype."""
    device_bytes_per_s: float
    """Reads and writes inside the device."""
    links: tuple[Link, ...]
    """Host to device, device to host, then any others."""
    launch_latency_s: float
    """Per task."""
    usual_slowdown: float = 1.0
    """How many times longer than at these rates a run usually takes. Predictions count it; plans and bounds do not."""
    threads: int | None = None
    """For a CPU device: how many threads kernels use; None elsewhere."""
    about: str = ""
    """Where the figures come from."""
    onednn: OneDnn = NO_ONEDNN
    """For a CPU device: the products that oneDNN computes; plans do not look at it."""

    def flops_of(self, dtype: DType) -> float:
        """FLOP/s for a run of `dtype`."""
        return dict(self.flops_per_s)[dtype]

    def compute_seconds(self, flops: int, nbytes: int, dtype: DType) -> float:
        """Roofline time of a task without its launch: the larger of arithmetic and memory traffic."""
        return max(flops / self.flops_of(dtype), nbytes / self.device_bytes_per_s)

    def link(self, queue: Queue) -> Link:
        """The link whose copies `queue` runs. Raises UsageError where this machine has none."""
        for link in self.links:
            if link.queue == queue:
                return link
        raise UsageError(f"machine {self.name} has no link from {queue.source} to {queue.target}")

    def with_links(self, *links: Link) -> Machine:
        """This machine with those links, in place of its own on the same queues."""
        by_queue = {link.queue: link for link in (*self.links, *links)}
        return replace(self, links=tuple(by_queue.values()))

    def with_rate(self, queue: Queue, bytes_per_s: float) -> Machine:
        """This machine with another rate on one link."""
        return self.with_links(replace(self.link(queue), bytes_per_s=bytes_per_s))


def task_seconds(machine: Machine, graph: TaskGraph, task: Task) -> float:
    """How long `task` keeps its engine: what was given for it; else a gather its copy, any other task its launch and its roofline."""
    if task.seconds is not None:
        return task.seconds
    if task.gathers:
        return machine.link(Queue.H2D).seconds(graph.tensors[task.result].nbytes)
    return machine.launch_latency_s + machine.compute_seconds(task.flops, task.bytes_touched, graph.dtype)


def op_seconds(machine: Machine, graph: TaskGraph, op: Op) -> float:
    """The least that `op` keeps the compute engine, however it is cut: what was given for it, else its roofline; nothing for a gather."""
    if op.seconds is not None:
        return op.seconds
    return 0.0 if op.kind == "gather" else machine.compute_seconds(op.flops, op.bytes_touched, graph.dtype)


def links_only(h2d: float | str, d2h: float | str | None, device_bytes: int) -> Machine:
    """A machine of which only the links are known: for tasks that bring their own times.

    Copies have no latency, the host holds everything, and `d2h` is `h2d` where it is not given. Raises UsageError.
    """
    h2d_rate = parse_rate(h2d, "--h2d")
    d2h_rate = h2d_rate if d2h is None else parse_rate(d2h, "--d2h")
    return Machine(
        name="links",
        device_bytes=device_bytes,
        host_bytes=_ANY_HOST,
        flops_per_s=(),
        device_bytes_per_s=max(h2d_rate, d2h_rate),
        links=host_links(h2d_rate, d2h_rate),
        launch_latency_s=0.0,
        about="Only the links were given: tasks bring their own times.",
    )
