"""States that stay on the device: an update writes the next one over the old, and a step moves neither.

In: a graph, and the tiles of states at the start and at the end. Out: a plan of one step that begins with the firsts on the device and ends
with the lasts there, in the same bytes. As with a loop's residents, it is a plan of the tasks without them, in the arena below; what the
updates make is one number there, until it is put where it belongs.

    bytes   |  [ w1 ][ m1 ]······update·····[ w1'][ m1']     residents at the arena's top       |
            |  -----------------------------------------------------------------------------    |
            |       a plan of the tasks, which read other tensors only                          |
            +------------------------------------------------------------------------------> nodes
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from einpage.einsum_front.algebra.expr import loads
from einpage.einsum_front.base.units import Nbytes, aligned
from einpage.einsum_front.graph.job import Box, MapJob
from einpage.einsum_front.graph.taskgraph import Kind, Task, TaskGraph, TaskId, TensorId, Written
from einpage.exec.train.carried import StatePairs, node_readers, with_frees
from einpage.memplan.graph.memgraph import EdgeKind, MemGraph, ResidencyId
from einpage.memplan.graph.packed import FREE, Nodes, Residencies
from einpage.memplan.graph.recorder import edges_of
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import last_use_by_tensor
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import Problem
from einpage.memplan.problem.second_runs import AgainBefore
from einpage.memplan.residency.loop import with_residents, without
from einpage.memplan.residency.resident_sets import Residents


def updated_last(graph: TaskGraph, pairs: StatePairs) -> TaskGraph:
    """`graph` in an order in which each update comes after all others that read what it replaces; else the order is as it was."""
    writer = {t: task.id for task in graph.tasks for t in task.results}
    waits_for = [{writer[t] for t in task.reads() if t in writer} for task in graph.tasks]
    update_by_first = {first: writer[last] for first, last in pairs}
    for task in graph.tasks:
        for t in task.reads():
            if (update := update_by_first.get(t, task.id)) != task.id:
                waits_for[update].add(task.id)
    followers: list[list[TaskId]] = [[] for _ in graph.tasks]
    for task in graph.tasks:
        for earlier in waits_for[task.id]:
            followers[earlier].append(task.id)
    missing = [len(earlier) for earlier in waits_for]
    ready, order = [task.id for task in graph.tasks if not missing[task.id]], list[TaskId]()
    while ready:
        order.append(heappop(ready))
        for later in followers[order[-1]]:
            missing[later] -= 1
            if not missing[later]:
                heappush(ready, later)
    assert len(order) == len(graph.tasks), "updates wait for one another"
    return replace(graph, tasks=tuple(replace(graph.tasks[t], id=TaskId(n)) for n, t in enumerate(order)))


def updated_in_place(graph: TaskGraph, pairs: StatePairs) -> TaskGraph:
    """`graph` whose updates may write over the state that they read, where they read it element by element."""
    first_by_last = {last: first for first, last in pairs}

    def over_first(task: Task, one: Written) -> Written:
        first = first_by_last.get(one.tensor)
        return one if first is None or not _alone(task, first) else replace(one, inplace=(*one.inplace, first))

    return replace(graph, tasks=tuple(task.with_written([over_first(task, one) for one in task.written]) for task in graph.tasks))


def again_before(graph: TaskGraph, pairs: StatePairs) -> AgainBefore:
    """Of tasks that read or make states, the first that makes the next of one: from then on the old one may be written over, whether it is
    resident or goes home."""
    writer = {t: task.id for task in graph.tasks for t in task.results}
    update_by_first = {first: writer[last] for first, last in pairs}
    found = {update: update for update in update_by_first.values()}
    for task in graph.tasks:
        for t in task.reads():
            if (update := update_by_first.get(t)) is not None:
                found[task.id] = min(update, found.get(task.id, update))
    return found


def _alone(task: Task, first: TensorId) -> bool:
    """Whether `task` reads each element of `first` for that of its results alone."""
    job = task.job
    if not isinstance(job, MapJob) or (first,) not in task.operands:
        return False
    view = job.reads[task.operands.index((first,))]
    read = [(part.target, load) for part in job.parts for load in loads(part.expr) if load.name == view.name]
    same = view.boxes == job.result.boxes and view.element_type is job.result.element_type
    return same and all(load.indices == target for target, load in read)


def _may_replace(update: Task, one: Written, first: TensorId, last_use: int | None) -> bool:
    """Whether `update`, which nothing that reads `first` comes after, may write into its bytes: it reads it in place, or not at all."""
    if first in update.reads():
        return last_use == update.id and first in one.inplace
    return last_use is None or last_use < update.id


@dataclass(frozen=True, slots=True)
class ResidentTiles:
    """What is resident on the device from step to step."""

    states: StatePairs
    frozen: tuple[TensorId, ...]
    """Weights that do not train."""

    @property
    def tensors(self) -> tuple[TensorId, ...]:
        """At the start."""
        return (*(first for first, _ in self.states), *self.frozen)

    def nbytes(self, graph: TaskGraph) -> int:
        """Of the arena."""
        return sum(aligned(graph.tensors[t].nbytes) for t in self.tensors)


def resident_within(graph: TaskGraph, pairs: StatePairs, most: int) -> ResidentTiles:
    """As much as fits in `most` bytes: first weights that train, which a step reads more than once, then others, then what is kept for the
    first; of those that train not what a task gathers from on the host, nor what is read after its update."""
    gathered = {t for task in graph.tasks if task.gathers for operand in task.operands for t in operand}
    read = {t for task in graph.tasks if not task.gathers for t in task.reads()}
    last_use = last_use_by_tensor(graph)
    writer = {one.tensor: (task, one) for task in graph.tasks for one in task.written}
    updates = {(first, last) for first, last in pairs if _may_replace(*writer[last], first, last_use.get(first))}
    trained = [pair for pair in pairs if pair[0] not in gathered and pair in updates]
    carried = {first for first, _ in pairs}
    frozen = [t.id for t in graph.tensors if t.kind is Kind.WEIGHT and t.id in read and t.id not in carried]
    states, others = list[tuple[TensorId, TensorId]](), list[TensorId]()
    for kind in (Kind.WEIGHT, None, Kind.INPUT):
        for first, last in [pair for pair in trained if graph.tensors[pair[0]].kind is kind] if kind else ((t, t) for t in frozen):
            nbytes = aligned(graph.tensors[first].nbytes)
            if nbytes <= most:
                most -= nbytes
                (states.append((first, last)) if kind else others.append(first))
    return ResidentTiles(tuple(states), tuple(others))


def plan_beside(
    graph: TaskGraph, machine: Machine, budget_bytes: int, options: PlanOptions, kept: ResidentTiles, pace: Pace | None = None
) -> MemGraph:
    """A plan in which `kept` is on the device throughout. Raises DoesNotFit where that leaves too little to some task."""
    pairs, residents = kept.states, Residents(kept.tensors, True)
    lasts = {last for _, last in pairs}
    problem = Problem(graph, machine, tuple(task.id for task in graph.tasks), Nbytes(budget_bytes), options.alignment)
    rest = without(replace(problem, graph=_with_numbers(graph, lasts)), residents)
    below = plan(rest.graph, machine, rest.budget_bytes, options, pace)
    return _in_place(with_residents(below, problem, residents), pairs)


def _with_numbers(graph: TaskGraph, lasts: Collection[TensorId]) -> TaskGraph:
    """`graph` in which each of `lasts` is one number that nobody reads."""
    tensors = tuple(
        replace(t, box=Box(t.box.start, tuple(n + 1 for n in t.box.start)), kind=Kind.ACTIVATION) if t.id in lasts else t
        for t in graph.tensors
    )
    tasks = tuple(task.with_written([Written(one.tensor) if one.tensor in lasts else one for one in task.written]) for task in graph.tasks)
    return replace(graph, tensors=tensors, tasks=tasks)


def _in_place(plan: MemGraph, pairs: StatePairs) -> MemGraph:
    """`plan`, whose lasts are numbers somewhere: each in the bytes of its first from its update on, which comes after all that read it."""
    nodes, residencies, edges = Nodes.of(plan.nodes), Residencies.of(plan.residencies), plan.edges
    on_device = residencies.at(DEVICE)
    first_at = {int(residencies.tensor[r]): int(r) for r in plan.start if on_device[r]}
    maker, made_there = (column.tolist() for column in nodes.made_by_tasks())
    made_by = {int(residencies.tensor[r]): (n, r) for n, r in zip(maker, made_there, strict=True)}
    update_by_last = {made_by[last][1]: made_by[last][0] for _, last in pairs}
    freed = np.flatnonzero((nodes.kind == FREE) & np.isin(nodes.subject, np.array(sorted(update_by_last), np.int32)))
    standing_in = {int(n): update_by_last[int(nodes.subject[n])] for n in freed}
    at, offset, nbytes = residencies.extent_row[:-1], residencies.offset.copy(), residencies.nbytes.copy()
    more: list[tuple[int, int]] = []
    unread: dict[int, list[int]] = {}
    """By an update, the residencies that it writes over without reading them."""
    readers = node_readers(nodes, set(first_at.values()))
    for first, last in pairs:
        (update, made), r = made_by[last], first_at[first]
        offset[at[made]], nbytes[at[made]] = offset[at[r]], nbytes[at[r]]
        assert max(readers.get(r, [update])) <= update, "a state on the device is read after its update"
        if update in readers.get(r, ()):
            more += [(reader, update) for reader in readers[r] if reader != update]
        else:
            unread.setdefault(update, []).append(r)
    source = np.array([standing_in.get(n, n) for n in edges.source.tolist()] + [n for n, _ in more], np.int64)
    target = np.array(edges.target.tolist() + [n for _, n in more], np.int64)
    kind = np.where(np.isin(edges.source, freed), int(EdgeKind.MEMORY), edges.kind).tolist() + [int(EdgeKind.MEMORY)] * len(more)
    kept = ~np.isin(target, freed) & (source != target)
    number = np.cumsum(~np.isin(np.arange(len(nodes)), freed)) - 1
    ended = {first_at[first] for first, _ in pairs}
    states = {last for _, last in pairs}
    graph = replace(plan.graph, tensors=tuple(replace(t, kind=Kind.STATE) if t.id in states else t for t in plan.graph.tensors))
    made_plan = replace(
        plan,
        graph=graph,
        residencies=replace(residencies, offset=offset, nbytes=nbytes),
        nodes=tuple(node for n, node in enumerate(nodes) if n not in standing_in),
        edges=edges_of(number[source[kept]], number[target[kept]], np.array(kind, np.int64)[kept]),
        end=(*(r for r in plan.end if r not in ended), *(ResidencyId(made_by[last][1]) for _, last in pairs)),
        loops=False,
        carried=pairs,
    )
    return with_frees(made_plan, Nodes.of(made_plan.nodes), {int(number[update]): ending for update, ending in unread.items()})
