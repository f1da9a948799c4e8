"""Checks of indices that depend on data, for backends whose kernels cannot raise.

In: a job's expressions. Out: a function of the operands that raises IndexOutOfRange, or None where every index is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from einpage.einsum_front.expr import Expr, Load, loads
from einpage.einsum_front.job import Job
from einpage.kernels.access import affine
from einpage.kernels.bind import bind
from einpage.kernels.blocks import extents, whole
from einpage.kernels.compile import compile_indices
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.program import Operands


def index_checks(job: Job, expressions: Sequence[Expr]) -> Callable[[Operands], None] | None:
    """The check of every looked-up index in `expressions`."""
    checks: list[tuple[Expr, Callable[[Tensor], None]]] = []
    for load in dict.fromkeys(x for e in expressions for x in loads(e)):
        view = next(v for v in job.reads if v.name == load.name)
        for d, index in enumerate(load.indices):
            if affine(index) is None and any(isinstance(n, Load) for n in loads(index)):
                checks.append((index, _bounds(load.name, d, min(b.start[d] for b in view.boxes), max(b.stop[d] for b in view.boxes))))
    if not checks:
        return None
    region = whole(job.ranges)
    tape = compile_indices(checks, tuple(region), extents(region), job.reads)
    run = bind(tape, region, job.reads, {}, [])
    return run


def _bounds(name: str, dimension: int, low: int, high: int) -> Callable[[Tensor], None]:
    def check(index: Tensor) -> None:
        if index.numel():
            least, most = (int(x) for x in index.aminmax())
            if least < low or most >= high:
                raise IndexOutOfRange(name, dimension, least if least < low else most, high)

    return check
