"""The fewest bytes over the links that an order of tasks needs in an arena of a given size: the interval LP.

In: Accesses, bytes of the arena. Out: BytesBound, with the resident share of each interval, the written one of dirty tensors. Exact where
tensors may be cut at every byte; for whole tensors a lower bound, nearer with what problem/fits.py says of them, exact with `integer`.

    minimise   F + sum_j s_j (1 - x_j) + omega (S + sum_t s_t w_t)           x_j, w_t in [0, 1]
    o_k = o_{k-1} + sum_{start_j = k-1} s_j x_j - sum_{end_j = k} s_j x_j    0 <= o_k <= C - footprint_k
    w_t >= 1 - x_j   for every interval j of a dirty t
    x_j = 0          where t does not fit over all of j; at most so many x_j of a crowd

x_j: resident share of its tensor during interval j. o_k: resident bytes that slot k does not touch. F: first loads. S: outputs, written
once each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.memplan.bounds.lp import Indices, Lp
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.fits import Fits, fits

UNITS = 1000.0
"""The arena in the programme's unit of bytes: keeps coefficients near 1."""


@dataclass(frozen=True, slots=True, eq=False)
class BytesBound:
    total: float
    """No plan of these slots moves less: bytes loaded + omega * bytes stored. Proved."""
    loaded: float
    """Bytes in the solution found (a bound of its own only where omega is 0)."""
    stored: float
    resident: Floats
    """[interval] share of the tensor resident in the arena."""
    written: Floats
    """[tensor] share spilled to the host; 0 for outputs and clean tensors."""


def bytes_bound(
    a: Accesses, capacity: int, omega: float = 1.0, integer: bool = False, time_limit_s: float | None = None, cut: bool = False
) -> BytesBound:  # fmt: skip
    """Solve the interval LP; with `integer`, for whole tensors, as far as it gets in `time_limit_s` (60 unless given); with `cut`, for
    tensors that may be cut at every byte.

    `capacity` is at least every footprint. Raises lp.Unsolved; ImportError without scipy.
    """
    assert a.slots == 0 or capacity >= int(a.footprint.max()), f"{capacity} bytes are less than the largest footprint"
    sure = a.compulsory_load_bytes + omega * a.compulsory_store_bytes
    resident, written = np.ones(len(a.tensor)), np.zeros(len(a.nbytes))
    if all_resident(a, capacity):
        return BytesBound(float(sure), float(a.compulsory_load_bytes), float(a.compulsory_store_bytes), resident, written)
    unit = capacity / UNITS
    size = a.nbytes[a.tensor] / unit
    lp = Lp()
    x = add_residents(lp, a, None if cut else fits(a, capacity), -size)
    add_resident_bytes(lp, a, x, size, (capacity - a.footprint) / unit)
    tensors, w = add_written(lp, a, x, np.asarray(omega * a.nbytes / unit, np.float64))
    if integer:
        found = lp.solve_integer(x, 60.0 if time_limit_s is None else time_limit_s)
    else:
        found = lp.solve(time_limit_s)
    resident, written[tensors] = np.clip(found.values[x], 0, 1), np.clip(found.values[w], 0, 1)
    loaded = a.compulsory_load_bytes + float(a.nbytes[a.tensor] @ (1 - resident))
    stored = a.compulsory_store_bytes + float(a.nbytes @ written)
    return BytesBound(max(float(sure), sure + (float(size.sum()) + found.bound) * unit), loaded, stored, resident, written)


def all_resident(a: Accesses, capacity: int) -> bool:
    """Whether every tensor can stay resident from its first use to its last."""
    size = a.nbytes[a.tensor]
    change = a.by_slot(a.start + 1, size) - a.by_slot(a.end, size)
    return bool(np.all(np.cumsum(change) + a.footprint <= capacity))


def add_residents(lp: Lp, a: Accesses, whole: Fits | None, cost: Floats) -> Indices:
    """Columns x [interval], with the rows of what is known of `whole` tensors."""
    x = lp.add(np.ones(len(a.tensor)) if whole is None else whole.resident, cost=cost)
    if whole is not None and whole.crowds:
        rows = np.repeat(np.arange(len(whole.crowds)), [len(crowd.intervals) for crowd in whole.crowds])
        members = np.concatenate([crowd.intervals for crowd in whole.crowds])
        lp.rows_at_most([crowd.most for crowd in whole.crowds], (rows, x[members], 1.0))
    return x


def add_resident_bytes(lp: Lp, a: Accesses, x: Indices, size: Floats, headroom: Floats) -> Indices:
    """Columns o [slot]: bytes resident through the slot that it does not touch, at most `headroom`; with the rows that define them."""
    o = lp.add(headroom)
    slots = np.arange(a.slots)
    lp.rows_equal(
        np.zeros(a.slots),
        (slots, o, 1.0),
        (slots[1:], o[:-1], -1.0),
        (a.start + 1, x, -size),
        (a.end, x, size),
    )
    return o


def add_written(lp: Lp, a: Accesses, x: Indices, cost: Floats) -> tuple[Indices, Indices]:
    """Columns w for the dirty tensors that have intervals, with their rows: (tensors, columns). `cost` is by tensor."""
    of_dirty = np.flatnonzero(a.dirty[a.tensor])
    tensors, which = np.unique(a.tensor[of_dirty], return_inverse=True)
    w = lp.add(np.ones(len(tensors)), cost=cost[tensors])
    rows = np.arange(len(of_dirty))
    lp.rows_at_most(-np.ones(len(rows)), (rows, w[which], -1.0), (rows, x[of_dirty], -1.0))
    return tensors, w
