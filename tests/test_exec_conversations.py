"""Prompts read in chunks, turns of a conversation on one cache, tokens that are looked up: the same tokens as one at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import open_model
from einpage.exec.planning.plan_set import plan_texts
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.exec.run import generation
from einpage.exec.run.generation import Conversation, Generation
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.errors import DoesNotFit
from test_exec_generate import CPU, GREEDY, LINE, OPTIONS, RAGGED, Opened, expected, generated, model_at, opened


@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("length", [4, 17])
def test_prompts_that_are_read_in_chunks_say_the_same(chunk: int, length: int) -> None:
    """Two of one length; chunks that end in the middle of a bucket, before its end and behind it; a rest that is read token by token."""
    prompts = [tuple(range(1, length + 1)), tuple(range(40, 40 + length))]
    texts = replace(TextLengths.of(prompts, 5), chunk=chunk)
    with patch.object(text_lengths, "LEAST_POSITIONS", 4), patch.object(text_lengths, "READ_POSITIONS", 4):
        plans = plan_texts(model_at, CPU, PlanRequest(1 << 20), texts)
        opening = Opened(Generation(plans, OPTIONS, LoadedModel(OPTIONS)), prompts, 5)
        assert [tuple(ids) for ids in generated(opening)] == [expected(prompt, 5) for prompt in prompts]
        without = range(max(1, texts.positions - chunk + 1), texts.positions)
        assert all(plans.read_at(at) is None for at in without)


def test_a_prompt_that_does_not_fit_at_once_is_read_in_chunks() -> None:
    prompt = tuple(n % 150 for n in range(120))
    with patch.object(text_lengths, "CHUNKS", (64, 16, 4)):
        opening = opened([prompt], 3, 40 << 10)
        assert opening.plans.texts.chunk in (16, 4)
        assert generated(opening) == [list(expected(prompt, 3))]
    with pytest.raises(DoesNotFit, match=r"wants .* bytes on the device"), patch.object(text_lengths, "CHUNKS", ()):
        opened([prompt], 3, 40 << 10)


@pytest.mark.parametrize("lookup", [1, 8])
@pytest.mark.parametrize("chunk", [0, 4])
def test_tokens_that_are_looked_up_are_those_that_come(lookup: int, chunk: int) -> None:
    """A text that repeats itself: fewer passes, the same tokens, greedy and drawn; states are right after guesses that were wrong."""
    prompt = (5, 17, 3, 9, 5, 17, 3, 44, 5, 17, 3)
    texts = replace(TextLengths.of([prompt], 24), lookup=lookup, chunk=chunk)
    with patch.object(text_lengths, "LEAST_POSITIONS", 8):
        plans = plan_texts(model_at, CPU, PlanRequest(1 << 20), texts)
    opening = Opened(Generation(plans, OPTIONS, LoadedModel(OPTIONS)), [prompt], 24)
    assert generated(opening) == [list(expected(prompt, 24))]
    assert opening.figures.new_tokens == 23 > opening.figures.steps
    drawn = Sampling(temperature=1.0, seed=3)
    assert generated(opening, drawn) == generated(opened([prompt], 24), drawn)


@pytest.mark.parametrize(("length", "chunk"), [(4, 0), (9, 4), (8, 4), (3, 0), (5, 0)])
def test_a_prompt_may_be_as_long_as_a_pass_that_looks_tokens_up(length: int, chunk: int) -> None:
    """Or its chunks may: what reads it still says the token after it alone."""
    prompt = (5, 17, 3, 9, 5, 17, 3, 44, 5)[:length]
    texts = replace(TextLengths.of([prompt], 9), lookup=3, chunk=chunk)
    opening = Opened(Generation(plan_texts(model_at, CPU, PlanRequest(1 << 20), texts), OPTIONS, LoadedModel(OPTIONS)), [prompt], 9)
    assert generated(opening) == [list(expected(prompt, 9))]


@pytest.mark.parametrize(
    ("ids", "most", "found"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 9, 9, 1, 2, 7, 7, 1, 2], 8, [7, 7, 1, 2]),
        ([8, 1, 2, 3, 5, 1, 2, 3, 6, 8, 1, 2, 3], 1, [5]),
        ([1, 2, 3], 4, []),
        ([1, 1], 4, []),
        ([1, 1, 1], 4, [1]),
        ([7], 3, []),
    ],
)
def test_what_came_before_is_looked_up(ids: list[int], most: int, found: list[int]) -> None:
    assert list(generation.looked_up(ids, most)) == found


def test_a_lookup_is_for_one_prompt_and_states_that_can_be_taken_back(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--lookup is for one prompt"):
        plan_texts(model_at, CPU, PlanRequest(1 << 20), replace(TextLengths.of(RAGGED, 4), lookup=2))
    with pytest.raises(UsageError, match="--lookup 65 is not between 0 and 64"):
        plan_texts(model_at, CPU, PlanRequest(1 << 20), replace(TextLengths.of(RAGGED[:1], 4), lookup=65))
    text = LINE.replace("k: {axes: b t, along: t}", "h: {axes: b}").replace(
        "k[b,at[b]+s] = tokens[b,s]", "h[b] = h[b] + sum[s](tokens[b,s])"
    )
    path = tmp_path / "line.yaml"
    path.write_text(text.replace("sum[t](k[b,t])", "h[b]"), encoding="utf-8")
    with pytest.raises(UsageError, match="--lookup: the state `h` is written whole"):
        plan_texts(lambda sizes: open_model(path, sizes, "random:0"), CPU, PlanRequest(1 << 20), TextLengths(1, 2, 2, 4, lookup=2))
    path.write_text(LINE, encoding="utf-8")
    with pytest.raises(UsageError, match="declares no output of three axes"):
        plan_texts(lambda sizes: open_model(path, sizes, "random:0"), CPU, PlanRequest(1 << 20), TextLengths(1, 2, 2, 4, lookup=2))


def test_a_conversation_reads_what_is_new_and_may_go_back() -> None:
    """Turns after turns on one cache; then other tokens from some position on."""
    texts = TextLengths(1, 60, 1, 2, chunk=8)
    generation = Generation(plan_texts(model_at, CPU, PlanRequest(1 << 20), texts), OPTIONS, LoadedModel(OPTIONS))
    conversation = Conversation(generation)
    text: tuple[int, ...] = (5, 17, 3)
    for new in ((9, 9, 9, 120, 4, 7, 8, 8, 1, 1, 1), (2,), (30, 31, 32)):
        said = [ids[0] for ids in conversation.tokens([text], 4, GREEDY)]
        assert tuple(said) == expected(text, 4)
        assert conversation.lengths == [len(text) + 3], "the last token is not read yet"
        text = (*text, *said, *new)
    conversation.lengths = [6]
    back = (*text[:6], 77, 78)
    assert tuple(ids[0] for ids in conversation.tokens([back], 3, GREEDY)) == expected(back, 3)
    conversation.close()
