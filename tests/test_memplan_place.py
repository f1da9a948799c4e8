"""Offsets for rectangles in a given arena, held against a judge that compares every pair."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.memplan.packing import windows
from einpage.memplan.packing.place import place
from einpage.memplan.packing.rectangles import Rectangle

intervals = st.tuples(st.integers(0, 30), st.integers(1, 15))
some_rectangles = st.lists(st.builds(lambda at, nbytes: Rectangle(at[0], sum(at), nbytes), intervals, st.integers(0, 40)), max_size=40)
"""Never an empty interval."""


def alive_at_most(some: Sequence[Rectangle]) -> int:
    """Bytes alive at once, at the worst moment."""
    return max((sum(r.nbytes for r in some if r.start <= t < r.end) for t in range(60)), default=0)


def violation_of(some: Sequence[Rectangle], capacity: int, placed: Sequence[int | None]) -> str | None:
    """What is wrong with the offsets, or None."""
    if len(placed) != len(some):
        return "not an offset for each"
    for i, (a, at) in enumerate(zip(some, placed, strict=True)):
        if at is None:
            continue
        if not 0 <= at <= capacity - a.nbytes:
            return f"rectangle {i} is not inside the arena"
        for j, (b, other) in enumerate(zip(some[:i], placed[:i], strict=True)):
            if other is not None and max(a.start, b.start) < min(a.end, b.end) and max(at, other) < min(at + a.nbytes, other + b.nbytes):
                return f"rectangles {i} and {j} overlap"
    return None


@given(some_rectangles, st.integers(0, 200), st.booleans())
def test_no_two_that_are_alive_at_once_overlap(some: list[Rectangle], capacity: int, exact: bool) -> None:
    placed = place(some, capacity, effort=0.02, exact=exact)
    assert violation_of(some, capacity, placed) is None
    assert placed == place(some, capacity, effort=0.02, exact=exact)


@given(st.lists(intervals, max_size=40), st.integers(1, 9), st.integers(0, 8))
def test_equal_sizes_always_fit(drawn: list[tuple[int, int]], nbytes: int, odd: int) -> None:
    some = [Rectangle(start, start + length, nbytes) for start, length in drawn]
    assert None not in place(some, alive_at_most(some) + odd % nbytes)


@given(some_rectangles, st.integers(1, 300), st.sampled_from((1, 3, 256)))
def test_offsets_are_multiples_of_what_all_sizes_are_multiples_of(some: list[Rectangle], capacity: int, unit: int) -> None:
    some = [Rectangle(r.start, r.end, r.nbytes * unit) for r in some]
    assert all(at is None or at % unit == 0 for at in place(some, capacity * unit + unit - 1, effort=0.02))


@given(some_rectangles)
def test_an_arena_as_large_as_all_together_has_places_for_all(some: list[Rectangle]) -> None:
    assert None not in place(some, sum(r.nbytes for r in some))


def test_repairs_leave_the_end_of_an_odd_arena_alone() -> None:
    """Of each three one has no place; repairs try both ends of the arena for it."""
    some = [Rectangle(10 * k + i, 10 * k + i + 4, 4) for k in range(20) for i in range(3)]
    placed = place(some, 11)
    assert all(placed[3 * k : 3 * k + 3].count(None) == 1 for k in range(20))
    assert all(at is None or at % 4 == 0 for at in placed)


def test_what_is_left_out_is_small() -> None:
    for largest in range(3):
        some = [Rectangle(i, i + 4, 80 if i == largest else 60) for i in range(3)]
        assert place(some, 100)[largest] is not None


def test_a_full_arena_is_packed_without_a_gap() -> None:
    """The drawing in the module, each row full."""
    rows = ((1, 8, 2), (1, 8, 2), (1, 5, 1), (4, 8, 1), (1, 3, 1), (6, 8, 1), (5, 7, 1))
    some = [Rectangle(*row) for row in rows]
    assert None not in place(some, alive_at_most(some))


def divided(rng: Random, whole: Rectangle, count: int) -> list[Rectangle]:
    """Rectangles that fill `whole` with no byte to spare: it is divided in two across bytes or across time, and so are its halves."""
    if count == 1 or whole.nbytes < 4 or whole.end - whole.start < 4:
        return [whole]
    if rng.random() < 0.5:
        at = rng.randrange(1, whole.nbytes)
        halves = whole._replace(nbytes=at), whole._replace(nbytes=whole.nbytes - at)
    else:
        at = rng.randrange(whole.start + 1, whole.end)
        halves = whole._replace(end=at), whole._replace(start=at)
    return [r for half in halves for r in divided(rng, half, count // 2)]


def test_exact_search_fills_an_arena_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty full windows in a row, one rectangle across all of them: it is alive at the separators, and beside it no byte is to spare."""
    monkeypatch.setattr(windows, "MOST", 40)
    rng = Random(0)
    some = [r for k in range(20) for r in divided(rng, Rectangle(20 * k, 20 * k + 20, 60), 32)]
    some.append(Rectangle(5, 395, 20))
    left_out = place(some, 80, effort=0.01).count(None)
    placed = place(some, 80, effort=0.01, exact=True)
    assert violation_of(some, 80, placed) is None
    assert left_out > 0 and placed.count(None) == 0


def loss_of(some: Sequence[Rectangle], capacity: int, placed: Sequence[int | None]) -> int:
    """Bytes left out, and a thousandth of the arena for each rectangle."""
    return sum(r.nbytes + 1 + capacity // 1000 for r, at in zip(some, placed, strict=True) if at is None)


def first_fit_loss(some: Sequence[Rectangle], capacity: int, order: Sequence[int]) -> int:
    """What is left out by putting each in turn at the lowest offset that is free for as long as it is alive."""
    placed: list[int | None] = [None] * len(some)
    for i in order:
        beside = [j for j, at in enumerate(placed) if at is not None and some[j].start < some[i].end and some[i].start < some[j].end]
        for at in sorted({0, *(placed[j] + some[j].nbytes for j in beside)}):  # type: ignore[operator]
            if at + some[i].nbytes <= capacity and all(
                at + some[i].nbytes <= placed[j] or placed[j] + some[j].nbytes <= at  # type: ignore[operator]
                for j in beside
            ):
                placed[i] = at
                break
    return loss_of(some, capacity, placed)


def crowded(seed: int) -> tuple[list[Rectangle], int]:
    """Rectangles of many sizes, most of them tiny beside the arena, and an arena that is a little too small for them."""
    rng = Random(seed)
    some = []
    for _ in range(rng.randrange(20, 60)):
        start, large = rng.randrange(40), rng.random() < 0.4
        some.append(Rectangle(start, start + rng.randrange(1, 15), rng.randrange(50, 400) if large else rng.randrange(1, 4)))
    return some, int(alive_at_most(some) * rng.uniform(0.7, 1.0))


@pytest.mark.parametrize("effort", [0.0, 0.01])
def test_no_step_leaves_out_more_than_the_step_before(effort: float) -> None:
    """First fit, then small ones apart and repairs, then exact search: of each step the better of before and after is kept."""
    improved = 0
    for seed in range(60):
        some, capacity = crowded(seed)
        numbers = range(len(some))
        by_size = sorted(numbers, key=lambda i: (-some[i].nbytes, some[i].start, -some[i].end, i))
        by_area = sorted(numbers, key=lambda i: (-some[i].nbytes * (some[i].end - some[i].start), i))
        fitted = min(first_fit_loss(some, capacity, order) for order in (by_size, by_area))
        repaired = loss_of(some, capacity, place(some, capacity, effort))
        searched = loss_of(some, capacity, place(some, capacity, effort, exact=True))
        assert searched <= repaired <= fitted, f"seed {seed}"
        improved += searched < fitted
    assert improved
