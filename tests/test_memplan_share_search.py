"""The share of an arena that residents leave free, searched for over made-up seconds: no worse than any share doubled, near a cliff
wherever it is, and the same questions for the same answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from einpage.memplan.residency.share_search import HALVINGS, LEAST, search

Cost = Callable[[float, bool], float]
DOUBLED = (0.0, *(LEAST * 2**n for n in range(8)), 1.0)


def asked(cost: Cost, good: float | None = None) -> dict[tuple[float, bool], float]:
    """The answer by share and whether small weights come first, as asked."""
    answers: dict[tuple[float, bool], float] = {}

    def seconds_of(share: float, small_first: bool) -> Generator[tuple[float, bool], float, float]:
        return (yield share, small_first)

    questions = search(seconds_of, good)
    question = next(questions)
    while True:
        assert question not in answers, "asked twice"
        answers[question] = cost(*question)
        try:
            question = questions.send(answers[question])
        except StopIteration:
            return answers


def cliff(at: float) -> Cost:
    """Loads wait below `at`; above it more are made, a little."""
    return lambda share, _: 2 - share if share < at else 1 + share / 10


@given(st.floats(0, 0.99), st.floats(0.01, 10), st.floats(0.01, 10))
def test_of_convex_seconds_the_best_doubled_share_or_a_better_one_is_found(at: float, below: float, above: float) -> None:
    def cost(share: float, _: bool) -> float:
        return 1 + below * max(0, at - share) + above * max(0, share - at)

    assert min(asked(cost).values()) <= min(cost(share, True) for share in DOUBLED)


@given(st.randoms(use_true_random=False), st.none() | st.floats(0, 1))
def test_of_any_seconds_the_same_few_questions_are_asked(random: Random, good: float | None) -> None:
    seconds: dict[tuple[float, bool], float] = {}

    def cost(share: float, small_first: bool) -> float:
        return seconds.setdefault((share, small_first), random.random())

    answers = asked(cost, good)
    assert [*asked(cost, good)] == [*answers]
    assert len(answers) <= len(DOUBLED) + 1 + HALVINGS
    if good is None:
        assert {share for share, small_first in answers if small_first} >= set(DOUBLED)


@given(st.floats(LEAST, 0.9))
def test_the_gap_above_a_cliff_is_halved(at: float) -> None:
    (best, _), _ = min(asked(cliff(at)).items(), key=lambda entry: entry[1])
    above = next(share for share in DOUBLED if share >= at)
    below = max(share for share in DOUBLED if share < at)
    assert at <= best <= at + (above - below) / 2**HALVINGS


def test_it_begins_at_the_good_share() -> None:
    answers = asked(cliff(0.11), good=0.12)
    assert [share for share, _ in answers][:3] == [0.12, 0.24, 0.06]
    assert min(answers, key=lambda question: answers[question])[0] < 0.12


def test_no_larger_share_is_asked_for_where_the_link_alone_takes_longer() -> None:
    answers = asked(lambda share, _: 1 - share if share < 0.03 else inf)
    assert max(share for share, _ in answers) == 8 * LEAST


def test_weights_are_taken_without_regard_to_size_where_that_is_faster() -> None:
    for faster in (False, True):
        answers = asked(lambda share, small_first, faster=faster: cliff(0.11)(share, True) + (small_first is faster))
        assert {small_first for _, small_first in [*answers][-HALVINGS:]} == {not faster}
