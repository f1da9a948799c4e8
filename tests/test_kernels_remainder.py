"""`%` of values against numpy's, which is exact, whatever the quotient: one beyond fp32's largest number too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile.split import split
from einpage.kernels.instructions.calls import remainder
from einpage.kernels.prepare import Backend
from real_bytes import direct

SPEC = """\
einpage: 1
name: remainders
sizes: {{n: 150}}
axes: {{i: n}}
inputs: {{x: {{axes: i}}, d: {{axes: i}}}}
body: ["y[i] = x[i] % {divisor}", "z[i] = x[i] // {divisor}"]
outputs: {{y: {{axes: i}}, z: {{axes: i}}}}
"""
NUMBERS = st.floats(width=32)
LARGEST, LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)


@example([(1e30, 1e-9)], 17)
@example([(LARGEST, LEAST), (-LARGEST, LEAST), (LARGEST, -3 * LEAST)], 9)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40), st.integers(1, 17))
def test_remainders_are_those_of_numpy(pairs: list[tuple[float, float]], times: int) -> None:
    """Repeated, since vectors of equal numbers and what is left over at their ends are computed by different code."""
    x, y = (np.repeat(np.array(side, np.float32), times) for side in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        expected = np.mod(x, y)
    np.testing.assert_array_equal(remainder(torch.from_numpy(x), torch.from_numpy(y)).numpy(), expected)


@pytest.mark.parametrize("backend", [Backend.TORCH, pytest.param(Backend.TRITON, marks=pytest.mark.interpreter)])
@pytest.mark.parametrize("divisor", ["d[i]", "0.000000001", "0.5", "0.1", "7", "(-7)", "(d[i] * 1e-20)"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_remainders_of_a_spec(divisor: str, pieces: int, backend: Backend) -> None:
    program = elaborate(read_document(SPEC.format(divisor=divisor), "remainders.yaml"))
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(150) * 10.0 ** rng.integers(-10, 38, 150)).astype(np.float32)
    d = (rng.standard_normal(150) * 10.0 ** rng.integers(-20, 10, 150)).astype(np.float32)
    x[:9] = 0, 1, -1, 7.5, -7.5, 1e30, np.inf, np.nan, 3
    d[:9] = 3, 0, np.inf, 0.1, 0.1, 1e-9, 2, 2, -0.0
    y = np.asarray(eval(divisor.replace("d[i]", "d"), {"d": d}), np.float32)
    with np.errstate(all="ignore"):
        expected = np.mod(x, y), np.floor_divide(x, y)
    graph = split(fuse(program, ["y", "z"]), {"i": pieces}, DType.FP32)  # type: ignore[dict-item]
    found = direct(graph, {"x": x, "d": d}, backend)
    np.testing.assert_array_equal(found["y"].numpy(), expected[0])
    small = np.abs(expected[1]) < 2**24  # of larger quotients only the rounding may differ
    np.testing.assert_array_equal(found["z"].numpy()[small], expected[1][small])
