"""The judge of plan sets, one position, row, byte or index on either side of each of its borders: it refuses what is wrong, and no more.

What is wrong is said here by sets and by going through every position, and over there by comparing ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bare_plan_sets import WIDTH, BarePhase, BareSet, BareWeight, bare_sets, boxes_nearby, moved
from einpage.einsum_front.graph.job import Box
from einpage.memplan.judge.plan_set import SetReason, judge_sequence

Found = tuple[SetReason, int]


def judged(plans: BareSet) -> Found | None:
    """Reason and phase."""
    violation = judge_sequence(plans.plan_set)
    return None if violation is None else (violation.reason, violation.phase)


def judged_reason(plans: BareSet) -> SetReason | None:
    found = judged(plans)
    return None if found is None else found[0]


@given(bare_sets())
def test_a_set_as_drawn_is_right(plans: BareSet) -> None:
    assert judged(plans) is None


def is_served(plans: BareSet) -> bool:
    """Whether each pass of each sequence has a phase that says so, and each loop a pass."""
    reads, loops, spread = plans.reads, plans.loops, plans.spread
    if not 1 <= plans.shortest <= plans.longest <= plans.positions or not (in_order(reads) and in_order(loops)):
        return False
    if not reads or not all(serves(reads, at, at) for at in range(reads[-1].past + 1)):
        return False
    if not loops:
        return plans.longest == plans.positions
    needed = plans.shortest if reads[0].tokens == plans.longest else 0
    shortest_at = range(min(needed, loops[0].past), plans.positions - spread)
    return (
        needed >= loops[0].past
        and loops[-1].past in shortest_at
        and all(serves(loops, at, min(at + spread, plans.positions - 1)) for at in shortest_at)
    )


def in_order(phases: Iterable[BarePhase]) -> bool:
    pasts = [phase.past for phase in phases]
    return pasts == sorted(set(pasts))


def serves(phases: Iterable[BarePhase], first: int, last: int) -> bool:
    """Whether the phase that runs at `first` is one for `first` to `last`."""
    begun = [phase for phase in phases if phase.past <= first]
    return bool(begun) and {first, last} <= set(range(begun[-1].past, begun[-1].past + begun[-1].extra + 1))


@given(bare_sets(), st.lists(st.integers(0, 1000), max_size=3))
def test_positions_are_missing_where_no_phase_says_that_it_serves_them(plans: BareSet, moves: list[int]) -> None:
    for move in moves:
        possible = plans.positions_nearby()
        plans = possible[move % len(possible)]
    for nearby in (plans, *plans.positions_nearby()):
        is_missing = judged_reason(nearby) is SetReason.POSITION_MISSING
        assert is_missing == (not is_served(nearby)), nearby


ROWS = st.lists(st.integers(-2, 2), min_size=12, max_size=12)
"""How many rows more or fewer a phase has."""


@given(bare_sets(), st.booleans(), ROWS, ROWS)
def test_no_row_is_lost_that_was_written_and_is_read(plans: BareSet, is_one_size: bool, left: list[int], read: list[int]) -> None:
    """Of a state with about as many rows as each phase reaches, or as many in all phases."""
    for n, phase in enumerate(plans.phases):
        rows = plans.phases[0].reach + left[0] if is_one_size else phase.reach + left[n % 12]
        plans = plans.with_state(n, phase.states[0].with_rows(rows, phase.reach + read[n % 12]))
    expect_rows(plans)


@given(bare_sets())
def test_one_row_less_may_be_lost(plans: BareSet) -> None:
    for n, phase in enumerate(plans.phases):
        for left, read in ((0, 1), (1, 0), (1, 1), (-1, 0), (0, -1), (-1, -1)):
            expect_rows(plans.with_state(n, phase.states[0].with_rows(phase.reach + left, phase.reach + read)))


def expect_rows(plans: BareSet) -> None:
    assert judged_reason(plans) is (SetReason.STATE_LOST if is_row_lost(plans) else None), plans


def is_row_lost(plans: BareSet) -> bool:
    """Whether a row that one phase may write and another reads is not left by the first, or one of a state that grows is not."""
    sizes = [set(phase.states[0].left) for phase in plans.phases]
    for before in plans.phases:
        state, written = before.states[0], set(range(before.reach))
        lost = written - kept_rows(state.left)
        if lost and any(size != sizes[0] for size in sizes):
            return True
        if any(lost & kept_rows(phase.states[0].read) for phase in plans.phases if phase.states[0].read):
            return True
    return False


def kept_rows(shape: tuple[int, ...] | None) -> set[int]:
    return set() if shape is None else set(range(shape[1 - shape.index(WIDTH)]))


@given(bare_sets())
def test_a_state_differs_along_one_axis_at_most(plans: BareSet) -> None:
    """One of another width, or with an axis more or less, is another where the number of its rows is another as well."""
    for n, phase in enumerate(plans.phases):
        state = phase.states[0]
        for had, has in [(left, state.read) for left in shapes_nearby(state.left)] + [
            (state.left, read) for read in shapes_nearby(state.read or ()) if state.read
        ]:
            changed = plans.with_state(n, replace(state, left=had, read=has))
            left, read = ([getattr(p.states[0], name) for p in changed.phases] for name in ("left", "read"))
            is_other = any(differ(a, b) > 1 for a in left for b in read if b is not None)
            assert judged_reason(changed) is (SetReason.STATE_LOST if is_other else None), changed


def shapes_nearby(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [*(moved(shape, axis, by) for axis, size in enumerate(shape) if size == WIDTH for by in (-1, 1)), (*shape, 1), shape[:1]]


def differ(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Along how many axes; 2 where one has more of them."""
    return 2 if len(one) != len(other) else sum(a != b for a, b in zip(one, other, strict=True))


@given(bare_sets())
def test_a_state_is_what_another_phase_leaves(plans: BareSet) -> None:
    for n, phase in enumerate(plans.phases):
        for state in phase.states:
            states = tuple(other for other in phase.states if other is not state)
            others = [other for m, p in enumerate(plans.phases) if m != n for other in p.states if other.name == state.name]
            found = judged_reason(plans.with_phase(n, replace(phase, states=states)))
            assert found is (SetReason.STATE_LOST if any(other.read for other in others) else None)


@given(bare_sets())
def test_a_resident_weight_was_there_in_the_loop_before(plans: BareSet) -> None:
    """The same box at the same offset; what leaves does not come back. Loops alone are asked: what reads prompts has its own."""
    for n, phase in enumerate(plans.phases):
        more = BareWeight("more", Box((0,), (2,)), 4096)
        fewer = [phase.resident[:i] + phase.resident[i + 1 :] for i in range(len(phase.resident))]
        for resident in ((*phase.resident, more), *fewer, *weights_nearby(phase.resident)):
            expect_residents(plans.with_phase(n, replace(phase, resident=resident)))


def expect_residents(plans: BareSet) -> None:
    found = judged(plans)
    pairs = [(n, had, has) for n, (had, has) in enumerate(pairwise(plans.phases), 1) if not had.reads]
    loaded = [n for n, had, has in pairs if set(has.resident) - set(had.resident)]
    assert found == ((SetReason.WEIGHT_LOADED, loaded[0]) if loaded else None), plans


@given(bare_sets())
@settings(max_examples=25)
def test_weights_of_the_same_names_are_where_they_were_on_the_host(plans: BareSet) -> None:
    for n, phase in enumerate(plans.phases):
        for on_host in weights_nearby(phase.on_host):
            found = judged(plans.with_phase(n, replace(phase, on_host=on_host)))
            elsewhere = n or 1  # where the first phase is another, all others are
            assert found == ((SetReason.WEIGHT_ELSEWHERE, elsewhere) if len(plans.phases) > 1 else None)
        other = (*phase.on_host, BareWeight("more", Box((0,), (2,)), 4096))
        assert judged(plans.with_phase(n, replace(phase, on_host=other[1:] if phase.on_host else other))) is None


def weights_nearby(weights: tuple[BareWeight, ...]) -> Iterator[tuple[BareWeight, ...]]:
    """With one number of one of them moved by one."""
    for i, weight in enumerate(weights):
        yield from ((*weights[:i], other, *weights[i + 1 :]) for other in weight.nearby())


@given(bare_sets())
def test_arenas_are_of_one_size(plans: BareSet) -> None:
    for n, phase in enumerate(plans.phases):
        for by in (-1, 1):
            found = judged(plans.with_phase(n, replace(phase, budget_bytes=phase.budget_bytes + by)))
            assert found == ((SetReason.OTHER_ARENA, n or 1) if len(plans.phases) > 1 else None)


@given(bare_sets())
def test_what_comes_after_prompts_is_a_loop_and_reads_none(plans: BareSet) -> None:
    loops = [n for n, phase in enumerate(plans.phases) if not phase.reads]
    for n in loops:
        assert judged(plans.with_phase(n, replace(plans.phases[n], loops=False))) == (SetReason.NO_LOOP, n)
    for n in loops[1:]:
        assert judged(plans.with_phase(n, replace(plans.phases[n], reads=True))) == (SetReason.NO_LOOP, n)


@given(bare_sets())
@settings(max_examples=25)
def test_a_tile_that_a_pass_writes_is_one_that_the_next_reads(plans: BareSet) -> None:
    """Each end of each box; but not of a phase that is passed through once, nor of a state that a pass begins without."""
    for n, phase in enumerate(plans.phases):
        is_again = not phase.reads or phase.extra > 0
        for state in phase.states[:2]:
            written = [replace(state, written=boxes) for boxes in each_moved(state.written)]
            begun = [replace(state, begun=boxes) for boxes in each_moved(state.begun)]
            standing = [replace(state, begun=(), standing=state.begun)] if state.begun else []
            for other in (*written, *begun, *standing):
                found = judged(plans.with_state(n, other))
                is_stale = is_again and state.read is not None and bool(set(other.written) - set(other.begun))
                assert found == ((SetReason.STATE_STALE, n) if is_stale else None), other
            assert judged(plans.with_state(n, replace(state, begun=(), standing=()))) is None


def each_moved(boxes: tuple[Box, ...]) -> Iterator[tuple[Box, ...]]:
    """With one number of one of them moved by one."""
    for i, box in enumerate(boxes):
        yield from ((*boxes[:i], other, *boxes[i + 1 :]) for other in boxes_nearby(box))
