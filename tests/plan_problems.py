"""Problems as tests of the offline planner state them: slots of a graph in an arena a little larger than it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from hypothesis import assume

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.machine.machine import Machine
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import Slots, slots_of
from einpage.memplan.residency.policies import (
    Headroom,
    ResidentIntervals,
    by_lifetime,
    by_pressure,
    evened,
    nearest,
    pin_evenly,
    pin_first,
    rounded,
    stream_all,
)
from einpage.memplan.schedule.live_ranges import LiveRanges, Placement
from strategies import a_machine, random_graph

IntervalPolicy: TypeAlias = Callable[[Accesses, Headroom], ResidentIntervals]
POLICIES: tuple[IntervalPolicy, ...] = (
    nearest, by_lifetime, by_pressure, stream_all, pin_first, pin_evenly,
    lambda a, headroom: rounded(a, headroom, np.linspace(0, 1, len(a.tensor))),
    lambda a, headroom: evened(a, headroom, np.linspace(0, 1, len(a.tensor))),
)  # fmt: skip


def in_arena(slots: Slots, budget_bytes: int) -> Slots:
    """`slots` with that many bytes of arena; they do not depend on them."""
    return replace(slots, problem=replace(slots.problem, budget_bytes=Nbytes(budget_bytes)))


def slots_for(graph: TaskGraph, machine: Machine, extra: int = 0, alignment: int = 256) -> Slots:
    """In `extra` bytes more than the largest footprint. Inside a property test only: graphs without slots are passed over."""
    slots = slots_of(problem_of(graph, machine, budget_of(graph, extra, alignment), alignment=alignment))
    assume(slots is not None)
    assert slots is not None
    return slots


def random_slots(seeds: int, most_ops: int, extra: int, machine: Machine | None = None, alignment: int = 256) -> Iterator[Slots]:
    """The slots of so many random graphs, without those that have none."""
    for seed in range(seeds):
        graph = random_graph(seed, most_ops=most_ops)
        problem = problem_of(graph, machine or a_machine(), budget_of(graph, extra, alignment), alignment=alignment)
        slots = slots_of(problem)
        if slots is not None:
            yield slots


def budget_of(graph: TaskGraph, extra: int, alignment: int = 256) -> int:
    """Not aligned."""
    return largest_footprint(graph, alignment)[1] + extra


def headroom_of(slots: Slots) -> Headroom:
    headroom: Headroom = slots.problem.capacity - slots.accesses.footprint
    return headroom


def apart(ranges: LiveRanges) -> Placement:
    """Every live range on bytes of its own, for as long as it is full."""
    *offsets, _ = accumulate((r.nbytes for r in ranges.full), initial=0)
    return Placement(tuple(offsets), tuple(r.start for r in ranges.full), tuple(r.end for r in ranges.full))
