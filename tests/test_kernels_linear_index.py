"""Addresses along flat indices, evaluated as Python; and which lines of a kernel nothing reads."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Acc, Letter, Num
from einpage.kernels.on_triton.key_bounds import limits, taken_apart
from einpage.kernels.writer.linear_index import Flat, offset, without_unread
from einpage.kernels.writer.values import Val
from kernels_build import fn, ld, letters, op


def flat(**extent: int) -> Flat:
    """A flat index `row` over letters, whose own variables are their names."""
    return Flat("row", tuple((Letter(x), n) for x, n in extent.items()), {Letter(x): Val(x, frozenset("r"), "i") for x in extent})


@pytest.mark.parametrize(
    ("strides", "terms"),
    [
        ({"s": 576, "m": 1}, ["row"]),
        ({"m": 1}, ["m"]),
        ({"s": 1, "m": 130}, ["m * 130", "s"]),
        ({"s": 1152, "m": 2}, ["row * 2"]),
        ({}, []),
    ],
)
def test_the_examples(strides: dict[str, int], terms: list[str]) -> None:
    assert flat(s=130, m=576).terms({Letter(x): c for x, c in strides.items()}) == terms


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16]), min_size=4, max_size=4),
)
def test_terms_sum_to_the_offset(extents: list[int], strides: list[int]) -> None:
    names = "abcd"[: len(extents)]
    f = flat(**dict(zip(names, extents, strict=True)))
    stride = {Letter(x): c for x, c in zip(names, strides, strict=False)}
    terms = offset(stride, f.values, [f])
    assert len(terms) <= len([n for n in extents if n > 1])
    for row, at in enumerate(product(*map(range, extents))):
        numbers = dict(zip(names, at, strict=True))
        assert sum(eval(t, {"row": row} | numbers) for t in terms) == sum(stride[Letter(x)] * n for x, n in numbers.items())
    assert row == prod(extents) - 1


def test_letters_that_lie_behind_each_other_are_one_term() -> None:
    assert flat(b=2, s=130, k=3, e=32).terms({Letter("b"): 130 * 96, Letter("s"): 96, Letter("e"): 1}) == ["e", "(row // 96) * 96"]
    assert flat(b=2, s=130, k=3, e=32).terms({Letter("s"): 96, Letter("k"): 32, Letter("e"): 1}) == ["(row % 12480)"]


def test_lines_that_nothing_reads_go_and_what_they_alone_read_too() -> None:
    loop = ["    for i in range(4):", "        total = total + i"]
    lines = ["    s = row // 3", "    m = s % 2  # of s", "    n = 3", "    total = 0", *loop, "    f(total, n)"]
    assert without_unread(lines) == lines[2:]


def test_a_score_comes_apart() -> None:
    window = op("<", op("-", "s", "t"), 5)
    score = fn("where", op("and", op("<=", "t", "s"), window), op("*", op("/", Acc(0), 4.0), 3.0), Num(float("-inf")))
    apart = taken_apart(score)
    assert (apart.conditions, apart.body, apart.scale) == ((op("<=", "t", "s"), window), Acc(0), 0.75)
    assert taken_apart(op("*", Acc(0), -2.0)).scale == 1.0, "what turns the order round is not a scale"


@pytest.mark.parametrize(
    ("condition", "upper", "rest"),
    [
        (op("<=", "t", "s"), True, {"s": 1, "": 0}),
        (op("<", "t", op("+", "s", 3)), True, {"s": 1, "": 2}),
        (op("<", op("-", "s", "t"), 5), False, {"s": 1, "": -4}),
        (op(">", "t", op("*", 2, "s")), False, {"s": 2, "": 1}),
        (op("<", "t", ld("n", "b")), True, {"n": 1, "": -1}),
    ],
)
def test_limits(condition: object, upper: bool, rest: dict[str, int]) -> None:
    (limit,) = limits([condition], Letter("t"), letters("s"), letters("b"), lambda load: True)  # type: ignore[list-item]
    assert limit.upper == upper
    assert {str(x): c for x, c in limit.letters} | {load.name: c for load, c in limit.data} | {"": limit.const} == rest


@pytest.mark.parametrize("condition", [op("<", op("*", 2, "t"), "s"), op("==", "t", "s"), op("<", "t", ld("n", "s")), op("<", "u", "s")])
def test_what_is_no_limit(condition: object) -> None:
    assert limits([condition], Letter("t"), letters("s"), letters("b"), lambda load: True) == ()  # type: ignore[list-item]
