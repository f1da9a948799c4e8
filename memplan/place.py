"""Places for blocks with known lives: offsets such that no two that live at once share a byte.

In: blocks (birth, death, bytes), half-open lives, the arena's bytes. Out: an offset for each block, or its name among the unplaced ones
where no arrangement that was tried holds them all. Blocks go in one by one, in a few orders; what the best order leaves out is then
fought for in `place_repair`. Invariant: offsets are multiples of whatever all sizes are multiples of.

    bytes
     |  [e ] [ d  ][f]
     |  [   c   ]   [ g ]
     |  [      a        ]
     +--[      b        ]----> position
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from einpage.memplan.place_field import Field
from einpage.memplan.place_repair import repair

STEPS = 3000
"""Attempts at one block in `repair`, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Block:
    birth: int
    death: int
    """Half-open."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    offsets: tuple[int | None, ...]
    """[block] its first byte; None for those without a place."""
    unplaced: tuple[int, ...]
    """The blocks without a place, ascending."""


def place(blocks: Sequence[Block], capacity: int, weights: Sequence[int] | None = None, steps: int = STEPS) -> Placed:
    """Offsets within `capacity` bytes. `weights`[block] is what it costs to leave the block out, by default its bytes; the sum over what
    is left out is made small, not proven least. Blocks of one size always find places where those alive at once fit. `steps` bounds the
    work after the first orders. Deterministic."""
    field = Field([(b.birth, b.death, b.nbytes) for b in blocks], capacity, weights)
    best = field.snapshot()
    for order, tight in _orders(field):
        field.clear()
        for i in order:
            field.put(i, tight)
        best = min(best, field.snapshot(), key=lambda s: s.loss)
        if not best.loss:
            break
    if best.loss:
        field.restore(best)
        repair(field, steps)
        best = field.snapshot()
    return Placed(tuple(None if at < 0 else at for at in best.offsets), tuple(i for i, at in enumerate(best.offsets) if at < 0))


def _orders(field: Field) -> Iterator[tuple[list[int], bool]]:
    """(blocks in order, whether in the tightest hole instead of the lowest). In order of birth, blocks of one size cannot fail."""
    birth, life, nbytes = field.birth.tolist(), (field.death - field.birth).tolist(), field.nbytes.tolist()
    numbers = range(len(birth))
    yield sorted(numbers, key=lambda i: (-nbytes[i] * life[i], i)), False
    yield sorted(numbers, key=lambda i: (-nbytes[i], -life[i], i)), False
    yield sorted(numbers, key=lambda i: (birth[i], -life[i], -nbytes[i], i)), True
