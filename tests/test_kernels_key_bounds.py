"""Which keys the queries of a block see, read off a score's conditions."""

from __future__ import annotations

import pytest

from einpage.einsum_front.algebra.expr import Acc, Letter, Num
from einpage.kernels.on_triton.key_bounds import key_bounds, masked_score
from kernels_build import fn, ld, letters, op


def test_a_score_is_conditions_scale_and_body() -> None:
    window = op("<", op("-", "s", "t"), 5)
    score = fn("where", op("and", op("<=", "t", "s"), window), op("*", op("/", Acc(0), 4.0), 3.0), Num(float("-inf")))
    found = masked_score(score)
    assert (found.conditions, found.body, found.scale) == ((op("<=", "t", "s"), window), Acc(0), 0.75)
    assert masked_score(op("*", Acc(0), -2.0)).scale == 1.0, "what turns the order round is not a scale"


@pytest.mark.parametrize(
    ("condition", "is_last", "terms"),
    [
        (op("<=", "t", "s"), True, {"s": 1, "": 0}),
        (op("<", "t", op("+", "s", 3)), True, {"s": 1, "": 2}),
        (op("<", op("-", "s", "t"), 5), False, {"s": 1, "": -4}),
        (op(">", "t", op("*", 2, "s")), False, {"s": 2, "": 1}),
        (op("<", "t", ld("n", "b")), True, {"n": 1, "": -1}),
    ],
)
def test_key_bounds(condition: object, is_last: bool, terms: dict[str, int]) -> None:
    (bound,) = key_bounds([condition], Letter("t"), letters("s"), letters("b"), lambda load: True)  # type: ignore[list-item]
    assert bound.is_last == is_last
    assert {str(x): c for x, c in bound.letters} | {load.name: c for load, c in bound.data} | {"": bound.const} == terms


@pytest.mark.parametrize("condition", [op("<", op("*", 2, "t"), "s"), op("==", "t", "s"), op("<", "t", ld("n", "s")), op("<", "u", "s")])
def test_what_is_no_bound(condition: object) -> None:
    assert key_bounds([condition], Letter("t"), letters("s"), letters("b"), lambda load: True) == ()  # type: ignore[list-item]
