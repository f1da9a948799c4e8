"""Checks of indices that depend on data, for backends whose kernels cannot raise.

In: a job's expressions. Out: an IndexCheck, which raises IndexOutOfRange or DivisorIsZero, or None where every index is known beforehand.
It looks at the operands that indices are made of and no others, so that a device can check an input while it is still on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from einpage.einsum_front.algebra.expr import Expr, Load, loads
from einpage.einsum_front.graph.job import Job
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_indices
from einpage.kernels.instructions.look_up import check_index
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.layout.affine import affine
from einpage.kernels.layout.blocks import extents, whole
from einpage.kernels.layout.window import BoundStep


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """Checks every index of a job that depends on data, from host copies of what it is made of."""

    reads: tuple[int, ...]
    """The job's reads that its indices are made of."""
    names: tuple[str, ...]
    """Of those reads."""
    run: Callable[[Operands], object]

    def __call__(self, on_host: Sequence[tuple[Tensor, ...] | None]) -> None:
        """Raise IndexOutOfRange for an index outside, DivisorIsZero for one divided by 0; Unsupported where a read that indices are made of
        is not on the host (None)."""
        for i, name in zip(self.reads, self.names, strict=True):
            if on_host[i] is None:
                raise Unsupported(f"an index made of {name}, which is computed on the device, cannot be checked before it is used")
        self.run(tuple(tiles or () for tiles in on_host))


def index_checks(job: Job, expressions: Sequence[Expr]) -> IndexCheck | None:
    """The check of every looked-up index in `expressions`; None where every index is known beforehand."""
    checks: list[tuple[Expr, Callable[[Tensor], None]]] = []
    for load in dict.fromkeys(x for e in expressions for x in loads(e)):
        view = next(v for v in job.reads if v.name == load.name)
        for d, index in enumerate(load.indices):
            if affine(index) is None and any(isinstance(n, Load) for n in loads(index)):
                low, high = min(b.start[d] for b in view.boxes), max(b.end[d] for b in view.boxes)
                checks.append((index, partial(_check, load.name, d, low, high)))
    if not checks:
        return None
    region = whole(job.ranges)
    listed = compile_indices(checks, tuple(region), extents(region), job.reads)
    names = dict.fromkeys(x.name for index, _ in checks for x in loads(index))
    reads = tuple(i for i, v in enumerate(job.reads) if v.name in names)
    return IndexCheck(reads, tuple(job.reads[i].name for i in reads), _run_once(bind(listed, region, job.reads, {}, [])))


def _run_once(step: BoundStep) -> Callable[[Operands], object]:
    return lambda operands: step(operands)()


def _check(name: str, dimension: int, low: int, high: int, index: Tensor) -> None:
    check_index(name, dimension, index, low, high)
