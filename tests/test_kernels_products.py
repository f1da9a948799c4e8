"""Products by other libraries: right wherever they are chosen, of what they can read only, and every byte that they allocate declared."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.libraries import ALWAYS, MOST_MANY_ROWS, MOST_UNPACKED_ROWS, FasterFrom, Libraries
from einpage.einsum_front.graph.job import AttentionJob, ContractJob
from einpage.exec.measure.products import product_job
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.window import Window
from einpage.kernels.multiply.products import MOST_INNER, ONLY_MM, ByRows, Products, linear
from einpage.kernels.on_torch.attention import prepare_attention
from einpage.kernels.on_torch.contract import prepare_contract
from einpage.kernels.prepare import prepare
from kernels_allocated import allocated_bytes
from kernels_build import ld, op, view
from kernels_cases import ATTENTIONS, CONTRACTS, contract, unproject
from kernels_naive import Case, assert_right

pytestmark = pytest.mark.skipif(linear() is None, reason="this torch was built without oneDNN")
CASES = {**CONTRACTS, **ATTENTIONS}
ONEDNN, COMPILED = Libraries(ALWAYS), Libraries(compiled=ALWAYS, by_columns=ALWAYS)


def kernel(case: Case, limit: int = 8 << 20, libraries: Libraries = ONEDNN) -> TorchKernel:
    products = Products(libraries, torch.get_num_threads())
    match case.job:
        case ContractJob() as job:
            return prepare_contract(job, limit, products)
        case AttentionJob() as job:
            return prepare_attention(job, limit, products)
    raise AssertionError(case)


@pytest.mark.parametrize("libraries", [ONEDNN, COMPILED])
@pytest.mark.parametrize("limit", [1, 700, 8 << 20])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_naive_definition(name: str, limit: int, libraries: Libraries) -> None:
    case = CASES[name]()
    out = case.poisoned()
    kernel(case, limit, libraries)(case.operands(), out, None)
    assert_right(case, out, f" ({name}, blocks of {limit} bytes)")


def projection(rows: int, inner: int, columns: int, by_columns: bool, added: bool) -> Case:
    """y[r,c] = (z[r,c] +) x[r,k] * w[c,k] or w[k,c]."""
    w = view("w", columns, inner) if by_columns else view("w", inner, columns)
    reads = (view("x", rows, inner), w, *((view("z", rows, columns),) if added else ()))
    epilogue = op("+", ld("z", *"rc"), Acc(0)) if added else None
    extent = {"r": rows, "k": inner, "c": columns}
    return contract(ld("x", *"rk"), ld("w", *("ck" if by_columns else "kc")), "k", "rc", extent, reads, epilogue)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 576, 1536), (5, 576, 1536), (70, 2500, 90), (64, 256, 64), (3, 1, 5), (40, 33, 1), (1000, 100, 33)]
)
def test_what_onednn_allocates_is_declared(rows: int, inner: int, columns: int, by_columns: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for added in (True, False):
            case = projection(rows, inner, columns, by_columns, added)
            chosen, out = kernel(case), case.poisoned()
            assert chosen.temporary_bytes >= 4 * rows * columns, "oneDNN was not chosen"
            assert allocated_bytes(chosen, case, out) <= chosen.scratch_bytes
            assert_right(case, out, f" ({rows}x{inner}x{columns})")
    finally:
        torch.set_num_threads(before)


def test_blocks_count_what_a_product_allocates() -> None:
    case = projection(3000, 64, 4000, True, False)
    assert kernel(case).scratch_bytes <= 8 << 20 < 4 * 3000 * 4000
    assert kernel(case, libraries=Libraries()).scratch_bytes == 0


@pytest.mark.parametrize("limit", [1, 900, 8 << 20])
def test_the_result_may_take_over_the_operand_that_is_added(limit: int) -> None:
    case = unproject()
    apart = case.poisoned()
    call = kernel(case, limit)
    call(case.operands(), apart, None)
    operands = case.operands()
    out = next(o[0] for v, o in zip(case.job.reads, operands, strict=True) if v.name == "x")
    call(operands, out, None)
    assert torch.equal(apart, out)


def test_a_bound_kernel_gives_the_same_as_often_as_it_is_called() -> None:
    for name, make in CASES.items():
        case = make()
        call, operands, out = kernel(case), case.operands(), case.poisoned()
        wanted = case.poisoned()
        call(operands, wanted, None)
        bound = call.bind(operands, out, torch.full((sum(call.scratch) + 3,), torch.nan))
        for _ in range(3):
            out.fill_(torch.nan)
            bound()
            assert torch.equal(out.nan_to_num(), wanted.nan_to_num()), name


X, BY_COLUMNS, BY_ROWS = Window(0, 0, (1, 6, 8), (0, 8, 1), 0), Window(1, 0, (1, 8, 4), (0, 1, 8), 5), Window(1, 0, (1, 8, 4), (0, 4, 1), 5)


@pytest.mark.parametrize(("y", "stride"), [(BY_COLUMNS, (8, 1)), (BY_ROWS, (1, 4))])
def test_packed_matrices_are_onednns(y: Window, stride: tuple[int, int]) -> None:
    assert Products(ONEDNN).windows(X, y) == (Window(0, 0, (6, 8), (8, 1), 0), Window(1, 0, (4, 8), stride, 5))
    assert ONLY_MM.windows(X, y) is None


@pytest.mark.parametrize(("of_row", "of_column"), [(9, 1), (1, 6)])
def test_rows_that_are_not_packed_are_onednns_too(of_row: int, of_column: int) -> None:
    rows, _ = Products(ONEDNN).windows(Window(0, 0, (1, 6, 8), (0, of_row, of_column), 3), BY_ROWS) or (None, None)
    assert rows == Window(0, 0, (6, 8), (of_row, of_column), 3)


@pytest.mark.parametrize("has_blocks", [True, False])
def test_a_part_of_wider_rows_is_packed_once_for_all_blocks(has_blocks: bool) -> None:
    reads = view("x", 30, 40), view("w", 100, 24)
    case = contract(ld("x", *"rk"), ld("w", *"ck"), "k", "rc", {"r": 30, "k": 24, "c": 100}, reads)
    call, operands, out = kernel(case), case.operands(), case.poisoned()
    if has_blocks:
        call = kernel(case, call.scratch_bytes - 1000)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call(operands, out, None)
    assert_right(case, out)
    counts = {event.key: event.count for event in found.key_averages()}
    products = counts["mkldnn::_linear_pointwise"]
    assert (products > 1) == has_blocks
    assert counts["aten::copy_"] == products + 1
    assert "aten::mm" not in counts


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(60, 100), (100, 60)])
def test_blocks_are_what_the_faster_library_reads(rows: int, columns: int, by_columns: bool) -> None:
    """Half of the columns of a matrix that lies row by row are no matrix of oneDNN's: rows are halved, though they are fewer."""
    case = projection(rows, 24, columns, by_columns, False)
    operands, out = case.operands(), case.poisoned()
    call = kernel(case, kernel(case).scratch_bytes - 1000)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call(operands, out, None)
    assert_right(case, out)
    counts = {event.key: event.count for event in found.key_averages()}
    assert counts["mkldnn::_linear_pointwise"] > 1
    assert "aten::mm" not in counts


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, Window(1, 0, (1, 8, 4), (0, 5, 1), 0)),
        (X, Window(1, 0, (1, 8, 4), (0, 1, 9), 0)),
        (Window(0, 0, (2, 6, 8), (48, 8, 1), 0), Window(1, 0, (2, 8, 4), (32, 4, 1), 0)),
    ],
)
def test_others_are_not(x: Window, y: Window) -> None:
    """oneDNN would multiply some of them a thousand times slower."""
    assert Products(ONEDNN).windows(x, y) is None


def test_small_products_are_torchs() -> None:
    assert Products(Libraries(FasterFrom(few_rows=32))).windows(X, BY_ROWS) is not None
    assert Products(Libraries(FasterFrom(few_rows=33))).windows(X, BY_ROWS) is None
    assert Products(Libraries(FasterFrom(one_row=0, more_rows=0, many_rows=0, most_rows=0))).windows(X, BY_ROWS) is None


def test_kernels_of_other_products_are_others() -> None:
    job = product_job(5, 7, 9, DType.FP32)
    assert prepare(job, products=Products(ONEDNN)) is prepare(job, products=Products(ONEDNN))
    assert prepare(job, products=Products(ONEDNN)) != prepare(job)
    assert prepare(job, products=ONLY_MM) == prepare(job)


ROW, COLUMN = Window(0, 0, (1, 1, 8), (0, 8, 1), 3), Window(1, 0, (1, 8, 1), (0, 1, 1), 7)
AS_ROW, AS_COLUMN = Window(0, 0, (1, 8), (8, 1), 3), Window(1, 0, (1, 8), (1, 1), 7)


@pytest.mark.parametrize(
    ("x", "y", "chosen"),
    [
        (ROW, BY_COLUMNS, ByRows(AS_ROW, Window(1, 0, (4, 8), (8, 1), 5), False)),
        (ROW, Window(1, 0, (1, 8, 4), (0, 1, 20), 5), ByRows(AS_ROW, Window(1, 0, (4, 8), (20, 1), 5), False)),
        (X, COLUMN, ByRows(AS_COLUMN, Window(0, 0, (6, 8), (8, 1), 0), True)),
        (X, BY_COLUMNS, ByRows(Window(1, 0, (4, 8), (8, 1), 5), Window(0, 0, (6, 8), (8, 1), 0), True)),
    ],
)
def test_what_lies_row_by_row_is_our_own_kernels(x: Window, y: Window, chosen: ByRows) -> None:
    assert Products(COMPILED).by_rows(x, y) == chosen
    (rows, inner), columns = chosen.rows.size, chosen.matrix.size[0]
    name, elements = "one_row" if rows == 1 else "few_rows", columns * inner
    assert Products(Libraries(compiled=FasterFrom(**{name: elements}))).by_rows(x, y) is not None
    assert Products(Libraries(compiled=FasterFrom(**{name: elements + 1}))).by_rows(x, y) is None
    assert ONLY_MM.by_rows(x, y) is None


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (ROW, BY_ROWS),
        (Window(0, 0, (1, 1, 8), (0, 1, 2), 0), BY_COLUMNS),
        (Window(0, 0, (2, 1, 8), (8, 8, 1), 0), Window(1, 0, (2, 8, 4), (32, 1, 8), 0)),
        (
            Window(0, 0, (1, MOST_MANY_ROWS + 1, MOST_INNER + 1), (0, MOST_INNER + 1, 1), 0),
            Window(1, 0, (1, MOST_INNER + 1, 200), (0, 1, MOST_INNER + 1), 0),
        ),
    ],
)
def test_what_does_not_lie_row_by_row_or_is_larger_than_caches_is_not(x: Window, y: Window) -> None:
    assert Products(COMPILED).by_rows(x, y) is None


OF_ROWS, OF_COLUMNS = Window(0, 0, (1, 6, 8), (0, 9, 1), 3), Window(1, 0, (1, 8, 4), (0, 5, 1), 7)


@pytest.mark.parametrize(
    ("x", "y", "chosen"),
    [
        (ROW, BY_ROWS, ByRows(AS_ROW, Window(1, 0, (8, 4), (4, 1), 5), False)),
        (
            Window(0, 0, (1, 3, 8), (0, 9, 1), 3),
            OF_COLUMNS,
            ByRows(Window(0, 0, (3, 8), (9, 1), 3), Window(1, 0, (8, 4), (5, 1), 7), False),
        ),
        (
            Window(0, 0, (1, 6, 8), (0, 1, 7), 3),
            Window(1, 0, (1, 8, 2), (0, 1, 9), 7),
            ByRows(Window(1, 0, (2, 8), (9, 1), 7), Window(0, 0, (8, 6), (7, 1), 3), True),
        ),
    ],
)
def test_few_rows_of_what_lies_column_by_column_are_our_own_kernels(x: Window, y: Window, chosen: ByRows) -> None:
    (rows, _), elements = chosen.rows.size, chosen.matrix.size[0] * chosen.matrix.size[1]
    name = "one_row" if rows == 1 else "few_rows"
    for least, found in ((elements, chosen), (elements + 1, None)):
        assert Products(Libraries(compiled=ALWAYS, by_columns=FasterFrom(**{name: least}))).by_columns(x, y) == found


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (OF_ROWS, BY_COLUMNS),
        (Window(0, 0, (1, 6, 8), (0, 1, 6), 0), OF_COLUMNS),
        (Window(0, 0, (2, 1, 8), (8, 8, 1), 0), Window(1, 0, (2, 8, 4), (32, 4, 1), 0)),
        (
            Window(0, 0, (1, MOST_UNPACKED_ROWS + 1, 8), (0, 8, 1), 0),
            Window(1, 0, (1, 8, MOST_UNPACKED_ROWS + 1), (0, MOST_UNPACKED_ROWS + 1, 1), 0),
        ),
    ],
)
def test_others_that_lie_column_by_column_are_not(x: Window, y: Window) -> None:
    assert Products(COMPILED).by_columns(x, y) is None


def test_without_a_compiler_there_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einpage.kernels.multiply.products.why_not_llvm", lambda: "it is not there")
    assert Products(COMPILED).by_rows(ROW, BY_COLUMNS) is None
    assert Products(COMPILED).by_columns(ROW, BY_ROWS) is None


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 3000), (3000, 1), (1, 1), (7, 300), (300, 16), (45, 130)])
def test_our_own_kernels_allocate_nothing(rows: int, columns: int, by_columns: bool, added: bool) -> None:
    case = projection(rows, 700, columns, by_columns, added)
    call, out, operands = kernel(case, libraries=COMPILED), case.poisoned(), case.operands()
    assert call.scratch_bytes == 0
    bound = call.bind(operands, out, torch.empty(0))
    bound()
    assert_right(case, out, f" ({rows}x{columns})")
    tracemalloc.start()
    try:
        bound()
        assert tracemalloc.get_traced_memory()[1] <= 2000
    finally:
        tracemalloc.stop()


def test_bits_do_not_depend_on_what_else_is_multiplied() -> None:
    torch.manual_seed(1)
    products = Products(COMPILED)
    for by_columns, most, others in (
        (False, 150, ((1, 17), (3, 1), (8, 40), (9, 100), (17, 30), (64, 97), (131, 200))),
        (True, 16, ((1, 17), (3, 2), (8, 40), (9, 100))),
    ):
        x, w = torch.randn(most, 577), torch.randn(301, 577)
        whole = torch.empty(most, 301)
        prepare(product_job(most, 577, 301, DType.FP32, by_columns=by_columns), products=products)(((x,), (of(w, by_columns),)), whole)
        for rows, columns in others:
            part = torch.empty(rows, columns)
            few, some = x[most - rows :].clone(), of(w[100 : 100 + columns], by_columns)
            prepare(product_job(rows, 577, columns, DType.FP32, by_columns=by_columns), products=products)(((few,), (some,)), part)
            assert torch.equal(whole[most - rows :, 100 : 100 + columns], part), (by_columns, rows, columns)


def of(w: torch.Tensor, by_columns: bool) -> torch.Tensor:
    """`w` as a packed tensor, or its transpose."""
    return (w.T if by_columns else w).clone(memory_format=torch.contiguous_format)
