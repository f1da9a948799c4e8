"""The arena against a dictionary model: a state machine that knows, for each block, who has it or who had it last."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from einpage.einsum_front.base.units import ALIGNMENT
from einpage.memplan.graph.arena import FIT_BY_POLICY, NEVER_USED, Arena, FitPolicy, Piece, best_fit, first_fit, worst_fit

BLOCKS = 24


class ArenaMachine(RuleBasedStateMachine):
    """Never asks for sizes that are not multiples of the unit, nor for a live segment that does not exist."""

    unit = ALIGNMENT

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(BLOCKS * self.unit + self.unit // 2, self.unit)
        self.owner: dict[int, int | None] = dict.fromkeys(range(BLOCKS))
        self.last: dict[int, int] = dict.fromkeys(range(BLOCKS), NEVER_USED)
        self.live: dict[int, list[Piece]] = {}
        self.node = 0
        self.top = 0

    def runs(self) -> list[tuple[int, int]]:
        """Maximal runs of free blocks, as (length, first block)."""
        out: list[tuple[int, int]] = []
        first = 0
        for block in range(BLOCKS + 1):
            if block == BLOCKS or self.owner[block] is not None:
                if block > first:
                    out.append((block - first, first))
                first = block + 1
        return out

    @rule(blocks=st.integers(1, 8), policy=st.sampled_from(FitPolicy))
    def take(self, blocks: int, policy: FitPolicy) -> None:
        start = self.arena.find(blocks * self.unit, FIT_BY_POLICY[policy])
        fitting = [run for run in self.runs() if run[0] >= blocks]
        if start is None:
            assert not fitting
            return
        expected = {
            FitPolicy.BEST: lambda: min(fitting),
            FitPolicy.FIRST: lambda: min(fitting, key=lambda run: run[1]),
            FitPolicy.WORST: lambda: max(fitting),
        }[policy]()
        assert start == expected[1] * self.unit
        pieces = self.arena.allocate(start, blocks * self.unit, owner=self.node)
        mine = range(start // self.unit, start // self.unit + blocks)
        assert [b for a, z, _ in pieces for b in range(a // self.unit, z // self.unit)] == list(mine)
        assert [n for a, z, n in pieces for _ in range(a // self.unit, z // self.unit)] == [self.last[b] for b in mine]
        for b in mine:
            self.owner[b] = self.node
        self.live[start] = pieces
        self.node += 1
        self.top = max(self.top, mine.stop * self.unit)

    def blocks_of(self, start: int) -> range:
        return range(start // self.unit, self.live[start][-1][1] // self.unit)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.live)))
        self.arena.release(start, self.node)
        for b in self.blocks_of(start):
            self.owner[b], self.last[b] = None, self.node
        del self.live[start]
        self.node += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.live)))
        self.arena.undo(self.live[start])
        for b in self.blocks_of(start):
            self.owner[b] = None
        del self.live[start]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.live)))
        self.arena.rename(start, self.node)
        for b in self.blocks_of(start):
            self.owner[b] = self.node
        self.node += 1

    @invariant()
    def agrees(self) -> None:
        runs = self.runs()
        assert self.arena.free_bytes == sum(n for n, _ in runs) * self.unit
        assert self.arena.largest_hole() == max((n for n, _ in runs), default=0) * self.unit
        assert self.arena.high_water == self.top
        owner_by_block = {b: owner for start, stop, owner in self.arena.segments() for b in range(start // self.unit, stop // self.unit)}
        assert owner_by_block == self.owner
        for n, first in runs:
            assert self.arena.hole_at((first + n - 1) * self.unit) == first * self.unit


class ByteMachine(ArenaMachine):
    """An arena without alignment: a block is one byte."""

    unit = 1


TestArena = ArenaMachine.TestCase
TestArenaOfBytes = ByteMachine.TestCase


def test_a_segment_remembers_everyone_who_had_its_bytes() -> None:
    arena = Arena(2048)
    x = arena.find(256)
    assert x == 0
    arena.allocate(x, 256, owner=3)
    arena.allocate(256, 256, owner=4)
    arena.release(256, node=7)
    assert arena.allocate(256, 512, owner=5) == [(256, 512, 7), (512, 768, NEVER_USED)]


def test_an_arena_below_the_alignment_is_empty() -> None:
    arena = Arena(255)
    assert arena.capacity == 0 and arena.largest_hole() == 0 and arena.find(256) is None and list(arena.segments()) == []


def test_taking_more_than_a_hole_has_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="fewer than 512 bytes"):
        Arena(256).allocate(0, 512, owner=0)


@pytest.mark.parametrize(("fit", "answer"), [(best_fit, 4096), (first_fit, 1024), (worst_fit, 8192)])
def test_fits_differ(fit: object, answer: int) -> None:
    holes = [(256, 0), (512, 4096), (768, 1024), (1024, 8192)]
    assert callable(fit)
    assert fit(holes, 512) == answer
    assert fit(holes, 1025) is None
