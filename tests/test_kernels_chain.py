"""Chains of contraction jobs: the sum split over jobs equals the sum in one, accumulators updated in place or not, on both backends."""

from __future__ import annotations

import pytest
import torch

from einpage.kernels.prepare import Backend
from kernels_cases import CONTRACTS
from kernels_chain import run_chain
from kernels_naive import assert_right

CHAINS = {
    "project": "m",
    "project_bf16": "m",
    "gated": "m",
    "fewer_letters": "m",
    "unproject": "g",
    "with_bias": "m",
    "scattered": "t",
    "batched": "t",
    "scalar_product": "m",
}


@pytest.mark.parametrize("backend", [Backend.TORCH, pytest.param(Backend.TRITON, marks=pytest.mark.interpreter)])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_the_whole_sum(name: str, backend: Backend) -> None:
    case = CONTRACTS[name]()
    extent = next(r for r in case.job.ranges if r.letter == CHAINS[name]).extent
    pieces = sorted({extent // 3, 2 * extent // 3} - {0})
    apart = run_chain(case, CHAINS[name], pieces, backend, in_place=False)
    assert_right(case, apart, f" ({name})")
    assert torch.equal(apart, run_chain(case, CHAINS[name], pieces, backend, in_place=True)), (
        f"{name} differs where accumulators are updated in place"
    )
