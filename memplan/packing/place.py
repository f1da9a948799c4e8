"""Places for blocks with known lives: offsets such that no two that live at once share a byte.

In: blocks (birth, death, bytes), half-open lives, the arena's bytes. Out: an offset for each block, or None where no arrangement that was
tried holds them all. Blocks go in one by one, in a few orders; what the best order leaves out is then
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

import numpy as np

from einpage.memplan.packing.layout import NOWHERE, Field, Snapshot
from einpage.memplan.packing.repair import CAREFUL, RESTLESS, repair
from einpage.memplan.packing.windows import search_windows

WORK, WORK_PER_BLOCK = 50_000, 200
"""What may be spent on repairs, about in microseconds: at least, and for each block."""
NODES_PER_BLOCK = 15
"""What may be spent on exact search."""
DUST_SHARE = 0.002
"""Of the arena: the smallest blocks that need no more than this at once are packed apart, at its top, before the others."""


@dataclass(frozen=True, slots=True)
class Block:
    birth: int
    death: int
    """Half-open."""
    nbytes: int


def place(blocks: Sequence[Block], capacity: int, effort: float = 1.0, exact: bool = False) -> tuple[int | None, ...]:
    """[block] the offset of its first byte, within `capacity` bytes; None for those without a place.

    The bytes of those left out, and a thousandth of the arena for each, are made few, not proven least. Blocks of one size always find
    places where those alive at once fit.
    Repairs take about `effort` seconds for 5,000 blocks; with `exact`, what they leave out is searched for, which may take thirty times
    as long. Deterministic.
    """
    table = np.array([(b.birth, b.death, b.nbytes) for b in blocks], dtype=np.int64).reshape(-1, 3)
    field = Field(table, capacity, table[:, 2] + (1 + capacity // 1000))
    work = int(effort * (WORK + WORK_PER_BLOCK * len(blocks)))
    _fill(field)
    if NOWHERE in field.offset:
        best = field.snapshot()
        _apart(field, work * 4 // 5)
        if field.snapshot().loss > best.loss:
            field.restore(best)
        repair(field, RESTLESS, work // 5)
    if exact and NOWHERE in field.offset:
        best = field.snapshot()
        _apart(field, work, NODES_PER_BLOCK * len(blocks))
        if field.snapshot().loss > best.loss:
            field.restore(best)
    return tuple(None if at == NOWHERE else at for at in field.offset.tolist())


def _homeless(field: Field) -> list[int]:
    """The heaviest first."""
    return sorted(np.flatnonzero(field.offset == NOWHERE).tolist(), key=lambda i: (-int(field.weight[i]), i))


def _apart(field: Field, work: int, nodes: int = 0) -> None:
    """The dust at the top, the rest below it, where `work` is spent on repairs, which do not see the dust then; before them `nodes` on
    exact search."""
    dust = _dust(field)
    small = set(dust)
    core = [i for i in range(len(field.offset)) if i not in small]
    top = field.part(dust, field.capacity)
    _fill(top)
    below = field.part(core, field.capacity - top.height())
    if nodes:
        search_windows(below, nodes)
        for i in next(_orders(below)):
            below.put(i, tight=False)
    else:
        _fill(below)
    repair(below, CAREFUL, work // 2)
    repair(below, RESTLESS, work // 2)
    field.clear()
    field.offset[dust] = np.where(top.offset == NOWHERE, NOWHERE, top.offset + field.capacity - top.height())
    field.offset[core] = below.offset
    for i in _homeless(field):
        field.put(i, tight=True)


def _dust(field: Field) -> list[int]:
    """The smallest blocks, whole sizes at a time, that take at most DUST_SHARE of the arena at once."""
    alive = np.zeros(int(field.death.max(initial=0)) + 1, dtype=np.int64)
    dust: list[int] = []
    for nbytes in np.unique(field.nbytes):
        numbers = np.flatnonzero((field.nbytes == nbytes) & (field.birth < field.death))
        change = np.zeros_like(alive)
        np.add.at(change, field.birth[numbers], nbytes)
        np.add.at(change, field.death[numbers], -nbytes)
        alive += change.cumsum()
        if alive.max(initial=0) > DUST_SHARE * field.capacity:
            break
        dust += numbers.tolist()
    return dust


def _fill(field: Field) -> None:
    """Put all blocks, in the order that leaves out least."""
    best = Snapshot(int(field.weight.sum()) + 1, [])
    for order in _orders(field):
        field.clear()
        loss = 0
        for i in order:
            if not field.put(i, tight=False):
                loss += int(field.weight[i])
                if loss >= best.loss:
                    break
        else:
            best = field.snapshot()
        if not best.loss:
            break
    field.restore(best)


def _orders(field: Field) -> Iterator[list[int]]:
    """By size, then birth or, backwards, death: classes of equal sizes one above the other, each as narrow as can be. By area or, within
    a size, by life: what stays long is a floor for what comes and goes."""
    birth, death, nbytes = field.birth.tolist(), field.death.tolist(), field.nbytes.tolist()
    numbers = range(len(birth))
    yield sorted(numbers, key=lambda i: (-nbytes[i], birth[i], -death[i], i))
    yield sorted(numbers, key=lambda i: (-nbytes[i], -death[i], birth[i], i))
    yield sorted(numbers, key=lambda i: (-nbytes[i] * (death[i] - birth[i]), i))
    yield sorted(numbers, key=lambda i: (-nbytes[i], birth[i] - death[i], i))
