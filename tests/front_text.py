"""Small specs as text for the tests of the front half, and the error that a bad one gives."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Name, Num, substitute
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.parse import parse_expression
from einpage.einsum_front.spec.reader import read_document

PATH = "small.yaml"
HEAD = """\
einpage: 1
name: small
sizes: {batch: 2, seq: 4, model: 6, half: 3}
scalars: {eps: 1.0e-5}
axes: {b: batch, s: seq, t: seq, m: model, n: model, z: 2, e: half}
inputs:
  ids: {axes: b s, dtype: int32}
  x0: {axes: b s m}
weights:
  w: {axes: n m, from: w}
  g: {axes: m, from: g}
"""
"""Eleven lines: with `spec`, the first statement is line 13, its text from column 5 on."""


def spec(*body: str, outputs: str = "{y: {axes: b s m}}", head: str = HEAD) -> str:
    """A spec whose body is these statements (or, with their line breaks, repeats)."""
    items = "".join(f"  - {item}\n" for item in body)
    return f"{head}body:\n{items}outputs: {outputs}\n"


def program(*body: str, outputs: str = "{y: {axes: b s m}}", settings: Mapping[str, int | float | str] | None = None) -> Program:
    """The program of `spec(*body)`."""
    return elaborate(read_document(spec(*body, outputs=outputs), PATH), settings or {})


def failure(text: str, settings: Mapping[str, int | float | str] | None = None) -> SpecError:
    """The error that a spec's text gives; checks that its message shows the place, the line and a caret under the column."""
    with pytest.raises(SpecError) as caught:
        elaborate(read_document(text, PATH), settings or {})
    e = caught.value
    rows = str(e).splitlines()
    assert rows[0].startswith(f"{e.path}:{e.line}:{e.column}: "), rows[0]
    if e.path == PATH:
        assert e.source_line == text.splitlines()[e.line - 1]
    shown, carets = rows[1], rows[2]
    under = carets.index("^") - shown.index("| ") - 2
    visible = shown[shown.index("| ") + 2 :]
    if not visible.startswith("…"):
        assert visible.rstrip("…").rstrip() == e.source_line[:120].rstrip()
        assert under == e.column - 1, f"the caret stands under column {under + 1}, not {e.column}"
    return e


def place(e: SpecError) -> str:
    """The characters of the line from the error's column on."""
    return e.source_line[e.column - 1 :]


def over_letters(expression: str) -> Expr:
    """`expression` with every word a letter, but for `inf`."""
    return words_as_letters(parse_expression(expression))


def words_as_letters(e: Expr) -> Expr:
    return substitute(e, lambda n: (Num(inf) if n.word == "inf" else Axis(Letter(n.word))) if isinstance(n, Name) else None)
