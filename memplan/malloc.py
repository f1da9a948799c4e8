"""The three routines that find bytes for a task at the allocation horizon.

In: a Reservation and what it wants. Out: whether that has its bytes now. `sim_malloc` moves nothing out; `sim_malloc_offload` lets others
leave first; `sim_malloc_force_reload` lays a whole task out afresh, whatever it takes. Whoever used the bytes before becomes a memory edge.
"""

from __future__ import annotations

from itertools import takewhile

from einpage.einsum_front.taskgraph import TensorId
from einpage.memplan.arena import Fit, Segment
from einpage.memplan.memory import NOWHERE, WORKSPACE, Memory, Reservation
from einpage.memplan.record import NO_RESIDENCY
from einpage.memplan.row import RowFinder, cheapest_row
from einpage.memplan.victim import FALL_WITH_DISTANCE, PINNED, Price


class Allocator:
    """The routines over one Memory under two policies."""

    def __init__(self, memory: Memory, fit: Fit, price: Price) -> None:
        self.memory, self.fit, self.price = memory, fit, price
        self._rows = RowFinder(memory.device)

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
        memory, horizon = self.memory, it.step + farther_than
        nbytes = memory.size_of(it, want)
        if memory.loose_bytes + memory.device.free_bytes < nbytes:
            return False
        return self._clear(it, self._row(it, nbytes, horizon)) is not None and self.sim_malloc(it, want)

    def sim_malloc_force_reload(self, it: Reservation) -> None:
        """The horizons have met and the task's own operands are in the way: clear one window for all it touches and fill it in order.

        The arena below the residents is such a window, and the footprint fits it, so this always works.
        """
        memory = self.memory
        memory.withdraw(it)
        if memory.footprint(it) > memory.room:
            self._take_early(it)
        row = cheapest_row(memory.device, memory.footprint(it), lambda owner: self._price(owner, it))
        window = self._clear(it, row)
        assert window is not None, f"task {it.task.name} has a footprint above the arena's {memory.room} bytes"
        start = memory.device.hole_at(window)
        for want in memory.wants(it):
            memory.promise(it, want, start)
            start += memory.size_of(it, want)

    def _take_early(self, it: Reservation) -> None:
        """Let the result have the bytes of an operand that others need again: the host has a copy for them."""
        taken = next(t for t in it.task.inplace if not self.memory.is_output[t])
        if self.memory.host.copy[taken] == NO_RESIDENCY:
            self.memory.spill(taken, it)
        it.taken, it.runs_at_once = taken, True

    def _row(self, it: Reservation, nbytes: int, horizon: int) -> list[Segment] | None:
        """The cheapest neighbours of `nbytes` that no task between the horizons touches and that are needed after step `horizon`."""
        memory, price, step = self.memory, self.price, it.step
        pins, next_use, size, copy = memory.pins, memory.reuse.next_use, memory.size, memory.host.copy

        def price_of(owner: int) -> int:
            t = TensorId(owner)
            return PINNED if t == WORKSPACE or pins[t] else price(size[t], max(next_use(t) - step, 1), copy[t] == NO_RESIDENCY)

        def leaving(owner: int) -> int:
            t = TensorId(owner)
            if t == WORKSPACE or pins[t] or (use := next_use(t)) <= horizon:
                return PINNED
            return price(size[t], use - step, copy[t] == NO_RESIDENCY)

        if price not in FALL_WITH_DISTANCE:
            return cheapest_row(memory.device, nbytes, leaving)
        far = takewhile(lambda t: next_use(t) > horizon, memory.loose_from_farthest())
        candidates = ((memory.at[t], price(nbytes, next_use(t) - step, False)) for t in far)
        return self._rows.cheapest(nbytes, leaving, price_of, candidates)

    def _clear(self, it: Reservation, row: list[Segment] | None) -> int | None:
        """Make one hole by letting a row of neighbours leave; answers an offset inside the hole."""
        memory = self.memory
        if row is None:
            return None
        for _, _, owner in row:
            if owner is not None:
                memory.spill(TensorId(owner), it)
                memory.leave(TensorId(owner))
        return row[0][0]

    def _price(self, owner: int, it: Reservation) -> int:
        memory, t = self.memory, TensorId(owner)
        if t == WORKSPACE or t in memory.held:
            return PINNED
        distance = max(memory.reuse.next_use(t) - it.step, 1)
        return self.price(memory.size[t], distance, memory.host.copy[t] == NO_RESIDENCY)
