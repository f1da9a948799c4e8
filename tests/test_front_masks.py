"""What masks leave, against looking at every pair."""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import Any

import pytest

from einpage.einsum_front.algebra import masks
from einpage.einsum_front.algebra.expr import Axis, Call, Expr, Letter, Load, Name, Num, substitute
from einpage.einsum_front.algebra.masks import LEAF, emptied, keys_seen, pairs, visible
from einpage.einsum_front.spec.parse import parse_expression
from front_text import over_letters, words_as_letters

S, T = Letter("s"), Letter("t")
MASKS = {
    "causal": ("t <= s", lambda s, t: t <= s),
    "window": ("t <= s and s - t < 300", lambda s, t: t <= s and s - t < 300),
    "blocks": ("t // 100 == s // 100", lambda s, t: t // 100 == s // 100),
    "none": ("1 == 1", lambda s, t: True),
    "nothing": ("t > s + 5000", lambda s, t: False),
}


def score(mask: str) -> Expr:
    """`where(mask, 0, -inf)` with the letters s and t."""
    return Call("where", (over_letters(mask), Num(0), Num(float("-inf"))))


@pytest.mark.parametrize("word", MASKS)
@pytest.mark.parametrize("queries", [(0, 700), (130, 641), (699, 700)])
def test_pairs_are_counted_exactly(word: str, queries: tuple[int, int]) -> None:
    mask, lets_through = MASKS[word]
    keys = (0, LEAF + 188)
    exact = sum(lets_through(s, t) for s in range(*queries) for t in range(*keys))
    assert pairs(score(mask), S, T, {S: queries, T: keys}, at_least=True) == exact


@pytest.mark.parametrize("counted", [1, 20_000, 400_000])
@pytest.mark.parametrize("mixed", [1, 4, 16, 64])
@pytest.mark.parametrize("word", ["causal", "window", "blocks", "products"])
def test_pairs_that_are_not_looked_into_count_as_none_or_as_all(
    word: str, mixed: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the limits: never more than there are, and never fewer."""
    mask, lets_through = {**MASKS, "products": ("(s * t) % 7 == 0", lambda s, t: s * t % 7 == 0)}[word]
    monkeypatch.setattr(masks, "MOST_MIXED", mixed)
    monkeypatch.setattr(masks, "MOST_COUNTED", counted)
    masks._count.cache_clear()
    ranges = {S: (3, 1303), T: (0, 1200)}
    exact = sum(lets_through(s, t) for s in range(3, 1303) for t in range(1200))
    least, most = (pairs(score(mask), S, T, ranges, at_least) for at_least in (True, False))
    masks._count.cache_clear()
    assert 0 <= least <= exact <= most <= 1300 * 1200
    assert (least == most) == (least == exact == most)
    if mixed == 64 and counted == 400_000 and word != "products":
        assert least == exact == most


@pytest.mark.parametrize("mask", ["t <= s", "t <= s and s - t < 1000", "(s * t) % 7 == 0", "(s + t) % 2 == 1 or t == s"])
def test_the_pairs_of_billions_of_positions_are_counted_in_seconds(mask: str) -> None:
    ranges = {S: (0, 1 << 32), T: (0, 1 << 32)}
    began = process_time()
    least, most = (pairs(score(mask), S, T, ranges, at_least) for at_least in (True, False))
    assert process_time() - began < 8
    assert 0 <= least <= most <= 1 << 64
    if mask == "t <= s":
        assert most - least < 1e-3 * most


@pytest.mark.parametrize("word", MASKS)
def test_what_is_left_out_is_masked(word: str) -> None:
    mask, lets_through = MASKS[word]
    for queries in ((0, 64), (64, 128), (384, 450)):
        start, end = visible(score(mask), T, {S: queries, T: (0, 700)}, 64)
        seen = [t for t in range(700) if any(lets_through(s, t) for s in range(*queries))]
        if seen:
            assert start <= seen[0] and seen[-1] < end, f"{queries}: keys {seen[0]}..{seen[-1]} are not all in [{start}, {end})"
            assert seen[0] - start < 64 and end - seen[-1] <= 64, f"{queries}: [{start}, {end}) is wider than the grain"
        else:
            assert start == end


SEEN = {
    **MASKS,
    "odd": ("t % 2 == 1 and t <= s", lambda s, t: t % 2 == 1 and t <= s),
    "far": ("t <= s and s - t < 40 or t == 7", lambda s, t: (t <= s and s - t < 40) or t == 7),
    "late": ("t > s + 600 and s < 90", lambda s, t: t > s + 600 and s < 90),
    "nothing": ("t > s + 5000", lambda s, t: t > s + 5000),
}


@pytest.mark.parametrize("word", SEEN)
@pytest.mark.parametrize("queries", [(0, 1300), (130, 641), (699, 700), (1100, 1300), (5, 5)])
@pytest.mark.parametrize("keys", [(0, 1300), (0, LEAF), (600, 1212), (3, 3)])
def test_keys_are_seen_by_some_query(word: str, queries: tuple[int, int], keys: tuple[int, int]) -> None:
    mask, lets_through = SEEN[word]
    found = keys_seen(score(mask), S, T, {S: queries, T: keys})
    exact = [t for t in range(*keys) if any(lets_through(s, t) for s in range(*queries))]
    assert [t for run in found for t in range(*run)] == exact
    assert all(before[1] < after[0] for before, after in pairwise(found)) and all(start < end for start, end in found)


@pytest.mark.parametrize("word", SEEN)
def test_of_very_many_keys_no_more_are_seen_than_there_are_and_in_few_blocks(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand million positions are a slip of the finger: it is refused for its size, and not after looking at all of them."""
    asked, interval = [], masks.interval

    def counted(*args: Any) -> Any:
        asked.append(args)
        assert len(asked) < 60_000
        return interval(*args)

    monkeypatch.setattr(masks, "interval", counted)
    mask, lets_through = SEEN[word]
    n = 10**9
    found = keys_seen(score(mask), S, T, {S: (0, n), T: (0, n)})
    sample = [t for start, end in found[:: max(1, len(found) // 50)] for t in (start, end - 1)]
    assert all(any(lets_through(s, t) for s in (t, t + 1, 0, 89, n - 1)) for t in sample)
    assert found == ((0, n),) or word not in ("causal", "none")


def by_data(mask: str) -> Expr:
    """As `score`, with `len` in the mask a load of `lengths[b]` and `keep` one of `kept[b,s,t]`."""
    b = Letter("b")
    loaded = {"len": Load("lengths", (Axis(b),)), "keep": Load("kept", (Axis(b), Axis(S), Axis(T)))}
    named = substitute(parse_expression(mask), lambda n: loaded.get(n.word) if isinstance(n, Name) else None)
    return Call("where", (words_as_letters(named), Num(0), Num(float("-inf"))))


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


def test_a_block_is_emptied_only_by_minus_infinity() -> None:
    late = {S: (0, 4), T: (4, 8)}
    causal = score("t <= s")
    assert emptied(causal, late)
    assert not emptied(causal, {**late, T: (3, 8)})
    assert not emptied(Call("where", (over_letters("t <= s"), Num(0), Num(-1e9))), late)
    assert emptied(over_letters("where(t > s, where(s < 9, -inf, 0), 0)"), late)
    assert not emptied(by_data("keep"), late)


def test_tiles_that_differ_in_other_letters_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over splits asks for thousands of tiles, of which a mask of queries and keys tells a few apart."""
    asked, interval = [], masks.interval

    def counted(*args: Any) -> Any:
        asked.append(args)
        return interval(*args)

    monkeypatch.setattr(masks, "interval", counted)
    causal = score("t <= s + 4321")
    found = [visible(causal, T, {S: (0, 9), T: (0, 10_000), Letter("h"): (h, h + 1)}, 64) for h in range(50)]
    assert found == [(0, 4352)] * 50 and 0 < len(asked) < 50
    assert visible(causal, T, {S: (0, 90), T: (0, 10_000)}, 64) == (0, 4416)
    assert visible(causal, T, {S: (0, 90), T: (0, 4_000)}, 64) == (0, 4000)
