"""Indices under conditions: `where(s >= 1, x[s - 1], 0)`. What is accepted reads nothing outside and computes what it says; what is
refused has indices that leave the tensor, which the message names. The oracle is a loop over every letter, in Python."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch
from hypothesis import example, given

from einpage.einsum_front.algebra.expr import Letter, Load, text, walk
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.program import Program
from guarded_indices import ANY, Guarded, S, T, program_of


@given(ANY)
@example(Guarded("s - t >= 0", "s - t", 9))
@example(Guarded("s == 0", "s - 1", 9, True))
@example(Guarded("s != 0 and s != 1", "s - 2", 7))
@example(Guarded("2*s + t >= 1 and 2*s + t <= 5", "2*s + t - 1", 5))
@example(Guarded("(s - 1) % 2 == 0 and s >= 1", "(s - 1) // 2", 4))
@example(Guarded("s >= t and t >= 2", "s - 2", 7))
@example(Guarded("s + t >= 6 and s - t >= 4", "s - 5", 4))
@example(Guarded("s + 1 >= 12", "s - 30", 1))
@example(Guarded("not ((t + 1) % 3 < 1)", "0*s + 1", 1, True))
def test_what_is_accepted_is_right_and_what_is_refused_is_outside(case: Guarded) -> None:
    outside = case.outside()
    found = accepted_or_refused(case)
    if isinstance(found, SpecError):
        check_refusal(case, found, outside)
        return
    assert not outside, f"accepted, but at {outside[0]} the index is {case.at(outside[0])}"
    check_values(case, found)


def accepted_or_refused(case: Guarded) -> Program | SpecError:
    try:
        return case.program()
    except SpecError as e:
        return e


def check_refusal(case: Guarded, e: SpecError, outside: list[dict[str, int]]) -> None:
    """Where the message names letters, the condition holds there and the index is outside. It names some wherever there are any."""
    assert "takes values" in e.message and e.expected == f"0 … {case.rows - 1}"
    assert e.cure is not None
    named = dict(re.findall(r"\b([st]) = (\d+)", e.cure))
    assert bool(named) == bool(outside), f"refused with {named}, but outside are {outside[:3]}: {e}"
    assert not named or any(all(at[letter] == int(n) for letter, n in named.items()) for at in outside)


def check_values(case: Guarded, program: Program) -> None:
    """The reference, with NaN in all that no element may read, against the loop; what is read lies inside for every block of letters."""
    data = {name: torch.from_numpy(array) for name, array in case.data(program).items()}
    assert evaluate(program, data, {}, torch.float64)["y"].flatten().tolist() == case.want()
    (part,) = program.definitions[-1].parts
    for load in (n for n in walk(part.expr) if isinstance(n, Load)):
        for s, t in product(((0, S), (0, 4), (4, S), (8, S)), ((0, T), (3, T))):
            known = interval(load.indices[0], {Letter("s"): s, Letter("t"): t})
            assert known is not None and known.low >= 0 and known.high < case.rows


def test_most_of_what_is_inside_is_proven() -> None:
    """Of the bounds of an index itself, all; a proof by rounding is not complete for others."""
    for a, b, c, rows in product((-2, -1, 1, 2), (-1, 0, 1, 3), (-3, 0, 2), (2, 7)):
        index = f"{a}*s + {b}*t + {c}"
        program_of(f"y[s,t] = where({index} >= 0 and {index} < {rows}, x[{index}], 0)", axes="s t", rows=rows)
        program_of(f"y[s,t] = where({index} < 0 or {index} >= {rows}, 0, x[{index}])", axes="s t", rows=rows)
        program_of(f"y[s,t] = where(({index}) // 2 >= 0 and ({index}) // 2 < {rows}, x[({index}) // 2], 0)", axes="s t", rows=rows)


@pytest.mark.parametrize(
    ("statement", "axes", "index"),
    [
        ("y[b,s,i] = where(s >= 1, p[b, s-1, i], 0)", "b s i", "max(s - 1, 0)"),
        ("y[b,s,i] = where(s == 0, 0, p[b, s-1, i])", "b s i", "max(s - 1, 0)"),
        ("y[b,s,i] = where(s, p[b, s-1, i], 0)", "b s i", "max(s - 1, 0)"),
        ("y[b,s,i] = where(s + u >= 2, p[b, s+u-2, i], 0) * (u + 1)", "b s i", "max(s + u - 2, 0)"),
        ("y[s] = where(2 * s >= 3, bias[s - 2], 0)", "s", "max(s - 2, 0)"),
        ("y[b,s,i] = where(s + 5 < seq, p[b, s+5, i], 0)", "b s i", "min(s + 5, 8)"),
        ("y[b,s,i] = where(s - 3 >= 0 and s < 100, p[b, s-3, i], 0)", "b s i", "max(s - 3, 0)"),
        ("y[s,t] = where(t <= s, bias[s - t], 0)", "s t", "max(s - t, 0)"),
        ("y[s,t] = where(abs(s - t) < 2, bias[s - t + 1], 0)", "s t", "max(min(s - t + 1, 2), 0)"),
        ("y[s,t] = where(min(s, t) >= 2, bias[s - 2] + bias[t - 2], 0)", "s t", "max(s - 2, 0)"),
        ("y[s] = where(s < model, g[s], g[s - model])", "s", None),
        ("y[s] = where(s < model, g[s], bias[s - model])", "s", "min(s, 3)"),
        ("y[s] = where(s >= 4, bias[s - 6 + 3], 0)", "s", "max(s - 6 + 3, 1)"),
        ("y[s] = where(s >= 1 and bias[s - 1] > 0, bias[s], 0)", "s", "max(s - 1, 0)"),
        ("y[s] = where(s < 1 or bias[s - 1] > 0, 0, bias[s - 1])", "s", "max(s - 1, 0)"),
        ("y[b,s,i] = where(s >= pad[b], p[b, s - pad[b], i], 0)", "b s i", "where(s >= pad[b], s - pad[b], 0)"),
        ("y[s,i] = where(s >= 1, sum[b](p[b, s-1, i]), 0)", "s i", "max(s - 1, 0)"),
        ("y[b,s] = where(s >= 1, p[b, s-1, i] * g[i], 0)", "b s", "max(s - 1, 0)"),
        # the condition is about another letter of the same name, or says nothing of it
        ("y[i] = where(i >= 1, sum[i](g[i - 1]), 0)", "i", None),
        ("y[i] = where(i >= 1, softmax[i](g[i - 1]), 0)", "i", None),
        ("y = sum[i](where(i >= 1, g[i-1] * g[i], 0) * g[i])", '""', "max(i - 1, 0)"),
        ("y = where(i >= 1, g[i-1] * g[i], 0) * g[i]", '""', None),
        ("y[s] = where(s / 2 >= 1, bias[s - 2], 0)", "s", None),
        ("y[s] = where(bias[s] >= 1, bias[s - 1], 0)", "s", None),
        ("y[s] = where(s >= 1, 0, bias[s - 1])", "s", None),
        ("y[s] = where(bias[s - 1] > 0, bias[s - 1], 0)", "s", None),
    ],
)
def test_an_index_under_a_condition(statement: str, axes: str, index: str | None) -> None:
    if index is None:
        with pytest.raises(SpecError, match=r"takes values|stands in"):
            program_of(statement, axes=axes)
        return
    (part,) = program_of(statement, axes=axes).definitions[-1].parts
    assert index in text(part.expr)


def test_a_condition_that_fp32_may_get_wrong_proves_nothing() -> None:
    """33,554,433 - 33,554,432 is 0 in fp32: the condition would hold where the index is -1."""
    with pytest.raises(SpecError, match="takes values -1"):
        program_of("y[s] = where(33554432 * s - 33554433 * s + s >= 1, bias[s - 1], 0)", axes="s")


@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        (
            "y[s,t] = where(s + t >= 3, bias[s + t - 4], 0)",
            [
                "`s + t - 4` takes values -1 … 8 where `s + t >= 3`, outside dimension 1 (`s`) of the input `bias`, which has extent 9",
                "  expected: 0 … 8",
                "  cure: s = 0, t = 3 is let through, where `s + t - 4` is outside: require `s + t - 4 >= 0` too",
            ],
        ),
        (
            "y[s] = where(s < 3, 0, where(bias[s] > 0, bias[s - 4], 1))",
            [
                "`s - 4` takes values -1 … 4 where `not s < 3` and `bias[s] > 0`, outside dimension 1 (`s`) of the input `bias`, "
                "which has extent 9",
                "  expected: 0 … 8",
                "  cure: a condition keeps it inside by comparisons of whole numbers: require `s - 4 >= 0` too",
            ],
        ),
        (
            "y[s] = bias[s + 1]",
            [
                "`s + 1` takes values 1 … 9, outside dimension 1 (`s`) of the input `bias`, which has extent 9",
                "  expected: 0 … 8",
                "  cure: say what stands beyond, `0` perhaps: `where(s + 1 < 9, bias[s + 1], 0)`",
            ],
        ),
        (
            "y[s] = where(s < 5, g[s], 0)",
            [
                "`s` has extent 9, but stands in dimension 1 (`i`) of the input `g`, which has extent 4",
                "  cure: use a letter of extent 4, or add `s < 4` to the condition",
            ],
        ),
    ],
)
def test_what_the_error_says(statement: str, lines: list[str]) -> None:
    with pytest.raises(SpecError) as e:
        program_of(statement, axes="s" if "y[s]" in statement else "s t")
    said = str(e.value).splitlines()
    assert [said[0].split(": ", 1)[1], *said[3:]] == lines


def test_a_condition_of_many_alternatives_is_read_in_no_time() -> None:
    """64 alternatives are followed; more, and this clause says nothing, which another may make good."""
    many = " and ".join(f"(s != {n} or t != {n % 5})" for n in range(1, 9)) + " and " + " and ".join(f"s + {n}*t != 3" for n in range(20))
    program_of(f"y[s,t] = where(s >= 1 and {many}, bias[s - 1], 0)", axes="s t")
    with pytest.raises(SpecError, match="takes values -1"):
        program_of(f"y[s,t] = where({many}, bias[s - 1], 0)", axes="s t")
