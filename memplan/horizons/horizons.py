"""The online planner: an execution is simulated with two positions in one order of tasks.

In: a Problem, and who is resident throughout. Out: a MemGraph, the same bytes for the same input.

    tasks   0   1   2   3   4   5   6   7
                    ▲           ▲
        execution horizon   allocation horizon: bytes are reserved and reloads started up to here
        tasks up to here have run; the dead are freed; what lies between is pinned
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Task, TensorId
from einpage.memplan.graph.arena import FIT_BY_POLICY, FitPolicy
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.recorder import Recorder
from einpage.memplan.horizons.malloc import Allocator
from einpage.memplan.horizons.memory import Memory, Reservation
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.horizons.victim import VictimPolicy, price_of
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.resident_sets import NOBODY, Residents


@dataclass(frozen=True, slots=True)
class HorizonOptions:
    """Each can be switched alone; every combination gives a correct plan."""

    victim: VictimPolicy = VictimPolicy.WEIGHTED
    """Who leaves first when bytes are wanted."""
    fit: FitPolicy = FitPolicy.BEST
    """Which hole is used."""
    prefetch: bool = True
    """The allocation horizon runs ahead; without it each task's reloads start when the task before has run."""
    evict_ahead: bool = True
    """Tensors needed farther away leave for a reload before the horizons meet, when little has been brought in ahead."""
    ahead_bytes: Nbytes | None = None
    """What `evict_ahead` keeps brought in ahead; None: a sixteenth of the budget."""
    seed: int = 0
    """Used by RANDOM policies only."""


def plan_by_horizons(problem: Problem, options: HorizonOptions, residents: Residents = NOBODY) -> MemGraph:
    """The plan that the two horizons make. Raises DoesNotFit where the host is full; every task has to fit the arena."""
    with collector_at_rest():
        horizons = Horizons(problem, options, residents)
        horizons.run()
    memory, recorder = horizons.memory, horizons.recorder
    return MemGraph(
        graph=problem.graph,
        budget_bytes=problem.budget_bytes,
        host_bytes=memory.host.nbytes,
        residencies=recorder.residencies.finish(),
        nodes=recorder.nodes.finish(),
        edges=recorder.edges.finish(),
        start=memory.start,
        end=memory.end(),
        alignment=problem.alignment,
    )


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No search for cycles of garbage: the horizons make none, and each search looks at all objects of the graph."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()


class Horizons:
    """The two positions. Tasks in `between` have been promised their bytes and have not run."""

    def __init__(self, problem: Problem, options: HorizonOptions, residents: Residents = NOBODY) -> None:
        self.order: Sequence[Task] = problem.tasks
        self.options = options
        self.recorder = Recorder(problem.graph)
        self.memory = Memory(problem, Reuse(problem.graph, problem.order), self.recorder, residents)
        self.malloc = Allocator(self.memory, FIT_BY_POLICY[options.fit], price_of(options.victim, options.seed))
        self.between: deque[Reservation] = deque()
        self.ahead_bytes = 0
        """Bytes brought in for tasks in `between`."""
        self.ahead_wanted = problem.budget_bytes // 16 if options.ahead_bytes is None else options.ahead_bytes

    def run(self) -> None:
        for step, task in enumerate(self.order):
            self.allocate(Step(step), task)
            if self.between[-1].runs_at_once or not self.options.prefetch:
                self.execute_one()
        while self.between:
            self.execute_one()

    def allocate(self, step: Step, task: Task) -> None:
        """The allocation horizon passes `task`."""
        it = self.memory.reserve(step, task)
        for want in self.memory.wants(it):
            if not self.find_bytes(it, want):
                self.malloc.sim_malloc_force_reload(it)
                break
        self.between.append(it)
        self.ahead_bytes += it.ahead_bytes

    def find_bytes(self, it: Reservation, want: TensorId) -> bool:
        """Find bytes: at once, by evicting ahead, by waiting, by evicting. False: the task's own operands are in the way."""
        if self.malloc.sim_malloc(it, want):
            return True
        if self.evicts_ahead_for(it, want) and self.malloc.sim_malloc_offload(it, want, farther_than=len(self.between)):
            return True
        while self.between:
            self.execute_one()
            if self.malloc.sim_malloc(it, want):
                return True
        return self.malloc.sim_malloc_offload(it, want)

    def evicts_ahead_for(self, it: Reservation, want: TensorId) -> bool:
        """Whether others should leave before the horizons meet: for a reload, where little has been brought in ahead."""
        return self.options.evict_ahead and self.ahead_bytes + it.ahead_bytes < self.ahead_wanted and want in it.reads

    def execute_one(self) -> None:
        """The execution horizon passes one task."""
        it = self.between.popleft()
        self.memory.execute(it)
        self.ahead_bytes -= it.ahead_bytes
