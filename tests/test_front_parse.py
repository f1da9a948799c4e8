"""The grammar: what parses to what, what is refused where, and text(e) parsing back to e."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import BINARY, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, Unary, text
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.spec.parse import MAX_DEPTH, parse_axes, parse_expression, parse_statement
from einpage.einsum_front.spec.source import Snippet, SourceFile

A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a + b * c", Binary("+", A, Binary("*", B, C))),
        ("a - b - c", Binary("-", Binary("-", A, B), C)),
        ("a / b * c", Binary("*", Binary("/", A, B), C)),
        ("a * (b * c)", Binary("*", A, Binary("*", B, C))),
        ("a ** b ** c", Binary("**", A, Binary("**", B, C))),
        ("-a ** b", Unary("-", Binary("**", A, B))),
        ("a ** -b", Binary("**", A, Unary("-", B))),
        ("-a * b", Binary("*", Unary("-", A), B)),
        ("-a / b", Binary("/", Unary("-", A), B)),
        ("a // b % c", Binary("%", Binary("//", A, B), C)),
        ("not a == b and c", Binary("and", Unary("not", Binary("==", A, B)), C)),
        ("a or b and not c", Binary("or", A, Binary("and", B, Unary("not", C)))),
        ("a < b + c", Binary("<", A, Binary("+", B, C))),
        ("1_000 + .5 + 1e-5 + 2.", Binary("+", Binary("+", Binary("+", Num(1000), Num(0.5)), Num(1e-5)), Num(2.0))),
        ("max(a, b)", Call("max", (A, B))),
        ("max[t](a)", Reduce(Reduction.MAX, (Letter("t"),), A)),
        ("mean[z, e](a[b, 0])", Reduce(Reduction.MEAN, (Letter("z"), Letter("e")), Load("a", (B, Num(0))))),
        ("a[b[c] - 1]", Load("a", (Binary("-", Load("b", (C,)), Num(1)),))),
    ],
)
def test_an_expression_means(written: str, meant: Expr) -> None:
    assert parse_expression(written) == meant


def test_numbers_keep_their_kind() -> None:
    kinds = [type(e.value) for e in map(parse_expression, ("2", "2.0", "2e0")) if isinstance(e, Num)]
    assert kinds == [int, float, float]


@pytest.mark.parametrize("mistake", ["a < b < c", "a == b != c"])
def test_comparisons_do_not_chain(mistake: str) -> None:
    with pytest.raises(SpecError, match="do not chain"):
        parse_expression(mistake)


@pytest.mark.parametrize(
    ("mistake", "column", "words"),
    [
        ("a +", 4, "found the end"),
        ("(a + b", 7, "expected: `)` for the one opened at 1:1"),
        ("a[b, c", 7, "expected: `]` for the one opened at 1:2"),
        ("a b", 3, "after the end of the expression"),
        ("a $ b", 3, "not part of the language"),
        ("2x", 1, "write a product as `2*x`"),
        ("1__0", 1, "not a number"),
        ("9" * 100, 1, "a number of 100 characters"),
        ("x[]", 2, "nothing between"),
        ("sin(a, b)", 1, "takes 1 argument"),
        ("where(a, b)", 1, "takes 3 argument"),
        ("sqr(a)", 1, "did you mean `sqrt`"),
        ("softmax(a)", 1, "softmax[t]"),
        ("sum[t] a", 8, "sum[t](…)"),
        ("sum[0](a)", 5, "an axis letter"),
        ("sum[t,t](a)", 7, "stands twice"),
        ("a + exp", 5, "`exp` is a function"),
        ("a + not b", 5, "in brackets"),
        ("a = b", 3, "write `==`"),
        ("__import__('os')", 1, "unknown function"),
    ],
)
def test_a_mistake_is_shown_in_its_column(mistake: str, column: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(mistake)
    assert (caught.value.line, caught.value.column) == (1, column)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "huge",
    [
        "(" * 10_000_000,
        "-" * 10_000_000,
        "not " * 2_500_000 + "a",
        "a[" * 5_000_000,
        "sin(" * 2_500_000,
        "a+" * 5_000_000 + "a",
        "a**" * 3_000_000 + "a",
        "a and " * 1_000_000 + "a",
        "(a + " * 2_000_000,
    ],
    ids=lambda s: s[:5],
)
def test_ten_megabytes_of_nesting_are_refused_where_they_get_too_deep(huge: str) -> None:
    with pytest.raises(SpecError, match="nested too deeply") as caught:
        parse_expression(huge)
    assert caught.value.column < 6 * (MAX_DEPTH + 2)
    assert len(str(caught.value)) < 1000


def test_the_deepest_expression_allowed_can_be_walked() -> None:
    deep = "+".join(["a"] * MAX_DEPTH)
    assert parse_expression(text(parse_expression(deep))) == parse_expression(deep)
    with pytest.raises(SpecError, match="nested too deeply"):
        parse_expression(deep + "+a")


def test_a_statement() -> None:
    s = parse_statement("x[b, 0] += y[b] * 2")
    assert (s.name, s.indices, s.adds) == ("x", (B, Num(0)), True)
    assert s.expr == Binary("*", Load("y", (B,)), Num(2))
    assert parse_statement("n = 1").indices == ()


@pytest.mark.parametrize(
    ("mistake", "column", "words"),
    [
        ("x[b]", 5, "`=` or `+=`"),
        ("= 3", 1, "starts with a name"),
        ("x[b] == 3", 6, "`=` or `+=`"),
        ("sum[b] = 3", 1, "a word of the language"),
        ("x = y = 3", 7, "one statement sets one target"),
    ],
)
def test_a_statement_refused(mistake: str, column: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_statement(mistake)
    assert caught.value.column == column
    assert words in str(caught.value)


def test_axes() -> None:
    groups = parse_axes(Snippet.alone("(k g z e) m"))
    assert [[letter for letter, _ in g.letters] for g in groups] == [["k", "g", "z", "e"], ["m"]]
    assert groups[1].letters[0][1].column == 11


@pytest.mark.parametrize(("mistake", "column"), [("(k m", 5), ("k) m", 2), ("() m", 2), ("((k) m)", 2), ("k 3", 3)])
def test_axes_refused(mistake: str, column: int) -> None:
    with pytest.raises(SpecError) as caught:
        parse_axes(Snippet.alone(mistake))
    assert caught.value.column == column


def test_a_number_among_axes_is_told_what_to_be() -> None:
    """As of a convolution over one channel, whose checkpoint has a dimension of 1."""
    with pytest.raises(SpecError, match=r"(?s)found `1` in a list of axes.*cure: every dimension has a letter, .* `axes: \{o: 1\}`"):
        parse_axes(Snippet.alone("i 1 j"))


def test_spans_of_the_nodes() -> None:
    source = SourceFile("f.yaml", ("  - y = aa + bb[c]",))
    e = parse_expression(Snippet("aa + bb[c]", source, 1, 9))
    assert isinstance(e, Binary)
    assert (e.span.column, e.span.length) == (9, 10)
    assert (e.x.span.column, e.x.span.length) == (9, 2)
    assert (e.y.span.column, e.y.span.length) == (14, 5)


@pytest.mark.parametrize("shown", ["(a * b) * c", "(a / b) / c * d", "(a * b * c) / d", "((a * b) * c) * d", "(a * b) * c + a * b * c"])
def test_brackets_around_the_first_factor_are_kept(shown: str) -> None:
    assert text(parse_expression(shown)) == shown
    assert parse_expression(shown) != parse_expression(shown.replace("(", "").replace(")", ""))


words = st.sampled_from(["a", "b1", "seq", "x_y", "pi", "inf"])
letters = st.sampled_from([Letter("s"), Letter("t"), Letter("m")])


def nested(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    reduces = st.builds(Reduce, st.sampled_from(Reduction), st.lists(letters, min_size=1, unique=True).map(tuple), inner)
    calls = st.sampled_from(sorted(FUNCTIONS)).flatmap(lambda fn: st.builds(Call, st.just(fn), st.tuples(*[inner] * FUNCTIONS[fn].arity)))
    loads = st.builds(Load, st.sampled_from(["x", "tokens"]), st.lists(inner, min_size=1, max_size=3).map(tuple))
    return st.one_of(
        st.builds(Unary, st.sampled_from(["-", "not"]), inner),
        st.builds(Binary, st.sampled_from(BINARY), inner, inner),
        calls,
        reduces,
        loads,
    )


numbers = st.one_of(st.integers(0, 2**64), st.floats(0, 1e300))
expressions = st.recursive(st.one_of(st.builds(Num, numbers), st.builds(Name, words)), nested, max_leaves=24)
"""Parsed expressions. Never: negative or non-finite numbers (the parser gives `Unary("-")` and `Name("inf")`), Axis, Acc."""


@given(expressions)
@settings(max_examples=400, deadline=None)
def test_text_parses_back(e: Expr) -> None:
    assert parse_expression(text(e)) == e
