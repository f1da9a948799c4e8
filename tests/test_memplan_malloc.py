"""The window that is evicted, found by columns of int64 or of Python's ints, is what a plain sweep over the arena finds: at every call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einpage.einsum_front.base.units import ALIGNMENT, Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.graph.recorder import NO_RESIDENCY
from einpage.memplan.horizons import memory, victim
from einpage.memplan.horizons.malloc import Allocator
from einpage.memplan.horizons.memory import NOWHERE, Reservation
from einpage.memplan.horizons.victim import FEW, LARGE, VictimPolicy, traffic
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from strategies import a_machine, random_graph


def plain_window(self: Allocator, reservation: Reservation, nbytes: int, horizon: int) -> list[tuple[int, int, int | None]]:
    """The evictable neighbours, of at least `nbytes`, whose prices sum to least: the leftmost of equals, the shortest of those."""
    memory = self.memory
    price_by_tensor = {}
    for t in range(len(memory.offset)):
        use = None if memory.offset[t] == NOWHERE or memory.pins[t] else memory.reuse.next_use(t)
        if use is not None and use > horizon:
            traffics = np.array([traffic(memory.size[t], memory.host.copy[t] == NO_RESIDENCY)], object)
            price_by_tensor[t] = int(self.price(traffics, np.array([use - reservation.step]))[0])
    segments = list(memory.device.segments())
    best: tuple[int, int, list[tuple[int, int, int | None]]] | None = None
    for first in range(len(segments)):
        total = 0
        for n, (_, end, owner) in enumerate(segments[first:], 1):
            if owner is not None and owner not in price_by_tensor:
                break
            total += 0 if owner is None else price_by_tensor[owner]
            if end - segments[first][0] >= nbytes:
                if best is None or (total, end) <= best[:2]:
                    best = total, end, segments[first : first + n]
                break
    return best[2] if best else []


@pytest.mark.parametrize(("large", "few"), [(0, FEW), (LARGE, FEW), (LARGE, 0)])
def test_the_window_that_is_evicted_is_what_a_plain_sweep_finds(large: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random graphs, aligned or not, in arenas from tight to roomy."""
    monkeypatch.setattr(memory, "LARGE", large)
    monkeypatch.setattr(victim, "FEW", few)
    search = Allocator._evictable_window
    calls = nothing = 0

    def both(self: Allocator, reservation: Reservation, nbytes: int, horizon: int) -> range | None:
        nonlocal calls, nothing
        swept = plain_window(self, reservation, nbytes, horizon)
        found = search(self, reservation, nbytes, horizon)
        segments = list(self.memory.device.segments())
        assert [segments[i] for i in found or ()] == swept
        calls, nothing = calls + 1, nothing + (found is None)
        return found

    monkeypatch.setattr(Allocator, "_evictable_window", both)
    for seed in range(40):
        graph = random_graph(seed, most_ops=14, largest_extent=30, most_pieces=5)
        alignment = (ALIGNMENT, 1)[seed % 2]
        least = largest_footprint(graph, alignment)[1]
        policy = (VictimPolicy.WEIGHTED, VictimPolicy.FARTHEST)[seed // 2 % 2]
        for extra in (0, 4, 16, 64):
            plan(graph, a_machine(), least + extra * (ALIGNMENT if alignment > 1 else 64), PlanOptions(victim=policy, alignment=alignment))
    assert calls > 500
    assert nothing > 5


UNIT = 1 << 34


def of_units(graph: TaskGraph) -> TaskGraph:
    """`graph` with a UNIT of bytes for each byte."""
    return replace(
        graph,
        tensors=tuple(replace(t, box=Box((0,), (t.box.size * UNIT,))) for t in graph.tensors),
        tasks=tuple(replace(task, workspace_bytes=Nbytes(task.workspace_bytes * UNIT)) for task in graph.tasks),
    )


def test_an_arena_of_petabytes_has_the_plan_of_a_small_one() -> None:
    """Prices of that many bytes fit no int64."""
    offloads = 0
    for seed in range(20):
        graph = random_graph(seed, most_ops=14)
        budget = largest_footprint(graph, 1)[1]
        small = plan(graph, a_machine(), budget, PlanOptions(alignment=1))
        large = plan(of_units(graph), a_machine(host_bytes=2**80), budget * UNIT, PlanOptions(alignment=UNIT))
        places = [(r.tensor, r.place, r.extents[0].offset * UNIT) for r in small.residencies]
        assert [(r.tensor, r.place, r.extents[0].offset) for r in large.residencies] == places
        offloads += sum(small.queue(NodeId(n)) == Queue.D2H for n in range(len(small.nodes)))
    assert offloads > 100
