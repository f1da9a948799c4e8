"""Products, attentions and gathers worth checking a kernel on, with random whole values; sizes are ragged and small."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from einpage.einsum_front.algebra.expr import Acc, Expr, Letter, Load
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, Box, Contraction, ContractJob, GatherJob, View
from kernels_build import fill, fn, ld, letters, op, ranges, result, view
from kernels_naive import Case

F, BF, HF, I32 = DType.FP32, DType.BF16, DType.FP16, DType.INT32


def contract(
    x: Load,
    y: Load,
    summed: str,
    target: str,
    extent: dict[str, int | tuple[int, int]],
    reads: tuple[View, ...],
    epilogue: Expr | None = None,
    dtype: DType = F,
    more: tuple[Contraction, ...] = (),
    seed: int = 0,
) -> Case:
    r = ranges(**extent)
    by = {q.letter: q for q in r}
    box = Box(tuple(by[Letter(c)].start for c in target), tuple(by[Letter(c)].end for c in target))
    out = View("out", dtype, (box,))
    job = ContractJob(r, reads, out, (Contraction(x, y, letters(summed)), *more), letters(target), epilogue or Acc(0), None, True)
    return fill(job, seed)


def project(dtype: DType = F, s: int = 9, m: int = 21) -> Case:
    return contract(
        ld("h", *"bsm"),
        ld("w", *"kgem"),
        "m",
        "bskge",
        {"b": 2, "s": s, "k": 2, "g": 3, "e": 5, "m": m},
        (view("h", 2, s, m, dtype=dtype), view("w", 2, 3, 5, m, dtype=dtype)),
        dtype=dtype,
    )


def unproject(dtype: DType = F) -> Case:
    return contract(
        ld("o", *"bskge"),
        ld("w", *"mkge"),
        "kge",
        "bsm",
        {"b": 2, "s": 5, "k": 2, "g": 3, "e": 4, "m": 11},
        (view("o", 2, 5, 2, 3, 4, dtype=dtype), view("w", 11, 2, 3, 4, dtype=dtype), view("x", 2, 5, 11, dtype=dtype)),
        op("+", ld("x", *"bsm"), Acc(0)),
        dtype=dtype,
    )


def gated(dtype: DType = F, s: int = 7, f: int = 33) -> Case:
    second = Contraction(ld("h", *"sm"), ld("w3", *"fm"), letters("m"))
    return contract(
        ld("h", *"sm"),
        ld("w1", *"fm"),
        "m",
        "sf",
        {"s": s, "f": (8, 8 + f), "m": 19},
        (view("h", s, 19, dtype=dtype), view("w1", f + 17, 19, dtype=dtype), view("w3", f + 17, 19, dtype=dtype)),
        op("*", fn("silu", Acc(0)), Acc(1)),
        dtype,
        (second,),
    )


BIASED = op("+", Acc(0), ld("c", "f"))


def with_bias(epilogue: Expr, dtype: DType = F) -> Case:
    return contract(
        ld("h", *"sm"),
        ld("w", *"mf"),
        "m",
        "sf",
        {"s": 6, "f": 10, "m": 15},
        (view("h", 6, 15, dtype=dtype), view("w", 15, 10, dtype=dtype), view("c", 10, dtype=dtype)),
        epilogue,
        dtype,
    )


def numbered() -> Case:
    return contract(
        ld("h", *"sm"), ld("w", "m", 1, "h", "d"), "m", "shd", {"s": 6, "h": 3, "d": 4, "m": 15}, (view("h", 6, 15), view("w", 15, 3, 3, 4))
    )


def batched(dtype: DType = F) -> Case:
    return contract(
        ld("x", *"bkst"),
        ld("y", *"btke"),
        "t",
        "bske",
        {"b": 3, "k": 2, "s": 5, "t": 7, "e": 4},
        (view("x", 3, 2, 5, 7, dtype=dtype), view("y", 3, 7, 2, 4, dtype=dtype)),
        dtype=dtype,
    )


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
    return contract(
        ld("h", *"sm"),
        ld("w", *"fm"),
        "m",
        "sf",
        {"s": 4, "f": 6, "m": 9},
        (view("h", 4, 9), view("w", 6, 9), view("v", 9)),
        op("/", Acc(0), op("+", op("**", Acc(1), 2), 1.0)),
        more=(second,),
    )


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
    return contract(
        ld("x", *"sm"),
        ld("y", *"fm"),
        "m",
        "sf",
        {"s": (1, 10), "f": 8, "m": 14},
        (
            view("x", 10, 14, cuts={0: [4], 1: [5, 9]}, dtype=dtype),
            view("y", 8, 14, cuts={0: [3], 1: [6]}, dtype=dtype),
            view("c", 10, 8, cuts={0: [6]}, dtype=dtype),
        ),
        op("-", Acc(0), ld("c", *"sf")),
        dtype,
    )


# Attention jobs


_SCORE = Acc(0)


def causal(inner: Expr = _SCORE, *more: Expr) -> Expr:
    condition: Expr = op("<=", "t", "s")
    for extra in more:
        condition = op("and", condition, extra)
    return fn("where", condition, op("/", inner, 3.0), -math.inf)


def attention(
    dtype: DType = F,
    s: tuple[int, int] = (0, 11),
    t: int | None = None,
    score: Expr | None = None,
    cuts: list[int] | None = None,
    extra: tuple[View, ...] = (),
    epilogue: Expr | None = None,
    b: int = 2,
    e: int = 4,
    **given: np.ndarray,
) -> Case:
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


def flash_job(
    dtype: DType, head: int, s: int, keys: int, group: int = 1, score: Expr | None = None, cuts: list[int] | None = None
) -> AttentionJob:
    """So many heads of keys, each for `group` heads of queries; two sequences of `s`."""
    tiles = {1: cuts} if cuts else None
    return AttentionJob(
        ranges(b=2, s=s, t=s, k=keys, g=group, e=head),
        (
            view("q", 2, s, keys, group, head, dtype=dtype),
            view("k", 2, s, keys, head, dtype=dtype, cuts=tiles),
            view("v", 2, s, keys, head, dtype=dtype, cuts=tiles),
        ),
        result("o", 2, s, keys, group, head, dtype=dtype),
        ld("q", *"bskge"),
        ld("k", *"btke"),
        letters("e"),
        score or causal(),
        Letter("t"),
        ld("v", *"btke"),
        letters("bskge"),
        Acc(1),
    )


def windowed() -> Case:
    return attention(s=(0, 40), score=causal(Acc(0), op("<", op("-", "s", "t"), 5)), b=1)


def wide_window(cuts: list[int] | None = None) -> Case:
    """A window of several blocks of keys: some see all of a block, some a part."""
    return attention(s=(3, 90), score=causal(Acc(0), op("<", op("-", "s", "t"), 50)), b=1, cuts=cuts)


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
    return attention(
        score=causal(op("+", Acc(0), ld("bias", "k", "g", "s", "t"))),
        extra=(view("bias", 2, 3, 11, 11), view("gate", 2, 11, 2, 3, 2, 4)),
        epilogue=op("*", Acc(1), fn("sigmoid", ld("gate", *"bskgze"))),
    )


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


def gather(
    dtype: DType = F, cuts: dict[int, list[int]] | None = None, target: str = "bsm", index: Expr | None = None, **given: np.ndarray
) -> Case:
    r = ranges(b=2, s=(1, 6), m=7)
    by = {q.letter: q for q in r}
    box = Box(tuple(by[Letter(c)].start for c in target), tuple(by[Letter(c)].end for c in target))
    job = GatherJob(
        r,
        (view("table", 12, 7, dtype=dtype, cuts=cuts), view("tokens", 2, 6, dtype=I32)),
        View("x", dtype, (box,)),
        letters(target),
        ld("table", ld("tokens", "b", "s") if index is None else index, "m"),
    )
    return fill(job, **({"tokens": np.array([[11, 0, 3, 3, 7, 1], [2, 5, 4, 10, 6, 9]])} | given))


CONTRACTS: dict[str, Callable[[], Case]] = {
    "project": project,
    "project_bf16": lambda: project(BF),
    "project_fp16": lambda: project(HF),
    "unproject": unproject,
    "unproject_bf16": lambda: unproject(BF),
    "gated": gated,
    "gated_bf16": lambda: gated(BF),
    "with_bias": lambda: with_bias(BIASED),
    "with_bias_bf16": lambda: with_bias(BIASED, BF),
    "gelu_bias": lambda: with_bias(fn("gelu_tanh", BIASED)),
    "numbered": numbered,
    "batched": batched,
    "batched_bf16": lambda: batched(BF),
    "scattered": scattered,
    "lonely_letter": lonely_letter,
    "fewer_letters": fewer_letters,
    "outer_product": outer_product,
    "scalar_product": scalar_product,
    "masked_scores": masked_scores,
    "tiled_factors": tiled_factors,
    "tiled_factors_bf16": lambda: tiled_factors(BF),
}
ATTENTIONS: dict[str, Callable[[], Case]] = {
    "causal": attention,
    "causal_bf16": lambda: attention(BF),
    "causal_fp16": lambda: attention(HF),
    "windowed": windowed,
    "many_blocks": lambda: attention(s=(0, 75), b=1),
    "wide_window": wide_window,
    "wide_window_tiles": lambda: wide_window([20, 61]),
    "capped": capped,
    "padded": padded,
    "no_mask": no_mask,
    "biased_gated": biased_gated,
    "plain_heads": plain_heads,
    "plain_heads_bf16": lambda: plain_heads(BF),
    "nothing_left": nothing_left,
    "key_tiles": lambda: attention(cuts=[3, 7]),
    "key_tiles_bf16": lambda: attention(BF, cuts=[3, 7]),
    "later_chunk": lambda: attention(s=(5, 11)),
    "prefix": lambda: attention(s=(4, 9), t=9),
    "long_causal": lambda: attention(s=(0, 150), b=1, cuts=[60]),
}
GATHERS: dict[str, Callable[[], Case]] = {
    "gather": gather,
    "gather_bf16": lambda: gather(BF),
    "gather_tiled": lambda: gather(cuts={0: [4, 9]}),
    "gather_transposed": lambda: gather(target="msb"),
    "gather_where": lambda: gather(index=fn("where", op("<", "s", 4), ld("tokens", "b", "s"), 0)),
    "gather_clamped": lambda: gather(cuts={0: [4, 9]}, target="smb", index=fn("min", op("+", ld("tokens", "b", "s"), "s"), 11)),
    "gather_columns": lambda: gather(target="sbm", cuts={0: [6]}),
}
