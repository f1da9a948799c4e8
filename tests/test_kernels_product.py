"""The matrix product's loop in Triton's interpreter: split where tiles end, addresses by one number or by letters, a loop for two sums."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Contraction, ContractJob
from kernels_build import fn, ld, letters, op, view
from kernels_cases import CONTRACTS, contract, gated
from kernels_naive import Case, assert_near, assert_right
from kernels_strategies import contract_jobs

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

from einpage.kernels.launch.kernel import kernel_sources, triton_kernel  # noqa: E402
from einpage.kernels.tiles.product_tiles import ProductShape, ShapeClass, product_tiles, shape_class, variants  # noqa: E402
from einpage.kernels.tiles.target import CAPABILITIES, Target, table_of  # noqa: E402
from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles  # noqa: E402
from einpage.kernels.writer import kernel_text  # noqa: E402

SMALL = Target(product=Tiles(16, 16, 16, 4, 1, group=2))
ENGINE = Target(product=Tiles(16, 32, 16, 4, 2, descriptors=True, specialised=True))
BF = DType.BF16


def assert_product(case: Case, target: Target = SMALL) -> str:
    """The case is right, and its source."""
    out = case.poisoned()
    triton_kernel(case.job, target)(case.operands(), out, None)
    assert_right(case, out)
    (text,) = kernel_sources(case.job, target)
    return text


def plain(
    s: int, f: int, m: int, x: dict[int, list[int]] | None = None, y: dict[int, list[int]] | None = None, transposed: bool = False
) -> Case:
    """h[s,m] against w[f,m], or w[m,f] where `transposed`, in tiles that end at `x` and `y`."""
    w, shape = (ld("w", *"mf"), (m, f)) if transposed else (ld("w", *"fm"), (f, m))
    return contract(ld("h", *"sm"), w, "m", "sf", {"s": s, "f": f, "m": m}, (view("h", s, m, cuts=x), view("w", *shape, cuts=y)))


def two_inner(e: int, dtype: DType = DType.FP32) -> Case:
    """k and e are two steps apart in h, so that they cannot be one index."""
    return contract(
        ld("h", *"kse"),
        ld("w", *"fke"),
        "ke",
        "sf",
        {"s": 20, "f": 18, "k": 3, "e": e},
        (view("h", 3, 20, e, dtype=dtype), view("w", 18, 3, e, dtype=dtype)),
        dtype=dtype,
    )


def test_nothing_is_masked_where_all_divides() -> None:
    text = assert_product(plain(32, 48, 64))
    assert "mask" not in text
    assert text.count("for ") == 1


def test_only_the_last_step_of_a_ragged_sum_is_masked() -> None:
    text = assert_product(plain(32, 16, 56))
    loop, after = text.split("for ")[1].split("acc0 = tl.dot", 1)
    assert "mask" not in loop
    assert after.count("mask=(tl.arange(0, INNER)") == 2


def test_rows_apart_in_memory_are_held_inside_and_side_by_side_masked() -> None:
    text = assert_product(plain(19, 21, 32, transposed=True))
    assert "row_inside = tl.minimum(row, 18)" in text
    assert "mask=col_mask" in text.split("for ")[1].splitlines()[2]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("x", "y"), [({1: [16, 40]}, None), (None, {0: [20], 1: [24]}), ({0: [7], 1: [32]}, {0: [16]}), ({1: [5]}, {1: [9]})]
)
def test_factors_in_several_tiles(x: dict[int, list[int]] | None, y: dict[int, list[int]] | None, transposed: bool) -> None:
    assert_product(plain(21, 30, 64, x, y, transposed))


def test_a_sum_over_tiles_is_one_loop_a_tile() -> None:
    text = assert_product(plain(16, 16, 96, x={1: [32, 64]}))
    assert text.count("for ") == 3
    assert "tl.where" not in text


def test_tiles_of_rows_are_chosen_once_before_the_loop() -> None:
    text = assert_product(plain(40, 16, 64, x={0: [13, 30]}))
    before, loop = text.split("for ")
    assert before.count("tl.where") == 2
    assert "tl.where" not in loop


@pytest.mark.parametrize("dtype", [DType.FP32, BF])
@pytest.mark.parametrize(("e", "by_letters"), [(16, False), (48, False), (20, True), (3, True)])
def test_inner_letters_that_are_not_one_index(e: int, by_letters: bool, dtype: DType) -> None:
    text = assert_product(two_inner(e, dtype))
    assert ("lane" in text) == by_letters


def test_two_sums_over_one_factor_load_it_once() -> None:
    text = assert_product(gated(s=20, f=40))
    assert text.count("tl.load(h_at") == 2, "one whole step, one for the ragged end"
    assert text.count("tl.dot") == 4


def test_a_shared_factor_on_the_right() -> None:
    second = Contraction(ld("g", *"sm"), ld("w", *"fm"), letters("m"))
    case = contract(
        ld("h", *"sm"),
        ld("w", *"fm"),
        "m",
        "sf",
        {"s": 18, "f": 17, "m": 32},
        (view("h", 18, 32), view("w", 17, 32), view("g", 18, 32)),
        op("*", fn("tanh", Acc(0)), Acc(1)),
        more=(second,),
    )
    text = assert_product(case)
    assert text.count("for ") == 1
    assert text.count("tl.load(w_at") == 1


def test_sums_over_other_letters_have_loops_of_their_own() -> None:
    second = Contraction(ld("g", *"sn"), ld("v", *"fn"), letters("n"))
    case = contract(
        ld("h", *"sm"),
        ld("w", *"fm"),
        "m",
        "sf",
        {"s": 18, "f": 17, "m": 40, "n": 33},
        (view("h", 18, 40), view("w", 17, 40), view("g", 18, 33), view("v", 17, 33)),
        op("+", Acc(0), Acc(1)),
        more=(second,),
    )
    assert assert_product(case).count("for ") == 2


def test_blocks_of_rows_that_no_band_divides() -> None:
    assert "height" in assert_product(plain(75, 40, 20))


@pytest.mark.parametrize("name", ["project", "tiled_factors", "gated", "unproject_bf16", "scattered"])
def test_offsets_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "MOST_IN_32_BITS", 0)
    assert "tl.int64" in assert_product(CONTRACTS[name]())


# factors by the copy engine


@pytest.mark.parametrize("dtype", [DType.FP32, BF, DType.FP16])
@pytest.mark.parametrize("transposed", [False, True])
def test_factors_brought_by_the_copy_engine(transposed: bool, dtype: DType) -> None:
    """Ragged everywhere: the engine fills with zeros what lies beyond the end."""
    w, shape = (ld("w", *"mf"), (56, 72)) if transposed else (ld("w", *"fm"), (72, 56))
    reads = (view("h", 40, 56, dtype=dtype), view("w", *shape, dtype=dtype))
    text = assert_product(contract(ld("h", *"sm"), w, "m", "sf", {"s": 40, "f": 72, "m": 56}, reads, dtype=dtype), ENGINE)
    assert "h = h_desc.load([row_first, inner])" in text
    assert ("w_desc.load([inner, col_first])" if transposed else "w_desc.load([col_first, inner])") in text
    assert "warp_specialize=True" in text


def test_the_copy_engine_brings_a_part_of_a_tile() -> None:
    """Ranges that start within tiles, and letters that join."""
    ranges: dict[str, int | tuple[int, int]] = {"b": 2, "s": 24, "f": (16, 60), "k": 3, "e": 16}
    reads = (view("h", 2, 24, 3, 16), view("w", 70, 3, 16))
    text = assert_product(contract(ld("h", *"bske"), ld("w", *"fke"), "ke", "bsf", ranges, reads), ENGINE)
    assert "h_desc.load" in text
    assert "w_desc.load" in text


@pytest.mark.parametrize("name", CONTRACTS)
def test_what_the_copy_engine_cannot_read_comes_by_pointers(name: str) -> None:
    assert_product(CONTRACTS[name](), ENGINE)


@pytest.mark.parametrize(
    ("case", "left"),
    [
        (plain(32, 32, 66), "h_at"),
        (plain(32, 32, 64, x={0: [16]}), "h_at"),
        (two_inner(16), "h_at"),
    ],
    ids=["rows at odd places", "several tiles", "letters apart"],
)
def test_pointers_where_a_factor_is_no_matrix_for_the_engine(case: Case, left: str) -> None:
    text = assert_product(case, ENGINE)
    assert left in text
    assert "h_desc" not in text


@given(contract_jobs())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_random_products_in_small_blocks(case: Case) -> None:
    out = case.poisoned()
    triton_kernel(case.job, SMALL)(case.operands(), out, None)
    assert_near(case, out)
    out = case.poisoned()
    triton_kernel(case.job, ENGINE)(case.operands(), out, None)
    assert_near(case, out)


# the table


@pytest.mark.parametrize(
    ("product", "shape"),
    [
        (ProductShape(BF, 1, 2048, 4096, 4096, 1), ShapeClass.LARGE),
        (ProductShape(BF, 1, 2048, 11008, 4096, 2), ShapeClass.TWO_SUMS),
        (ProductShape(BF, 1, 1, 32000, 4096, 1), ShapeClass.DECODE),
        (ProductShape(BF, 1, 32000, 9, 4096, 1), ShapeClass.DECODE),
        (ProductShape(BF, 1, 40, 4096, 4096, 1), ShapeClass.NARROW),
        (ProductShape(BF, 1, 512, 576, 576, 1), ShapeClass.FEW),
        (ProductShape(BF, 32, 200, 200, 128, 1), ShapeClass.SQUARE),
        (ProductShape(BF, 1, 2048, 4096, 4096, 3), ShapeClass.MANY_SUMS),
    ],
)
def test_shape_classes(product: ProductShape, shape: ShapeClass) -> None:
    assert shape_class(product) is shape


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_big_products_of_half_precision_have_big_tiles(capability: int) -> None:
    tiles = product_tiles(ProductShape(BF, 1, 2048, 4096, 4096, 1), capability)
    assert tiles.rows >= 128
    assert tiles.columns >= 128
    assert tiles.inner >= 64


def test_a_small_side_of_columns_is_the_tiles_small_side() -> None:
    tall = product_tiles(ProductShape(BF, 1, 32000, 9, 4096, 1), 90)
    assert (tall.rows, tall.columns) == (64, 16)


@pytest.mark.parametrize(("sums", "stages", "inner"), [(1, 3, 256), (2, 3, 256), (3, 2, 256), (9, 2, 64)])
def test_a_tile_of_many_sums_is_smaller_where_shared_memory_is_short(sums: int, stages: int, inner: int) -> None:
    few_rows = ProductShape(BF, 1, 1, 32000, 4096, sums)
    tiles = product_tiles(few_rows, 86)
    assert (tiles.stages, tiles.inner) == (stages, inner)
    assert (stages - 1) * sums * (tiles.rows + tiles.columns) * inner * 2 <= SHARED_LIMIT[86]
    assert product_tiles(few_rows, 90).stages >= stages


@pytest.mark.parametrize(
    ("capability", "shared", "table"),
    [(80, 166_912, 80), (86, 101_376, 86), (89, 101_376, 86), (120, 101_376, 86), (90, 232_448, 90), (100, 232_448, 90), (75, 65_536, 80)],
)
def test_the_table_of_a_gpu_follows_its_shared_memory(capability: int, shared: int, table: int) -> None:
    assert table_of(capability, shared) == table


def test_a_forced_tile_is_used() -> None:
    job = plain(64, 64, 64).job
    assert isinstance(job, ContractJob)
    forced = variants(ProductShape(DType.FP32, 1, 64, 64, 64, 1), 90)[-1]
    (text,) = kernel_sources(job, Target(90, forced))
    assert f"COLS: tl.constexpr = {forced.columns}" in text
    assert text != kernel_sources(job, Target(90))[0]
