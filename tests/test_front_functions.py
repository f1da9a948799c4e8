"""The table of functions: no row leaves out a column, each says what the naive twin says, and users are told of them all."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra import arithmetic, masks
from einpage.einsum_front.algebra.expr import Axis, Call, Letter, Num
from einpage.einsum_front.algebra.functions import FUNCTIONS, LEFT_OUT, Function
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.base.interval import Interval
from einpage.einsum_front.differentiate.rules import derivatives
from einpage.einsum_front.spec.parse import REDUCTIONS, parse_expression
from naive_functions import COSTLY, NAIVE, TEMPORARY, arguments

SPECS = Path(__file__).parents[1] / "specs"
COLUMNS = [field.name for field in dataclasses.fields(Function)]


def test_the_naive_twin_has_the_same_functions() -> None:
    assert set(NAIVE) == set(FUNCTIONS)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_column_is_left_out(name: str, column: str) -> None:
    assert getattr(FUNCTIONS[name], column) is not LEFT_OUT, f"the row of {name} leaves out {column}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_row_is_filed_under_its_name(name: str) -> None:
    f = FUNCTIONS[name]
    assert (f.name, f.parameters) == (name, tuple(inspect.signature(NAIVE[name]).parameters))
    assert re.fullmatch(r"[^\n]{3,80}\.", f.about)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_meaning_of_numbers(name: str) -> None:
    for numbers in zip(*arguments(name, FUNCTIONS[name].arity), strict=True):
        found = arithmetic.call(name, [float(x) for x in numbers])
        assert found == pytest.approx(float(NAIVE[name](*numbers)), rel=1e-12, abs=1e-15), numbers


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_meaning_of_arrays(name: str) -> None:
    """As masks are counted."""
    values = arguments(name, FUNCTIONS[name].arity)
    letters = [Letter(x) for x in "xyz"[: len(values)]]
    call = Call(name, tuple(Axis(x) for x in letters))
    found = masks._evaluate(call, dict(zip(letters, values, strict=True)))
    np.testing.assert_allclose(found, NAIVE[name](*values), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_meaning_of_tensors(name: str, dtype: torch.dtype) -> None:
    """As the reference evaluates them."""
    values = arguments(name, FUNCTIONS[name].arity)
    found = FUNCTIONS[name].meaning(torch, *(torch.from_numpy(x).to(dtype) for x in values))
    assert found.dtype == dtype
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), torch.from_numpy(NAIVE[name](*values)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_large_numbers_is_finite_or_refused(name: str) -> None:
    """No overflow, no complex number and no NaN comes out as anything but BadNumber."""
    for numbers in product([-1e300, -1000, 0, 1000, 1e300], repeat=FUNCTIONS[name].arity):
        try:
            found = arithmetic.call(name, list(numbers))
        except arithmetic.BadNumber:
            continue
        assert isinstance(found, int | float) and abs(found) <= 1e300, numbers


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_derivatives(name: str) -> None:
    """Against differences of the naive twin, but within a step of a kink."""
    values, h = arguments(name, FUNCTIONS[name].arity), 1e-5
    letters = [Letter(x) for x in "xyz"[: len(values)]]
    for at, derivative in enumerate(derivatives(name, tuple(map(Axis, letters)))):
        ahead, behind = ([x + sign * h * (n == at) for n, x in enumerate(values)] for sign in (1, -1))
        expected = (NAIVE[name](*ahead) - NAIVE[name](*behind)) / (2 * h)
        found = np.broadcast_to(masks._evaluate(derivative, dict(zip(letters, values, strict=True))), expected.shape)
        kink = NAIVE[name](*ahead) + NAIVE[name](*behind) - 2 * NAIVE[name](*values)
        smooth = np.abs(kink) < h / 10
        assert smooth.sum() >= 34
        np.testing.assert_allclose(found[smooth], expected[smooth], rtol=1e-6, atol=1e-8, err_msg=f"{name} by argument {at}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whether_a_function_is_finite(name: str) -> None:
    """With its derivatives, of arguments of any sign, some large, some 0."""
    arity, numbers = FUNCTIONS[name].arity, np.array([-1e4, -30.0, -1.0, 0.0, 1.0, 30.0, 1e4])
    letters = [Letter(x) for x in "xyz"[:arity]]
    values = dict(zip(letters, np.meshgrid(*[numbers] * arity), strict=True))
    axes = tuple(map(Axis, letters))
    with np.errstate(all="ignore"):
        found = [masks._evaluate(e, values) for e in (Call(name, axes), *derivatives(name, axes))]
    assert FUNCTIONS[name].finite == all(np.isfinite(x).all() for x in found)


WHOLE = range(-4, 5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_whole_numbers_have_intervals(name: str) -> None:
    """Given exactly where whole numbers come out, and the least that holds them."""
    f = FUNCTIONS[name]
    value_at: dict[tuple[int, ...], Any] = {}
    for numbers in product(WHOLE, repeat=f.arity):
        try:
            value_at[numbers] = arithmetic.call(name, numbers)
        except arithmetic.BadNumber:
            value_at[numbers] = None
    assert (f.interval is not None) == all(isinstance(value, int) for value in value_at.values())
    if f.interval is None:
        return
    sides = [(low, high) for low in WHOLE[::2] for high in WHOLE if low <= high]
    for box in product(sides, repeat=f.arity) if f.arity < 3 else [((0, 1), *rest) for rest in product(sides, repeat=2)]:
        values = [value_at[at] for at in product(*(range(low, high + 1) for low, high in box))]
        assert f.interval(*(Interval(*side) for side in box)) == Interval(min(values), max(values)), box


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_costs(name: str) -> None:
    assert (FUNCTIONS[name].costly, FUNCTIONS[name].temporary) == (name in COSTLY, name in TEMPORARY)


def test_golden_rows_of_the_grammar_page(request: pytest.FixtureRequest) -> None:
    """specs/README.md lists functions of one argument as words, the others as calls; `make golden` rewrites both rows."""
    page = SPECS / "README.md"
    text = page.read_text(encoding="utf-8")
    words = " ".join(f.name for f in FUNCTIONS.values() if f.arity == 1)
    calls = ", ".join(f"`{f.name}({', '.join(f.parameters)})`" for f in FUNCTIONS.values() if f.arity > 1)
    right = re.sub(r"^\| `[a-z_ ]+` (\| of one argument)", rf"| `{words}` \1", text, flags=re.MULTILINE)
    right = re.sub(r"^\| [^|]+ (\| element by element)", rf"| {calls} \1", right, flags=re.MULTILINE)
    if request.config.getoption("--update-golden"):
        page.write_text(right, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == right, "specs/README.md lists other functions; if the table is right: make golden"
    assert f"`{words}` | of one argument" in right and f"{calls} | element by element" in right


def test_the_list_of_the_parser() -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression("2 * geluu(n)")
    assert str(caught.value).splitlines() == [
        "expression:1:5: unknown function `geluu`",
        "  1 | 2 * geluu(n)",
        "    |     ^^^^^",
        f"  exists: {', '.join({**FUNCTIONS, **REDUCTIONS})}",
        "  cure: did you mean `gelu`?",
    ]
    with pytest.raises(SpecError, match="unknown reduction `sums`") as caught:
        parse_expression("2 * sums[s](n)")
    assert caught.value.exists == ", ".join(REDUCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_misspelt_is_named(name: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean `{name}`"):
        parse_expression(f"{name}_(1)")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parser_counts_arguments(name: str) -> None:
    arity = FUNCTIONS[name].arity
    assert parse_expression(f"{name}({', '.join('1' * arity)})") == Call(name, (Num(1),) * arity)
    with pytest.raises(SpecError, match=rf"`{name}` takes {arity} argument"):
        parse_expression(f"{name}({', '.join('1' * (arity + 1))})")


def test_the_schema_lists_no_functions() -> None:
    """A statement is text to the schema, so that a function is added without it."""

    def words(node: Any) -> set[str]:
        if isinstance(node, dict):
            return set().union(*(words(value) for value in node.values()))
        if isinstance(node, list):
            return {x for x in node if isinstance(x, str)} | set().union(*(words(x) for x in node))
        return set()

    assert not words(json.loads((SPECS / "schema.json").read_text(encoding="utf-8"))) & set(FUNCTIONS)
