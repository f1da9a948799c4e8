"""Addresses along linear indices, evaluated as Python."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.kernels.writer.linear_index import LinearIndex, offset
from einpage.kernels.writer.values import Val


def linear_index(**extent: int) -> LinearIndex:
    """A linear index `row` over letters, whose own variables are their names."""
    return LinearIndex("row", tuple((Letter(x), n) for x, n in extent.items()), {Letter(x): Val(x, frozenset("r"), "i") for x in extent})


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
    assert linear_index(s=130, m=576).terms({Letter(x): c for x, c in strides.items()}) == terms


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16]), min_size=4, max_size=4),
)
def test_terms_sum_to_the_offset(extents: list[int], strides: list[int]) -> None:
    names = "abcd"[: len(extents)]
    f = linear_index(**dict(zip(names, extents, strict=True)))
    stride = {Letter(x): c for x, c in zip(names, strides, strict=False)}
    terms = offset(stride, f.values, [f])
    assert len(terms) <= len([n for n in extents if n > 1])
    for row, at in enumerate(product(*map(range, extents))):
        numbers = dict(zip(names, at, strict=True))
        assert sum(eval(t, {"row": row} | numbers) for t in terms) == sum(stride[Letter(x)] * n for x, n in numbers.items())
    assert row == prod(extents) - 1


def test_letters_that_lie_behind_each_other_are_one_term() -> None:
    assert linear_index(b=2, s=130, k=3, e=32).terms({Letter("b"): 130 * 96, Letter("s"): 96, Letter("e"): 1}) == ["e", "(row // 96) * 96"]
    assert linear_index(b=2, s=130, k=3, e=32).terms({Letter("s"): 96, Letter("k"): 32, Letter("e"): 1}) == ["(row % 12480)"]
