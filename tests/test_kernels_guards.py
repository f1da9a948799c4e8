"""Indices under conditions in kernels: torch's and Triton's, whole and cut anywhere, with NaN in all that must not be read."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.spec.reader import read_document
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
        if backend is Backend.TRITON:
            del pieces[Letter("b")]  # the interpreter's comparison of two scalars of fp32 is no truth to its `&`
        opgraph = fuse(program)
        cuttable = WorkingSets(opgraph, DType.FP32).most  # an input that can be one number alone may leave nothing of x to read
        graph = split(opgraph, {x: n for x, n in pieces.items() if n > 1 and x in cuttable}, DType.FP32)
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


ROWS = """\
einpage: 1
name: rows
sizes: {vocab: 12, seq: 6, batch: 2, model: 4}
axes: {b: batch, s: seq, m: model, v: vocab}
inputs: {tokens: {axes: b s, dtype: int32}, ln: {axes: b, dtype: int32}, late: {axes: b s, dtype: int32}}
weights: {embed: {axes: v m, from: e}}
body:
  - y[b,s,m] = where(CONDITION, embed[tokens[b,s], m], 7)
outputs: {y: {axes: b s m}}
"""


@pytest.mark.parametrize(
    "condition", ["s < ln[b]", "tokens[b,s] >= 0 and tokens[b,s] < vocab", "late[b,s] // 2 != 1", "s < ln[b] and (s < 2 or late[b,s] == 0)"]
)
@pytest.mark.parametrize("pieces", [{}, {"b": 2, "m": 2}, {"s": 3}])
def test_rows_of_a_table_under_a_condition_stay_a_gather(condition: str, pieces: dict[str, int]) -> None:
    """So the table stays on the host; the condition is looked at there."""
    program = elaborate(read_document(ROWS.replace("CONDITION", condition), "rows.yaml"))
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        graph = split(fuse(program), {Letter(x): n for x, n in pieces.items()}, DType.FP32)
    assert {t.value for task in graph.tasks if task.gathers for t in map(graph.tensors.__getitem__, task.operands[0])} == {"embed"}
    assert not any(graph.tensors[t].value == "embed" for task in graph.tasks if not task.gathers for t in task.reads())
    embed = np.arange(48, dtype=np.float32).reshape(12, 4)
    tokens = np.array([[5, 3, 11, 0, -100, 12], [0, 11, -1, 99, 9, 2]], np.int32)
    ln, late = np.array([4, 2], np.int32), np.array([[0, 0, 0, 0, 2, 3], [1, 0, 3, 2, 0, 5]], np.int32)
    (got,) = direct(graph, {"embed": embed, "tokens": tokens, "ln": ln, "late": late}).values()

    def holds(b: int, s: int) -> bool:
        return bool(eval(condition.replace("[b,s]", "[b][s]"), {"b": b, "s": s, "ln": ln, "late": late, "tokens": tokens, "vocab": 12}))

    want = [[embed[tokens[b][s]].tolist() if holds(b, s) else [7.0] * 4 for s in range(6)] for b in range(2)]
    assert got.tolist() == want
    tokens[0, 1] = 12
    if "tokens" not in condition:
        with pytest.raises(IndexOutOfRange, match=r"index 12 .*which has 12"):
            direct(graph, {"embed": embed, "tokens": tokens, "ln": ln, "late": late})


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
