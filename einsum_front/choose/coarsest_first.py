"""Choosing the split: the coarsest under which every task's working set leaves room to prefetch the next.

In: an OpGraph, the budget, the splits a person fixed. Out: splits to try, best first. The op with the largest working set is cut along
the letter that shrinks it most, until all fit the target. This path is short, and may miss the last of what can be had: where nothing on
it fits, `finest` looks at every split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.choose.working_set import Choice, Sizer
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.tile.split import check_pieces, cuts_by_letter
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of

ROOMS = (4, 2, 1)
"""A task should take at most a fourth of the budget, so that its successors' operands can come in while it runs; failing that a
half, failing that all of it."""


def candidates(opgraph: OpGraph, dtype: DType, budget_bytes: int, fixed: Mapping[Letter, int] | None = None) -> list[Choice]:
    """Splits to try, the best first: the coarsest whose working sets fit a fourth of the budget, then half, then all of it.

    Behind it come the finer ones; there are none where none fits. Raises UsageError for a `fixed` split that cannot be.
    """
    path = []
    for choice in coarse_to_fine(opgraph, dtype, fixed or {}):
        path.append(choice)
        if choice.largest_bytes * ROOMS[0] <= budget_bytes:
            return [choice]
    for room in ROOMS:
        for i, choice in enumerate(path):
            if choice.largest_bytes * room <= budget_bytes:
                return path[i:]
    return []


def coarse_to_fine(opgraph: OpGraph, dtype: DType, fixed: Mapping[Letter, int]) -> Iterator[Choice]:
    """Splits from the coarsest on: each cuts the op whose task is largest along the letter that shrinks it most, while one does."""
    check_pieces(opgraph, fixed)
    most = most_pieces(map(tiling_of, opgraph.ops), opgraph.program.extents)
    sizer = Sizer(opgraph, dtype)
    pieces = dict(fixed)
    now = sizer.measure(pieces)
    yield now
    while (finer := _finer(opgraph, sizer, pieces, fixed, most, now)) is not None:
        pieces, now = finer
        yield now


def _finer(
    opgraph: OpGraph, sizer: Sizer, pieces: Mapping[Letter, int], fixed: Mapping[Letter, int], most: Mapping[Letter, int], now: Choice
) -> tuple[dict[Letter, int], Choice] | None:
    """`pieces` with one more cut of the op that is largest now; None where no cut of it helps."""
    pattern = sizer.pattern_by_value[now.task]
    found: list[tuple[int, int, Letter, dict[Letter, int]]] = []
    for position, (letter, _) in enumerate(pattern.template.tiling.inside):
        have = pieces.get(letter, 1)
        if letter in fixed or have == most[letter]:
            continue
        candidate = {**pieces, letter: min(2 * have, most[letter])}
        found.append((sizer.footprint(pattern, cuts_by_letter(opgraph, candidate)), position, letter, candidate))
    here = sizer.footprint(pattern, cuts_by_letter(opgraph, pieces))
    for footprint, _, _, candidate in sorted(found, key=lambda f: f[:2]):
        if footprint < here:
            return candidate, sizer.measure(candidate)
    return None
