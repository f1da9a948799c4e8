"""Pieces of weights that all phases of a generation can have: their weights are at the same offsets on the host, so cut in the same way.

In: for each phase its fused operations and what is asked of its plan. Out: for the letters of weights, how many pieces, so that every
phase has a split that fits its budget; or DoesNotFit, whose smallest budget works for all of them.

    phase       fits alone in    beside the other        each letter only ever becomes finer, so this ends
    prompts     f=2              f=2 k=4
    last        k=4              f=2 k=4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.choose.best_first import least_of_all
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.graph.program import Program
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import fitting_choice, refuse_too_long, smallest, too_small
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.memplan.errors import DoesNotFit

Pieces: TypeAlias = Mapping[Letter, int]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseOps:
    """A phase before it is planned."""

    working_sets: WorkingSets
    program: Program
    request: PlanRequest
    where: str
    """For an error message, after the name of a task."""

    def pieces(self, common: Pieces) -> Pieces | None:
        """Of the letters of weights, in a split that fits and has `common`; None where there is none."""
        if any(n > self.limits.get(letter, n) for letter, n in common.items()):
            return None
        found = fitting_choice(self.working_sets, self.request.budget_bytes, self._known({**self.request.pieces, **self._possible(common)}))
        return None if found is None else self._of_weights(found.by_letter)

    def least(self, common: Pieces) -> tuple[Pieces, DoesNotFit]:
        """The same of the split that needs least, and how a budget is refused that is less."""
        found = smallest(self.working_sets, 0, self._known({**self.request.pieces, **self._possible(common)}))
        misfit = too_small(found, self.request.budget_bytes)
        return self._of_weights(found.choice.by_letter), DoesNotFit(replace(misfit, task=misfit.task + self.where))

    def refuse_too_long(self) -> None:
        """Raises DoesNotFit where it fits in no split, and there are too many to search for the one that needs least."""
        pieces, budget_bytes = self._known(self.request.pieces), self.request.budget_bytes
        if least_of_all(self.working_sets, pieces) > budget_bytes:
            try:
                refuse_too_long(self.working_sets, pieces, budget_bytes)
            except DoesNotFit as error:
                raise DoesNotFit(replace(error.misfit, task=error.misfit.task + self.where)) from error

    @property
    def limits(self) -> Pieces:
        """Of the letters of weights, the most pieces."""
        most = self.working_sets.most
        return {letter: most.get(letter, 1) for letter in weight_letters(self.program)}

    def _possible(self, common: Pieces) -> Pieces:
        return {letter: n for letter, n in common.items() if letter in self.working_sets.most}

    def _known(self, pieces: Pieces) -> Pieces:
        return {letter: n for letter, n in pieces.items() if n > 1 or letter in self.working_sets.most}

    def _of_weights(self, pieces: Pieces) -> Pieces:
        letters = weight_letters(self.program)
        return {letter: n for letter, n in pieces.items() if letter in letters and n > 1}


@dataclass(frozen=True, slots=True)
class Fitting:
    """What fits the budget."""

    texts: TextLengths
    pieces: Pieces
    """Of weights, in which the last bucket and the prompts do."""
    is_free: bool
    """Whether the prompts fit in those that the last bucket would have by itself."""


def fitted(texts: TextLengths, part_at: Callable[[Bucket], PhaseOps], may_chunk: bool) -> Fitting:
    """`texts`, read in chunks where these may be and prompts do not fit the budget at once. Raises DoesNotFit where even the smallest
    chunks, or the last bucket, do not, whatever the machine."""
    tries = [*texts.in_chunks()] if may_chunk else [texts]
    for tried in tries:
        parts = _parts(tried, part_at)
        own = parts[0].pieces({})
        if own is None:
            break  # however prompts are read
        if (common := common_pieces(parts)) is not None:
            return Fitting(tried, common, parts[-1].pieces(own) is not None)
    raise refusal(_parts(tries[-1], part_at))


def _parts(texts: TextLengths, part_at: Callable[[Bucket], PhaseOps]) -> list[PhaseOps]:
    """What needs most: the last bucket, where there is one, and the last that reads prompts."""
    return [part_at(bucket) for bucket in (*texts.buckets()[-1:], texts.reads()[-1])]


def weight_letters(program: Program) -> frozenset[Letter]:
    """Those that some weight is written with."""
    return frozenset(letter for weight in program.weights for letter in weight.letters)


def common_pieces(parts: Sequence[PhaseOps]) -> Pieces | None:
    """Of the letters of weights, those that are cut; None where no pieces were found that all fit in."""
    if any(part.pieces({}) is None for part in parts):
        return None
    found = _grown(parts, {})
    return _grown(parts, _least(parts, {})) if found is None else found


def refusal(parts: Sequence[PhaseOps]) -> DoesNotFit:
    """How a budget is refused in which `parts` have no common pieces: by the one that needs most in those of the least splits. Raises it
    where there are too many splits to search."""
    for part in parts:
        part.refuse_too_long()
    alone = [part.least({}) for part in parts]
    common = _least(parts, _finer(parts, (pieces for pieces, _ in alone)))
    errors = [error if pieces == common else part.least(common)[1] for part, (pieces, error) in zip(parts, alone, strict=True)]
    misfit = max((error.misfit for error in errors), key=lambda misfit: misfit.wanted)
    at_least = max(error.misfit.at_least or error.misfit.wanted for _, error in alone)
    return DoesNotFit(replace(misfit, at_least=min(at_least, misfit.wanted)))


def _grown(parts: Sequence[PhaseOps], pieces: Pieces) -> Pieces | None:
    """`pieces`, and what else some part is cut into, until all are cut alike; None where one no longer fits."""
    while True:
        before = pieces
        for part in parts:
            own = part.pieces(pieces)
            if own is None:
                own = part.pieces({}) or {}
                if _finer(parts, (pieces, own)) == pieces:
                    return None
            pieces = _finer(parts, (pieces, own))
        if pieces == before:
            return pieces


def _least(parts: Sequence[PhaseOps], pieces: Pieces) -> Pieces:
    """`pieces`, and what else some part is cut into where it needs least in these, until all are cut alike: whatever the budget."""
    while True:
        finer = _finer(parts, (pieces, *(part.least(pieces)[0] for part in parts)))
        if finer == pieces:
            return pieces
        pieces = finer


def _finer(parts: Sequence[PhaseOps], pieces: Iterable[Pieces]) -> Pieces:
    """Of each letter the most pieces, as far as every part can have them."""
    found: dict[Letter, int] = {}
    for letter, n in (item for each in pieces for item in each.items()):
        limit = min(part.limits.get(letter, n) for part in parts)
        if min(n, limit) > 1:
            found[letter] = max(found.get(letter, 1), min(n, limit))
    return found
