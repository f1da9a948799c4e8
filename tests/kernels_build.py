"""Short names for building jobs in tests: expressions, views, ranges, random data."""

from __future__ import annotations

import itertools

import numpy as np

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Reduce, Reduction
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, Box, ContractJob, GatherJob, MapJob, PairsJob, Range, View
from kernels_naive import Case, rounded

F, BF, HF, I32 = DType.FP32, DType.BF16, DType.FP16, DType.INT32


def ex(x: Expr | str | float) -> Expr:
    if isinstance(x, str):
        return Axis(Letter(x))
    return Num(x) if isinstance(x, int | float) else x


def ld(name: str, *indices: Expr | str | float) -> Load:
    return Load(name, tuple(ex(i) for i in indices))


def op(symbol: str, x: Expr | str | float, y: Expr | str | float) -> Binary:
    return Binary(symbol, ex(x), ex(y))


def fn(name: str, *args: Expr | str | float) -> Call:
    return Call(name, tuple(ex(a) for a in args))


def red(reduction: Reduction, letters: str, body: Expr) -> Reduce:
    return Reduce(reduction, tuple(Letter(x) for x in letters), body)


def view(name: str, *shape: int, dtype: DType = F, cuts: dict[int, list[int]] | None = None) -> View:
    """A view of a whole value, in tiles that end at `cuts[dimension]`."""
    boxes = [Box((0,) * len(shape), shape)]
    for d, places in (cuts or {}).items():
        borders = [0, *places, shape[d]]
        boxes = [
            Box((*b.start[:d], lo, *b.start[d + 1 :]), (*b.end[:d], hi, *b.end[d + 1 :]))
            for b in boxes
            for lo, hi in itertools.pairwise(borders)
        ]
    return View(name, dtype, tuple(boxes))


def ranges(**extent: int | tuple[int, int]) -> tuple[Range, ...]:
    return tuple(Range(Letter(x), *(e if isinstance(e, tuple) else (0, e))) for x, e in extent.items())


def letters(word: str) -> tuple[Letter, ...]:
    return tuple(Letter(x) for x in word)


def fill(job: MapJob | ContractJob | AttentionJob | PairsJob | GatherJob, seed: int = 0, **given: np.ndarray) -> Case:
    """Random values for everything the job reads (in [-1, 1)-ish), except those given."""
    rng = np.random.default_rng(seed)
    values = {}
    for v in job.reads:
        shape = tuple(max(b.end[d] for b in v.boxes) for d in range(len(v.boxes[0].end)))
        values[v.name] = rounded(given.get(v.name, rng.standard_normal(shape)), v.dtype)
    return Case(job, values)


def result(name: str, *shape: int, dtype: DType = F, at: tuple[int, ...] | None = None) -> View:
    start = at or (0,) * len(shape)
    return View(name, dtype, (Box(start, tuple(a + n for a, n in zip(start, shape, strict=True))),))


# Map jobs
