"""How fp32 is multiplied by tensor cores: what three products of tf32 lose, computed bit by bit, is within what is promised.

No interpreter shows it (Triton's multiplies exactly, whatever is asked), so the arithmetic stands here a second time.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import DType
from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_products
from einpage.kernels.tiles.fp32_products import ERROR, Fp32Products
from einpage.kernels.tiles.product_tiles import ProductShape, variants
from einpage.kernels.tiles.target import CAPABILITIES, Choices, Target
from einpage.kernels.tiles.tiles import SHARED_LIMIT

Floats = NDArray[np.float32]
DROPPED = 13
"""Bits of an fp32 that tf32 does not have."""


def rounded(x: Floats) -> Floats:
    """`x` in tf32, to nearest, halves away from zero (`cvt.rna.tf32`)."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(1 << DROPPED - 1)) & np.uint32(-(1 << DROPPED) & 0xFFFFFFFF)).view(np.float32)


def cut(x: Floats) -> Floats:
    """`x` in tf32 as a tensor core reads it that nobody rounded for."""
    return (x.view(np.uint32) & np.uint32(-(1 << DROPPED) & 0xFFFFFFFF)).view(np.float32)


def three_products(x: Floats, y: Floats) -> NDArray[np.float64]:
    """Each x y as tensor cores have it; a product of two tf32 is exact in fp64."""
    x_big, y_big = rounded(x), rounded(y)
    x_small, y_small = cut(x - x_big), cut(y - y_big)
    return sum((a.astype(np.float64) * b for a, b in ((x_small, y_big), (x_big, y_small), (x_big, y_big))), np.zeros(()))


normal = st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 2.0**-60)


@given(normal, normal)
def test_three_products_lose_less_than_promised(a: float, b: float) -> None:
    x, y = np.float32([a]), np.float32([b])
    exact = float(a) * float(b)
    assert abs(three_products(x, y)[0] - exact) <= ERROR[Fp32Products.TF32X3] * abs(exact)


def test_the_promise_is_not_far_from_what_is_lost_and_one_product_breaks_it() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(1, 2, 1 << 20).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) * y
    promised = ERROR[Fp32Products.TF32X3]
    worst = (np.abs(three_products(x, y) - exact) / exact).max()
    assert promised / 3 < worst <= promised
    one = np.abs(rounded(x).astype(np.float64) * rounded(y) - exact) / exact
    assert one.max() > 500 * promised


def test_sums_of_three_products_are_as_near_as_those_of_fp32() -> None:
    """4096 terms, as in a projection of LLaMA-7B: relative to the sum of magnitudes, fp32's own rounding is of the same size."""
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((64, 4096)).astype(np.float32) for _ in range(2))
    exact, size = (x.astype(np.float64) * y).sum(1), np.abs(x.astype(np.float64) * y).sum(1)
    ours = np.abs(three_products(x, y).sum(1) - exact) / size
    fp32 = np.abs(np.cumsum(x * y, axis=1, dtype=np.float32)[:, -1] - exact) / size
    assert ours.max() < fp32.max() < 1e-5


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_each_way_has_tiles_of_its_own(capability: int) -> None:
    p = ProductShape(DType.FP32, 1, 2048, 4096, 4096, 1)
    exact, by_tensor_cores = (variants(p, capability, way) for way in (Fp32Products.IEEE, Fp32Products.TF32X3))
    assert exact[0] != by_tensor_cores[0]
    assert variants(p, capability) == by_tensor_cores == Target(capability).products(p)
    assert Target(capability, choices=Choices(Fp32Products.IEEE)).products(p) == exact
    assert all((t.stages - 1) * (t.rows + t.columns) * t.inner * 4 <= SHARED_LIMIT[capability] for t in (*exact, *by_tensor_cores))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_is_asked_to_be_exact_is(capability: int) -> None:
    for head in (32, 64, 80, 128, 256):
        p = AttentionShape(DType.FP32, head, 1, 2048, 2048, 1)
        assert attention_products(p, capability, Fp32Products.IEEE) is Fp32Products.IEEE
        wanted = Fp32Products.TF32X3 if head <= 64 else Fp32Products.IEEE
        assert attention_products(p, capability, Fp32Products.TF32X3) is wanted
