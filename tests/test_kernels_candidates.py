"""Every tile that the tables offer, whole, in Triton's interpreter: over ragged sizes it gives what the plain-torch twin gives.

Sizes are multiples of eight elements, so that the copy engine could read and write them, and of no tile. That the compiled kernels fit and
do not spill is for `make kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from einpage.einsum_front.algebra.expr import Acc, Expr
from einpage.einsum_front.base.dtype import Checked, DType
from einpage.einsum_front.graph.job import AttentionJob, Box, Contraction, ContractJob, View
from kernels_build import fill, fn, ld, letters, op, view
from kernels_cases import causal, contract, flash_job
from kernels_naive import TOLERANCE, Case, assert_right

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

from einpage.kernels.launch.candidates import candidates  # noqa: E402
from einpage.kernels.launch.kernel import TritonKernel, launches_of, triton_kernel  # noqa: E402
from einpage.kernels.prepare import Backend, prepare  # noqa: E402
from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_variants  # noqa: E402
from einpage.kernels.tiles.fp32_products import Fp32Products  # noqa: E402
from einpage.kernels.tiles.product_tiles import ProductShape, ShapeClass, shape_class, variants  # noqa: E402
from einpage.kernels.tiles.target import CAPABILITIES, Choices, Target  # noqa: E402
from einpage.kernels.tiles.tiles import Tiles  # noqa: E402
from einpage.kernels.writer import kernel_text  # noqa: E402
from einpage.kernels.writer.launch import RESULT, Launch  # noqa: E402

BF, HF, F = DType.BF16, DType.FP16, DType.FP32
FEW_PROGRAMS = 3
"""Of a persistent kernel: each computes several blocks."""
SHAPES = {
    ShapeClass.DECODE: ProductShape(BF, 1, 1, 32000, 4096, 1),
    ShapeClass.NARROW: ProductShape(BF, 1, 40, 4096, 4096, 1),
    ShapeClass.FEW: ProductShape(BF, 1, 512, 576, 576, 1),
    ShapeClass.SQUARE: ProductShape(BF, 32, 200, 200, 128, 1),
    ShapeClass.LARGE: ProductShape(BF, 1, 2048, 4096, 4096, 1),
    ShapeClass.TWO_SUMS: ProductShape(BF, 1, 2048, 11008, 4096, 2),
    ShapeClass.MANY_SUMS: ProductShape(BF, 1, 2048, 4096, 4096, 3),
}


def tiles_of(capability: int, dtype: DType, asked: Fp32Products = Fp32Products.TF32X3) -> list[Tiles]:
    """Every tile of products that the tables of one architecture offer, each once."""
    shapes = [ProductShape(dtype, s.batch, s.rows, s.columns, s.inner, s.sums) for s in SHAPES.values()]
    return list(dict.fromkeys(t for shape in shapes for t in variants(shape, capability, asked)))


def added(dtype: DType, s: int = 148) -> Case:
    """y[b,s,k,e] = x[b,s,k,e] + h[b,s,m] w[k,e,m]: joined letters, a sum whose last step is a part, an operand in the epilogue."""
    return contract(
        ld("h", *"bsm"),
        ld("w", *"kem"),
        "m",
        "bske",
        {"b": 2, "s": s, "k": (1, 4), "e": 88, "m": (16, 216)},
        (view("h", 2, s, 216, dtype=dtype), view("w", 4, 88, 216, dtype=dtype), view("x", 2, s, 4, 88, dtype=dtype)),
        op("+", ld("x", *"bske"), Acc(0)),
        dtype,
    )


def plain(dtype: DType) -> Case:
    reads = (view("h", 150, 104, dtype=dtype), view("w", 168, 104, dtype=dtype), view("bias", 168, dtype=dtype))
    extent: dict[str, int | tuple[int, int]] = {"s": 150, "f": 168, "m": 104}
    return contract(ld("h", *"sm"), ld("w", *"fm"), "m", "sf", extent, reads, op("+", Acc(0), ld("bias", "f")), dtype)


def twin(dtype: DType, s: int = 200) -> Case:
    """silu(h w1) * (h w3), the weights as [in, out]."""
    return contract(
        ld("h", *"sm"),
        ld("w1", *"mf"),
        "m",
        "sf",
        {"s": s, "f": 264, "m": 136},
        (view("h", s, 136, dtype=dtype), view("w1", 136, 264, dtype=dtype), view("w3", 136, 264, dtype=dtype)),
        op("*", fn("silu", Acc(0)), Acc(1)),
        dtype,
        (Contraction(ld("h", *"sm"), ld("w3", *"mf"), letters("m")),),
    )


def assert_like_twin(case: Case, target: Target) -> Launch:
    """What the interpreter makes of `case` is what plain torch makes of it. Returns the launch."""
    found, wanted = case.poisoned(), case.poisoned()
    triton_kernel(case.job, target)(case.operands(), found, None)
    prepare(case.job, Backend.TORCH)(case.operands(), wanted, None)
    worst = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    assert worst <= TOLERANCE[case.job.result.dtype], f"{case.job.result.name}: relative error {float(worst):.2e}"
    assert isinstance(case.job, ContractJob | AttentionJob)
    (launch,) = launches_of(case.job, target)
    return launch


# products


@pytest.mark.parametrize("make", [added, twin], ids=lambda f: f.__name__)
@pytest.mark.parametrize("tiles", tiles_of(90, HF), ids=lambda t: f"{t.rows}x{t.columns}x{t.inner}-{t.warps}-{t.stages}-{t.way}")
def test_every_product_tile_of_sm_90(tiles: Tiles, make: Callable[[DType, int], Case]) -> None:
    launch = assert_like_twin(make(HF, tiles.rows + 20), Target(90, tiles, multiprocessors=FEW_PROGRAMS))
    assert launch.tiles == tiles, "nothing keeps the copy engine from what this case reads and writes"
    assert bool(launch.descriptors) == tiles.descriptors
    assert any(d.operand == RESULT for d in launch.descriptors) == tiles.persistent


@pytest.mark.parametrize("asked", list(Fp32Products))
def test_every_product_tile_of_fp32(asked: Fp32Products) -> None:
    for tiles in dict.fromkeys(t for capability in CAPABILITIES for t in tiles_of(capability, F, asked)):
        launch = assert_like_twin(plain(F), Target(90, tiles, choices=Choices(asked)))
        assert (launch.tiles, launch.fp32_products) == (tiles, asked)


def test_every_product_tile_of_older_gpus() -> None:
    for tiles in dict.fromkeys(t for capability in (80, 86) for t in tiles_of(capability, BF)):
        assert assert_like_twin(plain(BF), Target(80, tiles)).tiles == tiles


@pytest.mark.parametrize("shape", list(ShapeClass))
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [BF, F])
def test_every_class_has_a_tile_by_pointers(shape: ShapeClass, capability: int, dtype: DType) -> None:
    """Which is used where the copy engine cannot read."""
    p = SHAPES[shape]
    assert shape_class(p) is shape
    p = ProductShape(dtype, p.batch, p.rows, p.columns, p.inner, p.sums)
    assert any(not t.descriptors and not t.persistent and not t.specialised for t in variants(p, capability))
    assert all(t.descriptors or not (t.persistent or t.specialised) for t in variants(p, capability))


@pytest.mark.parametrize(("shape", "by_engine"), [(s, s not in (ShapeClass.DECODE, ShapeClass.MANY_SUMS)) for s in SHAPES])
def test_the_copy_engine_reads_by_default_on_sm_90(shape: ShapeClass, by_engine: bool) -> None:
    assert variants(SHAPES[shape], 90)[0].descriptors == by_engine
    assert not variants(SHAPES[shape], 80)[0].descriptors


# the persistent kernel

PERSISTENT = Tiles(32, 32, 16, 4, 2, group=2, descriptors=True, persistent=True)


@pytest.mark.parametrize("programs", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("dtype", [F, BF, HF])
def test_blocks_taken_one_after_the_other(programs: int, dtype: DType) -> None:
    """Whether they divide the blocks or not, or are more; rows, columns and the sum ragged."""
    case = contract(
        ld("h", *"sm"),
        ld("w", *"fm"),
        "m",
        "sf",
        {"s": 100, "f": 88, "m": 56},
        (view("h", 100, 56, dtype=dtype), view("w", 88, 56, dtype=dtype), view("c", 88, dtype=dtype), view("x", 100, 88, dtype=dtype)),
        op("+", fn("gelu", op("+", Acc(0), ld("c", "f"))), ld("x", *"sf")),
        dtype,
    )
    target = Target(90, PERSISTENT, multiprocessors=programs)
    launch = assert_like_twin(case, target)
    assert launch.programs == min(programs, 12), "4 blocks of rows by 3 of columns"
    assert "flatten=True" in launch.text
    assert launch.text.count("out_desc.store(") == 2 and "tl.store" not in launch.text
    assert launch.stored_elements == 32 * 32
    found = case.poisoned()
    triton_kernel(case.job, target)(case.operands(), found, None)
    assert_right(case, found)


def test_two_sums_in_a_persistent_program() -> None:
    assert assert_like_twin(twin(BF), Target(90, PERSISTENT, multiprocessors=5)).tiles.persistent


def test_a_persistent_program_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "MOST_IN_32_BITS", 0)
    assert "tl.int64" in assert_like_twin(added(HF), Target(90, PERSISTENT, multiprocessors=5)).text


@pytest.mark.parametrize(
    ("f", "m", "why"),
    [(90, 56, "rows of the result start between multiples of 16 bytes"), (88, 16, "one step is no loop")],
    ids=["odd columns", "one step"],
)
def test_what_cannot_be_persistent_is_another_tile_of_the_table(f: int, m: int, why: str) -> None:
    reads = (view("h", 100, m, dtype=HF), view("w", f, m, dtype=HF))
    case = contract(ld("h", *"sm"), ld("w", *"fm"), "m", "sf", {"s": 100, "f": f, "m": m}, reads, dtype=HF)
    launch = assert_like_twin(case, Target(90, PERSISTENT, multiprocessors=5))
    assert not launch.tiles.persistent, why
    assert launch.tiles.descriptors and all(d.operand != RESULT for d in launch.descriptors)


def test_parts_of_a_split_sum_are_not_persistent() -> None:
    """They are stored as they are, without the epilogue, and in fp32."""
    case = plain(HF)
    assert isinstance(case.job, ContractJob)
    box = case.job.result.boxes[0]
    part = replace(case.job, result=View("part", F, (Box((0, *box.start), (1, *box.end)),)), last=False)
    launch = assert_like_twin(Case(part, case.values), Target(90, PERSISTENT))
    assert not launch.tiles.persistent


def test_a_flag_is_written_by_programs_that_store_themselves() -> None:
    """The launch that lowers it before is none of the ways in which products are written."""
    job, target = twin(HF).job, Target(90, PERSISTENT)
    assert isinstance(job, ContractJob)
    checked = replace(job, result=replace(job.result, element_type=Checked(HF)))
    kernel, (lowers, launch) = triton_kernel(checked, target), launches_of(checked, target)
    assert launch.tiles.descriptors and not launch.tiles.persistent
    assert "tl.store" in launch.text and ", 0.0)" in lowers.text
    assert isinstance(kernel, TritonKernel) and kernel.ways == (f"product by {launch.way}",)


# attention


def flash(dtype: DType, head: int, s: int = 136, group: int = 1, score: Expr | None = None, cuts: list[int] | None = None) -> Case:
    return fill(flash_job(dtype, head, s, 2, group, score, cuts))


WINDOW = causal(Acc(0), op("<", op("-", "s", "t"), 70))
MASKS: dict[str, Expr] = {"causal": causal(), "full": op("*", Acc(0), 0.125), "window": WINDOW}
LARGE_HEADS = [(head, t) for head in (64, 128) for t in attention_variants(AttentionShape(HF, head, 32, 4096, 4096, 1), 90)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("head", "tiles"), LARGE_HEADS, ids=lambda x: x if isinstance(x, int) else f"{x.rows}x{x.columns}-{x.warps}-{x.way}"
)
def test_every_attention_tile_of_sm_90(head: int, tiles: Tiles, mask: str) -> None:
    launch = assert_like_twin(flash(HF, head, score=MASKS[mask]), Target(90, attention=tiles))
    assert launch.tiles == tiles
    assert len(launch.descriptors) == (3 if tiles.specialised else 2 if tiles.descriptors else 0)


@pytest.mark.parametrize("specialised", [False, True])
def test_keys_that_the_engine_brings_end_with_their_sequence(specialised: bool) -> None:
    """NaN and infinity of the next sequence are none of this one's, though the block of keys reaches beyond its end."""
    case = flash(F, 64, s=72, score=op("*", Acc(0), 0.125))
    for name in ("k", "v"):
        case.values[name][1] = float("inf")
    tiles = Tiles(64, 64, 0, 4, 2, descriptors=True, specialised=specialised)
    found, wanted = case.poisoned(), case.poisoned()
    triton_kernel(case.job, Target(90, attention=tiles))(case.operands(), found, None)
    prepare(case.job, Backend.TORCH)(case.operands(), wanted, None)
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-5 * float(wanted[0].abs().max()))


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (flash(HF, 64, s=72, cuts=[40]), "keys lie in two tiles"),
        (flash(HF, 40, s=72), "a block of 64 elements would reach into the next head"),
        (flash(HF, 64, s=72, score=op("+", Acc(0), 0.5)), ""),
    ],
    ids=["tiles", "narrow", "plain"],
)
def test_keys_by_pointers_where_the_engine_cannot_read_them(case: Case, why: str) -> None:
    launch = assert_like_twin(case, Target(90, attention=Tiles(32, 32, 0, 4, 2, descriptors=True)))
    assert bool(launch.descriptors) == (not why), why


def test_grouped_queries_are_no_matrix_for_specialised_warps() -> None:
    case, tiles = flash(HF, 64, s=72, group=2), Tiles(32, 32, 0, 4, 2, descriptors=True, specialised=True)
    assert not assert_like_twin(case, Target(90, attention=tiles)).tiles.specialised
    assert assert_like_twin(case, Target(90, attention=Tiles(32, 32, 0, 4, 2, descriptors=True))).descriptors


@pytest.mark.parametrize(("head", "way"), [(64, Fp32Products.TF32X3), (128, Fp32Products.IEEE)])
def test_attention_of_fp32_is_exact_where_tensor_cores_take_too_many_registers(head: int, way: Fp32Products) -> None:
    assert assert_like_twin(flash(F, head, s=40), Target(90)).fp32_products is way


@pytest.mark.parametrize("dtype", [F, BF])
def test_attention_by_the_engine_in_64_bits(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "MOST_IN_32_BITS", 0)
    for specialised in (False, True):
        target = Target(90, attention=Tiles(32, 32, 0, 4, 2, descriptors=True, specialised=specialised))
        assert assert_like_twin(flash(dtype, 32, s=80), target).descriptors


# what is offered


def test_candidates_are_distinct_kernels_written_as_asked() -> None:
    for job in (plain(HF).job, plain(F).job, flash(HF, 128).job, flash(HF, 40).job, flash(F, 64).job):
        assert isinstance(job, ContractJob | AttentionJob)
        found = candidates(job, Target(90))
        launches = [launches_of(job, target)[0] for target in found]
        assert found[0] == Target(90)
        assert len({launch.compiled_as for launch in launches}) == len(launches) > 1
        for target, launch in zip(found[1:], launches[1:], strict=True):
            assert launch.tiles == (target.product or target.attention)
    fp32 = {launches_of(plain(F).job, target)[0].fp32_products for target in candidates(plain(F).job, Target(90))}  # type: ignore[arg-type]
    assert fp32 == set(Fp32Products)
