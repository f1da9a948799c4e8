"""The three routines that find bytes for a task at the allocation horizon.

In: a Reservation and what it wants. Out: whether that has its bytes now. `sim_malloc` moves nothing out; `sim_malloc_offload` lets others
leave first; `sim_malloc_force_reload` lays a whole task out afresh, whatever it takes. Whoever used the bytes before becomes a memory edge.
"""

from __future__ import annotations

import numpy as np

from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.memplan.graph.arena import HOLE, Fit
from einpage.memplan.graph.recorder import NO_RESIDENCY
from einpage.memplan.horizons.memory import NOWHERE, WORKSPACE, Memory, Reservation
from einpage.memplan.horizons.victim import FAR, HOLE_LOAD, Column, Price, cheapest_window


class Allocator:
    """The routines over one Memory under two policies."""

    def __init__(self, memory: Memory, fit: Fit, price: Price) -> None:
        self.memory, self.fit, self.price = memory, fit, price

    def sim_malloc(self, it: Reservation, want: TensorId) -> bool:
        """Find bytes without moving anything out; False where no hole is large enough."""
        nbytes = self.memory.size_of(it, want)
        start = self.memory.device.find(nbytes, self.fit) if nbytes else NOWHERE
        if start is None:
            return False
        self.memory.promise(it, want, start)
        return True

    def sim_malloc_offload(self, it: Reservation, want: TensorId, farther_than: int = 0) -> bool:
        """Have the cheapest row of neighbours leave whose next uses are more than so many steps away, then sim_malloc.

        False, and nothing has left, where pinned neighbours leave no such row.
        """
        memory = self.memory
        nbytes = memory.size_of(it, want)
        if memory.loose_bytes + memory.device.free_bytes < nbytes:
            return False
        return self._clear(it, self._loose_row(it, nbytes, it.step + farther_than)) is not None and self.sim_malloc(it, want)

    def sim_malloc_force_reload(self, it: Reservation) -> None:
        """The horizons have met and the task's own operands are in the way: clear one window for all it touches and fill it in order.

        The arena below the residents is such a window, and the footprint fits it, so this always works.
        """
        memory = self.memory
        memory.withdraw(it)
        if memory.footprint(it) > memory.room:
            self._take_early(it)
        cleared = self._clear(it, self._any_row(it, memory.footprint(it)))
        assert cleared is not None, f"task {it.task.name} has a footprint above the arena's {memory.room} bytes"
        start = memory.device.hole_at(cleared)
        for want in memory.wants(it):
            memory.promise(it, want, start)
            start += memory.size_of(it, want)

    def _take_early(self, it: Reservation) -> None:
        """Let the result have the bytes of an operand that others need again: the host has a copy for them."""
        taken = next(t for t in it.task.inplace if not self.memory.is_output[t])
        if self.memory.host.copy[taken] == NO_RESIDENCY:
            self.memory.spill(taken, it)
        it.taken, it.runs_at_once = taken, True

    def _loose_row(self, it: Reservation, nbytes: int, horizon: int) -> range | None:
        """The cheapest neighbours of `nbytes` that no task between the horizons touches and that are needed after step `horizon`."""
        memory = self.memory
        owners = np.frombuffer(memory.device.owners, np.int64)
        until = memory.loose_until.take(owners)
        may = (until > horizon).nonzero()[0]
        return self._row(nbytes, may, memory.loose_load.take(owners.take(may)), until.take(may) - it.step)

    def _any_row(self, it: Reservation, nbytes: int) -> range | None:
        """The cheapest neighbours of `nbytes`, whoever touches them, but for residents."""
        memory = self.memory
        may = [(i, TensorId(t)) for i, t in enumerate(memory.device.owners) if t != WORKSPACE and t not in memory.held]
        loads = [HOLE_LOAD if t == HOLE else memory.load(t) for _, t in may]
        distance = [FAR if t == HOLE else max(memory.reuse.next_use(t) - it.step, 1) for _, t in may]
        segments = np.array([i for i, _ in may], np.int64)
        return self._row(nbytes, segments, np.array(loads, memory.loose_load.dtype), np.array(distance, np.int64))

    def _row(self, nbytes: int, may: Column, loads: Column, distance: Column) -> range | None:
        """The cheapest row of the segments `may` of the arena, holes among them."""
        window = cheapest_window(np.frombuffer(self.memory.device.bounds, np.int64), may, self.price(loads, distance), nbytes)
        return None if window is None else range(*window)

    def _clear(self, it: Reservation, row: range | None) -> int | None:
        """Make one hole by letting a row of neighbours leave; answers an offset inside the hole."""
        memory, arena = self.memory, self.memory.device
        if row is None:
            return None
        start, owners = arena.bounds[row.start], arena.owners[row.start : row.stop]
        for owner in owners:
            if owner != HOLE:
                memory.spill(TensorId(owner), it)
                memory.leave(TensorId(owner))
        return start
