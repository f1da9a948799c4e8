"""What a plan loses when times are not what it was made for.

In: a plan made with nominal times, and how far off each task and each copy really is. Out: its makespan with those times, beside that of a
plan made knowing them. Edges alone make a plan right, so noise changes when nodes run, never what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.graph.taskgraph import Task, TaskGraph
from einpage.memplan.graph.memgraph import Compute, Free, HostGather, MemGraph, Move
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.machine.machine import Machine, op_seconds, task_seconds
from einpage.memplan.machine.places import Link, PlaceKind, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.pace import pace_in_steps

Factors = NDArray[np.float64]


class Spread(Enum):
    EACH = "each"
    """Every task and every tensor's copy is off by its own factor: kernels and copies jitter."""
    ENGINE = "engine"
    """All tasks are off by one factor, all copies of a link by another: the profile is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Real times as multiples of nominal ones."""

    task: Factors
    """[task]"""
    load: Factors
    """[tensor] of its copies to the device, gathers among them."""
    store: Factors
    """[tensor] of its copies to the host."""


def drawn(graph: TaskGraph, share: float, seed: int, spread: Spread) -> Noise:
    """Factors even over [1 - share, 1 + share]; the same for the same seed."""
    random = np.random.default_rng(seed)
    tasks, tensors = len(graph.tasks), len(graph.tensors)
    if spread is Spread.EACH:
        of_tasks, loads, stores = (random.uniform(1 - share, 1 + share, n) for n in (tasks, tensors, tensors))
        return Noise(of_tasks, loads, stores)
    task, load, store = random.uniform(1 - share, 1 + share, 3)
    return Noise(np.full(tasks, task), np.full(tensors, load), np.full(tensors, store))


def known(graph: TaskGraph, machine: Machine, noise: Noise) -> tuple[TaskGraph, Machine]:
    """What a planner is told who knows the real times: those of tasks one by one, those of copies as their links' mean rates."""
    nominal = [task_seconds(machine, graph, task) for task in graph.tasks]
    tasks = tuple(_with_seconds(task, nominal[task.id], noise) for task in graph.tasks)
    before, after = np.zeros(len(graph.ops)), np.zeros(len(graph.ops))
    np.add.at(before, [task.op for task in graph.tasks], nominal)
    np.add.at(after, [task.op for task in graph.tasks], np.array(nominal) * noise.task)
    off = (after / np.where(before > 0, before, 1)).tolist()
    ops = tuple(op if op.kind == "gather" else replace(op, seconds=op_seconds(machine, graph, op) * off[op.id]) for op in graph.ops)
    nbytes = [t.nbytes for t in graph.tensors]
    load, store = (float(np.average(of_link, weights=nbytes)) for of_link in (noise.load, noise.store))
    slower = {Queue.H2D: load, Queue.D2H: store}
    links = tuple(Link(link.queue, link.bytes_per_s / slower[link.queue], link.latency_s * load) for link in machine.links)
    return replace(graph, tasks=tasks, ops=ops), machine.with_links(*links)


def _with_seconds(task: Task, seconds: float, noise: Noise) -> Task:
    if not task.gathers:
        return replace(task, seconds=seconds * float(noise.task[task.id]))
    return task if task.seconds is None else replace(task, seconds=seconds * float(noise.load[task.result]))


def factors(memgraph: MemGraph, noise: Noise) -> Factors:
    """[node] what multiplies the nominal duration."""
    residencies, found = memgraph.residencies, np.ones(len(memgraph.nodes))
    for n, node in enumerate(memgraph.nodes):
        match node:
            case Compute():
                found[n] = noise.task[node.task]
            case HostGather():
                found[n] = noise.load[residencies[node.creates].tensor]
            case Move():
                sources = [residencies[source] for source, _ in node.copies]
                nbytes = [source.extents[0].nbytes for source in sources]
                off = [(noise.load if s.place.kind is PlaceKind.HOST else noise.store)[s.tensor] for s in sources]
                found[n] = np.average(off, weights=nbytes)
            case Free():
                pass
    return found


def loss(nominal: MemGraph, machine: Machine, noise: Noise, options: PlanOptions | None = None, steps: int = 0) -> float:
    """Makespan of `nominal`, a plan that `options` made, over that of the plan that is found knowing the times in so many `steps`; both
    with the real times.

    Under 1 where not knowing was lucky. Raises what `plan` raises.
    """
    graph = nominal.graph
    knowing = plan(*known(graph, machine, noise), nominal.budget_bytes, options, pace_in_steps(steps))
    blind_s, knowing_s = (simulate(p, machine, factors(p, noise)).makespan_s for p in (nominal, replace(knowing, graph=graph)))
    return blind_s / knowing_s
