"""Pieces of weights that all phases of a generation can have: their weights are at the same offsets on the host, so cut in the same way.

In: for each phase its fused operations and what is asked of its plan. Out: for the letters of weights, how many pieces, so that every
phase has a split that fits its budget; or DoesNotFit, whose smallest budget works for all of them.

    phase       fits alone in    beside the other        each letter only ever becomes finer, so this ends
    prompts     f=2              f=2 k=4
    last        k=4              f=2 k=4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.choose.best_first import least_of_all
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import Smallest, fitting_choice, smallest, too_many_splits, too_small
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.memplan.errors import DoesNotFit, Misfit

Pieces: TypeAlias = Mapping[Letter, int]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseOps:
    """A phase before it is planned."""

    working_sets: WorkingSets
    program: Program
    request: PlanRequest
    where: str
    """For an error message, after the name of a task."""
    _least: dict[tuple[tuple[Letter, int], ...], Smallest] = field(default_factory=dict, init=False)
    """By the letters that are fixed: each is a search, and asked for again."""

    def pieces(self, common: Pieces) -> Pieces | None:
        """Of the letters of weights, in a split that fits and has `common`; None where there is none."""
        if any(n > self.limits.get(letter, n) for letter, n in common.items()):
            return None
        found = fitting_choice(self.working_sets, self.request.budget_bytes, self._fixed(common))
        return None if found is None else self._of_weights(found.by_letter)

    def least(self, common: Pieces) -> tuple[Pieces, Misfit]:
        """The same of the split that needs least, and how a budget is refused that is less."""
        fixed = self._fixed(common)
        key = tuple(sorted(fixed.items()))
        found = self._least.get(key) or self._least.setdefault(key, smallest(self.working_sets, 0, fixed))
        return self._of_weights(found.choice.by_letter), too_small(found, self.request.budget_bytes).of_task(self.where)

    def unsearched(self) -> Misfit | None:
        """How the budget is refused, where it fits in no split and there are too many to search for the one that needs least."""
        pieces, budget_bytes = self._fixed({}), self.request.budget_bytes
        if least_of_all(self.working_sets, pieces) <= budget_bytes:
            return None
        misfit = too_many_splits(self.working_sets, pieces, budget_bytes)
        return None if misfit is None else misfit.of_task(self.where)

    @property
    def limits(self) -> Pieces:
        """Of the letters of weights, the most pieces."""
        most = self.working_sets.most
        return {letter: most.get(letter, 1) for letter in weight_letters(self.program)}

    def _fixed(self, common: Pieces) -> Pieces:
        """What is asked for, and of `common` the letters that are cut here at all."""
        common = {letter: n for letter, n in common.items() if letter in self.working_sets.most}
        return self.working_sets.cut({**self.request.pieces, **common})

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


def fitted(texts: TextLengths, phase_at: Callable[[Bucket], PhaseOps], may_chunk: bool) -> Fitting:
    """`texts`, read in chunks where these may be and prompts do not fit the budget at once. Raises DoesNotFit where even the smallest
    chunks, or the last bucket, do not, whatever the machine."""
    tries = [*texts.in_chunks()] if may_chunk else [texts]
    for tried in tries:
        buckets = tried.buckets()[-1:]
        own = phase_at(buckets[0]).pieces({}) if buckets else {}
        if own is None:
            break  # however prompts are read
        phases = _phases(tried, phase_at)
        if (common := common_pieces(phases)) is not None:
            return Fitting(tried, common, phases[-1].pieces(own) is not None)
    raise refusal(_phases(tries[-1], phase_at))


def _phases(texts: TextLengths, phase_at: Callable[[Bucket], PhaseOps]) -> list[PhaseOps]:
    """What needs most: the last bucket, where there is one, and the last that reads prompts."""
    return [phase_at(bucket) for bucket in (*texts.buckets()[-1:], texts.reads()[-1])]


def weight_letters(program: Program) -> frozenset[Letter]:
    """Those that some weight is written with."""
    return frozenset(letter for weight in program.weights for letter in weight.letters)


def weight_pieces(program: Program, graph: TaskGraph) -> dict[Letter, int]:
    """Of the letters of weights: plans in the same have weights at the same offsets on the host."""
    return {letter: n for letter, n in all_pieces(program, graph).items() if letter in weight_letters(program)}


def all_pieces(program: Program, graph: TaskGraph) -> dict[Letter, int]:
    """Of every letter, those that are not cut too."""
    return {**dict.fromkeys(program.extents, 1), **dict(graph.split)}


def common_pieces(phases: Sequence[PhaseOps]) -> Pieces | None:
    """Of the letters of weights, those that are cut; None where no pieces were found that all fit in: of the least splits none is then."""
    if any(phase.pieces({}) is None for phase in phases):
        return None
    coarse = _alike(phases, lambda phase, pieces: phase.pieces(pieces) or phase.pieces({}) or {})
    if _fit(phases, coarse):
        return coarse
    least = _least(phases)
    return least if _fit(phases, least) else None


def _fit(phases: Sequence[PhaseOps], pieces: Pieces) -> bool:
    return all(phase.pieces(_told(phases, pieces)) is not None for phase in phases)


def _told(phases: Sequence[PhaseOps], pieces: Pieces) -> Pieces:
    """`pieces`, and that all other letters of weights are whole."""
    return {letter: pieces.get(letter, 1) for phase in phases for letter in phase.limits}


def refusal(phases: Sequence[PhaseOps]) -> DoesNotFit:
    """How a budget is refused in which `phases` have no common pieces: by the one that needs most in those of the least splits, or by one
    whose splits are too many to search."""
    for phase in phases:
        if (unsearched := phase.unsearched()) is not None:
            return DoesNotFit(unsearched)
    alone = [phase.least({})[1] for phase in phases]
    pieces = _least(phases)
    told, together = _told(phases, pieces), [phase.least(pieces) for phase in phases]
    refused = [misfit if own == pieces else phase.least(told)[1] for phase, (own, misfit) in zip(phases, together, strict=True)]
    largest = max(refused, key=lambda misfit: misfit.wanted)
    at_least = max(misfit.at_least or misfit.wanted for misfit in alone)
    return DoesNotFit(replace(largest, at_least=min(at_least, largest.wanted)))


def _least(phases: Sequence[PhaseOps]) -> Pieces:
    """Those in which the phases need least, whatever the budget."""
    return _alike(phases, lambda phase, pieces: phase.least(pieces)[0])


def _alike(phases: Sequence[PhaseOps], own: Callable[[PhaseOps, Pieces], Pieces]) -> Pieces:
    """What each phase is cut into by `own`, beside the others, until all are cut alike; whether all fit is not said."""
    pieces: Pieces = {}
    while True:
        finer = _finer(phases, (pieces, *(own(phase, pieces) for phase in phases)))
        if finer == pieces:
            return pieces
        pieces = finer


def _finer(phases: Sequence[PhaseOps], pieces: Iterable[Pieces]) -> dict[Letter, int]:
    """Of each letter the most pieces, as far as every phase can have them."""
    found: dict[Letter, int] = {}
    for letter, n in (item for each in pieces for item in each.items()):
        limit = min(phase.limits.get(letter, n) for phase in phases)
        if min(n, limit) > 1:
            found[letter] = max(found.get(letter, 1), min(n, limit))
    return found
