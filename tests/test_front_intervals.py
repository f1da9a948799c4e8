"""Interval arithmetic against every point of small ranges."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.arithmetic import BadNumber, binary, call, unary
from einpage.einsum_front.algebra.expr import COMPARISONS, Axis, Binary, Call, Expr, Letter, Num, Unary, text
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.algebra.intervals import interval, not_whole
from einpage.einsum_front.base.interval import FALSE, TRUE, UNBOUNDED, Interval, arithmetic, compared, truth
from front_text import over_letters

S, T = Letter("s"), Letter("t")
_OPS = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or")
_CALLS = [(f.name, f.arity) for f in FUNCTIONS.values() if f.interval is not None]


def expressions(depth: int = 3) -> st.SearchStrategy[Expr]:
    """Expressions over s and t, of whole and half numbers. Never makes loads, reductions, `/`, `**` or functions without an interval."""
    leaf = st.one_of(st.integers(-6, 6).map(Num), st.integers(-6, 6).map(lambda n: Num(n / 2)), st.sampled_from([Axis(S), Axis(T)]))
    if depth == 0:
        return leaf
    inner = expressions(depth - 1)
    return st.one_of(
        leaf,
        st.builds(Binary, st.sampled_from(_OPS), inner, inner),
        st.builds(lambda op, x: Unary(op, x), st.sampled_from(("-", "not")), inner),
        st.builds(lambda f, args: Call(f[0], args[: f[1]]), st.sampled_from(_CALLS), st.tuples(inner, inner, inner)),
    )


def value(e: Expr, at: dict[Letter, int]) -> float:
    match e:
        case Num(v):
            return v
        case Axis(letter):
            return at[letter]
        case Unary(op, x):
            return unary(op, value(x, at))
        case Binary(op, x, y):
            return binary(op, value(x, at), value(y, at))
        case Call(fn, args):
            return call(fn, [value(a, at) for a in args])
    raise AssertionError(e)


@given(expressions(), st.integers(0, 5), st.integers(1, 4), st.integers(0, 5), st.integers(1, 4))
@example(Unary("not", Binary("-", Axis(S), Num(1))), 0, 3, 0, 1)
@example(Binary("%", Binary("*", Axis(S), Num(0.5)), Num(1)), 0, 4, 0, 1)
@example(Binary("%", Axis(S), Num(2.5)), 0, 4, 0, 1)
def test_an_interval_holds_every_value(e: Expr, s0: int, ns: int, t0: int, nt: int) -> None:
    found = interval(e, {S: (s0, s0 + ns), T: (t0, t0 + nt)})
    if found is None:
        return
    for s, t in product(range(s0, s0 + ns), range(t0, t0 + nt)):
        try:
            exact = value(e, {S: s, T: t})
        except BadNumber:
            continue
        assert found.low <= exact <= found.high, f"{text(e)} at s={s} t={t} is {exact}, outside {found}"


SMALL = [(a, b) for a in range(-5, 5) for b in range(a, min(a + 4, 5))]


@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%"])
def test_arithmetic_of_small_intervals_holds_every_result(op: str) -> None:
    for (a, b), (c, d) in product(SMALL, SMALL):
        found = arithmetic(op, Interval(a, b), Interval(c, d), whole=True)
        if found is None:
            assert op in ("//", "%") and c <= 0
            continue
        exact = [binary(op, x, y) for x in range(a, b + 1) for y in range(c, d + 1)]
        assert found.low <= min(exact) and max(exact) <= found.high, f"{a}..{b} {op} {c}..{d}"
        if op in ("+", "-", "*"):
            assert (found.low, found.high) == (min(exact), max(exact))


@pytest.mark.parametrize("op", COMPARISONS)
def test_a_comparison_of_small_intervals_is_known_exactly_where_it_can_be(op: str) -> None:
    for (a, b), (c, d) in product(SMALL, SMALL):
        exact = {binary(op, x, y) for x in range(a, b + 1) for y in range(c, d + 1)}
        assert compared(op, Interval(a, b), Interval(c, d)) == Interval(min(exact), max(exact)), f"{a}..{b} {op} {c}..{d}"


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("7 % 4", 3, 3),
        ("s % 4", 0, 3),
        ("s % 4 + 1", 1, 4),
        ("(s + 20) % 100", 20, 25),
        ("s // 2 - t", -3, 2),
        ("s * inf", None, None),
        ("(s + 1) * inf", math.inf, math.inf),
        ("s < inf", 1, 1),
        ("t <= 3", 1, 1),
        ("t < 0", 0, 0),
        ("t >= 0", 1, 1),
        ("t > 3", 0, 0),
        ("s == 6", 0, 0),
        ("s != 6", 1, 1),
        ("8 // s", None, None),
        ("8 // (s + 1)", 1, 8),
        ("(s + 1) % (t + 7)", 1, 6),
        ("5 ** 2", None, None),
        ("(s / 2 < 9) * 3", 0, 3),
        ("not (s - 1)", 0, 1),
        ("abs(t - s)", 0, 5),
        ("where(s / 2 < 9, 1, s + 4)", 1, 9),
    ],
)
def test_intervals_are_narrow(expression: str, low: float | None, high: float | None) -> None:
    """s runs over 0..5 and t over 0..3."""
    found = interval(over_letters(expression), {S: (0, 6), T: (0, 4)})
    assert found == (None if low is None or high is None else Interval(low, high))


def test_the_first_part_that_is_not_whole_is_named() -> None:
    def bad(expression: str) -> str | None:
        found = not_whole(over_letters(expression), lambda name: UNBOUNDED if name == "ids" else None)
        return None if found is None else text(found)

    assert [bad(e) for e in ("s + 2 // 3", "min(ids[s], 4) % 2", "not s < 2")] == [None] * 3
    assert [bad(e) for e in ("s + 2 / 3", "ids[s / 2]", "max(s, exp(0.5))", "s + x[t] * 0.5", "s ** 2")] == [
        "2 / 3", None, "exp(0.5)", "x[t]", "s ** 2",
    ]  # fmt: skip


TRUTHS = (
    *("t <= s", "t + 1 < s", "t <= s and s - t < 3", "t > s or 2 * t >= s + 4", "not t == s", "s // 3 == t // 3"),
    *("-t < 2 - s", "t - s != 1", "t - 4", "t % 2 < 1", "t % 4 < s % 3", "abs(s - t) < 2", "min(s, t) >= 2"),
)


@pytest.mark.parametrize("mask", TRUTHS)
def test_what_is_known_of_a_block_holds_at_every_point(mask: str) -> None:
    condition = over_letters(mask)
    known = 0
    for s0, s1, t0, t1 in product(range(0, 7, 2), range(1, 8, 3), range(0, 7, 2), range(1, 8, 3)):
        if s0 < s1 and t0 < t1:
            found = truth(interval(condition, {S: (s0, s1), T: (t0, t1)}))
            values = {bool(value(condition, {S: s, T: t})) for s in range(s0, s1) for t in range(t0, t1)}
            known += found in (FALSE, TRUE)
            assert found not in (FALSE, TRUE) or values == {found == TRUE}, f"{mask} over {s0, s1, t0, t1}: said {found}, is {values}"
    assert known, "a mask of letters alone is known somewhere"
