"""Renaming letters in expressions."""

from __future__ import annotations

import pytest

from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Num, Reduce, Reduction
from einpage.einsum_front.algebra.rewrite import Capture, rename

S, T = Letter("s"), Letter("t")


def test_renaming_refuses_capture() -> None:
    mean = Reduce(Reduction.MEAN, (T,), Load("x", (Axis(S), Axis(T))))
    assert rename(mean, {S: Num(3)}) == Reduce(Reduction.MEAN, (T,), Load("x", (Num(3), Axis(T))))
    with pytest.raises(Capture):
        rename(mean, {S: Axis(T)})
