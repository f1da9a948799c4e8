"""The timetable: when each load is issued and when each early leaver's bytes are free again, once it is settled which intervals stay.

In: Slots, the arena's bytes, and for every interval whether its tensor stays. Out: a Timetable, one Step a slot. Loads go first in, first
out in the order of need; each is issued as early as it helps: not before the link is free, and not before every slot until its use has
room for it. Of what has to be written the host gets first what leaves first: whose bytes are wanted waits for no copy of what stays.
Places are not looked at: place.py finds them.

    slot              3      4      5      6
    compute        | k3   |  k4  |  k5  |  k6 |        load of w, needed by slot 6: the link is free while k4 runs, and slots
    link to device        [ v ][    w   ]              4 and 5 have room, so it is issued before k4
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.problem.accesses import NEVER
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.policies import ResidentIntervals, resident_bytes


class Load(NamedTuple):
    tensor: int
    need: int
    """The slot that waits for it."""


@dataclass(slots=True)
class Step:
    """What is issued around one slot, in this order; tensors by number."""

    frees_first: list[int] = field(default_factory=list)
    """Leave before the slot's loads: their copies to the host have had time."""
    loads: list[Load] = field(default_factory=list)
    """Come to the device, gathered rows among them."""
    stores: list[int] = field(default_factory=list)
    """Are copied to the host once the slot's task has run."""
    frees: list[int] = field(default_factory=list)
    """Leave once the slot's task has run."""


@dataclass(frozen=True, slots=True)
class Timetable:
    steps: tuple[Step, ...]
    """[slot]"""
    seconds: float
    """When everything is done, places aside."""
    moved_bytes: int
    """Over both links."""


def timetable(slots: Slots, capacity: int, resident: ResidentIntervals, slack_bytes: int = 0) -> Timetable:
    """The timetable under `resident`, whose intervals must fit: at every slot, what stays and the footprint are at most `capacity` bytes.

    Loads ahead of need leave `slack_bytes` free: a fuller arena is harder to place.
    """
    return _Clock(slots, capacity, resident, slack_bytes).run()


class _Clock:
    def __init__(self, slots: Slots, capacity: int, resident: ResidentIntervals, slack_bytes: int) -> None:
        a = slots.accesses
        self.a, self.slots, self.slack = a, slots, slack_bytes
        self.size: list[int] = a.nbytes.tolist()
        self.seconds: list[float] = a.seconds.tolist()
        room = capacity - a.footprint - resident_bytes(a, resident)
        assert int(room.min(initial=0)) >= 0, "what stays does not fit"
        self.room: list[int] = room.tolist()
        self.steps = [Step() for _ in range(a.slots)]
        self.finish: list[float] = []
        self.link_in = self.link_out = 0.0
        self.moved = 0
        self.on_host_at = np.where(a.clean, 0.0, np.inf).tolist()
        """[tensor] when the host has it."""
        self.gone_at = [0] * len(self.size)
        """[tensor] the first slot that may load it again."""
        self.needs = self._needs(resident)
        self.leaves, self.writes = self._departures(resident)
        self.due = [a.slots] * len(self.size)
        """[tensor] the first slot after which it leaves."""
        for k in reversed(range(a.slots)):
            for t, _ in self.leaves[k]:
                self.due[t] = k
        self.unwritten: list[tuple[int, int, float]] = []
        """A heap of (when due, tensor, when it was there): copies to the host not yet issued."""

    def _needs(self, resident: ResidentIntervals) -> list[list[int]]:
        """[slot] the tensors it needs loaded."""
        a = self.a
        needs: list[list[int]] = [[] for _ in range(a.slots)]
        gone = np.flatnonzero(~resident)
        for t, k in zip((*a.loaded.tolist(), *a.tensor[gone].tolist()), (*a.load_at.tolist(), *a.end[gone].tolist()), strict=True):
            needs[k].append(t)
        return needs

    def _departures(self, resident: ResidentIntervals) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
        """[slot] who leaves once it has run, with the slot by which it has to be gone; and whose copy to the host may begin then: as
        soon as there is something to copy."""
        a = self.a
        leaves: list[list[tuple[int, int]]] = [[] for _ in range(a.slots)]
        gone = np.flatnonzero(~resident)
        for t, begin, end in zip(a.tensor[gone].tolist(), a.start[gone].tolist(), a.end[gone].tolist(), strict=True):
            leaves[begin].append((t, end))
        for t, last in enumerate(a.last_at.tolist()):
            if last != NEVER and self.slots.donated[last] != t:
                leaves[last].append((t, a.slots - 1))
        writes: list[list[int]] = [[] for _ in range(a.slots)]
        there_at = a.made_at.copy()
        there_at[a.loaded] = np.where(there_at[a.loaded] == NEVER, a.load_at, there_at[a.loaded])
        must = a.output.copy()
        must[a.tensor[gone]] |= ~a.clean[a.tensor[gone]]
        for t in np.flatnonzero(must).tolist():
            writes[int(there_at[t])].append(t)
        return leaves, writes

    def run(self) -> Timetable:
        passed = np.concatenate(([0.0], np.cumsum(self.a.seconds)))
        for k in range(self.a.slots):
            ready = self.finish[-1] if k else 0.0
            for t in self.needs[k]:
                ready = max(ready, self._load(t, k))
            done = ready + self.seconds[k]
            self.finish.append(done)
            for t in self.writes[k]:
                heappush(self.unwritten, (self.due[t], t, done))
            self._store(k, done)
            for t, by in self.leaves[k]:
                self._leave(t, k, by, done, passed)
        end = max(self.finish[-1] if self.finish else 0.0, self.link_in, self.link_out)
        return Timetable(tuple(self.steps), end, self.moved)

    def _load(self, t: int, k: int) -> float:
        """Issue the load of `t`, which slot `k` needs; answers when it is in."""
        size, room, finish, first = self.size[t], self.room, self.finish, self.gone_at[t]
        wanted = size + self.slack
        could = self.link_in if self.on_host_at[t] == np.inf else max(self.link_in, self.on_host_at[t])
        issue = k
        while issue > first and finish[issue - 1] > could and room[issue - 1] >= wanted:
            issue -= 1
        for slot in range(issue, k):
            room[slot] -= size
        self.link_in = max(could, finish[issue - 1] if issue else 0.0) + self.slots.load_s[t]
        self.moved += self.slots.nbytes[t]
        self.steps[issue].loads.append(Load(t, k))
        return self.link_in

    def _store(self, k: int, done: float) -> None:
        """Issue the copies to the host that begin before the next task ends, what leaves first before the others; and in any case those
        of what leaves now."""
        until = done + self.seconds[k + 1] if k + 1 < len(self.seconds) else inf
        while self.unwritten and (self.unwritten[0][0] <= k or self.link_out < until):
            _, t, there = heappop(self.unwritten)
            self.link_out = self.on_host_at[t] = max(self.link_out, there) + self.slots.store_s[t]
            self.moved += self.slots.nbytes[t]
            self.steps[k].stores.append(t)

    def _leave(self, t: int, k: int, by: int, done: float, passed: NDArray[np.float64]) -> None:
        """Free `t` after slot `k`; later, where its copy to the host is still under way and the slots until then have room."""
        waits = self.on_host_at[t] - done
        slot = k + 1
        if 0 < waits < np.inf:
            until = min(int(np.searchsorted(passed, passed[k + 1] + waits)), by)
            while slot < until and self.room[slot] >= self.size[t]:
                self.room[slot] -= self.size[t]
                slot += 1
        if slot == k + 1:
            self.steps[k].frees.append(t)
        else:
            self.steps[slot].frees_first.append(t)
        self.gone_at[t] = slot
