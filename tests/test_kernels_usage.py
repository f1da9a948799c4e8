"""Generated kernels compiled for GPUs that are not here: what each kind needs fits, and no product and no attention spills."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import ContractJob
from kernels_cases import gated
from kernels_maps import rms_norm

pytest.importorskip("triton")

from bench.aot_table import MODELS, Model, faults, jobs_of, main, nameless
from einpage.kernels.launch import usage
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.launch.usage import Compiler, resources
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.target import CAPABILITIES, Choices, Target
from einpage.kernels.tiles.tiles import POINTWISE, Tiles
from einpage.kernels.writer.launch import Launch


def model(title: str, dtype: DType) -> Model:
    return next(m for m in MODELS if (m.title, m.dtype) == (title, dtype))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_llama_compile_and_fit(capability: int) -> None:
    """One of each kind at LLaMA-7B's real sizes, and fp32 products of SmolLM2; the whole table is `make kernels`."""
    names = jobs_of(model("LLaMA-7B", DType.FP16))
    names |= {j: t for j, t in jobs_of(model("SmolLM2", DType.FP32)).items() if isinstance(j, ContractJob) and len(j.contractions) == 2}
    kinds = {(type(j), len(j.reads), j.result.boxes[0].shape[:2], j.result.dtype): j for j in names}
    found = resources(kinds.values(), Target(capability))
    assert len(found) == 8, "norm, product, rotation, attention, product and sum, twin, last row's product, twin in fp32"
    for r in found:
        if isinstance(r.job, ContractJob) and r.job.result.dtype is DType.FP16 and r.job.result.boxes[0].shape[1] == 2048:
            assert r.tensor_core, f"{names[r.job]} has no tensor-core instruction"
            assert r.loop_tensor_core, f"{names[r.job]} has none in its loop"
            if capability == 90:
                assert r.loop_engine_loads >= 2, f"{names[r.job]} is not read by the copy engine"
            else:
                assert r.narrowest_copy == 16, f"{names[r.job]} copies {r.narrowest_copy} bytes at once"
        assert not faults(r), f"{names[r.job]} on sm_{capability}: {'; '.join(faults(r))} ({r.registers} registers)"


def test_a_tile_too_large_is_found() -> None:
    products = [j for j in jobs_of(model("LLaMA-7B", DType.FP16)) if isinstance(j, ContractJob)]
    (r,) = resources([next(j for j in products if len(j.contractions) == 2)], Target(80, Tiles(128, 128, 32, 8, 3)))
    assert [f.split(" ", 1)[1] for f in faults(r)] == ["spills"]
    (r,) = resources([products[0]], Target(90, Tiles(128, 128, 64, 8, 9)))
    assert "shared memory, over 232448" in faults(r)[0]


def test_factors_by_the_copy_engine_compile_with_warps_of_their_own() -> None:
    product = next(j for j in jobs_of(model("LLaMA-7B", DType.FP16)) if isinstance(j, ContractJob))
    (r,) = resources([product], Target(90, Tiles(128, 128, 64, 4, 4, descriptors=True, specialised=True)))
    assert not faults(r)
    assert len(r.launch.descriptors) == 2


def test_a_persistent_program_keeps_multiplying_and_stores_by_the_copy_engine() -> None:
    """One loop holds loads and products of all its blocks: 4 products a step of 64 elements, each of 16."""
    product = next(j for j in jobs_of(model("LLaMA-7B", DType.FP16)) if isinstance(j, ContractJob))
    tiles = Tiles(128, 256, 64, 8, 3, descriptors=True, persistent=True)
    (r,) = resources([product], Target(90, tiles))
    assert not faults(r)
    assert r.launch.tiles == tiles
    assert (r.loop_tensor_core, r.loop_engine_loads) == (4, 2)
    assert r.stored_bytes == 128 * 256 * 2
    (other,) = resources([product], Target(90, replace(tiles, persistent=False)))
    assert other.stored_bytes == other.engine_stores == 0


def test_fp32_by_tensor_cores_is_three_products_and_exact_is_none() -> None:
    product = next(j for j in jobs_of(model("LLaMA-7B", DType.FP32)) if isinstance(j, ContractJob))
    (r,) = resources([product], Target(90))
    assert (r.loop_tensor_core, r.launch.way) == (3 * 32 // 8, "TMA, tf32x3"), "a tensor core takes 8 elements of tf32 at once"
    (exact,) = resources([product], Target(90, choices=Choices(Fp32Products.IEEE)))
    assert (exact.tensor_core, exact.launch.way) == (0, "pointers, ieee")
    assert not faults(r) and not faults(exact)


def test_kernels_that_differ_in_names_alone_are_compiled_once() -> None:
    text = 'def f(a_ptr):\n    """a"""\n    a = tl.load(a_ptr)  # [s]\n'
    assert nameless(text) == nameless(text.replace("a_ptr", "b_ptr").replace("[s]", "[t]").replace('"a"', '"b"'))
    assert nameless(text) != nameless(text.replace("load(a_ptr)", "load(a)"))


def test_what_does_not_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "import triton\n\n\n@triton.jit\ndef map_kernel(x_ptr, w_ptr, out_ptr):\n    nowhere + 1\n"
    monkeypatch.setattr(usage, "launches_of", lambda job, target: [Launch(broken, ((0, 0, 0), (1, 0, 0)), (), (), (), 1, POINTWISE)])
    (r,) = resources([rms_norm().job], Target(90))
    assert "nowhere is not defined" in r.error
    assert not r.fits


def test_a_kernel_that_takes_too_long_is_given_up_and_the_next_compiles() -> None:
    job = gated(s=70, f=90).job
    assert isinstance(job, ContractJob)
    (launch,) = launches_of(job, Target(90))
    request = json.dumps(usage._request(job, launch, 90))
    compiler = Compiler()
    try:
        assert compiler.ask(request, 0.0)["error"] == "no answer in 0 s"
        assert not compiler.ask(request, 60.0)["error"]
    finally:
        compiler.close()


def test_equal_sources_are_compiled_once() -> None:
    job = rms_norm().job
    assert len(resources([job, job], Target(90))) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_table_and_every_tile_it_offers() -> None:
    assert main(["--variants"]) == 0
