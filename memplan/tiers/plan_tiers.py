"""Three places: a plan of the device, and of what it copies a plan of the host, which has a budget and a disk behind it.

In: whoever plans the device for a machine, the Machine, the host's budget. Out: a MemGraph with the places device, host and disk. The
device is planned with its links at the rate of the slower of their two ends, and at their own; its copies are the accesses of the host
(trace.py), which is planned as a device is, with the disk for a host; and both become one plan (join.py). A tensor that is on the
device makes no copies, so the host does not hold it: tiers are exclusive.

    disk   w0 w1 w2 w3 w4 w5 w6 w7            all weights, and what is spilled from the host
    host          w2 |w4: on its way| w6      residents, and what is on its way
    device    w1 |w0: on its way|
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import takewhile
from typing import TypeVar

import numpy as np

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import Timeline, read_cost_s, simulate
from einpage.memplan.horizons.horizons import HorizonOptions, plan_by_horizons
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import SECTOR, Link, Queue
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.problem import Problem, problem_of
from einpage.memplan.residency.loop import with_residents, without
from einpage.memplan.residency.resident_sets import LoopSets, Residents
from einpage.memplan.tiers.join import joined, pinned_bytes
from einpage.memplan.tiers.trace import TierTrace, events_of, sector_bytes_of, tier_trace

AS_FAST = 1.01
"""Of plans that take no longer than this multiple of the fastest, the one whose reads cost least is taken."""
BUSY = 0.95
"""A disk that reads for this share of a pass is what limits it: a plan for faster links would read more."""
_DISK_BYTES = 2**60
"""As many as anybody spills."""


class Pacing(Enum):
    """The links that the device is planned with."""

    DISK = "disk"
    """As fast as those between the host and the disk at most, which makes fewest bytes where the disk is what limits a plan."""
    OWN = "own"


Plan = TypeVar("Plan")

PlanDevice = Callable[[Machine, bool], MemGraph]
"""plan_device(machine, even): a plan of the device whose host holds everything; of a loop, with residents spread evenly if `even`."""


def plan_tiers(
    graph: TaskGraph, machine: Machine, host_bytes: int, plan_device: PlanDevice, skew: Mapping[str, int] | None = None,
    resident: Sequence[str] = (), paced_by: Pacing | None = None,
) -> MemGraph:  # fmt: skip
    """The plan of `graph` in a host arena of `host_bytes`. `skew` [weight by name] is at which byte of a sector it begins on the disk, 0
    for others; `resident` are the names of weights that a loop has on the host throughout whatever others are, from its top downwards, as
    far as they fit. With `paced_by` the device is planned for these links alone.

    Raises DoesNotFit, with the host's smallest budget; UsageError where the machine has no link to a disk; and as `plan_device`.
    """
    _refuse_no_disk(machine)
    skews = [0 if skew is None else skew.get(t.name, 0) % SECTOR for t in graph.tensors]
    plan_by_pacing: dict[Pacing, MemGraph] = {}

    def plan_paced(pacing: Pacing) -> tuple[MemGraph, Timeline]:
        device = plan_device(_device_machine(machine, pacing), pacing is Pacing.OWN)
        plan_by_pacing[pacing] = found = _behind(device, machine, host_bytes, skews, resident)
        return found, simulate(found, machine)

    return plan_by_pacing[best_paced(plan_paced, machine, Pacing if paced_by is None else (paced_by,))]


def best_paced(plan_paced: Callable[[Pacing], tuple[MemGraph, Timeline]], machine: Machine, pacings: Iterable[Pacing]) -> Pacing:
    """That of these with the better plan; the first is enough where it keeps the disk busy. Raises DoesNotFit, of the plan that needs
    least, where none fits."""
    tried: list[tuple[float, float, Pacing]] = []
    refused: list[DoesNotFit] = []
    for pacing in pacings:
        try:
            found, line = plan_paced(pacing)
        except DoesNotFit as error:
            refused.append(error)
            continue
        tried.append((line.makespan_s, read_cost_s(found, machine.usual_link(Queue.READ)), pacing))
        if dict(line.busy_s).get(Queue.READ, 0.0) >= BUSY * line.makespan_s:
            break
    if not tried:
        raise min(refused, key=lambda error: error.misfit.smallest_budget or 0)
    return cheapest_reads(tried)


def _behind(device: MemGraph, machine: Machine, host_bytes: int, skews: Sequence[int], resident: Sequence[str]) -> MemGraph:
    """`device`, and the best plan of the host behind it."""
    graph = device.graph
    alone = simulate(device, machine)
    trace = tier_trace(device, _seconds(device, alone), skews)
    base = pinned_bytes(graph, device)
    problem = problem_of(trace.graph, _tier_machine(machine), host_bytes - base, alignment=SECTOR)
    _refuse_small_host(problem, device, skews, host_bytes, base)
    if not device.loops:
        return joined(device, trace, plan_by_horizons(problem, HorizonOptions()), host_bytes)
    return _loop(problem, machine, device, alone.makespan_s, trace, host_bytes, resident)


def cheapest_reads(tried: Sequence[tuple[float, float, Plan]]) -> Plan:
    """Of plans, with their seconds and what their reads cost, the one whose reads cost least among those as fast as the fastest."""
    enough = AS_FAST * min(seconds for seconds, _, _ in tried)
    return min((it for it in tried if it[0] <= enough), key=lambda it: it[1])[2]


def _loop(
    problem: Problem, machine: Machine, device: MemGraph, alone_s: float, trace: TierTrace, host_bytes: int, resident: Sequence[str]
) -> MemGraph:  # fmt: skip
    """Of loops with different residents of the host, the one whose reads cost least among those as fast as the fastest. Which are, the
    clock of the trace says, whose tasks take as long as the device takes to ask for the next copy; those with the cheapest reads are joined
    first, until one is as fast as that, or as the device whose host has all of it (`alone_s`)."""
    read = machine.usual_link(Queue.READ)
    tried: list[tuple[float, float, MemGraph]] = []
    named = _named(problem, resident)
    rest = without(problem, Residents(named, True))

    def seconds_with(others: Residents) -> float:
        residents = Residents((*named, *others.tensors), True)
        tier = with_residents(plan_by_horizons(without(problem, residents), HorizonOptions()), problem, residents)
        seconds = simulate(tier, problem.machine).makespan_s
        tried.append((seconds, read_cost_s(tier, read, Queue.H2D), tier))
        return seconds

    search = LoopSets(rest, even=True).search()
    with suppress(StopIteration):
        seconds = seconds_with(next(search))
        while True:
            seconds = seconds_with(search.send(seconds))
    enough = AS_FAST * min(seconds for seconds, _, _ in tried)
    none_faster_s = max(enough, AS_FAST * alone_s)
    both: list[tuple[float, float, MemGraph]] = []
    for _, cost_s, tier in sorted((it for it in tried if it[0] <= enough), key=lambda it: it[1]):
        found = joined(device, trace, tier, host_bytes)
        both.append((simulate(found, machine).makespan_s, cost_s, found))
        if both[-1][0] <= none_faster_s:
            break
    return cheapest_reads(both)


def _named(problem: Problem, names: Sequence[str]) -> tuple[TensorId, ...]:
    """The weights of these names, as many of the first as leave enough to every task."""
    number = {t.name: t.id for t in problem.graph.tensors if t.kind is Kind.WEIGHT}
    found = tuple(number[name] for name in takewhile(number.__contains__, names))
    fits = bisect_left(range(len(found) + 1), True, key=lambda n: not _fits(without(problem, Residents(found[:n], True))))
    return found[: fits - 1]


def _fits(problem: Problem) -> bool:
    return largest_footprint(problem.graph, problem.alignment)[1] <= problem.capacity


def _seconds(device: MemGraph, timeline: Timeline) -> Sequence[float]:
    """[event] how much later each copy ends than those before it: together, how fast the device asks for them."""
    ends = np.maximum.accumulate([timeline.finish_s[n] for n, _ in events_of(device)])
    found: list[float] = np.diff(ends, prepend=0.0).tolist()
    return found


def _device_machine(machine: Machine, pacing: Pacing) -> Machine:
    """`machine` with a host that holds everything, and links that are paced so."""
    if pacing is Pacing.DISK:
        pairs = (Queue.H2D, Queue.READ), (Queue.D2H, Queue.WRITE)
        machine = machine.with_links(*(_slower(machine.usual_link(near), machine.usual_link(far)) for near, far in pairs))
    return replace(machine, host_bytes=_DISK_BYTES)


def _refuse_no_disk(machine: Machine) -> None:
    known = {link.queue for link in machine.links}
    for queue in (Queue.READ, Queue.WRITE):
        if queue not in known:
            cure = "list it under `links:` in a profile, or measure one: einpage machine --measure"
            raise UsageError(f"a host budget needs a disk, and machine {machine.name} has no link {queue.title}: {cure}")


def _slower(near: Link, far: Link) -> Link:
    return replace(near, bytes_per_s=min(near.bytes_per_s, far.bytes_per_s))


def _tier_machine(machine: Machine) -> Machine:
    """The host as a device, with the disk behind it, whose copies overlap."""
    read, write = machine.usual_link(Queue.READ), machine.usual_link(Queue.WRITE)
    links = Link(Queue.H2D, read.bytes_per_s), Link(Queue.D2H, write.bytes_per_s)
    return replace(machine.at_best().with_links(*links), host_bytes=_DISK_BYTES, launch_latency_s=0.0)


def _refuse_small_host(problem: Problem, device: MemGraph, skews: Sequence[int], host_bytes: int, base: int) -> None:
    """Raise DoesNotFit where inputs, outputs and the largest copy do not fit the host together, that of what is resident before the first
    task included."""
    task, least = largest_footprint(problem.graph, SECTOR)
    for t in device.resident:
        least = max(least, sector_bytes_of(device.graph.tensors[t].nbytes, skews[t]))
    if base + least <= host_bytes // SECTOR * SECTOR:
        return
    name, free = problem.graph.tasks[task].name if problem.graph.tasks else "(before the first)", max(0, host_bytes - base)
    raise DoesNotFit(Misfit(name, "host", int(least), free, free, Nbytes(host_bytes), (("inputs and outputs", base),), int(base + least)))
