"""The generated kernels compiled and run on a GPU: the cases of the interpreter's tests, large ragged sizes, random jobs.

Small cases are judged by the naive fp64 definition, large ones by the plain-torch twin on the CPU; results are poisoned first. Needs a CUDA
device, and Triton compiling: run with TRITON_INTERPRET=0 (`bench/gpu.sh --only tests` does).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Contraction, GatherJob
from einpage.kernels.errors import Unsupported
from einpage.kernels.prepare import Backend, prepare
from kernels_build import fn, ld, letters, op, view
from kernels_cases import ATTENTIONS, CONTRACTS, attention, contract, gated, project
from kernels_maps import MAPS, rms_norm, rotation
from kernels_naive import TOLERANCE, Case, assert_near, assert_right
from kernels_strategies import contract_jobs, map_jobs

pytest.importorskip("triton")

from einpage.kernels.launch.kernel import triton_kernel
from einpage.kernels.launch.this_gpu import current_target
from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_variants
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.product_tiles import ProductShape, variants
from einpage.kernels.tiles.target import Choices, Target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="needs a CUDA device and TRITON_INTERPRET=0"
    ),
]

F, BF, HF = DType.FP32, DType.BF16, DType.FP16
HALVES = (BF, HF)
SMALL = {**MAPS, **CONTRACTS, **ATTENTIONS}
RAGGED = ((1, 1, 1), (17, 129, 65), (128, 128, 64), (1, 4097, 96), (333, 517, 1029), (129, 255, 2048), (1000, 72, 7))
"""Rows, columns, inner."""


def on_gpu(case: Case, target: Target | None = None) -> torch.Tensor:
    """The compiled kernel's result, brought back. Raises Unsupported."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernel = prepare(case.job, Backend.TRITON) if target is None else triton_kernel(case.job, target)
    operands = tuple(tuple(t.to(device) for t in tiles) for tiles in case.operands())
    out = case.poisoned().to(device)
    kernel(operands, out, None)
    return out.cpu()


def assert_like_twin(case: Case, got: torch.Tensor) -> None:
    wanted = case.poisoned()
    prepare(case.job, Backend.TORCH)(case.operands(), wanted, None)
    assert torch.equal(got.isnan(), wanted.isnan()), f"{case.job.result.name}: NaN in the wrong places"
    worst = (got.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    limit = TOLERANCE[case.job.result.dtype]
    assert worst <= limit, f"{case.job.result.name}: relative error {float(worst):.2e} over {limit:.0e}"


@pytest.mark.parametrize("name", SMALL)
def test_equals_the_naive_definition(name: str) -> None:
    case = SMALL[name]()
    assert not isinstance(case.job, GatherJob)
    assert_right(case, on_gpu(case), f" ({name})")


@pytest.mark.parametrize("dtype", [F, BF, HF], ids=lambda d: d.value)
@pytest.mark.parametrize("shape", RAGGED, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(("x", "w"), [("sm", "fm"), ("ms", "mf")], ids=["summed last", "summed first"])
def test_ragged_products(x: str, w: str, shape: tuple[int, int, int], dtype: DType) -> None:
    """Factors as activations and checkpoints hold them, and with the summed letter outermost."""
    extent = dict(zip("sfm", shape, strict=True))
    reads = tuple(view(name, *(extent[c] for c in axes), dtype=dtype) for name, axes in (("x", x), ("w", w)))
    case = contract(ld("x", *x), ld("w", *w), "m", "sf", {**extent}, reads, dtype=dtype)
    assert_like_twin(case, on_gpu(case))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.value)
@pytest.mark.parametrize(("s", "f"), [(1, 200), (130, 300), (517, 128)])
def test_ragged_twins(s: int, f: int, dtype: DType) -> None:
    case = gated(dtype, s, f)
    assert_like_twin(case, on_gpu(case))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.value)
def test_projections_of_many_rows(dtype: DType) -> None:
    case = project(dtype, s=515, m=257)
    assert_like_twin(case, on_gpu(case))


def multiplied(dtype: DType, sums: int, s: int = 300, f: int = 520, m: int = 200) -> Case:
    """One sum, or the product of two; sizes that the copy engine can read and write, and that no tile divides."""
    reads = (view("h", s, m, dtype=dtype), *(view(f"w{n}", f, m, dtype=dtype) for n in range(sums)))
    more = tuple(Contraction(ld("h", *"sm"), ld(f"w{n}", *"fm"), letters("m")) for n in range(1, sums))
    epilogue = Acc(0) if sums == 1 else op("*", fn("silu", Acc(0)), Acc(1))
    return contract(ld("h", *"sm"), ld("w0", *"fm"), "m", "sf", {"s": s, "f": f, "m": m}, reads, epilogue, dtype, more)


@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("dtype", [F, BF, HF], ids=lambda d: d.value)
def test_every_tile_of_large_products(dtype: DType, sums: int) -> None:
    """Those whose warps are specialised are for `bench/gpu.sh --parts tiles`, which ends what never does."""
    target, case = current_target(), multiplied(dtype, sums)
    for way in Fp32Products if dtype is F else [target.fp32_products]:
        for tiles in variants(ProductShape(dtype, 1, 4096, 8192, 4096, sums), target.capability, way):
            if not tiles.specialised:
                asked = replace(target, product=tiles, multiprocessors=4, choices=Choices(way))
                assert_like_twin(case, on_gpu(case, asked))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.value)
@pytest.mark.parametrize("head", [64, 128])
def test_every_tile_of_attention(head: int, dtype: DType) -> None:
    target, case = current_target(), attention(dtype, s=(0, 520), e=head // 2, b=2)
    for tiles in attention_variants(AttentionShape(dtype, head, 32, 4096, 4096, 1), target.capability):
        if not tiles.specialised:
            assert_like_twin(case, on_gpu(case, replace(target, attention=tiles)))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.value)
@pytest.mark.parametrize("e", [16, 32, 64, 128])
@pytest.mark.parametrize("s", [1, 17, 129, 515])
def test_ragged_attention(s: int, e: int, dtype: DType) -> None:
    """Heads of 2 e, grouped, causal; keys in two boxes where there are enough."""
    case = attention(dtype, s=(0, s), e=e, b=1, cuts=[s // 2] if s > 100 else None)
    assert_like_twin(case, on_gpu(case))


@pytest.mark.parametrize("dtype", [F, BF, HF], ids=lambda d: d.value)
@pytest.mark.parametrize(("s", "m"), [(1, 1), (3, 4096), (2, 5001), (700, 576), (5, 11008)])
def test_ragged_rows(s: int, m: int, dtype: DType) -> None:
    case = rms_norm(dtype, s, m)
    assert_like_twin(case, on_gpu(case))


@pytest.mark.parametrize("dtype", [F, BF, HF], ids=lambda d: d.value)
def test_rotations(dtype: DType) -> None:
    case = rotation(dtype, s0=1)
    assert_right(case, on_gpu(case))


@given(st.one_of(map_jobs(), contract_jobs()))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_random_jobs(case: Case) -> None:
    try:
        found = on_gpu(case)
    except Unsupported:
        assume(False)
        return
    assert_near(case, found)
