"""The three routines that find bytes for a task at the allocation horizon.

In: a Reservation and a tensor that it needs. Out: whether that has its bytes now. `sim_malloc` evicts nothing; `sim_malloc_offload` evicts
a window of tensors first; `sim_malloc_force_reload` lays a whole task out afresh, which always works. The last users of the bytes become
memory edges. Victims are chosen by reuse distance (Belady 1966), weighted as victim.py says.
"""

from __future__ import annotations

import numpy as np

from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.memplan.graph.arena import HOLE, Fit
from einpage.memplan.graph.recorder import NO_RESIDENCY
from einpage.memplan.horizons.memory import NOWHERE, WORKSPACE, Memory, Reservation
from einpage.memplan.horizons.victim import FAR, HOLE_TRAFFIC, Column, Price, cheapest_window


class Allocator:
    """The routines over one Memory under two policies."""

    def __init__(self, memory: Memory, fit: Fit, price: Price) -> None:
        self.memory, self.fit, self.price = memory, fit, price

    def sim_malloc(self, reservation: Reservation, needed: TensorId) -> bool:
        """Find bytes without evicting anything; False where no hole is large enough."""
        nbytes = self.memory.size_of(reservation, needed)
        start = self.memory.device.find(nbytes, self.fit) if nbytes else NOWHERE
        if start is None:
            return False
        self.memory.reserve(reservation, needed, start)
        return True

    def sim_malloc_offload(self, reservation: Reservation, needed: TensorId, farther_than: int = 0) -> bool:
        """Evict the cheapest window of tensors whose next uses are more than so many steps away, then sim_malloc.

        False, and nothing is evicted, where pinned neighbours leave no such window.
        """
        memory = self.memory
        nbytes = memory.size_of(reservation, needed)
        if memory.evictable_bytes + memory.device.free_bytes < nbytes:
            return False
        window = self._evictable_window(reservation, nbytes, reservation.step + farther_than)
        return self._evict(reservation, window) is not None and self.sim_malloc(reservation, needed)

    def sim_malloc_force_reload(self, reservation: Reservation) -> None:
        """The horizons have met and the task's own operands are in the way: evict one window for all it touches and fill it in order.

        The arena below the residents is such a window, and the footprint fits it, so this always works.
        """
        memory = self.memory
        memory.cancel(reservation)
        if memory.footprint(reservation) > memory.bytes_below_residents:
            self._donate_early(reservation)
        evicted = self._evict(reservation, self._any_window(reservation, memory.footprint(reservation)))
        assert evicted is not None, f"task {reservation.task.name} has a footprint above the arena's {memory.bytes_below_residents} bytes"
        start = memory.device.hole_at(evicted)
        for needed in memory.needs(reservation):
            memory.reserve(reservation, needed, start)
            start += memory.size_of(reservation, needed)

    def _donate_early(self, reservation: Reservation) -> None:
        """Donate operands that later tasks read again: the host has copies for them."""
        donated = reservation.donated
        for one in reservation.task.written:
            t = next((t for t in one.inplace if not self.memory.is_output[t] and t not in donated.values()), None)
            if one.tensor in donated or t is None:
                continue
            if self.memory.host.copy[t] == NO_RESIDENCY:
                self.memory.spill(t, reservation)
            donated[one.tensor], reservation.runs_at_once = t, True

    def _evictable_window(self, reservation: Reservation, nbytes: int, horizon: int) -> range | None:
        """The cheapest neighbours of `nbytes` that no task in flight touches and that are needed after step `horizon`."""
        memory = self.memory
        owners = np.frombuffer(memory.device.owners, np.int64)
        until = memory.evictable_until.take(owners)
        candidates = (until > horizon).nonzero()[0]
        traffics = memory.evictable_traffic.take(owners.take(candidates))
        return self._window(nbytes, candidates, traffics, until.take(candidates) - reservation.step)

    def _any_window(self, reservation: Reservation, nbytes: int) -> range | None:
        """The cheapest neighbours of `nbytes`, whichever task touches them; no residents."""
        memory = self.memory
        found = [(i, TensorId(t)) for i, t in enumerate(memory.device.owners) if t != WORKSPACE and t not in memory.pinned_residents]
        traffics = [HOLE_TRAFFIC if t == HOLE else memory.traffic(t) for _, t in found]
        distance = [FAR if t == HOLE else max(memory.reuse.next_use(t) - reservation.step, 1) for _, t in found]
        candidates = np.array([i for i, _ in found], np.int64)
        return self._window(nbytes, candidates, np.array(traffics, memory.evictable_traffic.dtype), np.array(distance, np.int64))

    def _window(self, nbytes: int, candidates: Column, traffics: Column, distance: Column) -> range | None:
        """The cheapest window of the arena's segments `candidates`, holes among them."""
        prices = self.price(traffics, distance)
        window = cheapest_window(np.frombuffer(self.memory.device.bounds, np.int64), candidates, prices, nbytes)
        return None if window is None else range(*window)

    def _evict(self, reservation: Reservation, window: range | None) -> int | None:
        """Make one hole of a window of segments; answers an offset inside the hole."""
        memory, arena = self.memory, self.memory.device
        if window is None:
            return None
        start, owners = arena.bounds[window.start], arena.owners[window.start : window.stop]
        for owner in owners:
            if owner != HOLE:
                memory.spill(TensorId(owner), reservation)
                memory.evict(TensorId(owner))
        return start
