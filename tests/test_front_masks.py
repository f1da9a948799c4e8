"""Interval arithmetic against every point of small ranges; mask counts against counting."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.arithmetic import BadNumber, binary
from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Name, Num, Unary, substitute
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.algebra.masks import LEAF, pairs, visible
from einpage.einsum_front.algebra.rewrite import rename
from einpage.einsum_front.spec.parse import parse_expression

S, T = Letter("s"), Letter("t")
_OPS = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or")


def expressions(depth: int = 3) -> st.SearchStrategy[Expr]:
    """Integer expressions over s and t. Never makes loads, reductions, `/` or `**`."""
    leaf = st.one_of(st.integers(-6, 6).map(Num), st.sampled_from([Axis(S), Axis(T)]))
    if depth == 0:
        return leaf
    inner = expressions(depth - 1)
    return st.one_of(
        leaf,
        st.builds(Binary, st.sampled_from(_OPS), inner, inner),
        st.builds(lambda op, x: Unary(op, x), st.sampled_from(("-", "not")), inner),
        st.builds(lambda fn, x, y: Call(fn, (x, y)), st.sampled_from(("min", "max")), inner, inner),
    )


def value(e: Expr, at: dict[Letter, int]) -> float:
    match e:
        case Num(v):
            return v
        case Axis(letter):
            return at[letter]
        case Unary("-", x):
            return -value(x, at)
        case Unary(_, x):
            return float(not value(x, at))
        case Binary(op, x, y):
            return float(binary(op, value(x, at), value(y, at)))
        case Call(fn, (x, y)):
            return (min if fn == "min" else max)(value(x, at), value(y, at))
    raise AssertionError(e)


@given(expressions(), st.integers(0, 5), st.integers(1, 4), st.integers(0, 5), st.integers(1, 4))
def test_an_interval_holds_every_value(e: Expr, s0: int, ns: int, t0: int, nt: int) -> None:
    found = interval(e, {S: (s0, s0 + ns), T: (t0, t0 + nt)})
    if found is None:
        return
    for s, t in product(range(s0, s0 + ns), range(t0, t0 + nt)):
        try:
            exact = value(e, {S: s, T: t})
        except BadNumber:
            continue
        assert found[0] <= exact <= found[1], f"{e} at s={s} t={t} is {exact}, outside {found}"


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
    return substitute(e, lambda n: Axis(Letter(n.word)) if isinstance(n, Name) else None)


@pytest.mark.parametrize("word", MASKS)
@pytest.mark.parametrize("queries", [(0, 700), (130, 641), (699, 700)])
def test_pairs_are_counted_exactly(word: str, queries: tuple[int, int]) -> None:
    text, lets_through = MASKS[word]
    keys = (0, LEAF + 188)
    exact = sum(lets_through(s, t) for s in range(*queries) for t in range(*keys))
    assert pairs(score(text), S, T, {S: queries, T: keys}, at_least=True) == exact


@pytest.mark.parametrize("word", MASKS)
def test_what_is_left_out_is_masked(word: str) -> None:
    text, lets_through = MASKS[word]
    for queries in ((0, 64), (64, 128), (384, 450)):
        start, stop = visible(score(text), T, {S: queries, T: (0, 700)}, 64)
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
