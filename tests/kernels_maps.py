"""Pointwise jobs and row reductions: what the shipped specs need, and what sits at the edges of the contract."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from einpage.einsum_front.algebra.expr import Expr, Reduction, Unary
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import MapJob, Part
from kernels_build import ex, fill, fn, ld, op, ranges, red, result, view
from kernels_naive import Case
from naive_functions import POSITIVE

F, BF, HF, I32 = DType.FP32, DType.BF16, DType.FP16, DType.INT32


def rms_norm(dtype: DType = F, s: int = 5, m: int = 37, cuts: dict[int, list[int]] | None = None) -> Case:
    x = ld("x", "b", "s", "m")
    scale = fn("rsqrt", op("+", red(Reduction.MEAN, "m", op("**", x, 2)), 1e-5))
    body = op("*", op("*", x, scale), ld("w", "m"))
    job = MapJob(
        ranges(b=2, s=s, m=m),
        (view("x", 2, s, m, dtype=dtype, cuts=cuts), view("w", m, dtype=dtype)),
        result("h", 2, s, m, dtype=dtype),
        (Part((ex("b"), ex("s"), ex("m")), body),),
    )
    return fill(job)


def layer_norm(dtype: DType = F) -> Case:
    x, target = ld("x", "s", "m"), (ex("s"), ex("m"))
    centred = op("-", x, red(Reduction.MEAN, "m", x))
    spread = fn("sqrt", op("+", red(Reduction.MEAN, "m", op("**", centred, 2)), 1e-5))
    body = op("+", op("*", op("/", centred, spread), ld("w", "m")), ld("c", "m"))
    job = MapJob(
        ranges(s=(3, 10), m=45),
        (view("x", 12, 45, dtype=dtype), view("w", 45, dtype=dtype), view("c", 45, dtype=dtype)),
        result("h", 7, 45, dtype=dtype, at=(3, 0)),
        (Part(target, body),),
    )
    return fill(job)


def rotation(dtype: DType = F, s0: int = 3, theta: float = 10000.0) -> Case:
    angle = op("*", "s", op("**", theta, op("/", Unary("-", ex("e")), 8)))
    cos, sin = fn("cos", angle), fn("sin", angle)
    q0, q1 = ld("q", "b", "s", "k", 0, "e"), ld("q", "b", "s", "k", 1, "e")
    parts = (
        Part((ex("b"), ex("s"), ex("k"), ex(0), ex("e")), op("-", op("*", q0, cos), op("*", q1, sin))),
        Part((ex("b"), ex("s"), ex("k"), ex(1), ex("e")), op("+", op("*", q1, cos), op("*", q0, sin))),
    )
    job = MapJob(
        ranges(b=2, s=(s0, 11), k=3, e=8),
        (view("q", 2, 11, 3, 2, 8, dtype=dtype),),
        result("y", 2, 11 - s0, 3, 2, 8, dtype=dtype, at=(0, s0, 0, 0, 0)),
        parts,
    )
    return fill(job)


def soft_rows(dtype: DType = F) -> Case:
    body = red(Reduction.SOFTMAX, "t", fn("where", op("<", "t", "s"), op("*", ld("x", "s", "t"), 3.0), -math.inf))
    job = MapJob(ranges(s=9, t=13), (view("x", 9, 13, dtype=dtype),), result("a", 9, 13, dtype=dtype), (Part((ex("s"), ex("t")), body),))
    return fill(job)


def joint_softmax() -> Case:
    body = red(Reduction.SOFTMAX, "zt", ld("x", "s", "t"))
    job = MapJob(ranges(s=4, z=3, t=5), (view("x", 4, 5),), result("a", 4, 3, 5), (Part((ex("s"), ex("z"), ex("t")), body),))
    return fill(job)


def row_extremes() -> Case:
    x = ld("x", "s", "m", "n")
    body = op("+", red(Reduction.MAX, "mn", x), op("*", red(Reduction.MIN, "n", red(Reduction.SUM, "m", x)), 0.5))
    job = MapJob(ranges(s=4, m=6, n=7), (view("x", 4, 6, 7),), result("y", 4), (Part((ex("s"),), body),))
    return fill(job)


def constant_sum() -> Case:
    body = op("+", red(Reduction.SUM, "m", ld("x", "s")), op("*", red(Reduction.MEAN, "m", ex("m")), red(Reduction.SUM, "m", ex(0.5))))
    job = MapJob(ranges(s=5, m=7), (view("x", 5),), result("y", 5), (Part((ex("s"),), body),))
    return fill(job)


def pythonic() -> Case:
    """Truth, floor division, modulo and powers as Python has them, on numbers of both signs."""
    shifted = op("-", "s", 4)
    body = op(
        "+", op("+", op("//", shifted, 3), op("*", op("%", shifted, 3), 10)), op("*", op("**", fn("abs", ld("x", "s", "t")), 1.5), 0.25)
    )
    masks = fn(
        "where",
        op("or", op("and", op("<=", "t", "s"), op("!=", op("%", "t", 2), 1)), Unary("not", op("<", shifted, 2))),
        body,
        op("%", body, 7),
    )
    numbers = op("+", op("and", shifted, 5), op("or", op("-", "t", 1), op("-", "s", 2)))
    numbers = op("+", numbers, op("-", op("and", 2.5, shifted), op("*", op("or", "t", 0), op("or", "s", 2.5))))
    extra = op("+", fn("min", ld("x", "s", "t"), ld("y", "t")), fn("max", 0.25, ld("y", "t")))
    both = op("*", op("<", ld("x", "s", "t"), ld("y", "t")), op("+", op(">", "s", 3), op("==", "t", "s")))
    whole = op("+", op("+", masks, numbers), op("+", extra, both))
    job = MapJob(ranges(s=9, t=6), (view("x", 9, 6), view("y", 6)), result("r", 9, 6), (Part((ex("s"), ex("t")), whole),))
    return fill(job)


def every_function() -> Case:
    """All functions of the language in one kernel."""
    x = ld("x", "s", "m")
    safe = op("+", fn("abs", x), 0.5)
    arguments = {1: (x,), 2: (x, safe), 3: (op("<", x, 0.25), x, safe)}
    terms: list[Expr] = [fn(f, *((safe,) if f in POSITIVE else arguments[FUNCTIONS[f].arity])) for f in FUNCTIONS]
    total = terms[0]
    for n, term in enumerate(terms[1:]):
        total = op("+", total, op("*", term, 1.0 + n / 8))
    job = MapJob(ranges(s=7, m=11), (view("x", 7, 11),), result("y", 7, 11), (Part((ex("s"), ex("m")), total),))
    return fill(job)


def transposed(dtype: DType = F) -> Case:
    body = op("*", ld("x", "t", "s"), ld("y", "s", 2))
    job = MapJob(
        ranges(s=6, t=9),
        (view("x", 9, 6, dtype=dtype), view("y", 6, 4, dtype=dtype)),
        result("z", 6, 9, dtype=dtype),
        (Part((ex("s"), ex("t")), body),),
    )
    return fill(job)


def shifted(cuts: dict[int, list[int]] | None = None) -> Case:
    body = op("-", ld("x", op("+", "s", 1), "m"), ld("x", "s", op("*", 2, "m")))
    job = MapJob(ranges(s=(2, 7), m=5), (view("x", 8, 9, cuts=cuts),), result("d", 5, 5, at=(2, 0)), (Part((ex("s"), ex("m")), body),))
    return fill(job)


def folded_index() -> Case:
    body = op("+", ld("x", op("//", "s", 2), op("%", "s", 3)), ld("x", op("-", 7, "s"), 0))
    job = MapJob(ranges(s=8), (view("x", 8, 4),), result("y", 8), (Part((ex("s"),), body),))
    return fill(job)


def last_token(cuts: dict[int, list[int]] | None = None) -> Case:
    body = ld("x", "b", op("-", ld("lengths", "b"), 1), "m")
    job = MapJob(
        ranges(b=3, m=6),
        (view("x", 3, 9, 6, cuts=cuts), view("lengths", 3, dtype=I32)),
        result("y", 3, 6),
        (Part((ex("b"), ex("m")), body),),
    )
    return fill(job, lengths=np.array([4, 9, 1]))


def embedding(cuts: dict[int, list[int]] | None = None, dtype: DType = F) -> Case:
    body = op("+", ld("table", ld("tokens", "b", "s"), "m"), ld("places", "s", "m"))
    job = MapJob(
        ranges(b=2, s=(1, 6), m=7),
        (view("table", 12, 7, cuts=cuts, dtype=dtype), view("tokens", 2, 6, dtype=I32), view("places", 6, 7, dtype=dtype)),
        result("x", 2, 5, 7, at=(0, 1, 0), dtype=dtype),
        (Part((ex("b"), ex("s"), ex("m")), body),),
    )
    return fill(job, tokens=np.array([[11, 0, 3, 3, 7, 1], [2, 5, 4, 10, 6, 9]]))


def integers_as_values() -> Case:
    body = op("*", ld("x", "b", "s"), op("<", "s", ld("lengths", "b")))
    body = op("+", body, op("/", ld("lengths", "b"), 4))
    job = MapJob(
        ranges(b=3, s=5), (view("x", 3, 5), view("lengths", 3, dtype=DType.INT64)), result("y", 3, 5), (Part((ex("b"), ex("s")), body),)
    )
    return fill(job, lengths=np.array([4, 2, 1]))


def two_tiles() -> Case:
    body = op("+", ld("x", "s", "m"), ld("y", "m", "s"))
    job = MapJob(
        ranges(s=(2, 11), m=7),
        (view("x", 12, 7, cuts={0: [5, 9], 1: [3]}), view("y", 7, 12, cuts={1: [6]})),
        result("z", 9, 7, at=(2, 0)),
        (Part((ex("s"), ex("m")), body),),
    )
    return fill(job)


def mixed_parts() -> Case:
    """Parts over different letters, and a number outside the tile, whose part is left out."""
    parts = (
        Part((ex("s"), ex(0)), ld("x", "s")),
        Part((ex(2), ex(1)), ex(0.5)),
        Part((ex("t"), ex(1)), op("*", ld("x", "t"), ld("x", "t"))),
        Part((ex("s"), ex(5)), ex(9.0)),
    )
    job = MapJob(ranges(s=4, t=(0, 2)), (view("x", 4),), result("y", 4, 2), parts)
    return fill(job)


def without_an_answer() -> Case:
    """Arithmetic on numbers that Python refuses, beside some that it does: infinities and NaN as fp32 has them."""
    refused = (op("/", 1.5, 0), op("**", -8, 0.5), op("-", math.inf, math.inf), op("**", 0, -1), op("*", 0, math.inf))
    outside = (fn("log", 0), fn("sqrt", op("-", 1, 2)), fn("exp", 1000.0), fn("rsqrt", 0))
    within = (Unary("-", refused[0]), fn("max", refused[0], 2), op("<", refused[0], 3), Unary("not", refused[0]), op("%", refused[0], 2))
    known = (fn("silu", op("+", 1, 0.5)), op("**", 2, op("//", 7, 2)), Unary("not", op("<", 2, 1)))
    bodies = (*refused, *outside, *within, *known)
    parts = tuple(Part((ex("s"), ex(i)), op("*", ld("x", "s"), body)) for i, body in enumerate(bodies))
    return fill(MapJob(ranges(s=3), (view("x", 3),), result("y", 3, len(bodies)), parts))


def no_letters() -> Case:
    body = op("+", red(Reduction.SUM, "s", ld("x", "s")), ld("c"))
    job = MapJob(ranges(s=9), (view("x", 9), view("c")), result("y"), (Part((), body),))
    return fill(job, c=np.array(0.5))


# Contract jobs


MAPS: dict[str, Callable[[], Case]] = {
    "rms_norm": rms_norm,
    "rms_norm_tiled": lambda: rms_norm(cuts={1: [2], 2: [10]}),
    "rms_norm_bf16": lambda: rms_norm(BF),
    "rms_norm_fp16": lambda: rms_norm(HF),
    "layer_norm": layer_norm,
    "layer_norm_bf16": lambda: layer_norm(BF),
    "rotation": rotation,
    "rotation_bf16": lambda: rotation(BF),
    "soft_rows": soft_rows,
    "soft_rows_fp16": lambda: soft_rows(HF),
    "joint_softmax": joint_softmax,
    "row_extremes": row_extremes,
    "constant_sum": constant_sum,
    "pythonic": pythonic,
    "every_function": every_function,
    "transposed": transposed,
    "transposed_bf16": lambda: transposed(BF),
    "shifted": shifted,
    "shifted_tiled": lambda: shifted({0: [4], 1: [3]}),
    "folded_index": folded_index,
    "last_token": last_token,
    "last_token_tiled": lambda: last_token({1: [4, 8]}),
    "embedding": embedding,
    "embedding_tiled": lambda: embedding({0: [5, 8], 1: [4]}),
    "embedding_bf16": lambda: embedding(dtype=BF),
    "integers_as_values": integers_as_values,
    "two_tiles": two_tiles,
    "mixed_parts": mixed_parts,
    "without_an_answer": without_an_answer,
    "no_letters": no_letters,
}
