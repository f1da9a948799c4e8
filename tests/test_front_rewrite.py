"""Expressions taken apart, and letters in them renamed."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest

from einpage.einsum_front.algebra import expr
from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Num, Reduce, Reduction
from einpage.einsum_front.algebra.rewrite import Capture, rename

S, T = Letter("s"), Letter("t")


def test_renaming_refuses_capture() -> None:
    mean = Reduce(Reduction.MEAN, (T,), Load("x", (Axis(S), Axis(T))))
    assert rename(mean, {S: Num(3)}) == Reduce(Reduction.MEAN, (T,), Load("x", (Num(3), Axis(T))))
    with pytest.raises(Capture):
        rename(mean, {S: Axis(T)})


def test_every_kind_of_node_has_its_row() -> None:
    """Mypy cannot see what a table lacks."""
    assert set(expr._CHILDREN) == {
        kind for kind in vars(expr).values() if isinstance(kind, type) and is_dataclass(kind) and kind is not expr.Span
    }
