"""Flash attention compiled for GPUs that are not here, over head sizes, masks, ragged lengths, tiles of keys: it fits, nothing spills."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from kernels_build import fn, op
from kernels_cases import causal, flash_job

pytest.importorskip("triton")

from einpage.kernels.launch.candidates import candidates
from einpage.kernels.launch.usage import resources
from einpage.kernels.tiles.target import CAPABILITIES, Target

PLAIN = op("*", Acc(0), 0.125)


flash = partial(flash_job, s=2048, keys=8)

VARIANTS: dict[str, Callable[[DType, int], AttentionJob]] = {
    "causal": flash,
    "grouped": lambda dtype, head: flash(dtype, head, group=4),
    "full": lambda dtype, head: flash(dtype, head, score=PLAIN),
    "ragged": lambda dtype, head: flash(dtype, head, s=2011, group=2),
    "window": lambda dtype, head: flash(dtype, head, score=causal(Acc(0), op("<", op("-", "s", "t"), 512))),
    "capped": lambda dtype, head: flash(dtype, head, score=causal(op("*", fn("tanh", op("/", Acc(0), 50.0)), 50.0))),
    "tiles of keys": lambda dtype, head: flash(dtype, head, cuts=[700, 1400]),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
@pytest.mark.parametrize("head", [32, 64, 80, 96, 128, 256])
def test_no_attention_spills(head: int, dtype: DType, capability: int) -> None:
    jobs = {name: make(dtype, head) for name, make in VARIANTS.items()}
    for name, r in zip(jobs, resources(jobs.values(), Target(capability)), strict=True):
        assert r.fits, f"{name}: {r.error or r.shared_bytes}"
        assert not r.spills, f"{name}: {r.spills} spills, {r.registers} registers"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("head", [64, 128])
def test_no_attention_tile_that_is_offered_spills(head: int, name: str) -> None:
    job = VARIANTS[name](DType.BF16, head)
    for target in candidates(job, Target(90)):
        (r,) = resources([job], target)
        assert r.fits, f"{r.launch.tiles}: {r.error or r.shared_bytes}"
        assert not r.spills, f"{r.launch.tiles}: {r.spills} spills, {r.registers} registers"


def test_heads_of_128_by_tensor_cores_in_large_tiles() -> None:
    for capability in CAPABILITIES:
        (r,) = resources([flash(DType.FP16, 128, group=4)], Target(capability))
        assert r.fits and not r.spills
        assert (r.launch.tiles.rows, r.launch.tiles.columns) == (128, 64)
