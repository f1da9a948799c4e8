"""Indices under conditions in kernels: torch's and Triton's, whole and cut anywhere, with NaN in all that must not be read."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.prepare import Backend
from guarded_data import BATCH, Outside, random_case
from guarded_indices import ANY, Guarded
from real_bytes import direct

FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def check(case: Guarded, s: int, t: int, backend: Backend) -> None:
    """`x` is computed before it is read, so that it lies in tiles; its own letter is cut as s is."""
    try:
        program = case.program(through=True)
    except SpecError:
        return
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        pieces = {Letter("s"): s, Letter("t"): t, Letter("r"): min(s, case.rows)}
        graph = split(fuse(program), {x: n for x, n in pieces.items() if n > 1}, DType.FP32)
    (got,) = direct(graph, case.data(program), backend).values()
    assert got.flatten().tolist() == case.want()


def check_data(rng: Random, backend: Backend) -> bool:
    """As `check`, with integer inputs in conditions and indices; whether it was accepted. An element that counts outside is an error."""
    case = random_case(rng)
    try:
        program = case.program(through=True)
    except SpecError:
        return False
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        pieces = {Letter(x): min(most, rng.choice((1, 2, most))) for x, most in zip("bski", (BATCH, case.s, case.k, case.n), strict=True)}
        graph = split(fuse(program), {x: n for x, n in pieces.items() if n > 1}, DType.FP32)
    for _ in range(2):
        data = case.data(rng)
        try:
            want = case.want(data)
        except Outside:
            with pytest.raises(IndexOutOfRange):
                direct(graph, data, backend)
            continue
        (got,) = direct(graph, data, backend).values()
        assert got.flatten().tolist() == want, (case, data)
    return True


def test_data_on_torch() -> None:
    rng = Random(3)
    assert sum(check_data(rng, Backend.TORCH) for _ in range(40)) > 20


@pytest.mark.interpreter
def test_data_in_triton() -> None:
    rng = Random(4)
    assert sum(check_data(rng, Backend.TRITON) for _ in range(6)) > 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(4))
def test_much_data_on_torch(seed: int) -> None:
    rng = Random(100 + seed)
    assert sum(check_data(rng, Backend.TORCH) for _ in range(500)) > 250


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(3000)
def test_much_data_in_triton() -> None:
    rng = Random(200)
    assert sum(check_data(rng, Backend.TRITON) for _ in range(200)) > 100


@given(ANY, st.integers(1, 9), st.integers(1, 5))
@FEW
def test_on_torch(case: Guarded, s: int, t: int) -> None:
    check(case, s, t, Backend.TORCH)


@pytest.mark.interpreter
@given(ANY, st.integers(1, 3), st.integers(1, 2))
@settings(FEW, max_examples=12)
def test_in_triton(case: Guarded, s: int, t: int) -> None:
    check(case, s, t, Backend.TRITON)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@given(ANY, st.integers(1, 9), st.integers(1, 5))
@settings(FEW, max_examples=1500, derandomize=False)
def test_many_on_torch(case: Guarded, s: int, t: int) -> None:
    check(case, s, t, Backend.TORCH)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(3000)
@given(ANY, st.integers(1, 9), st.integers(1, 5))
@settings(FEW, max_examples=300, derandomize=False)
def test_many_in_triton(case: Guarded, s: int, t: int) -> None:
    check(case, s, t, Backend.TRITON)
