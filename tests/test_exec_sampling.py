"""Draws: what temperature, top-k, top-p, min-p and the penalty leave, against the definitions, and frequencies against probabilities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.run.sampling import Sampler, Sampling

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12)


@given(LOGITS, st.floats(0.1, 4), st.integers(0, 14), st.floats(0.05, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_what_is_drawn_from(values: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """One token after the other, by the definitions: ranks, the probability of those before, that of the best."""
    logits = torch.tensor(values, dtype=torch.float64)
    p = torch.softmax(logits / temperature, 0).tolist()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    left = [0.0] * len(p)
    for rank, i in enumerate(order):
        before = sum(p[j] for j in order[:rank])
        if rank == 0 or ((not top_k or rank < top_k) and before < top_p - 1e-9 and p[i] >= min_p * p[order[0]] * (1 + 1e-12)):
            left[i] = p[i]
    found = Sampler(Sampling(temperature, top_k, top_p, min_p)).probabilities(logits)
    assert float(found.sum()) == pytest.approx(1)
    near = any(
        abs(sum(p[j] for j in order[:rank]) - top_p) < 1e-8 or abs(p[order[rank]] - min_p * p[order[0]]) < 1e-12
        for rank in range(1, len(p))
    )
    if not near:
        total = sum(left)
        assert found.tolist() == pytest.approx([x / total for x in left])


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    sampler = Sampler(Sampling(temperature=0.7, top_k=5, seed=11))
    drawn = torch.bincount(torch.tensor([sampler.next(logits, ()) for _ in range(20_000)]), minlength=6)
    wanted = sampler.probabilities(logits.double()) * 20_000
    assert drawn[5] == 0 and wanted[5] == 0
    assert chisquare(drawn[:5].numpy(), wanted[:5].numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("penalty", "ids", "best"), [(1.0, [0], 0), (1.3, [0, 1, 0], 2), (1.3, [1], 0), (1.3, [], 0), (0.5, [2], 2), (1.05, [0], 0)]
)
def test_a_token_that_occurred_is_less_probable(penalty: float, ids: list[int], best: int) -> None:
    """Of [1, -1, 0.9]: 1 / 1.3 is under 0.9, 1 / 1.05 is not, and 0.9 / 0.5 is over 1; a token counts once however often it occurred."""
    assert Sampler(Sampling(repetition_penalty=penalty)).next(torch.tensor([1.0, -1.0, 0.9]), ids) == best


def test_a_penalty_makes_negative_logits_smaller() -> None:
    assert Sampler(Sampling(repetition_penalty=2.0)).next(torch.tensor([-1.0, -1.5]), [0]) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_give_no_token(bad: float, temperature: float) -> None:
    with pytest.raises(UsageError, match="after 2 tokens hold NaN or inf"):
        Sampler(Sampling(temperature)).next(torch.tensor([0.0, bad, 1.0]), (4, 5))


def test_a_temperature_however_low_draws_the_best() -> None:
    assert Sampler(Sampling(temperature=1e-310)).next(torch.tensor([0.0, 2.0, float("-inf")]), ()) == 1


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert Sampler(Sampling()).next(torch.tensor([0.0, 3.0, 3.0, -1.0]), ()) == 1


def test_sequences_of_a_batch_draw_apart() -> None:
    logits = torch.zeros(1000)
    first, second = (Sampler(Sampling(temperature=1.0, seed=5), n) for n in (0, 1))
    assert [first.next(logits, ()) for _ in range(5)] != [second.next(logits, ()) for _ in range(5)]


@given(
    LOGITS,
    st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
    st.floats(0, 2),
    st.floats(0.5, 2),
    st.lists(st.integers(0, 11), max_size=4),
)
@settings(deadline=None)
def test_logits_are_those_of_the_caller(
    values: list[float], dtype: torch.dtype, temperature: float, penalty: float, ids: list[int]
) -> None:
    """A draw leaves them as they are, and is the same again."""
    logits = torch.tensor(values, dtype=dtype)
    before, ids = logits.clone(), [i % len(values) for i in ids]
    sampling = Sampling(temperature, repetition_penalty=penalty, seed=3)
    drawn = Sampler(sampling).next(logits, ids)
    assert torch.equal(logits, before)
    assert Sampler(sampling).next(logits, ids) == drawn
