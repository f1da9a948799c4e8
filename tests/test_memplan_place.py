"""Places for blocks with known lives, held against a judge that looks at every pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.memplan.packing import windows as place_windows
from einpage.memplan.packing.place import Block, place

lives = st.tuples(st.integers(0, 30), st.integers(1, 15))
blocks_of = st.lists(st.builds(lambda life, nbytes: Block(life[0], life[0] + life[1], nbytes), lives, st.integers(0, 40)), max_size=40)
"""Never empty lives."""


def alive_at_most(blocks: Sequence[Block]) -> int:
    """Bytes alive at once, at the worst moment."""
    return max((sum(b.nbytes for b in blocks if b.birth <= t < b.death) for t in range(60)), default=0)


def fault_of(blocks: Sequence[Block], capacity: int, placed: Sequence[int | None]) -> str | None:
    """What is wrong with the places, or None."""
    if len(placed) != len(blocks):
        return "not a place for each"
    for i, (a, at) in enumerate(zip(blocks, placed, strict=True)):
        if at is None:
            continue
        if not 0 <= at <= capacity - a.nbytes:
            return f"block {i} leaves the arena"
        for j, (b, other) in enumerate(zip(blocks[:i], placed[:i], strict=True)):
            if (
                other is not None
                and max(a.birth, b.birth) < min(a.death, b.death)
                and max(at, other) < min(at + a.nbytes, other + b.nbytes)
            ):
                return f"blocks {i} and {j} overlap"
    return None


@given(blocks_of, st.integers(0, 200), st.booleans())
def test_no_two_that_live_at_once_overlap(blocks: list[Block], capacity: int, exact: bool) -> None:
    placed = place(blocks, capacity, effort=0.02, exact=exact)
    assert fault_of(blocks, capacity, placed) is None
    assert placed == place(blocks, capacity, effort=0.02, exact=exact)


@given(st.lists(lives, max_size=40), st.integers(1, 9), st.integers(0, 8))
def test_equal_sizes_always_fit(spans: list[tuple[int, int]], nbytes: int, odd: int) -> None:
    blocks = [Block(birth, birth + length, nbytes) for birth, length in spans]
    assert None not in place(blocks, alive_at_most(blocks) + odd % nbytes)


@given(blocks_of, st.integers(1, 300), st.sampled_from((1, 3, 256)))
def test_offsets_are_multiples_of_what_all_sizes_are_multiples_of(blocks: list[Block], capacity: int, unit: int) -> None:
    blocks = [Block(b.birth, b.death, b.nbytes * unit) for b in blocks]
    assert all(at is None or at % unit == 0 for at in place(blocks, capacity * unit + unit - 1, effort=0.02))


@given(blocks_of)
def test_blocks_in_an_arena_as_long_as_all_of_them_all_stand(blocks: list[Block]) -> None:
    assert None not in place(blocks, sum(b.nbytes for b in blocks))


def test_repairs_leave_the_end_of_an_odd_arena_alone() -> None:
    """Of each three one cannot stand; repairs try both ends of the arena for it."""
    blocks = [Block(10 * k + i, 10 * k + i + 4, 4) for k in range(20) for i in range(3)]
    placed = place(blocks, 11)
    assert all(placed[3 * k : 3 * k + 3].count(None) == 1 for k in range(20))
    assert all(at is None or at % 4 == 0 for at in placed)


def test_what_is_left_out_is_small() -> None:
    for largest in range(3):
        blocks = [Block(i, i + 4, 80 if i == largest else 60) for i in range(3)]
        assert place(blocks, 100)[largest] is not None


def test_a_full_arena_is_packed_without_a_gap() -> None:
    """The drawing in the module, each row full."""
    blocks = [Block(1, 8, 2), Block(1, 8, 2), Block(1, 5, 1), Block(4, 8, 1), Block(1, 3, 1), Block(6, 8, 1), Block(5, 7, 1)]
    assert None not in place(blocks, alive_at_most(blocks))


def cut_up(dice: Random, room: Block, parts: int) -> list[Block]:
    """Blocks that fill `room` with no byte to spare: it is cut in two across bytes or across time, and so are its halves."""
    if parts == 1 or room.nbytes < 4 or room.death - room.birth < 4:
        return [room]
    if dice.random() < 0.5:
        at = dice.randrange(1, room.nbytes)
        halves = replace(room, nbytes=at), replace(room, nbytes=room.nbytes - at)
    else:
        at = dice.randrange(room.birth + 1, room.death)
        halves = replace(room, death=at), replace(room, birth=at)
    return [block for half in halves for block in cut_up(dice, half, parts // 2)]


def test_exact_search_fills_an_arena_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty full rooms in a row, one block across all of them: it lives at the seams, and beside it no byte is to spare."""
    monkeypatch.setattr(place_windows, "MOST", 40)
    dice = Random(0)
    blocks = [block for k in range(20) for block in cut_up(dice, Block(20 * k, 20 * k + 20, 60), 32)]
    blocks.append(Block(5, 395, 20))
    left_out = place(blocks, 80, effort=0.01).count(None)
    placed = place(blocks, 80, effort=0.01, exact=True)
    assert fault_of(blocks, 80, placed) is None
    assert left_out > 0 and placed.count(None) == 0
