"""Keep, offload or recompute: which tensors are dropped, and made again by a second run of the task that made them.

In: a graph, what plans one, a machine. Out: the fastest plan found, never slower than the one without second runs; or that of a named
policy. A candidate is an interval between two uses in which the plan at hand offloads a tensor: to drop it saves its copies on the links,
and costs its task's seconds and those of what was dropped before it. Those with the most bytes a second (TENSILE, Zhang et al. 2022) are
dropped, twice as many each time, from the best plan on again, then a single one less or more; the simulator says what each set is worth,
so keeping, offloading and recomputing are weighed together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from math import inf
from time import perf_counter
from typing import TypeAlias

import numpy as np

from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TaskId, TensorId
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import GATHER, Nodes, Residencies
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.machine.machine import Machine, all_task_seconds
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.second_runs import ANYWHERE, AgainBefore, Dropped, SecondRuns, may_run_again, with_second_runs

MOST_PLANS = 200
"""Made for one search."""
SEARCHED_AGAIN = 4
"""Sets for which better plans are searched for too, where there is a pace."""

PlanOnce: TypeAlias = Callable[[TaskGraph, Pace | None], MemGraph]
"""Of a graph, searching at a pace; raises DoesNotFit where there is no plan."""


class Recompute(Enum):
    """Which tensors are recomputed; the value is a word of the command line."""

    NEVER = "never"
    FASTEST = "fastest"
    """Those with which the plan is fastest."""
    ALL = "all"
    """All that are offloaded without it, as where every layer is checkpointed."""
    RATIO = "ratio"
    """Of those, the half with the most bytes for each second that their tasks take."""


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """A plan, and what it drops."""

    memgraph: MemGraph
    dropped: frozenset[Dropped]
    seconds: float
    nbytes: int
    """That it moves."""

    @property
    def score(self) -> tuple[float, int]:
        """Less is better."""
        return self.seconds, self.nbytes


def plan_with_second_runs(
    graph: TaskGraph, machine: Machine, planner: PlanOnce, policy: Recompute, pace: Pace | None, again_before: AgainBefore = ANYWHERE
) -> MemGraph:
    """The plan of `graph` under `policy`; no task runs again after the one of `again_before`. With a pace, the plan without second runs is
    searched for at it, and for as long again those with the best sets; while these are chosen its clock stands still. Raises DoesNotFit, as
    `planner` does without second runs, where there is no plan with them either."""
    search, chosen_s = _DroppedSets(graph, machine, planner, again_before), perf_counter()
    found = search.plans(policy)
    if pace is None:
        return found[0].memgraph
    pace.paused(perf_counter() - chosen_s)
    plans, began_s = [found[0]], perf_counter()
    if policy is Recompute.FASTEST and (alone := search.made(frozenset(), pace)) is not None:
        plans.append(alone)
    again = [it for it in found if it.dropped][:SEARCHED_AGAIN]
    seconds = pace.until_s - began_s
    for it in again:
        steps = pace.most_steps if pace.most_steps == inf else -(-pace.most_steps // len(again))
        made = search.made(it.dropped, Pace(steps, perf_counter() + seconds / len(again)))
        plans += [] if made is None else [made]
    return min(plans, key=lambda it: it.score).memgraph


class _DroppedSets:
    def __init__(self, graph: TaskGraph, machine: Machine, planner: PlanOnce, again_before: AgainBefore) -> None:
        self.graph, self.machine, self.planner, self.again_before = graph, machine, planner, again_before
        self.known: dict[frozenset[Dropped], Recomputed | None] = {}
        self.misfit: DoesNotFit | None = None
        self.seconds = all_task_seconds(machine, graph)
        self.maker = {task.result: task.id for task in graph.tasks if may_run_again(task)}
        self.readers: dict[TensorId, list[TaskId]] = {}
        for task in graph.tasks:
            for t in task.reads():
                self.readers.setdefault(t, []).append(task.id)

    def made(self, dropped: frozenset[Dropped], pace: Pace | None = None) -> Recomputed | None:
        """The plan without `dropped`; None where there is none."""
        runs = with_second_runs(self.graph, dropped, self.again_before)
        try:
            memgraph = of_one_graph(self.planner(runs.graph, pace), self.graph, runs)
        except DoesNotFit as misfit:
            self.misfit = self.misfit or misfit
            return None
        return Recomputed(memgraph, dropped, simulate(memgraph, self.machine).makespan_s, all_moved_bytes(memgraph))

    def at(self, dropped: frozenset[Dropped]) -> Recomputed | None:
        """As `made`, once."""
        if dropped not in self.known:
            self.known[dropped] = self.made(dropped)
        return self.known[dropped]

    def plans(self, policy: Recompute) -> list[Recomputed]:
        """Those of `policy`, the best first; of a named one, that alone. Raises DoesNotFit where there is none."""
        alone = self.at(frozenset())
        if policy is Recompute.FASTEST:
            self._search(alone)
            found = sorted((it for it in self.known.values() if it is not None), key=lambda it: it.score)
        else:
            candidates = self.candidates(alone)
            count = {Recompute.ALL: len(candidates), Recompute.RATIO: -(-len(candidates) // 2)}.get(policy, 0)
            found = [it for it in (self.at(frozenset(candidates[:count])),) if it is not None]
        if not found:
            assert self.misfit is not None
            raise self.misfit
        return found

    def _search(self, best: Recomputed | None) -> None:
        """Fills `known`; `best` is the plan without second runs, or None."""
        while True:
            begun = best
            for dropped, is_last in self._sets(begun):
                if len(self.known) >= MOST_PLANS:
                    return
                found = self.at(dropped)
                if found is not None and (best is None or found.score < best.score):
                    best = found
                if is_last and best is not begun:
                    break
            if best is begun:
                return

    def _sets(self, begun: Recomputed | None) -> Iterator[tuple[frozenset[Dropped], bool]]:
        """What to drop beside what `begun` does: more and more of the best candidates; then a single one less, or more. With each, whether
        one that is better need not be compared with those after it."""
        kept = frozenset[Dropped]() if begun is None else begun.dropped
        there = {d.tensor for d in kept}
        candidates = [c for c in self.candidates(begun) if c.tensor not in there]
        count = 1
        while count < 2 * len(candidates):
            count *= 2
            yield kept | frozenset(candidates[: count // 2]), count >= 2 * len(candidates)
        for one in sorted(kept, key=self._ratio):
            yield kept - {one}, True
        for one in candidates[1:]:
            yield kept | {one}, True

    def candidates(self, it: Recomputed | None) -> list[Dropped]:
        """Intervals in which `it` offloads what a task made; without a plan, the longest of each tensor. The best first."""
        found = self._all_intervals() if it is None else self._offloaded(it.memgraph)
        return sorted(filter(self._may_be_made_again, found), key=lambda d: (-self._ratio(d), d))

    def _may_be_made_again(self, d: Dropped) -> bool:
        """Whether what it is made of is not yet written over when it is read again; second runs that read it are not known yet."""
        first = next((reader for reader in self.readers[d.tensor] if reader > d.after), None)
        return first is None or first <= self.again_before.get(self.maker[d.tensor], first)

    def _ratio(self, d: Dropped) -> float:
        """Bytes for each second that its task takes."""
        return self.graph.tensors[d.tensor].nbytes / max(self.seconds[self.maker[d.tensor]], 1e-12)

    def _may_be_dropped(self, t: TensorId) -> bool:
        return t in self.maker and self.graph.tensors[t].kind is Kind.ACTIVATION

    def _all_intervals(self) -> Collection[Dropped]:
        uses = {t: [self.maker[t], *readers] for t, readers in self.readers.items() if self._may_be_dropped(t)}
        gaps = {t: max((b - a, a) for a, b in pairwise(at)) for t, at in uses.items()}
        return {Dropped(t, after) for t, (gap, after) in gaps.items() if gap > 1}

    def _offloaded(self, memgraph: MemGraph) -> Collection[Dropped]:
        """Of what tasks made and is loaded again: after which task it is gone for the first time."""
        nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
        copies = nodes.copies()
        to_device = residencies.at(DEVICE)[copies.target]
        load_node: dict[TensorId, int] = {}
        for node, target in zip(copies.node[to_device].tolist(), copies.target[to_device].tolist(), strict=True):
            t = TensorId(int(residencies.tensor[target]))
            if self._may_be_dropped(t):
                load_node.setdefault(t, node)
        last = {t: self.maker[t] for t in load_node}
        reader = np.repeat(np.repeat(np.arange(len(nodes)), np.diff(nodes.operand_row)), np.diff(nodes.tile_row))
        for node, r in zip(reader.tolist(), nodes.reads.tolist(), strict=True):
            t = TensorId(int(residencies.tensor[r]))
            if t in load_node and node < load_node[t]:
                last[t] = max(last[t], TaskId(int(nodes.subject[node])))
        return {Dropped(t, after) for t, after in last.items()}


def of_one_graph(memgraph: MemGraph, graph: TaskGraph, runs: SecondRuns) -> MemGraph:
    """The plan of `graph` that `memgraph`, one of `runs`, is: copies are residencies of what they are copies of."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    subject, tensor_of = nodes.subject.copy(), np.array(runs.tensor_of, np.int32)
    computes = nodes.kind <= GATHER
    subject[computes] = np.array(runs.task_of, np.int32)[subject[computes]]
    residencies = replace(residencies, tensor=tensor_of[residencies.tensor])
    return replace(memgraph, graph=graph, nodes=replace(nodes, subject=subject), residencies=residencies)
