"""The dumb definition that kernels are judged by: whole values as fp64 arrays, one axis a letter, plain numpy broadcasting.

It shares no code with the kernels: a job is turned back into one expression (accumulators become written sums), every load is an
advanced index by
integer arrays, every reduction is numpy's over an array of full extent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Num, Reduce, Reduction, Unary, substitute
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, Box, ContractJob, GatherJob, Job, MapJob, PairsJob, Part
from naive_functions import NAIVE

Array = NDArray[Any]
TORCH = {
    DType.FP32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}
TOLERANCE = {DType.FP32: 1e-5, DType.BF16: 1e-2, DType.FP16: 1e-2}


@dataclass(frozen=True)
class Case:
    """A job and the whole values it reads, already rounded to their dtypes."""

    job: Job
    values: Mapping[str, Array]

    def operands(self) -> tuple[tuple[torch.Tensor, ...], ...]:
        return tuple(tuple(cut(self.values[v.name], box, v.dtype) for box in v.boxes) for v in self.job.reads)

    def poisoned(self) -> torch.Tensor:
        """A result tile full of NaN."""
        return torch.full(self.job.result.boxes[0].shape, math.nan, dtype=TORCH[self.job.result.dtype])


def cut(value: Array, box: Box, dtype: DType) -> torch.Tensor:
    window = value[tuple(slice(a, b) for a, b in zip(box.start, box.end, strict=True))]
    return torch.from_numpy(np.array(window, order="C")).to(TORCH[dtype]).clone()


def rounded(value: Array, dtype: DType) -> Array:
    """`value` as it is once stored in `dtype`, in fp64 (integers stay integers)."""
    stored = torch.from_numpy(np.array(value, order="C")).to(TORCH[dtype])
    return stored.numpy() if not dtype.is_float else stored.double().numpy()


def expected(case: Case, sizes: list[float] | None = None) -> Array:
    """The job's result tile in fp64; NaN where the job writes nothing. `sizes` collects the largest magnitude of each value on the way."""
    job = case.job
    box = job.result.boxes[0]
    out = np.full(box.shape, np.nan)
    ranges = {r.letter: np.arange(r.start, r.end) for r in job.ranges}
    for part in parts(job):
        letters = [i.letter for i in part.target if isinstance(i, Axis)]
        order = [*letters, *(x for x in ranges if x not in letters)]
        value = evaluate(part.expr, order, ranges, case.values, sizes)
        value = np.broadcast_to(value, [len(ranges[x]) if x in letters else 1 for x in order]).reshape([len(ranges[x]) for x in letters])
        if any(isinstance(i, Num) and not box.start[d] <= i.value < box.end[d] for d, i in enumerate(part.target)):
            continue
        where: list[Any] = []
        for d, index in enumerate(part.target):
            if isinstance(index, Num):
                where.append(int(index.value) - box.start[d])
            else:
                assert isinstance(index, Axis)
                where.append(slice(int(ranges[index.letter][0]) - box.start[d], int(ranges[index.letter][-1]) + 1 - box.start[d]))
        out[tuple(where)] = value
    return out


def parts(job: Job) -> tuple[Part, ...]:
    """The job as statements with every sum written out."""
    match job:
        case MapJob():
            return job.parts
        case GatherJob():
            return (Part(tuple(Axis(x) for x in job.target), job.load),)
        case ContractJob():
            sums = [
                Reduce(Reduction.SUM, c.letters, Binary("*", c.x, c.y)) if c.letters else Binary("*", c.x, c.y) for c in job.contractions
            ]
            return (Part(tuple(Axis(x) for x in job.target), put(job.epilogue, dict(enumerate(sums)))),)
        case AttentionJob():
            product = Reduce(Reduction.SUM, job.score_letters, Binary("*", job.q, job.k))
            weights = Reduce(Reduction.SOFTMAX, (job.row,), put(job.score, {0: product}))
            attended = Reduce(Reduction.SUM, (job.row,), Binary("*", weights, job.v))
            return (Part(tuple(Axis(x) for x in job.target), put(job.epilogue, {1: attended})),)
        case PairsJob():
            products = [Reduce(Reduction.SUM, c.letters, Binary("*", c.x, c.y)) for c in job.products]
            weight = put(job.weight, dict(enumerate(products)))
            if job.is_logarithm:
                most = Call("max", (Reduce(Reduction.MAX, job.letters, weight), Num(-1e300)))
                sums = Reduce(Reduction.SUM, job.letters, Call("exp", (Binary("-", weight, most),)))
                total: Expr = Call("where", (Binary(">", sums, Num(0)), Binary("+", Call("log", (sums,)), most), Num(math.inf)))
            else:
                total = Reduce(Reduction.SUM, job.letters, weight if job.factor is None else Binary("*", weight, job.factor))
            return (Part(tuple(Axis(x) for x in job.target), put(job.epilogue, {len(products): total})),)


def put(e: Expr, accs: Mapping[int, Expr]) -> Expr:
    return substitute(e, lambda n: accs[n.index] if isinstance(n, Acc) else None)


def evaluate(
    e: Expr, order: list[Letter], ranges: Mapping[Letter, Array], values: Mapping[str, Array], sizes: list[float] | None = None
) -> Array:
    """`e` with one array axis for each letter of `order` (size 1 where constant)."""

    def ev(x: Expr) -> Array:
        found = evaluate(x, order, ranges, values, sizes)
        if sizes is not None and found.size:
            sizes.append(float(np.abs(found[np.isfinite(found)]).max(initial=0.0)))
        return found

    full = [len(ranges[x]) for x in order]
    with np.errstate(all="ignore"):
        match e:
            case Num(value):
                return np.full([1] * len(order), value)
            case Axis(letter):
                return ranges[letter].reshape([-1 if x == letter else 1 for x in order])
            case Load(name, indices):
                return values[name][tuple(ev(i).astype(np.int64) for i in indices)] if indices else np.full([1] * len(order), values[name])
            case Unary("-", x):
                return -1 * ev(x)
            case Unary("not", x):
                return ev(x) == 0
            case Binary("and", x, y):
                return (ev(x) != 0) & (ev(y) != 0)
            case Binary("or", x, y):
                return (ev(x) != 0) | (ev(y) != 0)
            case Binary(op, x, y):
                left, right = ev(x), ev(y)
                if op == "**":
                    left = left.astype(np.float64)
                return BINARY[op](left * 1, right * 1)
            case Call(fn, args):
                return NAIVE[fn](*(ev(x) * 1 for x in args))
            case Reduce(op, letters, body):
                axes = tuple(order.index(x) for x in letters)
                inner = ev(body) * 1.0
                inner = np.broadcast_to(inner, [full[d] if d in axes else n for d, n in enumerate(inner.shape)])
                return REDUCE[op](inner, axes)
    raise AssertionError(e)


def softmax(x: Array, axes: tuple[int, ...]) -> Array:
    most = np.max(x, axis=axes, keepdims=True)
    parts_ = np.where(np.isneginf(most), 0.0, np.exp(x - np.where(np.isneginf(most), 0.0, most)))
    total = parts_.sum(axis=axes, keepdims=True)
    return np.where(total == 0, 0.0, parts_ / np.where(total == 0, 1.0, total))


REDUCE = {
    Reduction.SUM: lambda x, axes: x.sum(axis=axes, keepdims=True),
    Reduction.MEAN: lambda x, axes: x.mean(axis=axes, keepdims=True),
    Reduction.MAX: lambda x, axes: x.max(axis=axes, keepdims=True),
    Reduction.MIN: lambda x, axes: x.min(axis=axes, keepdims=True),
    Reduction.SOFTMAX: softmax,
}
BINARY = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.mod,
    "**": np.power,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def relative_error(got: torch.Tensor, want: Array) -> float:
    """Largest difference over the largest expected magnitude; infinite where got is NaN and want is not, or the other way round."""
    found = got.double().numpy()
    if (np.isnan(found) != np.isnan(want)).any() or (np.isinf(found) != np.isinf(want)).any():
        return math.inf
    kept = np.isfinite(want)
    if not kept.any():
        return 0.0
    return float(np.abs(found[kept] - want[kept]).max() / max(np.abs(want[kept]).max(), 1e-30))


def assert_near(case: Case, got: torch.Tensor) -> None:
    """As `assert_right`, for random expressions: what cancels is judged by the size of what it was made of."""
    sizes: list[float] = [1.0]
    want = expected(case, sizes)
    found = got.double().numpy()
    assert (np.isnan(found) == np.isnan(want)).all(), f"{case.job.result.name}: NaN in the wrong places"
    kept = np.isfinite(want)
    sizes.append(float(np.abs(want[kept]).max(initial=0.0)))
    error = float(np.abs(found[kept] - want[kept]).max(initial=0.0)) / max(sizes)
    assert error <= TOLERANCE[case.job.result.dtype], f"{case.job.result.name}: error {error:.2e} of the largest value on the way"


def assert_right(case: Case, got: torch.Tensor, note: str = "", want: Array | None = None) -> None:
    """Compare a result tile with the naive definition, at the tolerance of its dtype. `want` is what it gives, where it is at hand."""
    dtype = case.job.result.dtype
    error = relative_error(got, expected(case) if want is None else want)
    assert error <= TOLERANCE[dtype], (
        f"{case.job.result.name}{note}: relative error {error:.2e} over {TOLERANCE[dtype]:.0e} in {dtype.value}"
    )
