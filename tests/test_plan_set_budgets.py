"""Budgets of plan sets: where one works every larger one does, and the one that a refusal names works.

A set is refused for one phase after the other, so a second refusal may name more than the first; there is no third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from unittest.mock import patch

import pytest

from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.plan_set import plan_texts
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.profile import load_machine
from random_generations import random_case
from specs_small import SMALL, SPECS
from test_random_plan_sets import model_of

Refused = Callable[[int], DoesNotFit | None]
"""Of a budget in bytes; None: it works."""
CPU = load_machine("cpu")
TEXTS = {
    "llama": TextLengths(1, 8, 8, 40),
    "gpt2": TextLengths(1, 1, 1, 60),
    "gpt2 of unequal prompts": TextLengths(2, 9, 5, 24),
    "llama in chunks": TextLengths(1, 20, 20, 20, chunk=8),
}
RANDOM = (0, 1, 3, 14)
"""Numbers of random cases."""
WIDE = TextLengths(1, 128, 1, 385)
"""`plan gpt2 --set layers=1 --generate 512`."""
CASES = (*TEXTS, *RANDOM, pytest.param("gpt2 as shipped", marks=[pytest.mark.slow, pytest.mark.timeout(900)]))
LESS, MORE = (0.3, 0.6, 0.97), (1.03, 1.2, 1.5, 2, 4)
"""Times the budget that refusals lead to from 1 byte on."""


@contextmanager
def budgets_of(name: str | int) -> Iterator[Refused]:
    """How a shipped spec at small sizes, or a random decoder, is planned."""
    if isinstance(name, int):
        case = random_case(0, name)
        with model_of(case) as model_at:
            yield refusals(name, model_at, case.texts)
        return
    if name not in TEXTS:
        yield refusals(name, lambda at: open_model(SPECS / "gpt2.yaml", {"layers": 1, **at}), WIDE)
        return
    spec, sizes = name.split()[0], {**SMALL[name.split()[0]], "layers": 1}
    with patch.object(text_lengths, "LEAST_POSITIONS", 16):
        yield refusals(name, lambda at: open_model(SPECS / f"{spec}.yaml", {**sizes, **at}), TEXTS[name])


@cache
def asked_before(name: str | int) -> dict[int, DoesNotFit | None]:
    """What was found by budget: both tests ask of a case much the same."""
    return {}


def refusals(name: str | int, model_at: Callable[[Mapping[str, int]], Model], texts: TextLengths) -> Refused:
    found = asked_before(name)

    def refused(budget: int) -> DoesNotFit | None:
        if budget not in found:
            try:
                plan_texts(model_at, CPU, PlanRequest(budget), texts)
                found[budget] = None
            except DoesNotFit as error:
                found[budget] = error.with_traceback(None)
        return found[budget]

    return refused


def named(error: DoesNotFit) -> int:
    """The smallest budget that it says works."""
    assert error.misfit.smallest_budget is not None
    return error.misfit.smallest_budget


def least(refused: Refused) -> int:
    """The least budget that works, found as a person would: by what refusals name."""
    budget = 1
    while (error := refused(budget)) is not None:
        assert named(error) > budget, f"{budget} bytes are refused, and {named(error)} are said to work"
        budget = named(error)
    return budget


@pytest.mark.parametrize("name", CASES)
def test_a_larger_budget_than_one_that_works_does(name: str | int) -> None:
    with budgets_of(name) as refused:
        known = least(refused)
        tried = sorted({known, known + 256, *(round(known * share) for share in (*LESS, *MORE))})
        works = next(budget for budget in tried if refused(budget) is None)
        told = {budget: error for budget in tried if budget > works and (error := refused(budget)) is not None}
    assert not told, f"{works} bytes work; refused are {', '.join(map(str, told))}: {next(iter(told.values()))}"


@pytest.mark.parametrize("name", CASES)
def test_the_budget_that_a_refusal_names_works(name: str | int) -> None:
    """Or the one that the next refusal names; whatever is asked for first."""
    with budgets_of(name) as refused:
        works = least(refused)
        for first in (1, *(round(works * share) for share in (*LESS, *MORE[:3]))):
            budgets = [first]
            while len(budgets) < 4 and (error := refused(budgets[-1])) is not None:
                budgets.append(named(error))
            assert all(a < b for a, b in pairwise(budgets)), f"a refusal names no more than was given: {budgets}"
            assert refused(budgets[-1]) is None and len(budgets) <= 3, f"asked for after one another, as refusals named them: {budgets}"
