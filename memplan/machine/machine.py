"""A machine: the few figures a plan is made for, and how long tasks and copies take on it. No device is needed to plan for it.

Rates are the best that were seen, for bounds are made of them: the roofline model (Williams, Waterman and Patterson 2009) takes the larger
of arithmetic and memory traffic, and a launch. A machine that was measured in runs also knows what they usually take (kernel_times), which
is never less; one without is predicted by its rates. Invariant: one link a queue; `links` begins with those between host and device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.libraries import ONLY_TORCH, Libraries
from einpage.einsum_front.base.units import parse_rate
from einpage.einsum_front.graph.taskgraph import Op, Task, TaskGraph
from einpage.memplan.machine.disk_reads import DiskReads
from einpage.memplan.machine.kernel_times import KernelTimes
from einpage.memplan.machine.places import Link, Queue, host_links
from einpage.memplan.machine.work import work_of

MOST_SPREAD = 0.1
"""Samples of a machine that does nothing else are no farther apart."""
MOST_OTHERS = 0.1
"""Cores: what uses more slows down one thread of a run for much of it, where there are few."""
_ANY_HOST = 2**60
"""Bytes of host memory where nobody said how many."""

Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a machine did beside being measured."""

    spread: float
    """Of the samples: how far their median is from their lower quartile, as a share; the median over what was measured."""
    others: float
    """Cores that other processes used meanwhile, on average."""
    cores: int

    def text(self) -> str:
        """For a person."""
        return f"others used {self.others:.2f} of {self.cores} cores, samples {100 * self.spread:.0f} % apart"

    def busy(self) -> str | None:
        """Why its figures may be off, for a person; None where they may be believed."""
        if self.spread <= MOST_SPREAD and self.others <= MOST_OTHERS:
            return None
        return f"measured while the machine was busy ({self.text()})"


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
    kernel_times: KernelTimes | None = None
    """What kernels and copies usually take; None: what the rates say."""
    threads: int | None = None
    """For a CPU device: how many threads kernels use; None elsewhere."""
    about: str = ""
    """Where the figures come from."""
    libraries: Libraries = ONLY_TORCH
    """For a CPU device: which library computes which products; plans do not look at it."""
    measured: Measurement | None = None
    """How they were measured, where that is known."""
    disk: tuple[DiskReads, ...] = ()
    """How its disk is read, the best way first; empty: nobody measured it."""
    outdated: str = ""
    """What its profile says that is no longer used; empty: nothing."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, whose kernels are torch's and our own, and not Triton's."""
        return self.threads is not None or self.name == "cpu"

    def by_torch_alone(self) -> str | None:
        """That it does not say how products are computed, for a person; None where it does, was measured, or is no CPU's."""
        if not self.is_cpu or self.measured is not None or self.libraries != ONLY_TORCH:
            return None
        faster = "a measured profile may have them twice as fast (`einpage machine --measure`; it is used where no machine is named)"
        return f"the profile {self.name} names no libraries, so all products are torch.mm's: {faster}"

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

    def usual_link(self, queue: Queue) -> Link:
        """The link as copies usually find it, never faster than `link`. Raises UsageError where this machine has none."""
        best = self.link(queue)
        if self.kernel_times is None:
            return best
        if queue == Queue.READ and self.disk:
            return replace(best, bytes_per_s=min(best.bytes_per_s, self.disk[0].bytes_per_s))
        usual = self.kernel_times.copies.link(queue)
        if usual is None:
            return best
        return Link(queue, min(best.bytes_per_s, usual.bytes_per_s), max(best.latency_s, usual.latency_s))

    def at_best(self) -> Machine:
        """This machine as nothing beats it: what bounds are made for."""
        return replace(self, kernel_times=None)

    def without_latency(self) -> Machine:
        """This machine at best, with copies that take their bytes' time alone."""
        return self.at_best().with_links(*(replace(link, latency_s=0.0) for link in self.links))

    def with_links(self, *links: Link) -> Machine:
        """This machine with those links, in place of its own on the same queues; how another disk is read, nobody knows."""
        by_queue = {link.queue: link for link in (*self.links, *links)}
        times = self.kernel_times
        if times is not None:
            changed = {link.queue for link in links}
            usual = tuple(link for link in times.copies.links if link.queue not in changed)
            times = replace(times, copies=replace(times.copies, links=usual))
        is_other_disk = any(link.queue == Queue.READ and by_queue[link.queue] != link for link in self.links)
        return replace(self, links=tuple(by_queue.values()), kernel_times=times, disk=() if is_other_disk else self.disk)

    def with_rate(self, queue: Queue, bytes_per_s: float) -> Machine:
        """This machine with another rate on one link."""
        return self.with_links(replace(self.link(queue), bytes_per_s=bytes_per_s))


def task_seconds(machine: Machine, graph: TaskGraph, task: Task) -> float:
    """How long `task` keeps its engine when nothing slows it down: what was given for it; else a gather its copy, any other task what
    such kernels usually take, and no less than its launch and its roofline."""
    if task.seconds is not None:
        return task.seconds
    times = machine.kernel_times
    if task.gathers:
        return machine.usual_link(Queue.H2D).seconds(graph.tensors[task.result].nbytes) + (0.0 if times is None else times.copies.gather_s)
    least = machine.launch_latency_s + machine.compute_seconds(task.flops, task.bytes_touched, graph.dtype)
    if times is None or (work := work_of(task)) is None:
        return least
    return max(least, times.seconds(work, machine.flops_of(DType.FP32) / machine.flops_of(graph.dtype)))


def all_task_seconds(machine: Machine, graph: TaskGraph) -> list[float]:
    """[task] task_seconds of each, the same figures sooner: a plan is simulated again and again."""
    if machine.kernel_times is not None:
        return _of_alike(graph, lambda task: task_seconds(machine, graph, task))
    flops_per_s, bytes_per_s = dict(machine.flops_per_s).get(graph.dtype, 0.0), machine.device_bytes_per_s
    found = []
    for task in graph.tasks:
        seconds = task.seconds
        if seconds is None and task.gathers:
            seconds = machine.usual_link(Queue.H2D).seconds(graph.tensors[task.result].nbytes)
        elif seconds is None:
            seconds = machine.launch_latency_s + max(task.flops / flops_per_s, task.bytes_touched / bytes_per_s)
        found.append(seconds)
    return found


def task_sharing(machine: Machine, task: Task) -> tuple[float, float]:
    """How many times longer `task` takes while copies are in flight, and copies while it runs; 1 where that is not known."""
    if machine.kernel_times is None or task.seconds is not None or (work := work_of(task)) is None:
        return 1.0, 1.0
    return machine.kernel_times.sharing(work)


def all_task_sharing(machine: Machine, graph: TaskGraph) -> list[tuple[float, float]]:
    """[task] task_sharing of each, the same figures sooner."""
    return _of_alike(graph, lambda task: task_sharing(machine, task))


def _of_alike(graph: TaskGraph, figure: Callable[[Task], Figure]) -> list[Figure]:
    """[task] `figure` of each, asked for once of those that do the same: layers share their jobs."""
    figure_by_work: dict[tuple[int, int, int], Figure] = {}
    found = []
    for task in graph.tasks:
        if task.gathers or task.seconds is not None or task.job is None:
            found.append(figure(task))
            continue
        work = id(task.job), task.flops, task.bytes_touched
        if work not in figure_by_work:
            figure_by_work[work] = figure(task)
        found.append(figure_by_work[work])
    return found


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
