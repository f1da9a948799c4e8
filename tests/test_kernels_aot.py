"""Generated kernels compiled for GPUs that are not here: what each kind needs fits, and nothing spills."""

from __future__ import annotations

import pytest

from einpage.einsum_front.dtype import DType
from kernels_build import ld, view
from kernels_cases import attention, contract, gated
from kernels_maps import rms_norm, rotation

pytest.importorskip("triton")

from einpage.kernels.aot import SHARED_LIMIT, resources
from einpage.kernels.triton_launch import Launch
from einpage.kernels.triton_tiles import POINTWISE

SIN_COS_STACK = 32


def wide(dtype: DType) -> object:
    """A projection of real size, so that the table's largest tile is used."""
    return contract(
        ld("h", *"sm"),
        ld("w", *"fm"),
        "m",
        "sf",
        {"s": 256, "f": 512, "m": 256},
        (view("h", 256, 256, dtype=dtype), view("w", 512, 256, dtype=dtype)),
        dtype=dtype,
    ).job


@pytest.mark.parametrize("capability", sorted(SHARED_LIMIT))
def test_kernels_compile_and_fit(capability: int) -> None:
    jobs = [
        rms_norm(m=576).job,
        rotation().job,
        gated(s=70, f=90).job,
        wide(DType.FP32),
        wide(DType.BF16),
        attention(DType.BF16, s=(0, 100), e=32).job,
    ]
    for r in resources(jobs, capability):  # type: ignore[arg-type]
        assert r.fits, f"{r.name} wants {r.shared_bytes} bytes of shared memory on sm_{capability}"
        assert r.stack_bytes <= SIN_COS_STACK, f"{r.name} spills: {r.stack_bytes} bytes of stack, {r.registers} registers"


def test_what_does_not_compile_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from einpage.kernels import aot

    broken = "import triton\n\n\n@triton.jit\ndef map_kernel(x_ptr, w_ptr, out_ptr):\n    nowhere + 1\n"
    monkeypatch.setattr(aot, "launches_of", lambda job, target: [Launch(broken, ((0, 0, 0), (1, 0, 0)), (), 1, POINTWISE)])
    with pytest.raises(RuntimeError, match="nowhere"):
        resources([rms_norm().job], 90)
