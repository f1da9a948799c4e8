"""When each copy is issued and when each buffer is freed, for given resident intervals: a timetable, which knows no offsets.

In: Slots, and for every interval whether its tensor is resident. Out: a Timetable, one SlotActions a slot. Loads are in order of need, each
issued as early as that helps (list scheduling on one link): not before the link is free, and not before every slot until its use has the
bytes. A load that would come late is issued before others where the link waits for their bytes for so long (backfilling). Copies to the
host are in order of eviction: a buffer that is wanted waits for no copy of a tensor that is evicted later; what is wanted sooner than its
copy ends has whoever wants it wait. packing/place.py finds the offsets.

    slot              3      4      5      6
    compute        | k3   |  k4  |  k5  |  k6 |        load of w, needed by slot 6: the link is free while k4 runs, and slots
    link to device        [ v ][    w   ]              4 and 5 have the bytes, so it is issued before k4
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.memplan.problem.accesses import NEVER
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals, resident_bytes


class Prefetch(NamedTuple):
    """A load, of gathered rows too."""

    tensor: int
    use: int
    """The slot that needs it, which may be the one before which it is issued."""


@dataclass(slots=True)
class SlotActions:
    """What is issued around one slot, in this order; tensors by number."""

    frees_before: list[int] = field(default_factory=list)
    """Freed before the slot's loads: their copies to the host have had time."""
    loads: list[Prefetch] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    """Copied to the host once the slot's task has run."""
    frees_after: list[int] = field(default_factory=list)
    """Freed once the slot's task has run."""


@dataclass(frozen=True, slots=True)
class Timetable:
    actions: tuple[SlotActions, ...]
    """[slot]"""
    seconds: float
    """When everything is done, if offsets cost nothing."""
    moved_bytes: int
    """Over both links."""


class Eviction(NamedTuple):
    """Or the last free: the end of a buffer."""

    tensor: int
    by: int
    """The slot before which it has to be freed."""


def timetable(slots: Slots, resident: ResidentIntervals, prefetch_headroom: int = 0) -> Timetable:
    """The timetable under `resident`, whose intervals must fit: at every slot, their bytes and the footprint are at most the capacity.

    Loads ahead of need leave `prefetch_headroom` bytes free: a fuller arena is harder to place.
    """
    return _ListScheduler(slots, resident, prefetch_headroom).run()


def soonest_s(slots: Slots, table: Timetable) -> float:
    """When everything is done if no copy waits for bytes: no plan with `table`'s order of tasks and of copies is faster."""
    link_in = link_out = done = 0.0
    there, on_host_at = dict[Prefetch, float](), dict[int, float]()
    needs: list[list[Prefetch]] = [[] for _ in table.actions]
    for k, (actions, seconds) in enumerate(zip(table.actions, slots.accesses.seconds.tolist(), strict=True)):
        for load in actions.loads:
            there[load] = link_in = max(link_in, on_host_at.get(load.tensor, 0.0)) + slots.load_s[load.tensor]
            needs[load.use].append(load)
        done = max([done, *(there[load] for load in needs[k])]) + seconds
        for t in actions.stores:
            on_host_at[t] = link_out = max(link_out, done) + slots.store_s[t]
    return max(done, link_in, link_out)


class _ListScheduler:
    def __init__(self, slots: Slots, resident: ResidentIntervals, prefetch_headroom: int) -> None:
        a = slots.accesses
        self.a, self.slots, self.prefetch_headroom = a, slots, prefetch_headroom
        self.size: list[int] = a.nbytes.tolist()
        self.seconds: list[float] = a.seconds.tolist()
        free = slots.problem.capacity - a.footprint - resident_bytes(a, resident)
        assert int(free.min(initial=0)) >= 0, "resident intervals do not fit"
        self.free: list[int] = free.tolist()
        """[slot] bytes"""
        self.actions = [SlotActions() for _ in range(a.slots)]
        self.finish: list[float] = []
        self.link_in = self.link_out = 0.0
        self.gaps: list[tuple[float, float]] = []
        """From when to when the link to the device waited for bytes, in order."""
        self.emptied_s = [0.0] * a.slots
        """[slot] when the last buffer is copied to the host that it has no bytes to spare for."""
        self.moved = 0
        self.on_host_at = np.where(a.clean, 0.0, np.inf).tolist()
        """[tensor] when the host has it."""
        self.freed_before = [0] * len(self.size)
        """[tensor] the first slot that may load it again."""
        self.needs = self._needs(resident)
        self.evictions = self._evictions(resident)
        self.writes = self._writes(resident)
        self.due = [a.slots] * len(self.size)
        """[tensor] the first slot after which it is evicted."""
        for k in reversed(range(a.slots)):
            for t, _ in self.evictions[k]:
                self.due[t] = k
        self.unwritten: list[tuple[int, int, float]] = []
        """A heap of (when due, tensor, when it was there): copies to the host not yet issued."""

    def _needs(self, resident: ResidentIntervals) -> list[list[int]]:
        """[slot] the tensors it needs loaded."""
        a = self.a
        needs: list[list[int]] = [[] for _ in range(a.slots)]
        evicted = np.flatnonzero(~resident)
        tensors, uses = (*a.loaded.tolist(), *a.tensor[evicted].tolist()), (*a.load_at.tolist(), *a.end[evicted].tolist())
        for t, k in zip(tensors, uses, strict=True):
            needs[k].append(t)
        return needs

    def _evictions(self, resident: ResidentIntervals) -> list[list[Eviction]]:
        """[slot] what is freed once it has run."""
        a = self.a
        evictions: list[list[Eviction]] = [[] for _ in range(a.slots)]
        evicted = np.flatnonzero(~resident)
        for t, start, end in zip(a.tensor[evicted].tolist(), a.start[evicted].tolist(), a.end[evicted].tolist(), strict=True):
            evictions[start].append(Eviction(t, end))
        for t, last in enumerate(a.last_at.tolist()):
            if last != NEVER and t not in self.slots.donated[last].values():
                evictions[last].append(Eviction(t, a.slots))
        return evictions

    def _writes(self, resident: ResidentIntervals) -> list[list[int]]:
        """[slot] the tensors whose copy to the host may start once it has run: as soon as there is something to copy."""
        a = self.a
        evicted = a.tensor[~resident]
        there_at = a.made_at.copy()
        there_at[a.loaded] = np.where(there_at[a.loaded] == NEVER, a.load_at, there_at[a.loaded])
        must = a.output.copy()
        must[evicted] |= ~a.clean[evicted]
        writes: list[list[int]] = [[] for _ in range(a.slots)]
        for t in np.flatnonzero(must).tolist():
            writes[int(there_at[t])].append(t)
        return writes

    def run(self) -> Timetable:
        elapsed = np.concatenate(([0.0], np.cumsum(self.a.seconds)))
        for k in range(self.a.slots):
            ready = self._may_start_s(k)
            for t in self.needs[k]:
                ready = max(ready, self._load(t, k))
            done = ready + self.seconds[k]
            self.finish.append(done)
            for t in self.writes[k]:
                heappush(self.unwritten, (self.due[t], t, done))
            self._store(k, done)
            for eviction in self.evictions[k]:
                self._free(eviction, k, done, elapsed)
        end = max(self.finish[-1] if self.finish else 0.0, self.link_in, self.link_out)
        return Timetable(tuple(self.actions), end, self.moved)

    def _load(self, t: int, k: int) -> float:
        """Issue the load of `t`, which slot `k` needs; answers when it is in."""
        size, free, finish, first = self.size[t], self.free, self.finish, self.freed_before[t]
        wanted = size + self.prefetch_headroom
        link_free = self.link_in if self.on_host_at[t] == np.inf else max(self.link_in, self.on_host_at[t])
        issue = k
        while issue > first and finish[issue - 1] > link_free and free[issue - 1] >= wanted:
            issue -= 1
        start = max(link_free, self._may_start_s(issue))
        there = start + self.slots.load_s[t]
        if self.gaps and k and there > finish[k - 1] and (gap := self._gap_for(t, k)) is not None:
            issue, there = gap
        else:
            if start > self.link_in:
                self.gaps.append((self.link_in, start))
            self.link_in = there
        for slot in range(issue, k):
            free[slot] -= size
        self.moved += self.slots.nbytes[t]
        self.actions[issue].loads.append(Prefetch(t, k))
        return there

    def _gap_for(self, t: int, k: int) -> tuple[int, float] | None:
        """The slot at which to issue the load of `t`, which slot `k` needs, and when it is in, in the last of the gaps that it fits into;
        what is left of that are gaps."""
        seconds, wanted, finish = self.slots.load_s[t], self.size[t] + self.prefetch_headroom, self.finish
        for g in range(len(self.gaps) - 1, -1, -1):
            free_at, end = self.gaps[g]
            issue = bisect_right(finish, end - seconds)
            if issue < self.freed_before[t]:
                return None
            start = max(free_at, self.on_host_at[t], self._may_start_s(issue))
            if issue < k and start + seconds <= end and min(self.free[issue:k]) >= wanted:
                self.gaps[g : g + 1] = [(low, high) for low, high in ((free_at, start), (start + seconds, end)) if high > low]
                return issue, start + seconds
        return None

    def _may_start_s(self, slot: int) -> float:
        """When `slot` has its bytes: its task, and loads that are issued before it."""
        return max(self.finish[slot - 1] if slot else 0.0, self.emptied_s[slot])

    def _store(self, k: int, done: float) -> None:
        """Issue the copies to the host that start before the next task ends, the first to be evicted first; and in any case those of
        tensors that are evicted now."""
        until = done + self.seconds[k + 1] if k + 1 < len(self.seconds) else inf
        while self.unwritten and (self.unwritten[0][0] <= k or self.link_out < until):
            _, t, there = heappop(self.unwritten)
            self.link_out = self.on_host_at[t] = max(self.link_out, there) + self.slots.store_s[t]
            self.moved += self.slots.nbytes[t]
            self.actions[k].stores.append(t)

    def _free(self, eviction: Eviction, k: int, done: float, elapsed: Floats) -> None:
        """Free the tensor after slot `k`; later (write-back lag) where its copy to the host is under way and the slots until then have the
        bytes."""
        t = eviction.tensor
        lag = self.on_host_at[t] - done
        slot = k + 1
        if 0 < lag < np.inf:
            until = min(int(np.searchsorted(elapsed, elapsed[k + 1] + lag)), eviction.by)
            while slot < until and self.free[slot] >= self.size[t]:
                self.free[slot] -= self.size[t]
                slot += 1
            if slot < until:
                self.emptied_s[slot] = max(self.emptied_s[slot], self.on_host_at[t])
        if slot in (k + 1, len(self.actions)):
            self.actions[slot - 1].frees_after.append(t)
        else:
            self.actions[slot].frees_before.append(t)
        self.freed_before[t] = slot
