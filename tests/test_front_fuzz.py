"""Any text at all is a spec or one SpecError: never another exception, never a hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.spec.reader import read_document
from front_text import HEAD, PATH, spec

SPECS = Path(__file__).parent.parent / "specs"
SMALL = spec(
    "y[b,s,m] = x0[b,s,m]",
    "repeat: 2\n    as: i\n    let: {j: i}\n    weights: {u: {axes: m, from: 'u.{i}'}}\n    body:\n      - y[b,s,m] += u[m]",
)
GPT2 = (SPECS / "gpt2.yaml").read_text()
PIECES = [
    "[", "]", "(", ")", "{", "}", ",", ":", ": ", " - ", "- ", "\n", "\n  ", "'", '"', "|", ">", "&a ", "*a", "!x ", "#", "%", "@", "`",
    "?", "~", "=", "+=", "**", "//", "<=", "not ", " and ", "0", "-1", "1e9", "1e-5", "inf", "nan", ".nan", "s", "b", "seq", "seq: ",
    "sum[s](", "softmax[t](", "where(", "x0[b,s,m]", "ids[b,s]", "y", "axes: ", "from: ", "repeat: ", "body: ", "\t", "\x00", "\ufeff",
    "\u2028", "é", "𝔸", "null", "true",
]  # fmt: skip


def is_spec_or_error(text: str) -> bool:
    """True where `text` is a spec. Raises whatever is not a SpecError."""
    error = None
    try:
        elaborate(read_document(text, PATH))
    except SpecError as e:
        error = e
    assert error is None or (error.line >= 1 and error.column >= 1 and len(str(error)) < 5000)
    return error is None


@given(
    st.sampled_from([SMALL, HEAD, GPT2]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_a_spec_with_pieces_replaced(text: str, edits: list[tuple[float, int, str]]) -> None:
    for where, removed, piece in edits:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + removed :]
    is_spec_or_error(text)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_a_statement_of_any_pieces(statement: str) -> None:
    is_spec_or_error(HEAD + "body:\n  - |\n    " + statement.replace("\n", " ") + "\noutputs: {y: {axes: b s m}}\n")


@pytest.mark.slow
@given(st.text(max_size=200))
@settings(max_examples=5000, deadline=None)
def test_any_text(text: str) -> None:
    is_spec_or_error(text)


def test_the_texts_that_are_changed_are_specs() -> None:
    assert is_spec_or_error(SMALL)
    assert is_spec_or_error(GPT2)
