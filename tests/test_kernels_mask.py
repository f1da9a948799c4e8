"""What is known of a mask from ranges alone: true answers on every small block, checked by brute force; and that it does skip."""

from __future__ import annotations

import itertools
import math

import pytest

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Expr, Letter, Num, Unary
from einpage.kernels.layout.mask import emptied, truth
from einpage.kernels.on_torch.attention import prepare_attention
from kernels_build import fn, op
from kernels_cases import attention, causal

MASKS: dict[str, Expr] = {
    "causal": op("<=", "t", "s"),
    "strict": op("<", op("+", "t", 1), "s"),
    "window": op("and", op("<=", "t", "s"), op("<", op("-", "s", "t"), 3)),
    "outside": op("or", op(">", "t", "s"), op(">=", op("*", 2, "t"), op("+", "s", 4))),
    "not": Unary("not", op("==", "t", "s")),
    "chunks": op("==", op("//", "s", 3), op("//", "t", 3)),
    "negative": op("<", Unary("-", Axis(Letter("t"))), op("-", 2, "s")),
    "unequal": op("!=", op("-", "t", "s"), 1),
    "number": op("-", "t", 4),
    "unknown": op("<", op("%", "t", 2), 1),
}


def holds(e: Expr, s: int, t: int) -> float:
    """`e` at one place, by Python itself."""
    match e:
        case Num(value):
            return value
        case Axis(letter):
            return s if letter == "s" else t
        case Unary("not", x):
            return not holds(x, s, t)
        case Unary(_, x):
            return -holds(x, s, t)
        case Binary(symbol, x, y):
            return eval(f"a {symbol} b", {"a": holds(x, s, t), "b": holds(y, s, t)})
    raise AssertionError(e)


@pytest.mark.parametrize("name", MASKS)
def test_answers_are_true(name: str) -> None:
    known = 0
    for s0, s1, t0, t1 in itertools.product(range(0, 7, 2), range(1, 8, 3), range(0, 7, 2), range(1, 8, 3)):
        if s0 < s1 and t0 < t1:
            region = {Letter("s"): (s0, s1), Letter("t"): (t0, t1)}
            answer = truth(MASKS[name], region)
            values = {bool(holds(MASKS[name], s, t)) for s in range(s0, s1) for t in range(t0, t1)}
            known += answer is not None
            assert answer is None or values == {answer}, f"{name} over {region}: said {answer}, is {values}"
    assert (known == 0) == (name == "unknown"), "a mask of letters alone is known somewhere"


def test_a_block_is_emptied_only_by_minus_infinity() -> None:
    late = {Letter("s"): (0, 4), Letter("t"): (4, 8)}
    assert emptied(causal(), late)
    assert not emptied(causal(), late | {Letter("t"): (3, 8)})
    assert not emptied(fn("where", op("<=", "t", "s"), Acc(0), -1e9), late)
    assert emptied(fn("where", op(">", "t", "s"), fn("where", op("<", "s", 9), -math.inf, Acc(0)), Acc(0)), late)


def test_emptied_blocks_are_not_computed() -> None:
    """A window over a long sequence costs a fraction of the scratch and products of the whole."""
    wide = attention(s=(0, 512), b=1, e=2)
    narrow = attention(s=(384, 512), t=512, b=1, e=2, score=causal(Acc(0), op("<", op("-", "s", "t"), 32)))
    whole = prepare_attention(attention(s=(384, 512), t=512, b=1, e=2, score=causal()).job)
    assert prepare_attention(narrow.job).scratch[1] < 0.5 * whole.scratch[1], "the scores of keys outside the window were laid out"
    assert prepare_attention(wide.job, 200_000).scratch_bytes <= 200_000
