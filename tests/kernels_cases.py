"""Jobs worth checking a kernel on, each with random whole values: what the shipped specs need, and what sits at the edges of the contract.

Every backend runs the same cases. Sizes are ragged and small. Letters and numbers are written in a few characters: `ld("x", "s", 0)` is x[s, 0].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Num, Reduce, Reduction, Unary
from einpage.einsum_front.job import AttentionJob, Box, Contraction, ContractJob, GatherJob, MapJob, Part, Range, View
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
    """A view of a whole value, cut in tiles at `cuts[dimension]`."""
    boxes = [Box((0,) * len(shape), shape)]
    for d, places in (cuts or {}).items():
        borders = [0, *places, shape[d]]
        boxes = [
            Box((*b.start[:d], lo, *b.start[d + 1 :]), (*b.stop[:d], hi, *b.stop[d + 1 :]))
            for b in boxes
            for lo, hi in zip(borders, borders[1:], strict=False)
        ]
    return View(name, dtype, tuple(boxes))


def ranges(**extent: int | tuple[int, int]) -> tuple[Range, ...]:
    return tuple(Range(Letter(x), *(e if isinstance(e, tuple) else (0, e))) for x, e in extent.items())


def letters(word: str) -> tuple[Letter, ...]:
    return tuple(Letter(x) for x in word)


def fill(job: MapJob | ContractJob | AttentionJob | GatherJob, seed: int = 0, **given: np.ndarray) -> Case:
    """Random values for everything the job reads (in [-1, 1)-ish), except those given."""
    rng = np.random.default_rng(seed)
    values = {}
    for v in job.reads:
        shape = tuple(max(b.stop[d] for b in v.boxes) for d in range(len(v.boxes[0].stop)))
        values[v.name] = rounded(given.get(v.name, rng.standard_normal(shape)), v.dtype)
    return Case(job, values)


def result(name: str, *shape: int, dtype: DType = F, at: tuple[int, ...] | None = None) -> View:
    start = at or (0,) * len(shape)
    return View(name, dtype, (Box(start, tuple(a + n for a, n in zip(start, shape, strict=True))),))


# Map jobs


def rms_norm(dtype: DType = F, s: int = 5, m: int = 37, cuts: dict[int, list[int]] | None = None) -> Case:
    x = ld("x", "b", "s", "m")
    scale = fn("rsqrt", op("+", red(Reduction.MEAN, "m", op("**", x, 2)), 1e-5))
    body = op("*", op("*", x, scale), ld("w", "m"))
    job = MapJob(
        ranges(b=2, s=s, m=m), (view("x", 2, s, m, dtype=dtype, cuts=cuts), view("w", m, dtype=dtype)), result("h", 2, s, m, dtype=dtype),
        (Part((ex("b"), ex("s"), ex("m")), body),),
    )  # fmt: skip
    return fill(job)


def layer_norm(dtype: DType = F) -> Case:
    x, target = ld("x", "s", "m"), (ex("s"), ex("m"))
    centred = op("-", x, red(Reduction.MEAN, "m", x))
    spread = fn("sqrt", op("+", red(Reduction.MEAN, "m", op("**", centred, 2)), 1e-5))
    body = op("+", op("*", op("/", centred, spread), ld("w", "m")), ld("c", "m"))
    job = MapJob(ranges(s=(3, 10), m=45), (view("x", 12, 45, dtype=dtype), view("w", 45, dtype=dtype), view("c", 45, dtype=dtype)),
                 result("h", 7, 45, dtype=dtype, at=(3, 0)), (Part(target, body),))  # fmt: skip
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
    numbers = op("+", op("and", shifted, 5), op("or", op("-", "t", 1), 2.5))
    extra = op("+", fn("min", ld("x", "s", "t"), ld("y", "t")), fn("max", 0.25, ld("y", "t")))
    both = op("*", op("<", ld("x", "s", "t"), ld("y", "t")), op("+", op(">", "s", 3), op("==", "t", "s")))
    whole = op("+", op("+", masks, numbers), op("+", extra, both))
    job = MapJob(ranges(s=9, t=6), (view("x", 9, 6), view("y", 6)), result("r", 9, 6), (Part((ex("s"), ex("t")), whole),))
    return fill(job)


def every_function() -> Case:
    x = ld("x", "s", "m")
    safe = op("+", fn("abs", x), 0.5)
    terms: list[Expr] = [fn(f, x) for f in ("exp", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh", "relu", "abs")]
    terms += [fn(f, safe) for f in ("log", "sqrt", "rsqrt")]
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
        ranges(b=2, s=(1, 6), m=7), (view("table", 12, 7, cuts=cuts, dtype=dtype), view("tokens", 2, 6, dtype=I32), view("places", 6, 7, dtype=dtype)),
        result("x", 2, 5, 7, at=(0, 1, 0), dtype=dtype), (Part((ex("b"), ex("s"), ex("m")), body),),
    )  # fmt: skip
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


def no_letters() -> Case:
    body = op("+", red(Reduction.SUM, "s", ld("x", "s")), ld("c"))
    job = MapJob(ranges(s=9), (view("x", 9), view("c")), result("y"), (Part((), body),))
    return fill(job, c=np.array(0.5))


# Contract jobs


def contract(
    x: Load, y: Load, summed: str, target: str, extent: dict[str, int | tuple[int, int]], reads: tuple[View, ...], epilogue: Expr | None = None,
    dtype: DType = F, more: tuple[Contraction, ...] = (), seed: int = 0,
) -> Case:  # fmt: skip
    r = ranges(**extent)
    by = {q.letter: q for q in r}
    box = Box(tuple(by[Letter(c)].start for c in target), tuple(by[Letter(c)].stop for c in target))
    out = View("out", dtype, (box,))
    job = ContractJob(r, reads, out, (Contraction(x, y, letters(summed)), *more), letters(target), epilogue or Acc(0), None, True)
    return fill(job, seed)


def project(dtype: DType = F, s: int = 9, m: int = 21) -> Case:
    return contract(ld("h", *"bsm"), ld("w", *"kgem"), "m", "bskge", {"b": 2, "s": s, "k": 2, "g": 3, "e": 5, "m": m},
                    (view("h", 2, s, m, dtype=dtype), view("w", 2, 3, 5, m, dtype=dtype)), dtype=dtype)  # fmt: skip


def unproject(dtype: DType = F) -> Case:
    return contract(ld("o", *"bskge"), ld("w", *"mkge"), "kge", "bsm", {"b": 2, "s": 5, "k": 2, "g": 3, "e": 4, "m": 11},
                    (view("o", 2, 5, 2, 3, 4, dtype=dtype), view("w", 11, 2, 3, 4, dtype=dtype), view("x", 2, 5, 11, dtype=dtype)),
                    op("+", ld("x", *"bsm"), Acc(0)), dtype=dtype)  # fmt: skip


def gated(dtype: DType = F, s: int = 7, f: int = 33) -> Case:
    second = Contraction(ld("h", *"sm"), ld("w3", *"fm"), letters("m"))
    return contract(ld("h", *"sm"), ld("w1", *"fm"), "m", "sf", {"s": s, "f": (8, 8 + f), "m": 19},
                    (view("h", s, 19, dtype=dtype), view("w1", f + 17, 19, dtype=dtype), view("w3", f + 17, 19, dtype=dtype)),
                    op("*", fn("silu", Acc(0)), Acc(1)), dtype, (second,))  # fmt: skip


def with_bias(dtype: DType = F) -> Case:
    return contract(ld("h", *"sm"), ld("w", *"mf"), "m", "sf", {"s": 6, "f": 10, "m": 15},
                    (view("h", 6, 15, dtype=dtype), view("w", 15, 10, dtype=dtype), view("c", 10, dtype=dtype)), op("+", Acc(0), ld("c", "f")), dtype)  # fmt: skip


def gelu_bias(dtype: DType = F) -> Case:
    return contract(ld("h", *"sm"), ld("w", *"mf"), "m", "sf", {"s": 6, "f": 10, "m": 15},
                    (view("h", 6, 15, dtype=dtype), view("w", 15, 10, dtype=dtype), view("c", 10, dtype=dtype)),
                    fn("gelu_tanh", op("+", Acc(0), ld("c", "f"))), dtype)  # fmt: skip


def numbered() -> Case:
    return contract(
        ld("h", *"sm"), ld("w", "m", 1, "h", "d"), "m", "shd", {"s": 6, "h": 3, "d": 4, "m": 15}, (view("h", 6, 15), view("w", 15, 3, 3, 4))
    )


def batched(dtype: DType = F) -> Case:
    return contract(ld("x", *"bkst"), ld("y", *"btke"), "t", "bske", {"b": 3, "k": 2, "s": 5, "t": 7, "e": 4},
                    (view("x", 3, 2, 5, 7, dtype=dtype), view("y", 3, 7, 2, 4, dtype=dtype)), dtype=dtype)  # fmt: skip


def scattered() -> Case:
    """Letters so interleaved that nothing folds."""
    return contract(
        ld("x", *"saubt"),
        ld("y", *"tubea"),
        "tu",
        "ebsa",
        {"s": 3, "a": 2, "u": 4, "b": 3, "t": 5, "e": 2},
        (view("x", 3, 2, 4, 3, 5), view("y", 5, 4, 3, 2, 2)),
    )


def lonely_letter() -> Case:
    """A summed letter in one factor only, and a target letter in none but the epilogue."""
    return contract(
        ld("x", *"smt"),
        ld("y", *"m"),
        "mt",
        "su",
        {"s": 4, "m": 6, "t": 3, "u": 5},
        (view("x", 4, 6, 3), view("y", 6), view("c", 5)),
        op("*", Acc(0), ld("c", "u")),
    )


def fewer_letters() -> Case:
    second = Contraction(ld("h", *"sm"), ld("v", "m"), letters("m"))
    return contract(ld("h", *"sm"), ld("w", *"fm"), "m", "sf", {"s": 4, "f": 6, "m": 9}, (view("h", 4, 9), view("w", 6, 9), view("v", 9)),
                    op("/", Acc(0), op("+", op("**", Acc(1), 2), 1.0)), more=(second,))  # fmt: skip


def outer_product() -> Case:
    return contract(ld("x", "s"), ld("y", "f"), "", "sf", {"s": 5, "f": 7}, (view("x", 5), view("y", 7)))


def scalar_product() -> Case:
    return contract(ld("x", "m"), ld("y", "m"), "m", "", {"m": 40}, (view("x", 40), view("y", 40)))


def masked_scores() -> Case:
    """An unfused score: a mask, positions and a scale in the epilogue."""
    body = fn("where", op("<=", "t", "s"), op("/", Acc(0), 2.0), -1e4)
    return contract(
        ld("q", *"skge"),
        ld("p", *"tke"),
        "e",
        "kgst",
        {"s": (2, 9), "t": 9, "k": 2, "g": 2, "e": 4},
        (view("q", 9, 2, 2, 4), view("p", 9, 2, 4)),
        body,
    )


def tiled_factors(dtype: DType = F) -> Case:
    """Both factors and the epilogue's operand spread over several tiles, along rows, columns and the sum."""
    return contract(ld("x", *"sm"), ld("y", *"fm"), "m", "sf", {"s": (1, 10), "f": 8, "m": 14},
                    (view("x", 10, 14, cuts={0: [4], 1: [5, 9]}, dtype=dtype), view("y", 8, 14, cuts={0: [3], 1: [6]}, dtype=dtype), view("c", 10, 8, cuts={0: [6]}, dtype=dtype)),
                    op("-", Acc(0), ld("c", *"sf")), dtype)  # fmt: skip


# Attention jobs


def causal(inner: Expr = Acc(0), *more: Expr) -> Expr:
    condition: Expr = op("<=", "t", "s")
    for extra in more:
        condition = op("and", condition, extra)
    return fn("where", condition, op("/", inner, 3.0), -math.inf)


def attention(
    dtype: DType = F, s: tuple[int, int] = (0, 11), t: int | None = None, score: Expr | None = None, cuts: list[int] | None = None,
    extra: tuple[View, ...] = (), epilogue: Expr | None = None, b: int = 2, e: int = 4, **given: np.ndarray,
) -> Case:  # fmt: skip
    """Grouped-query attention, q[b,s,k,g,z,e] against p[b,t,k,z,e] and v[b,t,k,z,e]."""
    n = t or s[1]
    tiles = {1: cuts} if cuts else None
    r = ranges(b=b, s=s, k=2, g=3, z=2, e=e, t=n)
    reads = (
        view("q", b, s[1], 2, 3, 2, e, dtype=dtype),
        view("p", b, n, 2, 2, e, dtype=dtype, cuts=tiles),
        view("v", b, n, 2, 2, e, dtype=dtype, cuts=tiles),
        *extra,
    )
    out = result("o", b, s[1] - s[0], 2, 3, 2, e, dtype=dtype, at=(0, s[0], 0, 0, 0, 0))
    job = AttentionJob(
        r,
        reads,
        out,
        ld("q", *"bskgze"),
        ld("p", *"btkze"),
        letters("ze"),
        score or causal(),
        Letter("t"),
        ld("v", *"btkze"),
        letters("bskgze"),
        epilogue or Acc(1),
    )
    return fill(job, **given)


def windowed() -> Case:
    return attention(s=(0, 40), score=causal(Acc(0), op("<", op("-", "s", "t"), 5)), b=1)


def capped() -> Case:
    return attention(score=causal(op("*", fn("tanh", op("/", Acc(0), 5.0)), 5.0)))


def padded() -> Case:
    """Keys beyond a sequence's length are masked; one sequence has none at all, so its rows are 0."""
    return attention(
        b=3, score=causal(Acc(0), op("<", "t", ld("lengths", "b"))), extra=(view("lengths", 3, dtype=I32),), lengths=np.array([11, 4, 0])
    )


def no_mask() -> Case:
    return attention(score=op("*", Acc(0), 0.25), s=(0, 6), t=17)


def biased_gated() -> Case:
    """A bias on the scores, and an epilogue that reads operands."""
    return attention(score=causal(op("+", Acc(0), ld("bias", "k", "g", "s", "t"))), extra=(view("bias", 2, 3, 11, 11), view("gate", 2, 11, 2, 3, 2, 4)),
                     epilogue=op("*", Acc(1), fn("sigmoid", ld("gate", *"bskgze"))))  # fmt: skip


def plain_heads(dtype: DType = F) -> Case:
    """One key head a query head, heads outermost in memory, v with its own width, result transposed."""
    r = ranges(h=3, s=9, t=9, d=5, c=6)
    reads = (view("q", 3, 9, 5, dtype=dtype), view("k", 3, 9, 5, dtype=dtype), view("v", 9, 3, 6, dtype=dtype))
    job = AttentionJob(
        r,
        reads,
        result("o", 9, 3, 6, dtype=dtype),
        ld("q", *"hsd"),
        ld("k", *"htd"),
        letters("d"),
        causal(),
        Letter("t"),
        ld("v", *"thc"),
        letters("shc"),
        Acc(1),
    )
    return fill(job)


def nothing_left() -> Case:
    """A mask that empties every row: 0 everywhere."""
    return attention(score=fn("where", op("<", "t", op("-", "s", 100)), Acc(0), -math.inf))


# Gathers


def gather(dtype: DType = F, cuts: dict[int, list[int]] | None = None, target: str = "bsm", **given: np.ndarray) -> Case:
    r = ranges(b=2, s=(1, 6), m=7)
    by = {q.letter: q for q in r}
    box = Box(tuple(by[Letter(c)].start for c in target), tuple(by[Letter(c)].stop for c in target))
    job = GatherJob(
        r,
        (view("table", 12, 7, dtype=dtype, cuts=cuts), view("tokens", 2, 6, dtype=I32)),
        View("x", dtype, (box,)),
        letters(target),
        ld("table", ld("tokens", "b", "s"), "m"),
    )
    return fill(job, **({"tokens": np.array([[11, 0, 3, 3, 7, 1], [2, 5, 4, 10, 6, 9]])} | given))


MAPS: dict[str, Callable[[], Case]] = {
    "rms_norm": rms_norm, "rms_norm_tiled": lambda: rms_norm(cuts={1: [2], 2: [10]}), "rms_norm_bf16": lambda: rms_norm(BF), "rms_norm_fp16": lambda: rms_norm(HF),
    "layer_norm": layer_norm, "layer_norm_bf16": lambda: layer_norm(BF), "rotation": rotation, "rotation_bf16": lambda: rotation(BF), "soft_rows": soft_rows,
    "soft_rows_fp16": lambda: soft_rows(HF), "joint_softmax": joint_softmax, "row_extremes": row_extremes, "constant_sum": constant_sum, "pythonic": pythonic,
    "every_function": every_function, "transposed": transposed, "transposed_bf16": lambda: transposed(BF), "shifted": shifted,
    "shifted_tiled": lambda: shifted({0: [4], 1: [3]}), "folded_index": folded_index, "last_token": last_token, "last_token_tiled": lambda: last_token({1: [4, 8]}),
    "embedding": embedding, "embedding_tiled": lambda: embedding({0: [5, 8], 1: [4]}), "embedding_bf16": lambda: embedding(dtype=BF),
    "integers_as_values": integers_as_values, "two_tiles": two_tiles, "mixed_parts": mixed_parts, "no_letters": no_letters,
}  # fmt: skip
CONTRACTS: dict[str, Callable[[], Case]] = {
    "project": project, "project_bf16": lambda: project(BF), "project_fp16": lambda: project(HF), "unproject": unproject, "unproject_bf16": lambda: unproject(BF),
    "gated": gated, "gated_bf16": lambda: gated(BF), "with_bias": with_bias, "with_bias_bf16": lambda: with_bias(BF), "gelu_bias": gelu_bias, "numbered": numbered,
    "batched": batched, "batched_bf16": lambda: batched(BF), "scattered": scattered, "lonely_letter": lonely_letter, "fewer_letters": fewer_letters,
    "outer_product": outer_product, "scalar_product": scalar_product, "masked_scores": masked_scores, "tiled_factors": tiled_factors,
    "tiled_factors_bf16": lambda: tiled_factors(BF),
}  # fmt: skip
ATTENTIONS: dict[str, Callable[[], Case]] = {
    "causal": attention, "causal_bf16": lambda: attention(BF), "causal_fp16": lambda: attention(HF), "windowed": windowed, "capped": capped, "padded": padded,
    "no_mask": no_mask, "biased_gated": biased_gated, "plain_heads": plain_heads, "plain_heads_bf16": lambda: plain_heads(BF), "nothing_left": nothing_left,
    "key_tiles": lambda: attention(cuts=[3, 7]), "key_tiles_bf16": lambda: attention(BF, cuts=[3, 7]), "later_chunk": lambda: attention(s=(5, 11)),
    "prefix": lambda: attention(s=(4, 9), t=9), "long_causal": lambda: attention(s=(0, 150), b=1, cuts=[60]),
}  # fmt: skip
GATHERS: dict[str, Callable[[], Case]] = {
    "gather": gather, "gather_bf16": lambda: gather(BF), "gather_tiled": lambda: gather(cuts={0: [4, 9]}), "gather_transposed": lambda: gather(target="msb"),
    "gather_columns": lambda: gather(target="sbm", cuts={0: [6]}),
}  # fmt: skip
