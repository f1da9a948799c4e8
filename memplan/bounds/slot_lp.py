"""The least time that an order of tasks needs in an arena of a given size, with links of given rates: the slot LP.

In: Accesses, bytes of the arena, bytes/s. Out: TimeBound, with resident and written shares and bytes loaded ahead. One slot per task: a
stall before it, then its own duration. All tensors may be cut at every byte, so a lower bound for whole ones; nearer with what
problem/fits.py says of them.

    slot k    | stall_k | task k |      minimise  sum_k stall_k + tail        (+ sum_k c_k, which is fixed)
    loads       hs_k      hc_k          hs_k <= B_in stall_k,  hc_k <= B_in c_k

    P_k = P_{k-1} + hs_k + hc_k - req_k             bytes in ahead of need; hc_k <= P_k: what task k needs is in before it starts
    req_k = first loads + sum_{end_j = k} s (1 - x_j)
    P_k <= of req_{k+1}, req_{k+2}, ... those whose tensor fits from slot k until its use
    Q_k >= spilled before k - G_k                   spilled bytes not yet written; G_k: those written by the end of slot k
    QS_k >= outputs last used before k - Z_k        the same for outputs; Z_k <= outputs made before k
    o_k + P_k + Q_k + QS_k + footprint_k <= C
    (G_k - G_{k-1}) + (Z_k - Z_{k-1}) <= B_out (stall_k + c_k)
    all written <= B_out (sum (stall + c) + tail),  outputs - Z_last <= B_out tail

Spilled before k: s (1 - x_j) of the first interval j of each dirty tensor, from start_j on. It may be written as soon as it is made, which
can be earlier than start_j; later intervals count in the last row only. A copy's latency counts where the link is considered as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from einpage.einsum_front.base.columns import Bools, Floats
from einpage.memplan.bounds.interval_lp import UNITS, add_resident_bytes, add_residents, add_written
from einpage.memplan.bounds.lp import Indices, Lp, Unsolved
from einpage.memplan.machine.places import Link
from einpage.memplan.problem.accesses import NEVER, Accesses
from einpage.memplan.problem.fits import Fits, fits


@dataclass(frozen=True, slots=True, eq=False)
class TimeBound:
    seconds: float
    """No plan of these slots takes less. Proved."""
    resident: Floats
    """[interval] share of the tensor resident in the arena."""
    written: Floats
    """[tensor] share spilled to the host; 0 for outputs and clean tensors."""
    ahead: Floats
    """[slot] bytes that are in at the end of the slot and needed later: the prefetch."""
    stall_s: Floats
    """[slot] how long it waits before its task."""


def time_bound(
    a: Accesses, capacity: int, links: Sequence[Link], time_limit_s: float | None = None, byte_weight: float = 0.0,
    stretch: tuple[int, int] | None = None, cut: bool = False,
) -> TimeBound:  # fmt: skip
    """Solve the slot LP. `capacity` is at least every footprint; `links` begins with those of loads and stores, whose latency each copy of
    a whole tensor has. Raises lp.Unsolved; ImportError without scipy.

    Many solutions take the same time. With `byte_weight` a byte that moves also costs this share of its time on the link, so that those
    that move less come first; `seconds` is then no bound. With `stretch` it is one on the time from the end of a slot to that of a later
    one, as from step to step of a run: stalls elsewhere, and the tail, cost nothing. With `cut`, for tensors that may be cut at every byte.
    """
    assert a.slots > 0, "an order without tasks takes no time"
    assert capacity >= int(a.footprint.max()), f"{capacity} bytes are less than the largest footprint"
    p = _SlotProgram(a, capacity, links, byte_weight, None if cut else fits(a, capacity), stretch)
    found = p.lp.solve(time_limit_s)
    written = np.zeros(len(a.nbytes))
    written[p.spillable] = np.clip(found.values[p.w], 0, 1)
    return TimeBound(
        seconds=float(a.seconds[p.counted].sum()) + found.bound * p.second,
        resident=np.clip(found.values[p.x], 0, 1),
        written=written,
        ahead=np.maximum(found.values[p.ahead], 0) * p.unit,
        stall_s=np.maximum(found.values[p.stall], 0) * p.second,
    )


def whole_intervals(
    a: Accesses, capacity: int, links: Sequence[Link], byte_weight: float, most_nodes: int, relative_gap: float, time_limit_s: float = inf
) -> Bools:
    """[interval] whether it is resident, where each is with all of its bytes or with none: of these, by the slot LP, the fastest to within
    `relative_gap`, or the best that branch and bound meets in `most_nodes`. Copies may still be made in parts.

    Raises lp.Unsolved, also where time is over; ImportError without scipy.
    """
    p = _SlotProgram(a, capacity, links, byte_weight, fits(a, capacity))
    began = perf_counter()
    found = p.lp.solve_integer(p.x, time_limit_s, relative_gap, most_nodes)
    if perf_counter() - began >= time_limit_s:
        raise Unsolved("out of time")
    resident: Bools = found.values[p.x] > 0.5
    return resident


class _SlotProgram:
    """The columns and rows. Bytes in `unit` bytes; time in `second` seconds, in which one unit is loaded: so B_in is 1, B_out is `out`."""

    def __init__(
        self, a: Accesses, capacity: int, links: Sequence[Link], byte_weight: float, whole: Fits | None,
        stretch: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.a, self.lp, self.whole = a, Lp(), whole
        self.counted = slice(0, a.slots) if stretch is None else slice(stretch[0] + 1, stretch[1] + 1)
        self.unit = capacity / UNITS
        load, store = links[:2]
        self.second = self.unit / load.bytes_per_s
        self.out = store.bytes_per_s / load.bytes_per_s
        self.load_latency, self.store_latency = load.latency_s / self.second, store.latency_s / self.second
        self.headroom = (capacity - a.footprint) / self.unit
        self.task_time = a.seconds / self.second
        self.nbytes = a.nbytes / self.unit
        self.size = self.nbytes[a.tensor]
        self.slots = np.arange(a.slots)
        self.x = add_residents(self.lp, a, whole, -byte_weight * self.size)
        self.spillable, self.w = add_written(self.lp, a, self.x, byte_weight * self.nbytes)
        counts = np.zeros(a.slots)
        counts[self.counted] = 1.0
        self.stall = self.lp.add(np.full(a.slots, self._one_by_one()), cost=counts)
        self.tail = self.lp.add(self._one_by_one(), cost=float(stretch is None))
        self.ahead = self._loads()
        self._loads_ahead()
        resident = add_resident_bytes(self.lp, a, self.x, self.size, self.headroom)
        terms = [(self.slots, column, 1.0) for column in (resident, self.ahead)]
        self.lp.rows_at_most(self.headroom, *terms, *self._writes())
        self._whole_links()

    def _one_by_one(self) -> float:
        """All copies that could be made, one after the other: no stall needs to be longer."""
        copies = np.concatenate([self.nbytes, self.size])
        return float((copies.sum() + max(self.load_latency, self.store_latency) * len(copies)) * (1 + 1 / self.out))

    def _loads(self) -> Indices:
        """Columns P, with the rows of loading."""
        a, lp = self.a, self.lp
        ahead = lp.add(self.headroom)
        in_stall = lp.add(np.full(a.slots, UNITS))
        in_task = lp.add(self.task_time)
        most = self._at(a.load_at, self.nbytes[a.loaded]) + self._at(a.end, self.size)
        lp.rows_equal(
            -most,
            (self.slots, ahead, 1.0),
            (self.slots[1:], ahead[:-1], -1.0),
            (self.slots, in_stall, -1.0),
            (self.slots, in_task, -1.0),
            (a.end, self.x, -self.size),
        )
        lp.rows_at_most(np.zeros(a.slots), (self.slots, in_task, 1.0), (self.slots, ahead, -1.0))
        lp.rows_at_most(np.zeros(a.slots), (self.slots, in_stall, 1.0), (self.slots, self.stall, -1.0))
        return ahead

    def _loads_ahead(self) -> None:
        """Rows of P <= columns of what can be in ahead of need, where the arena is too full for some."""
        a, lp, whole = self.a, self.lp, self.whole
        if whole is None or (whole.is_everything and not whole.first_from.any()):
            return
        first, again = self.nbytes[a.loaded], self.size
        can_be = lp.add(np.full(a.slots, first.sum() + again.sum()))
        lp.rows_equal(
            self._at(whole.first_from, first) - self._at(a.load_at, first) + self._at(whole.again_from, again) - self._at(a.end, again),
            (self.slots, can_be, 1.0),
            (self.slots[1:], can_be[:-1], -1.0),
            (whole.again_from, self.x, again),
            (a.end, self.x, -again),
        )
        lp.rows_at_most(np.zeros(a.slots), (self.slots, self.ahead, 1.0), (self.slots, can_be, -1.0))

    def _writes(self) -> list[tuple[Indices, Indices, float]]:
        """Columns Q and QS, as terms of the rows of slots, with the rows of writing."""
        link: list[tuple[Indices, Indices, float]] = []
        resident: list[tuple[Indices, Indices, float]] = []
        spilled = np.flatnonzero(self.a.is_first & self.a.dirty[self.a.tensor])
        if len(spilled):
            wrote, waiting = self._spills(spilled)
            link.append((self.slots, wrote, 1.0))
            resident.append((self.slots, waiting, 1.0))
        if self.a.output.any():
            stored, dead, waiting = self._outputs()
            link += [(self.slots, stored, 1.0), (self.slots[1:], stored[:-1], -1.0)]
            resident.append((dead, waiting, 1.0))
        if link:
            self.lp.rows_at_most(self.out * self.task_time, *link, (self.slots, self.stall, -self.out))
        return resident

    def _spills(self, spilled: Indices) -> tuple[Indices, Indices]:
        """Columns: bytes of the intervals `spilled` that are written in each slot, and that wait for it (Q)."""
        a, lp = self.a, self.lp
        size, start, made = self.size[spilled], a.start[spilled], a.made_at[a.tensor[spilled]]
        early = [(k, j) for j in np.flatnonzero(made < start).tolist() for k in range(int(made[j]) + 1, int(start[j]) + 1)]
        slot, which = np.array(early, np.int64).reshape(-1, 2).T
        may_be_ahead = self._at(slot, size[which])
        wrote = lp.add(np.full(a.slots, size.sum()))
        balance = lp.add(self.headroom, low=-may_be_ahead)
        lp.rows_equal(
            self._at(start + 1, size),
            (self.slots, balance, 1.0),
            (self.slots[1:], balance[:-1], -1.0),
            (self.slots, wrote, 1.0),
            (start + 1, self.x[spilled], size),
        )
        at = np.flatnonzero(may_be_ahead)
        row = np.searchsorted(at, slot)
        lp.rows_at_most(may_be_ahead[at], (np.arange(len(at)), balance[at], -1.0), (row, self.x[spilled][which], size[which]))
        waiting = balance.copy()
        waiting[at] = lp.add(self.headroom[at])
        lp.rows_at_most(np.zeros(len(at)), (np.arange(len(at)), balance[at], 1.0), (np.arange(len(at)), waiting[at], -1.0))
        return wrote, waiting

    def _outputs(self) -> tuple[Indices, Indices, Indices]:
        """Columns Z; slots with dead outputs, and their columns QS."""
        a, lp = self.a, self.lp
        outputs = np.flatnonzero(a.output)
        stored = lp.add(self._before(a.made_at[outputs], self.nbytes[outputs]))
        lp.rows_at_most(np.zeros(a.slots - 1), (self.slots[:-1], stored[:-1], 1.0), (self.slots[:-1], stored[1:], -1.0))
        lp.rows_at_most(-self.nbytes[outputs].sum(), (0, stored[-1], -1.0), (0, self.tail, -self.out))
        touched = outputs[a.last_at[outputs] != NEVER]
        dead_bytes = self._before(a.last_at[touched], self.nbytes[touched])
        dead = np.flatnonzero(dead_bytes)
        waiting = lp.add(self.headroom[dead])
        rows = np.arange(len(dead))
        lp.rows_at_most(-dead_bytes[dead], (rows, stored[dead], -1.0), (rows, waiting, -1.0))
        return stored, dead, waiting

    def _whole_links(self) -> None:
        """Rows of each link as a whole, latencies included."""
        a, lp = self.a, self.lp
        time = [(0, self.stall, -1.0), (0, self.tail, -1.0)]
        stores = (self.nbytes / self.out + self.store_latency)[a.output].sum()
        spills = self.nbytes[self.spillable] / self.out + self.store_latency
        lp.rows_at_most(self.task_time.sum() - stores, (0, self.w, spills), *time)
        copies = np.concatenate([self.nbytes[a.loaded], self.nbytes[a.unread], self.size]) + self.load_latency
        again = self.size + self.load_latency
        lp.rows_at_most(self.task_time.sum() - copies.sum(), (0, self.x, -again), *time)
        if self.load_latency:
            self._loads_in_time(again)

    def _loads_in_time(self, again: Floats) -> None:
        """Before each slot that may load, the link has had time for all loads so far."""
        a, lp = self.a, self.lp
        need = self._at(a.load_at, self.nbytes[a.loaded] + self.load_latency) + self._at(a.end, again)
        at = np.flatnonzero(need)
        if not len(at):
            return
        rows, waits = np.arange(len(at)), self.slots[: at[-1] + 1]
        passed = (np.cumsum(self.task_time) - self.task_time)[at]
        idle = lp.add(np.full(len(at), passed[-1] + len(waits) * self._one_by_one()))
        lp.rows_equal(
            np.diff(passed, prepend=0.0) - need[at],
            (rows, idle, 1.0),
            (rows[1:], idle[:-1], -1.0),
            (np.searchsorted(at, waits), self.stall[waits], -1.0),
            (np.searchsorted(at, a.end), self.x, -again),
        )

    def _at(self, slots: Indices, amounts: Floats) -> Floats:
        """[slot] the sum of the amounts at that slot."""
        return np.bincount(slots, amounts, self.a.slots).astype(np.float64)

    def _before(self, slots: Indices, amounts: Floats) -> Floats:
        """[slot] the sum of the amounts at earlier slots; those at NEVER are before all."""
        return np.cumsum(np.bincount(slots + 1, amounts, self.a.slots + 1).astype(np.float64))[: self.a.slots]
