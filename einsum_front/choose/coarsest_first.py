"""Choosing the split: the coarsest under which every task's working set leaves headroom to prefetch the next.

In: the working sets of an OpGraph, the budget, the splits a person fixed. Out: splits to try, best first. A greedy descent: the op with
the largest working set is cut along the letter that shrinks it most, until all fit the target. It measures few splits, and may miss the
smallest working set there is: where none of them fits, `best_first` searches all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.choose.working_set import Choice, WorkingSets
from einpage.einsum_front.tile.split import cuts_by_letter

BUDGET_DIVISORS = (4, 2, 1)
"""A task should take at most a fourth of the budget, so that its successors' operands can be loaded while it runs; failing that a half,
failing that all of it."""


def candidates(working_sets: WorkingSets, budget_bytes: int, fixed: Mapping[Letter, int] | None = None) -> list[Choice]:
    """Splits to try, the best first: the coarsest whose working sets fit a fourth of the budget, else half, else all of it.

    The finer ones follow; the list is empty where none fits. Raises UsageError for a `fixed` split that cannot be.
    """
    choices = []
    for choice in coarse_to_fine(working_sets, fixed or {}):
        choices.append(choice)
        if choice.largest_bytes * BUDGET_DIVISORS[0] <= budget_bytes:
            return [choice]
    for divisor in BUDGET_DIVISORS:
        for i, choice in enumerate(choices):
            if choice.largest_bytes * divisor <= budget_bytes:
                return choices[i:]
    return []


def coarse_to_fine(working_sets: WorkingSets, fixed: Mapping[Letter, int]) -> Iterator[Choice]:
    """Splits from the coarsest on: each cuts the op whose task is largest along the letter that shrinks it most, while one does.

    Raises UsageError for a `fixed` split that cannot be.
    """
    working_sets.check(fixed)
    pieces = dict(fixed)
    choice = working_sets.measure(pieces)
    yield choice
    while (finer := _finer(working_sets, pieces, fixed, choice)) is not None:
        pieces, choice = finer, working_sets.measure(finer)
        yield choice


def _finer(
    working_sets: WorkingSets, pieces: Mapping[Letter, int], fixed: Mapping[Letter, int], choice: Choice
) -> dict[Letter, int] | None:
    """`pieces` with one more cut of the op that is largest in `choice`; None where no cut of it helps."""
    pattern, most = working_sets.pattern_by_value[choice.task], working_sets.most

    def largest_bytes(pieces: Mapping[Letter, int]) -> int:
        return working_sets.largest_bytes(pattern, cuts_by_letter(working_sets.opgraph, pieces))

    free = [letter for letter, _ in pattern.template.tiling.inside if letter not in fixed and pieces.get(letter, 1) != most[letter]]
    finer = [{**pieces, letter: min(2 * pieces.get(letter, 1), most[letter])} for letter in free]
    best = min(finer, key=largest_bytes, default=None)
    return best if best is not None and largest_bytes(best) < largest_bytes(pieces) else None
