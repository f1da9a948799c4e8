"""Victims: prices say what they are meant to, and the cheapest window is what brute force finds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.memplan.horizons import victim
from einpage.memplan.horizons.victim import (
    FAR,
    FEW,
    HOLE_TRAFFIC,
    LARGE,
    Price,
    VictimPolicy,
    cheapest_window,
    farthest,
    price_of,
    traffic,
    weighted,
)

PINNED = -1
segments = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([PINNED, 0, 1, 2, 3, 9])), max_size=9)


@given(segments, st.integers(1, 12), st.sampled_from([np.int64, object]), st.sampled_from([0, FEW]))
def test_the_cheapest_window_is_what_brute_force_finds(tiling: list[tuple[int, int]], wanted: int, dtype: type, few: int) -> None:
    sizes, prices = [s for s, _ in tiling], [p for _, p in tiling]
    ranges = [(a, b) for a in range(len(tiling)) for b in range(a + 1, len(tiling) + 1)]
    possible = [(a, b) for a, b in ranges if PINNED not in prices[a:b] and sum(sizes[a:b]) >= wanted]
    leftmost = min(possible, key=lambda ab: (sum(prices[slice(*ab)]), ab[1], -ab[0]), default=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim, "FEW", few)
        candidates = np.array([i for i, p in enumerate(prices) if p != PINNED], np.int64)
        assert cheapest_window(np.cumsum([0, *sizes]), candidates, np.array(prices, dtype)[candidates], wanted) == leftmost


def one(price: Price, nbytes: int, distance: int, dirty: bool) -> int:
    return int(price(np.array([traffic(nbytes, dirty)]), np.array([distance]))[0])


@pytest.mark.parametrize("price", [weighted, farthest])
def test_farther_is_cheaper(price: Price) -> None:
    assert one(price, 1024, 100, False) < one(price, 1024, 10, False)


def test_weighted_prefers_clean_and_small() -> None:
    assert one(weighted, 1024, 10, False) < one(weighted, 1024, 10, True)
    assert one(weighted, 1024, 10, False) < one(weighted, 2048, 10, False)
    assert one(weighted, 1024, 10, True) > one(weighted, 1024, 15, False), "clean before dirty at comparable distance"


def test_prices_of_an_arena_that_is_not_large_are_exact() -> None:
    """What costs most: as many bytes as there are, dirty, needed in the next step."""
    assert one(weighted, LARGE - 1, 1, True) == int(weighted(np.array([traffic(LARGE - 1, True)], object), np.array([1]))[0]) > LARGE


@pytest.mark.parametrize("price", [*map(partial(price_of, seed=0), VictimPolicy)])
def test_a_hole_has_no_price(price: Price) -> None:
    assert price(np.array([HOLE_TRAFFIC, traffic(1, False)]), np.array([FAR, 1 << 40])).tolist()[0] == 0
    assert one(price, 1, 1 << 40, False) > 0


def test_farthest_looks_at_the_nearest_of_a_window_only() -> None:
    assert one(farthest, 1, 50, False) > 3 * one(farthest, 1, 100, False)


def test_random_prices_repeat_with_their_seed() -> None:
    def draw(seed: int) -> list[int]:
        price = price_of(VictimPolicy.RANDOM, seed)
        return [one(price, 1, 1, False) for _ in range(20)]

    assert draw(3) == draw(3) != draw(4)
    assert min(draw(3)) > 0
