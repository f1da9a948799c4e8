"""Arrays of float64 numbers, each with a bound on the error that a run in some dtype may have made by then.

The bound rests on the standard model (Higham, Accuracy and Stability of Numerical Algorithms, sections 2.2 and 3.1): a rounding to nearest
changes a number by at most the unit roundoff u times itself. What is promised: an operation rounds once in fp32, a function of one
argument four times, n terms are summed in fp32 in any order (n times u of their absolute sum), and only what is stored is rounded to the
run's dtype. `stored` is that rounding; statement_numpy says where it may happen. Numbers known exactly have the bound 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naive_functions import NAIVE

Array = NDArray[Any]
Operation = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Precision:
    """A dtype that values may be stored in."""

    unit: float
    """The most that rounding to nearest changes a number, as a part of it: half the distance from 1 to the next larger number."""
    smallest: float
    """What it changes numbers near 0 by."""
    largest: float


FP32 = Precision(2.0**-24, 2.0**-126, 3.4e38)
"""In which everything is computed that is not stored. Numbers below the least normal one may become 0."""
PRECISIONS = {"fp32": FP32, "bf16": Precision(2.0**-8, 2.0**-126, 3.38e38), "fp16": Precision(2.0**-11, 2.0**-25, 65504.0)}
ROUNDINGS: Mapping[Operation, int] = {np.true_divide: 2, np.power: 4}
"""A quotient may be a product with the reciprocal; others round once."""
CANCELLING = frozenset(("gelu", "gelu_tanh"))
"""Functions that add 1 to what may be close to -1."""


@dataclass(frozen=True, slots=True)
class Value:
    """Numbers with an axis a letter, in alphabetical order, and the error bound of each."""

    letters: str
    numbers: Array
    error: Array
    is_sum: bool = False
    """Whether it is the result of a sum or another reduction, which a run may store."""


def rounded(array: Array, dtype: str) -> Array:
    """What a checkpoint or an array becomes where it is loaded as `dtype`: fp32, then rounded to nearest, ties to even."""
    single = np.asarray(array, np.float32)
    if dtype == "bf16":
        bits = single.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32).astype(np.float64)
    return (single.astype(np.float16) if dtype == "fp16" else single).astype(np.float64)


def constant(number: float) -> Value:
    """A number of the spec: fp32 whatever the dtype."""
    exact = not math.isfinite(number) or float(np.float32(number)) == number
    return Value("", np.asarray(number), np.asarray(0.0 if exact else FP32.unit * abs(number)))


def union(*values: Value) -> str:
    return "".join(sorted(set("".join(v.letters for v in values))))


def spread_over(value: Value, letters: str, extents: Mapping[str, int], full: bool = False) -> tuple[Array, Array]:
    """The numbers and the errors with an axis for each of `letters`: of extent 1 where `value` lacks it, but where `full`."""
    shape = [extents[x] if x in value.letters else 1 for x in letters]
    out = value.numbers.reshape(shape), np.broadcast_to(value.error, value.numbers.shape).reshape(shape)
    whole = [extents[x] for x in letters]
    return (np.broadcast_to(out[0], whole), np.broadcast_to(out[1], whole)) if full else out


def _rounding(out: Array, error: Array, times: int = 1, into: Precision = FP32) -> Array:
    """`error` and so many roundings of what differs from `out` by it; infinite where `out` overflows, 0 where it is infinite itself."""
    grown = error + times * (into.unit * (np.abs(out) + error) + into.smallest)
    grown = np.where(np.abs(out) + grown > into.largest, np.inf, grown)
    return np.where(np.isinf(out), 0.0, np.where(np.isnan(grown), np.inf, grown))


def stored(x: Value, into: Precision, times: int = 1) -> Value:
    """`x` after it may have been stored `times` over, and a sum no longer. In fp32, in which it is computed, that changes nothing."""
    numbers = x.numbers * 1.0
    if into is FP32 or not times:
        return Value(x.letters, x.numbers, x.error)
    return Value(x.letters, numbers, _rounding(numbers, np.broadcast_to(x.error, numbers.shape), times, into))


def negated(x: Value) -> Value:
    return Value(x.letters, -1 * x.numbers, x.error)


def negation(x: Value) -> Value:
    """`not x`."""
    flips = np.where((x.error > 0) & (np.abs(x.numbers * 1.0) <= x.error), 1.0, 0.0)
    return Value(x.letters, x.numbers == 0, flips)


def pointwise(fn: Operation, x: Value, y: Value, extents: Mapping[str, int]) -> Value:
    """`fn` of two operands; whole numbers of whole numbers stay exact."""
    letters = union(x, y)
    (a, da), (b, db) = spread_over(x, letters, extents), spread_over(y, letters, extents)
    a, b = a * 1, b * 1
    if fn is np.power:
        a = a.astype(np.float64)
    out = fn(a, b)
    if fn in (np.minimum, np.maximum):
        return Value(letters, out, np.broadcast_to(np.maximum(da, db), out.shape))
    known = not da.any() and not db.any()
    if known and bool(np.all(~np.isfinite(out) | (out == np.round(out)) & (np.abs(out) < 2**24))) and _whole(a) and _whole(b):
        return Value(letters, out, np.zeros(out.shape))
    if known:
        error = np.zeros(out.shape)
    elif fn in (np.add, np.subtract):
        error = np.broadcast_to(da + db, out.shape)
    elif fn is np.multiply:
        error = _times(np.abs(a), db) + _times(np.abs(b), da) + da * db
    else:
        corners = [fn(a + i * da, b + j * db) for i, j in product((-1, 1), repeat=2)]
        error = np.max([np.abs(c - out) for c in corners], axis=0)
        if fn is np.true_divide:
            error = np.where((np.abs(b) <= 2 * db) & (db > 0), np.inf, error)
    return Value(letters, out, _rounding(out, error, ROUNDINGS.get(fn, 1)))


def _whole(a: Array) -> bool:
    return bool(np.all(~np.isfinite(a * 1.0) | (a == np.round(a * 1.0))))


def function(name: str, x: Value) -> Value:
    """A function of the table, at the argument and as far from it as its error reaches."""
    fn = NAIVE[name]
    v, d = x.numbers * 1.0, x.error
    out = fn(v)
    if name in ("abs", "relu"):
        return Value(x.letters, out, np.broadcast_to(d, out.shape))
    near = [fn(v + by * d) for by in (-1, -0.5, 0.5, 1)] if np.any(d) else [out]
    error = np.max([np.where(np.isnan(n) & ~np.isnan(out), np.inf, np.abs(n - out)) for n in near], axis=0)
    error = np.where(np.isinf(out) & (v == out), 0.0, error)
    if name in CANCELLING:
        error = error + 4 * FP32.unit * np.abs(v)
    return Value(x.letters, out, _rounding(out, error, 4))


def compared(fn: Operation, x: Value, y: Value, extents: Mapping[str, int]) -> Value:
    """A truth; its error is 1 where the operands are too close to tell."""
    letters = union(x, y)
    (a, da), (b, db) = spread_over(x, letters, extents), spread_over(y, letters, extents)
    bad = da + db
    return Value(letters, fn(a, b), np.where((bad > 0) & (np.abs(a * 1.0 - b * 1.0) <= bad), 1.0, 0.0))


def chosen(c: Value, x: Value, y: Value, extents: Mapping[str, int]) -> Value:
    """`where(c, x, y)`: how far apart both are, where the condition may be either."""
    letters = union(c, x, y)
    (k, dk), (a, da), (b, db) = (spread_over(v, letters, extents) for v in (c, x, y))
    flips = (dk > 0) & (np.abs(k * 1.0) <= np.maximum(dk, 1.0))
    apart = np.abs(a * 1.0 - b * 1.0) + da + db
    return Value(letters, np.where(k != 0, a, b), np.where(flips, apart, np.where(k != 0, da, db)))


def reduced(word: str, over: str, x: Value, extents: Mapping[str, int]) -> Value:
    """`word[over](x)`; softmax keeps its letters."""
    letters = "".join(sorted(set(x.letters) | set(over)))
    v, d = spread_over(x, letters, extents, full=True)
    v, axes, count = v * 1.0, tuple(letters.index(c) for c in over), math.prod(extents[c] for c in over)
    kept = "".join(c for c in letters if c not in over)
    if word in ("max", "min"):
        return Value(kept, v.max(axes) if word == "max" else v.min(axes), d.max(axes), is_sum=True)
    if word in ("sum", "mean"):
        total = v.sum(axes)
        error = d.sum(axes) + (count - 1) * FP32.unit * (np.abs(v) + d).sum(axes)
        if word == "mean":
            total, error = total / count, _rounding(total / count, error / count, 2)
        return Value(kept, total, error, is_sum=True)
    assert word == "softmax", word
    most = v.max(axes, keepdims=True)
    parts = np.where(np.isneginf(most), 0.0, np.exp(v - np.where(np.isneginf(most), 0.0, most)))
    total = parts.sum(axes, keepdims=True)
    out = np.where(total == 0, 0.0, parts / np.where(total == 0, 1.0, total))
    # Of exp's argument, as large as the row is wide, comes a rounding in fp32; the sum of all changes by the mean of its terms' changes.
    width = np.where(np.isfinite(v), np.abs(v - most), 0.0) * FP32.unit
    off = np.where(parts > 0, np.minimum(d + width, 50.0), 0.0)
    grows = off + np.log(np.where(total == 0, 1.0, (out * np.exp(off)).sum(axes, keepdims=True)))
    return Value(letters, out, _rounding(out, out * np.expm1(grows), count + 6), is_sum=True)


def _times(x: Array, error: Array) -> Array:
    """x * error, 0 where the error is, even of an infinite x."""
    return np.where(error == 0, 0.0, x * error)
