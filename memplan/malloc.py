"""The three routines that find bytes for a task at the allocation horizon.

In: a Reservation and what it wants. Out: whether that has its bytes now. `sim_malloc` moves nothing out; `sim_malloc_offload` lets others
leave first; `sim_malloc_force_reload` lays a whole task out afresh, whatever it takes. Whoever used the bytes before becomes a memory edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einpage.einsum_front.taskgraph import TensorId
from einpage.memplan.arena import Fit
from einpage.memplan.memory import NOWHERE, WORKSPACE, Memory, Reservation
from einpage.memplan.record import NO_RESIDENCY
from einpage.memplan.victim import PINNED, Price, cheapest_window


@dataclass(frozen=True, slots=True)
class Allocator:
    """The routines over one Memory under two policies."""

    memory: Memory
    fit: Fit
    price: Price

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
        window = self._clear(it, nbytes, lambda t: not memory.pins[t] and memory.reuse.next_use(t) > horizon)
        return window is not None and self.sim_malloc(it, want)

    def sim_malloc_force_reload(self, it: Reservation) -> None:
        """The horizons have met and the task's own operands are in the way: clear one window for all it touches and fill it in order.

        The arena below the residents is such a window, and the footprint fits it, so this always works.
        """
        memory = self.memory
        memory.withdraw(it)
        if memory.footprint(it) > memory.room:
            self._take_early(it)
        window = self._clear(it, memory.footprint(it), lambda t: t not in memory.held)
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

    def _clear(self, it: Reservation, nbytes: int, may_leave: Callable[[TensorId], bool]) -> int | None:
        """Make a hole of `nbytes` by letting the cheapest window leave; answers an offset inside the hole."""
        memory = self.memory
        segments = list(memory.device.segments())
        sizes = [stop - start for start, stop, _ in segments]
        prices = [0 if owner is None else self._price(TensorId(owner), it, may_leave) for _, _, owner in segments]
        window = cheapest_window(sizes, prices, nbytes)
        if window is None:
            return None
        for _, _, owner in segments[window[0] : window[1]]:
            if owner is not None:
                memory.spill(TensorId(owner), it)
                memory.leave(TensorId(owner))
        return segments[window[0]][0]

    def _price(self, t: TensorId, it: Reservation, may_leave: Callable[[TensorId], bool]) -> int:
        if t == WORKSPACE or not may_leave(t):
            return PINNED
        memory = self.memory
        distance = max(memory.reuse.next_use(t) - it.step, 1)
        return self.price(memory.size[t], distance, memory.host.copy[t] == NO_RESIDENCY)
