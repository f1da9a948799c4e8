"""Interval arithmetic against every point of small ranges; what masks leave against looking at every pair."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.arithmetic import BadNumber, binary, call, unary
from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Name, Num, Unary, substitute, text
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.algebra.intervals import interval, not_whole
from einpage.einsum_front.algebra.masks import LEAF, emptied, pairs, visible
from einpage.einsum_front.algebra.rewrite import rename
from einpage.einsum_front.base.interval import FALSE, TRUE, Interval, truth
from einpage.einsum_front.spec.parse import parse_expression

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
    found = interval(rename_words(parse_expression(expression)), {S: (0, 6), T: (0, 4)})
    assert found == (None if low is None or high is None else Interval(low, high))


def test_the_first_part_that_is_not_whole_is_named() -> None:
    def bad(expression: str) -> str | None:
        found = not_whole(rename_words(parse_expression(expression)), lambda name: name == "ids")
        return None if found is None else text(found)

    assert [bad(e) for e in ("s + 2 // 3", "min(ids[s], 4) % 2", "not s < 2")] == [None] * 3
    assert [bad(e) for e in ("s + 2 / 3", "ids[s / 2]", "max(s, exp(0.5))", "s + x[t] * 0.5", "s ** 2")] == [
        "2 / 3", None, "exp(0.5)", "x[t]", "s ** 2",
    ]  # fmt: skip


MASKS = {
    "causal": ("t <= s", lambda s, t: t <= s),
    "window": ("t <= s and s - t < 300", lambda s, t: t <= s and s - t < 300),
    "blocks": ("t // 100 == s // 100", lambda s, t: t // 100 == s // 100),
    "none": ("1 == 1", lambda s, t: True),
    "nothing": ("t > s + 5000", lambda s, t: False),
}


def score(mask: str) -> Expr:
    """`where(mask, 0, -inf)` with the letters s and t."""
    parsed = parse_expression(mask)
    named = rename_words(parsed)
    return Call("where", (named, Num(0), Num(float("-inf"))))


def rename_words(e: Expr) -> Expr:
    """Words become letters, but for `inf`."""
    return substitute(e, lambda n: (Num(math.inf) if n.word == "inf" else Axis(Letter(n.word))) if isinstance(n, Name) else None)


@pytest.mark.parametrize("word", MASKS)
@pytest.mark.parametrize("queries", [(0, 700), (130, 641), (699, 700)])
def test_pairs_are_counted_exactly(word: str, queries: tuple[int, int]) -> None:
    mask, lets_through = MASKS[word]
    keys = (0, LEAF + 188)
    exact = sum(lets_through(s, t) for s in range(*queries) for t in range(*keys))
    assert pairs(score(mask), S, T, {S: queries, T: keys}, at_least=True) == exact


@pytest.mark.parametrize("word", MASKS)
def test_what_is_left_out_is_masked(word: str) -> None:
    mask, lets_through = MASKS[word]
    for queries in ((0, 64), (64, 128), (384, 450)):
        start, stop = visible(score(mask), T, {S: queries, T: (0, 700)}, 64)
        seen = [t for t in range(700) if any(lets_through(s, t) for s in range(*queries))]
        if seen:
            assert start <= seen[0] and seen[-1] < stop, f"{queries}: keys {seen[0]}..{seen[-1]} are not all in [{start}, {stop})"
            assert seen[0] - start < 64 and stop - seen[-1] <= 64, f"{queries}: [{start}, {stop}) is wider than the grain"
        else:
            assert start == stop


def by_data(mask: str) -> Expr:
    """As `score`, with `len` in the mask a load of `lengths[b]` and `keep` one of `kept[b,s,t]`."""
    b = Letter("b")
    loaded = {"len": Load("lengths", (Axis(b),)), "keep": Load("kept", (Axis(b), Axis(S), Axis(T)))}
    named = substitute(parse_expression(mask), lambda n: loaded.get(n.word) if isinstance(n, Name) else None)
    return Call("where", (rename_words(named), Num(0), Num(float("-inf"))))


BY_DATA = {
    "t < len": "1 == 1",
    "t < len and t <= s": "t <= s",
    "not (t >= len or t > s)": "t <= s",
    "keep": "1 == 1",
    "keep and t <= s and s - t < 300": "t <= s and s - t < 300",
    "t < min(len, s)": "1 == 1",
    "not keep or t <= s": "1 == 1",
    "t < len and t > s + 5000": "1 == 0",
}
"""Masks over data, and what is left of them where all data lets everything through."""


@pytest.mark.parametrize("mask", BY_DATA)
@pytest.mark.parametrize("at_least", [True, False])
def test_a_clause_over_data_counts_as_visible(mask: str, at_least: bool) -> None:
    """Kernels leave out only what is hidden whatever the data."""
    ranges = {S: (100, 900), T: (0, LEAF + 188), Letter("b"): (0, 2)}
    static = pairs(score(BY_DATA[mask]), S, T, ranges, at_least)
    assert pairs(by_data(mask), S, T, ranges, at_least) == static
    assert (static == 0) == ("5000" in mask)


def test_a_mask_over_another_letter_counts_none_or_all() -> None:
    ranges = {S: (0, 3), T: (0, 5), Letter("h"): (0, 8)}
    assert pairs(score("t + h <= s"), S, T, ranges, at_least=True) == 0
    assert pairs(score("t + h <= s"), S, T, ranges, at_least=False) == 15


def test_no_key_is_left_out_because_of_data() -> None:
    assert visible(by_data("t < len"), T, {S: (0, 3), T: (0, 5), Letter("b"): (0, 2)}, 1) == (0, 5)


def test_renaming_refuses_capture() -> None:
    from einpage.einsum_front.algebra.expr import Reduce, Reduction
    from einpage.einsum_front.algebra.rewrite import Capture

    mean = Reduce(Reduction.MEAN, (T,), Load("x", (Axis(S), Axis(T))))
    assert rename(mean, {S: Num(3)}) == Reduce(Reduction.MEAN, (T,), Load("x", (Num(3), Axis(T))))
    with pytest.raises(Capture):
        rename(mean, {S: Axis(T)})


TRUTHS = (
    *(
        "t <= s",
        "t + 1 < s",
        "t <= s and s - t < 3",
        "t > s or 2 * t >= s + 4",
        "not t == s",
        "s // 3 == t // 3",
        "-t < 2 - s",
        "t - s != 1",
    ),
    *("t - 4", "t % 2 < 1", "t % 4 < s % 3", "abs(s - t) < 2", "min(s, t) >= 2"),
)


@pytest.mark.parametrize("mask", TRUTHS)
def test_what_is_known_of_a_block_holds_at_every_point(mask: str) -> None:
    condition = rename_words(parse_expression(mask))
    known = 0
    for s0, s1, t0, t1 in product(range(0, 7, 2), range(1, 8, 3), range(0, 7, 2), range(1, 8, 3)):
        if s0 < s1 and t0 < t1:
            found = truth(interval(condition, {S: (s0, s1), T: (t0, t1)}))
            values = {bool(value(condition, {S: s, T: t})) for s in range(s0, s1) for t in range(t0, t1)}
            known += found in (FALSE, TRUE)
            assert found not in (FALSE, TRUE) or values == {found == TRUE}, f"{mask} over {s0, s1, t0, t1}: said {found}, is {values}"
    assert known, "a mask of letters alone is known somewhere"


def test_a_block_is_emptied_only_by_minus_infinity() -> None:
    late = {S: (0, 4), T: (4, 8)}
    causal = score("t <= s")
    assert emptied(causal, late)
    assert not emptied(causal, {**late, T: (3, 8)})
    assert not emptied(Call("where", (rename_words(parse_expression("t <= s")), Num(0), Num(-1e9))), late)
    assert emptied(rename_words(parse_expression("where(t > s, where(s < 9, -inf, 0), 0)")), late)
    assert not emptied(by_data("keep"), late)
