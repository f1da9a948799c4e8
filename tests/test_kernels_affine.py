"""Affine indices against evaluating them at every point."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Num, Unary
from einpage.einsum_front.graph.job import Box
from einpage.kernels.layout.affine import address, affine, ascending, lowest_reached, meets, row_major

LETTERS = [Letter(x) for x in "abc"]
numbers = st.integers(-3, 3)
indices = st.recursive(
    st.one_of(numbers.map(Num), st.sampled_from(LETTERS).map(Axis)),
    lambda inner: st.one_of(
        st.builds(Binary, st.sampled_from(("+", "-")), inner, inner),
        st.builds(lambda n, x: Binary("*", Num(n), x), numbers, inner),
        st.builds(lambda x: Unary("-", x), inner),
    ),
    max_leaves=4,
)
regions = st.fixed_dictionaries({x: st.tuples(st.integers(0, 3), st.integers(1, 3)).map(lambda p: (p[0], p[0] + p[1])) for x in LETTERS})
Region = dict[Letter, tuple[int, int]]


def value(e: Expr, at: dict[Letter, int]) -> int:
    match e:
        case Num(n):
            return int(n)
        case Axis(letter):
            return at[letter]
        case Unary("-", x):
            return -value(x, at)
        case Binary(op, x, y):
            return {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[op](value(x, at), value(y, at))
    raise AssertionError(e)


def points(region: Region) -> list[dict[Letter, int]]:
    return [dict(zip(region, point, strict=True)) for point in product(*(range(*span) for span in region.values()))]


@given(indices, regions, st.sets(st.sampled_from(LETTERS)))
def test_an_affine_index_has_the_values_of_its_expression(e: Expr, region: Region, known: set[Letter]) -> None:
    found = affine(e)
    assert found is not None
    exact = [value(e, at) for at in points(region)]
    assert [found.at(at) for at in points(region)] == exact
    assert found.hull(region) == (min(exact), max(exact) + 1)
    for at in points(region):
        assert found.with_numbers({x: at[x] for x in known}).at(at) == found.at(at)
    steps = {x: value(e, {**at, x: at[x] + 1}) - value(e, at) for at in points(region)[:1] for x in LETTERS}
    assert (ascending(e) is None) == any(step < 0 for step in steps.values())


@given(st.lists(indices, min_size=1, max_size=3), regions, st.data())
def test_an_address_is_where_the_element_lies(load: list[Expr], region: Region, data: st.DataObject) -> None:
    start = tuple(data.draw(st.integers(-4, 4)) for _ in load)
    box = Box(start, tuple(a + data.draw(st.integers(1, 6)) for a in start))
    found = [affine(e) for e in load]
    elements = [tuple(value(e, at) for e in load) for at in points(region)]
    inside = [at for at in elements if all(a <= x < b for a, x, b in zip(box.start, at, box.end, strict=True))]
    where = [sum((x - a) * n for x, a, n in zip(at, box.start, row_major(box.shape), strict=True)) for at in elements]
    assert [address(box, found).at(at) for at in points(region)] == where
    assert meets(box, found, region) or not inside
    assert not inside or lowest_reached(box, found, region) <= min(where[elements.index(at)] for at in inside)
