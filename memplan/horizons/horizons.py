"""The online planner: an execution is simulated with two positions in one order of tasks.

In: a Problem, and the tensors resident from the start. Out: a MemGraph, the same bytes for the same input.

    tasks   0   1   2   3   4   5   6   7
                    ▲           ▲
        execution horizon   allocation horizon: bytes are reserved and reloads started up to here
        tasks up to here have run, the dead are freed; what the tasks in flight, between the two, touch is pinned
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Task, TensorId
from einpage.memplan.graph.arena import FIT_BY_POLICY, FitPolicy
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.recorder import Recorder
from einpage.memplan.horizons.malloc import Allocator
from einpage.memplan.horizons.memory import Memory, Reservation
from einpage.memplan.horizons.reuse import Reuse, Step
from einpage.memplan.horizons.victim import VictimPolicy, price_of
from einpage.memplan.machine.places import DEVICE, HOST
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.resident_sets import NO_RESIDENTS, Residents


@dataclass(frozen=True, slots=True)
class HorizonOptions:
    """Each can be switched alone; every combination gives a correct plan."""

    victim: VictimPolicy = VictimPolicy.WEIGHTED
    """Which tensors are evicted first when bytes are needed."""
    fit: FitPolicy = FitPolicy.BEST
    """Which hole is used."""
    prefetch: bool = True
    """The allocation horizon runs ahead; without it a task's reloads start when the task before has run."""
    evict_ahead: bool = True
    """A reload evicts tensors of farther next use before the horizons meet, while little has been prefetched."""
    prefetch_bytes: Nbytes | None = None
    """How much is prefetched by evicting ahead; None: a sixteenth of the budget."""
    seed: int = 0
    """Used by RANDOM policies only."""


def plan_by_horizons(problem: Problem, options: HorizonOptions, residents: Residents = NO_RESIDENTS) -> MemGraph:
    """The plan that the two horizons make. Raises DoesNotFit where the host is full; every task has to fit the arena."""
    with garbage_collection_paused():
        horizons = Horizons(problem, options, residents)
        horizons.run()
    memory, recorder = horizons.memory, horizons.recorder
    return MemGraph(
        graph=problem.graph,
        arenas=((DEVICE, problem.budget_bytes), (HOST, memory.host.nbytes)),
        residencies=recorder.residencies.finish(),
        nodes=recorder.nodes.finish(),
        edges=recorder.edges.finish(),
        start=memory.start,
        end=memory.end(),
        alignment=problem.alignment,
    )


class Horizons:
    """The two positions; the tasks between them are in flight: they have reserved their bytes and have not run."""

    def __init__(self, problem: Problem, options: HorizonOptions, residents: Residents = NO_RESIDENTS) -> None:
        self.order: Sequence[Task] = problem.tasks
        self.options = options
        self.recorder = Recorder(problem.graph)
        self.memory = Memory(problem, Reuse(problem.graph, problem.order), self.recorder, residents)
        self.malloc = Allocator(self.memory, FIT_BY_POLICY[options.fit], price_of(options.victim, options.seed))
        self.in_flight: deque[Reservation] = deque()
        self.prefetched_bytes = 0
        """Bytes loaded for tasks in flight."""
        self.prefetch_target = problem.budget_bytes // 16 if options.prefetch_bytes is None else options.prefetch_bytes

    def run(self) -> None:
        """Plan all tasks: the nodes are in `recorder` afterwards. Raises DoesNotFit where the host is full."""
        for step, task in enumerate(self.order):
            self.allocate(Step(step), task)
            if self.in_flight[-1].runs_at_once or not self.options.prefetch:
                self.execute_one()
        while self.in_flight:
            self.execute_one()

    def allocate(self, step: Step, task: Task) -> None:
        """The allocation horizon passes `task`."""
        reservation = self.memory.admit(step, task)
        for needed in self.memory.needs(reservation):
            if not self.find_bytes(reservation, needed):
                self.malloc.sim_malloc_force_reload(reservation)
                break
        self.in_flight.append(reservation)
        self.prefetched_bytes += reservation.prefetched_bytes

    def find_bytes(self, reservation: Reservation, needed: TensorId) -> bool:
        """Find bytes: at once, by evicting ahead, by executing, by evicting. False: the task's own operands are in the way."""
        if self.malloc.sim_malloc(reservation, needed):
            return True
        if self.evicts_ahead(reservation, needed) and self.malloc.sim_malloc_offload(reservation, needed, farther_than=len(self.in_flight)):
            return True
        while self.in_flight:
            self.execute_one()
            if self.malloc.sim_malloc(reservation, needed):
                return True
        return self.malloc.sim_malloc_offload(reservation, needed)

    def evicts_ahead(self, reservation: Reservation, needed: TensorId) -> bool:
        """Whether to evict before the horizons meet: for a reload, while little has been prefetched."""
        prefetched = self.prefetched_bytes + reservation.prefetched_bytes
        return self.options.evict_ahead and prefetched < self.prefetch_target and needed in reservation.reads

    def execute_one(self) -> None:
        """The execution horizon passes one task."""
        reservation = self.in_flight.popleft()
        self.memory.execute(reservation)
        self.prefetched_bytes -= reservation.prefetched_bytes
