"""Plain products as jobs: what is timed beside the library's, without any spec."""

from __future__ import annotations

from einpage.einsum_front.algebra.expr import Acc, Axis, Letter, Load
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Box, Contraction, ContractJob, Range, View


def product_job(rows: int, columns: int, inner: int, dtype: DType) -> ContractJob:
    """y[r,c] = x[r,k] * w[c,k]: a projection, its weight as checkpoints hold it."""
    r, c, k = Letter("r"), Letter("c"), Letter("k")
    ranges = (Range(r, 0, rows), Range(c, 0, columns), Range(k, 0, inner))
    x, w = Load("x", (Axis(r), Axis(k))), Load("w", (Axis(c), Axis(k)))
    reads = (_whole("x", (rows, inner), dtype), _whole("w", (columns, inner), dtype))
    return ContractJob(ranges, reads, _whole("y", (rows, columns), dtype), (Contraction(x, w, (k,)),), (r, c), Acc(0), None, True)


def _whole(name: str, shape: tuple[int, ...], dtype: DType) -> View:
    return View(name, dtype, (Box((0,) * len(shape), shape),))
