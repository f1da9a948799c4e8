"""A text of 512 tokens read token by token, several a pass, in chunks and at once: always the logits of the reference.

The reference runs the text once, in fp64, without states. Buckets are those of real models; memory whose contents ended is poisoned.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.exec.load.fill import read_weights
from einpage.exec.planning.plan_set import PlannedSet, plan_texts
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.exec.run.choose import Dispatch
from einpage.exec.run.generation import Conversation, Generation, GenerationFigures
from einpage.exec.run.loaded_model import LoadedModel
from test_exec_generate import CPU, OPTIONS, model_at

POSITIONS = 512
BUDGETS = (144 << 10, 256 << 10, 1 << 20)
"""Of weights of 250 KiB and states of 128 KiB: most of both streams; some; nothing."""
WITHIN = 2e-4


@cache
def text() -> tuple[int, ...]:
    return tuple(np.random.default_rng(5).integers(0, 160, POSITIONS).tolist())


@cache
def reference() -> torch.Tensor:
    """[position, token] logits after each position, by the reference in fp64."""
    model = model_at({"batch": 1, "seq": POSITIONS, "past": 0, "room": 0})
    assert model.resolved is not None
    weights = read_weights(model.resolved, model.program)
    given = {"tokens": torch.tensor([text()])}
    return evaluate(model.program, given, weights, torch.float64, ["all_logits"])["all_logits"][0]


def texts_read(tokens: int) -> TextLengths:
    """For passes of so many tokens, from the first position on."""
    return TextLengths(1, POSITIONS - 1, 1, 2, chunk=tokens, lookup=tokens - 1)


def logits_read(plans: PlannedSet, tokens: int, dispatch: Dispatch) -> torch.Tensor:
    """[position, token] logits after each position, read `tokens` at a time."""
    options = replace(OPTIONS, dispatch=dispatch)
    found = []
    with closing(Conversation(Generation(plans, options, LoadedModel(options)))) as conversation:
        for at in range(0, POSITIONS, tokens):
            part = text()[at : at + tokens]
            rows = conversation.read([part], GenerationFigures(), is_prompt=False)
            found.append(rows[0, : len(part)].clone())
    return torch.cat(found)


def planned(tokens: int, budget: int, pieces: Mapping[Letter, int]) -> PlannedSet:
    return plan_texts(model_at, CPU, PlanRequest(budget, pieces=pieces), texts_read(tokens))


def pieces_of(plans: PlannedSet) -> dict[Letter, int]:
    """Of all letters of the last plan."""
    graph = plans.buckets[-1].planned.graph
    return {**dict.fromkeys(plans.buckets[-1].model.program.extents, 1), **dict(graph.split)}


@pytest.mark.parametrize("tokens", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7)), 64])
def test_logits_are_the_references_whatever_the_budget_and_the_dispatcher(tokens: int) -> None:
    """In the pieces of the smallest budget, all budgets and dispatchers give the same bits; seven buckets are met."""
    pieces: dict[Letter, int] = {}
    first: torch.Tensor | None = None
    for budget in BUDGETS:
        plans = planned(tokens, budget, pieces)
        pieces = pieces or pieces_of(plans)
        assert len(plans.buckets) == 7
        for dispatch in Dispatch:
            found = logits_read(plans, tokens, dispatch)
            first = found if first is None else first
            assert torch.equal(found, first), (budget, dispatch)
    assert first is not None and bool(first.isfinite().all())
    assert (first - reference()).abs().max() <= WITHIN


@pytest.mark.parametrize("chunk", [0, 64])
def test_a_prompt_read_at_once_and_in_chunks_says_the_references_next_token(chunk: int) -> None:
    for length in (1, 63, 64, 65, 300, POSITIONS):
        texts = replace(TextLengths(1, length, length, 2), chunk=chunk)
        plans = plan_texts(model_at, CPU, PlanRequest(BUDGETS[1] if chunk else BUDGETS[2]), texts)
        generation = Generation(plans, OPTIONS, LoadedModel(OPTIONS))
        with closing(Conversation(generation)) as conversation:
            rows = conversation.read([text()[:length]], GenerationFigures(), is_prompt=True)
        assert rows.shape[:2] == (1, 1)
        assert (rows[0, 0] - reference()[length - 1]).abs().max() <= WITHIN
