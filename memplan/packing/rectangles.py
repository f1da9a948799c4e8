"""Buffers whose lives are known before anything runs, an offset for each, and the judge of such a packing.

In: Buffers, each alive over the half-open interval [lower, upper). Out: a Packing, which is right where no two buffers that are alive
at the same time share a byte. The judge compares every pair, and shares no code with what finds packings.

    offset 3 |  b b b        a: [0, 2) size 3
           2 |  a a c c      b: [0, 3) size 1
           1 |  a a c c      c: [2, 4) size 2
           0 |  a a . .      height 4, lower bound 4; c may as well lie at 0
    time        0 1 2 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einpage.einsum_front.base.units import Nbytes
from einpage.memplan.graph.memgraph import Offset


@dataclass(frozen=True, slots=True)
class Buffer:
    name: str
    lower: int
    """The first instant at which it is alive."""
    upper: int
    """The first instant after `lower` at which it is not."""
    size: Nbytes


@dataclass(frozen=True, slots=True)
class Packing:
    buffers: tuple[Buffer, ...]
    offsets: tuple[Offset, ...]
    """One per buffer, in their order."""

    @property
    def height(self) -> Nbytes:
        """The end of the highest buffer: the smallest capacity that this packing fits."""
        return Nbytes(max((o + b.size for b, o in zip(self.buffers, self.offsets, strict=True)), default=0))


def lower_bound(buffers: Sequence[Buffer]) -> Nbytes:
    """The largest sum of sizes alive at once: no packing is lower."""
    # At one instant ends come before beginnings: lives are half-open.
    changes = sorted([(b.lower, b.size) for b in buffers] + [(b.upper, -b.size) for b in buffers])
    alive = most = 0
    for _, size in changes:
        alive += size
        most = max(most, alive)
    return Nbytes(most)


def judge_packing(packing: Packing, capacity: int) -> str | None:
    """What is wrong with a packing under `capacity` bytes; None where nothing is. Looks at every pair: n² steps."""
    placed = list(zip(packing.buffers, packing.offsets, strict=False))
    if len(packing.buffers) != len(packing.offsets):
        return f"{len(packing.buffers)} buffers have {len(packing.offsets)} offsets"
    for i, (b, at) in enumerate(placed):
        if at < 0 or at + b.size > capacity:
            return f"{b.name} at [{at}, {at + b.size}) is not inside [0, {capacity})"
        for c, to in placed[:i]:
            if b.lower < c.upper and c.lower < b.upper and at < to + c.size and to < at + b.size:
                return f"{c.name} at [{to}, {to + c.size}) and {b.name} at [{at}, {at + b.size}) are alive at the same time"
    return None
