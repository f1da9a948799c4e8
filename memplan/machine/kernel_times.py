"""What kernels and copies usually take on a machine, fitted to runs of it, beside the best rates that bounds are made of.

In: the Work of a task. Out: seconds, and how many times longer while copies are in flight.

    product     launch + flops / rate(rows) + epilogue + unpacked                 attention    launch + heads + flops / rate(rows)
    map         launch + operations + elements                         copy         latency + bytes / rate(distance)

Rates are interpolated over the logarithm of rows, and are those of the nearest rows measured beyond them. Times are of fp32: in
other dtypes, products take longer by the ratio of their best rates.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple, assert_never

import numpy as np

from einpage.einsum_front.base.columns import Floats, Int64s
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.machine.work import KernelKind, Work


@dataclass(frozen=True, slots=True)
class AtRows:
    """Products with so many rows."""

    rows: int
    flops_per_s: float
    beside_copies: float = 1.0
    """How many times as long they take while copies are in flight; below 1 where a cache holds what these bring."""
    strided: float = 1.0
    """How many times longer where the larger operand is a part of wider rows (Work.strided); at least 1."""
    by_columns: float = 1.0
    """How many times as long where an operand lies column by column (Work.by_columns)."""
    slows_copies: float = 1.0
    """How many times as long copies take meanwhile."""


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Products on their own, or those of attention."""

    launch_s: float
    """Of a kernel, the handover from the node before it included."""
    at_rows: tuple[AtRows, ...]
    """Rows ascending, at least one entry."""
    head_s: float = 0.0
    """Of each product of its own that an attention consists of."""
    unpack_s: float = 0.0
    """For each number of a stored weight that is unpacked before it is multiplied."""
    epilogue_s: float = 0.0
    """For each element that an operation of the epilogue computes."""
    function_s: float = 0.0
    """For each element that a function of the epilogue computes."""

    def interpolated(self, rows: int) -> AtRows:
        """Rates and factors at so many rows."""
        at = bisect_left(self.at_rows, rows, key=lambda entry: entry.rows)
        if at == 0 or at == len(self.at_rows) or self.at_rows[at].rows == rows:
            return self.at_rows[min(at, len(self.at_rows) - 1)]
        low, high = self.at_rows[at - 1], self.at_rows[at]
        share = log(rows / low.rows) / log(high.rows / low.rows)
        rate = exp((1 - share) * log(low.flops_per_s) + share * log(high.flops_per_s))
        names = ("beside_copies", "strided", "by_columns", "slows_copies")
        return AtRows(rows, rate, *((1 - share) * getattr(low, name) + share * getattr(high, name) for name in names))


@dataclass(frozen=True, slots=True)
class MapTimes:
    """Pointwise operations and row reductions."""

    launch_s: float
    """Of a kernel, the handover from the node before it included."""
    operation_s: float
    element_s: float
    """For each element that an operation computes."""
    function_s: float
    """For each element that a function computes, as cos."""
    look_up_s: float
    """Of a kernel whose indices are data."""
    beside_copies: float = 1.0
    """As for products."""
    slows_copies: float = 1.0
    """As for products."""

    def pointwise(self, work: Work) -> float:
        """Seconds for the pointwise part of `work`, without its launch."""
        looked_up = self.look_up_s if work.looks_up else 0.0
        return looked_up + work.operations * self.operation_s + work.elements * self.element_s + work.functions * self.function_s


class AtDistance(NamedTuple):
    """Copies to a place of the device that was written so many bytes ago: a cache has forgotten it."""

    nbytes: int
    """Copied since."""
    times_longer: float
    """At least 1."""


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Copies between the host and the device."""

    links: tuple[Link, ...]
    """One that nothing else slows down."""
    gather_s: float
    """Of a gather of rows, beside what its bytes take."""
    together: float = 1.0
    """How many times longer while those of another link are in flight; at least 1."""
    at_distances: tuple[AtDistance, ...] = ()
    """Bytes ascending; empty: a copy takes as long wherever it goes. Between two it is interpolated over their logarithm."""

    def times_longer(self, distances: Int64s) -> Floats:
        """[copy] how many times longer each takes whose target was written so many bytes ago, at least 1 byte."""
        nbytes, times_longer = zip(*self.at_distances or (AtDistance(1, 1.0),), strict=True)
        found: Floats = np.interp(np.log(distances), np.log(nbytes), times_longer)
        return found

    def link(self, queue: Queue) -> Link | None:
        """The link of `queue`, if it was measured."""
        return next((link for link in self.links if link.queue == queue), None)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    start_s: float
    """From the start of a run to its first node."""
    wakeup_s: float
    """Until an engine that has waited for another goes on."""
    products: ProductTimes
    attention: ProductTimes
    few_queries: ProductTimes
    """Attention that is loops of our own (Work.kind)."""
    maps: MapTimes
    copies: CopyTimes

    def seconds(self, work: Work, fp32_ratio: float = 1.0) -> float:
        """How long a kernel takes that nothing else slows down; `fp32_ratio`: how many times as long
        as in fp32 its products take."""
        match work.kind:
            case KernelKind.PRODUCT:
                at = self.products.interpolated(work.rows)
                epilogue_s = work.elements * self.products.epilogue_s + work.functions * self.products.function_s
                layout = at.by_columns if work.by_columns else 1.0
                times_longer = fp32_ratio * (max(at.strided, layout) if work.strided else layout)
                unpack_s = work.unpacked * self.products.unpack_s
                return self.products.launch_s + times_longer * work.flops / at.flops_per_s + unpack_s + epilogue_s
            case KernelKind.ATTENTION | KernelKind.FEW_QUERIES:
                times = self.attention if work.kind is KernelKind.ATTENTION else self.few_queries
                rate = times.interpolated(work.rows).flops_per_s
                return times.launch_s + work.heads * times.head_s + fp32_ratio * work.flops / rate
            case KernelKind.MAP:
                return self.maps.launch_s + self.maps.pointwise(work)
        assert_never(work.kind)

    def sharing(self, work: Work) -> tuple[float, float]:
        """How many times as long that kernel takes while copies are in flight, and copies while it runs."""
        match work.kind:
            case KernelKind.PRODUCT | KernelKind.ATTENTION | KernelKind.FEW_QUERIES:
                of_kind = {KernelKind.PRODUCT: self.products, KernelKind.ATTENTION: self.attention}.get(work.kind, self.few_queries)
                at = of_kind.interpolated(work.rows)
                return at.beside_copies, at.slows_copies
            case KernelKind.MAP:
                return self.maps.beside_copies, self.maps.slows_copies
        assert_never(work.kind)
