"""Sizes, scalars, axes and `--set`: expressions over each other, circles, and numbers that are none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.parse import parse_expression
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.einsum_front.spec.sizes import Evaluator
from einpage.einsum_front.spec.source import SourceFile
from front_text import HEAD, PATH, failure, place, program, spec

Y = "y[b,s,m] = x0[b,s,m]"


def with_sizes(sizes: str, **settings: int | float | str) -> Program:
    head = HEAD.replace("half: 3}", f"half: 3, {sizes}}}")
    return elaborate(read_document(spec(Y, head=head), PATH), settings)


def test_sizes_are_expressions_over_each_other_in_any_order() -> None:
    sizes = with_sizes("head: wide // 2, wide: 4 * model").sizes
    assert (sizes["head"], sizes["wide"]) == (12, 24)
    assert all(type(v) is int for v in sizes.values())


def test_a_division_of_sizes_rounds_down_only_where_that_is_written() -> None:
    assert with_sizes("a: (model - model % 4) // 4, wide: 2 * model // 4").sizes["a"] == 1
    head = HEAD.replace("{eps: 1.0e-5}", "{eps: 1e-5, rounded: model // 4}")
    assert elaborate(read_document(spec(Y, head=head), PATH)).scalars["rounded"] == 1


def test_heads_that_do_not_share_key_heads_evenly_are_refused() -> None:
    document = load_document(Path(__file__).parents[1] / "specs" / "llama.yaml")
    with pytest.raises(SpecError, match=r"llama.yaml:6:60: 32 // 5 leaves 2") as caught:
        elaborate(document, {"kv_heads": 5})
    assert "group: heads // kv_heads" in str(caught.value)
    assert elaborate(document, {"kv_heads": 4}).sizes["group"] == 8


def test_scalars_keep_their_kind() -> None:
    head = HEAD.replace("{eps: 1.0e-5}", "{eps: 1e-5, past: 0, scale: 1 / sqrt(model - 2)}")
    scalars = elaborate(read_document(spec(Y, head=head), PATH)).scalars
    assert scalars == {"eps": 1e-5, "past": 0, "scale": 0.5}
    assert type(scalars["past"]) is int


@pytest.mark.parametrize(
    ("sizes", "shown", "words"),
    [
        ("a: p, p: q, q: a", "p, p: q, q: a}", "defined in a circle: a → p → q → a"),
        ("a: a + 1", "a + 1}", "defined in a circle: a → a"),
        ("a: .nan", ".nan}", "expected: a finite number"),
        ("a: .inf", ".inf}", "expected: a finite number"),
        ("a: nan", "nan}", "`nan` is not a number"),
        ("a: 2 * inf", "2 * inf}", "not a whole number"),
        ("a: -3", "-3}", "at least 0"),
        ("a: 2.5", "2.5}", "not a whole number"),
        ("a: model / 4", "model / 4}", "`//` divides to a whole number"),
        ("a: model // 0", "model // 0}", "division by zero"),
        ("a: model // 0", "model // 0}", "cure: give the divisor"),
        ("a: 2020-01-01", "2020-01-01}", "is `2020-01-01`, a date"),
        ("a: model // 4", "model // 4}", "6 // 4 leaves 2"),
        ("a: 2 * (model // 4)", "model // 4)}", "write (model - model % 4) // 4"),
        ("a: .nan", ".nan}", "cure: write the number"),
        ("a: zzz + 1", "zzz + 1}", "cure: declare it under `sizes:`"),
        ("a: 10 ** 500", "10 ** 500}", "too large"),
        ("a: 9 ** 9 ** 9 ** 9", "9 ** 9 ** 9}", "too large"),
        ("a: 2 ** 50", "2 ** 50}", "at most"),
        ("a: sqrt(2 - model)", "sqrt(2 - model)}", "no real result"),
        ("a: modle + 1", "modle + 1}", "did you mean `model`?"),
        ("a: 'seq[0]'", "seq[0]'}", "no value with indices"),
        ("a: 2 +", "}", "found the end"),
        ("a: eps", "eps}", "not a whole number"),
    ],
)
def test_a_size_refused(sizes: str, shown: str, words: str) -> None:
    e = failure(spec(Y, head=HEAD.replace("half: 3}", f"half: 3, {sizes}}}")))
    assert (e.line, place(e)) == (3, shown)
    assert words in str(e)


@pytest.mark.parametrize(
    ("axes", "shown", "words"),
    [("q: sequ", "sequ}", "did you mean `seq`?"), ("q: 0", "0}", "at least 1"), ("seq: 4", "4}", "already names")],
)
def test_an_axis_refused(axes: str, shown: str, words: str) -> None:
    e = failure(spec(Y, head=HEAD.replace("e: half}", f"e: half, {axes}}}")))
    assert (e.line, place(e)) == (5, shown)
    assert words in str(e)


@pytest.mark.parametrize(
    ("settings", "where", "words"),
    [
        ({"model": 0}, "--set model", "`model` is 0, and the axis `m` runs over it"),
        ({"wide": 0}, "--set wide", "`wide` is 0, and the axis `q` runs over it"),
        ({"model": "batch - 2"}, "--set model", "`model` is 0, and the axis `m` runs over it"),
        ({"parts": 0}, "--set parts", "`parts` is 0, and `wide // parts` divides by it"),
        ({"cut": 12}, PATH, "`left` is 0, and the axis `r` runs over it"),
    ],
)
def test_a_size_of_0_is_refused_where_an_axis_runs_over_it_or_something_divides_by_it(
    settings: dict[str, int | str], where: str, words: str
) -> None:
    head = HEAD.replace("half: 3}", "half: 3, wide: 2 * model, parts: 2, part: wide // parts, cut: 0, left: wide - cut}")
    head = head.replace("e: half}", "e: half, q: 3 * wide, p: part, r: left}")
    e = failure(spec(Y, head=head), settings)
    assert (e.path, words in str(e)) == (where, True), str(e)


def test_a_size_may_be_0() -> None:
    found = with_sizes("past: 0, room: 0, reach: past + room + seq")
    assert (found.sizes["past"], found.sizes["reach"]) == (0, 4)


def test_settings_override_sizes_and_scalars() -> None:
    found = with_sizes("wide: 4 * model", model=8, eps="1e-6", seq="2 * batch")
    assert (found.sizes["wide"], found.scalars["eps"], found.sizes["seq"]) == (32, 1e-6, 4)
    assert with_sizes("wide: 4 * model", wide=5).sizes["wide"] == 5
    assert found.definitions[0].shape == (2, 4, 8)


def test_an_unknown_setting_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="--set modle: no size or scalar has this name; did you mean `model`"):
        with_sizes("a: 1", modle=3)
    with pytest.raises(UsageError, match="there are: a, batch, eps"):
        with_sizes("a: 1", zzz=3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nan", "not a number"),
        (math.nan, "not a number"),
        (math.inf, "not a whole number"),
        (0, "at least 1"),
        ("4 +", "found the end"),
        ("2.5", "not a whole number"),
        ("model", "circle: model → model"),
    ],
)
def test_a_setting_refused(value: float | str, words: str) -> None:
    e = failure(spec(Y), {"model": value})
    assert (e.path, e.line) == ("--set model", 1)
    assert words in str(e)


def test_names_are_declared_once() -> None:
    assert place(failure(spec(Y, head=HEAD.replace("{eps: 1.0e-5}", "{eps: 1, seq: 2}")))) == "2}"
    assert "already names a size" in str(failure(spec(Y, head=HEAD.replace("  x0: {axes: b s m}", "  seq: {axes: b}"))))
    assert "already names an axis" in str(failure(spec(Y, head=HEAD.replace("  g: {", "  m: {"))))
    assert "already names an input" in str(failure(spec(Y, head=HEAD.replace("  g: {", "  x0: {"))))


def test_defaults_of_inputs() -> None:
    head = HEAD.replace("  x0:", "  lengths: {axes: b, dtype: int32, default: seq - 1}\n  x0:")
    found = elaborate(read_document(spec(Y, head=head), PATH))
    assert [i.default for i in found.inputs] == [None, 3, None]
    e = failure(spec(Y, head=head.replace("seq - 1", "seq / 3")))
    assert "expected: a whole number" in str(e)


def test_a_long_chain_of_definitions_is_refused_not_recursed_into() -> None:
    chain = ", ".join(f"a{i}: a{i + 1}" for i in range(500))
    e = failure(spec(Y, head=HEAD.replace("half: 3}", f"half: 3, {chain}, a500: 1}}")))
    assert "a chain of more than 100" in str(e)


small = st.integers(-6, 6) | st.floats(-6, 6).map(lambda x: round(x, 2))


@given(st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!="]), small, small)
def test_arithmetic_is_python_s(op: str, x: float, y: float) -> None:
    try:
        expected = eval(f"({x!r}) {op} ({y!r})")
    except (ZeroDivisionError, OverflowError):
        expected = None
    if expected is None or isinstance(expected, complex):
        with pytest.raises(arithmetic.BadNumber):
            arithmetic.binary(op, x, y)
    else:
        found = arithmetic.binary(op, x, y)
        assert found == expected
        assert isinstance(found, float) == isinstance(expected, float)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("where(2 < 3, 5, 1 / 2)", 5),
        ("max(2, 3) + min(2, 3) + abs(-4) + relu(-1)", 9),
        ("not 3", 0),
        ("2 and 3", 1),
        ("0 or 0.0", 0),
        ("7 // -2", -4),
        ("-7 % 4", 1),
        ("pi", math.pi),
        ("-inf", -math.inf),
        ("silu(0) + tanh(0) + erf(0) + gelu(0) + gelu_tanh(0) + sin(0) + log(1)", 0),
        ("sigmoid(-1000) + sigmoid(1000)", 1),
        ("rsqrt(4) + exp(0) + cos(0)", 2.5),
    ],
)
def test_functions_of_numbers(written: str, value: float) -> None:
    e = parse_expression(written)
    assert Evaluator({}).number(e, SourceFile("", (written,))) == value


def test_the_error_s_class_is_the_user_s_kind() -> None:
    e = failure(spec(Y, head=HEAD.replace("seq: 4", "seq: -4")))
    assert isinstance(e, SpecError) and e.exit_status == 2
    assert program(Y).sizes["seq"] == 4


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2 * (3 + 4)", 14),
        ("-max(2, 7 // 2)", -3),
        ("where(2 < 3, 5, 6)", 5),
        ("1 / 0", None),
        ("abs(1 / 0)", None),
        ("2 + n", None),
        ("n", None),
    ],
)
def test_constants_are_found(written: str, value: float | None) -> None:
    assert arithmetic.constant(parse_expression(written)) == value
