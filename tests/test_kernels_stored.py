"""Products and look-ups of weights that are kept as their checkpoint stores them: to the bit what the numbers in their blocks give."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Acc, Num
from einpage.einsum_front.base.dtype import BlockFormat, DType, Stored
from einpage.einsum_front.base.libraries import ALWAYS, ONLY_TORCH, Libraries
from einpage.einsum_front.graph.job import Box, Contraction, ContractJob, GatherJob, View
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.multiply import unpack_steps
from einpage.kernels.multiply.products import Products
from einpage.kernels.on_torch.contract import prepare_contract
from einpage.kernels.on_torch.host_gather import GatherKernel, prepare_gather
from kernels_build import fn, ld, letters, op, ranges, view
from kernels_cases import contract
from kernels_naive import Case, assert_right, expected
from stored_blocks import QUANTISED, dequantised, random_blocks

COMPILED = Products(Libraries(compiled=ALWAYS))
EACH = [COMPILED, Products(ONLY_TORCH), Products(Libraries(ALWAYS))]


class StoredCase:
    """A job as it reads numbers, and as it reads some of its operands in blocks; `values` are random blocks' numbers."""

    def __init__(self, case: Case, stored: dict[str, Stored], seed: int) -> None:
        values: dict[str, Any] = dict(case.values)
        self.raw: dict[str, np.ndarray[Any, Any]] = {}
        for name, type in stored.items():
            shape = values[name].shape
            raw = random_blocks(type.format, prod(shape) // type.format.elements, seed)
            self.raw[name] = raw.reshape(*shape[: len(shape) - type.row_dims], -1)
            numbers = torch.from_numpy(dequantised(type.format, raw).reshape(shape))
            values[name] = numbers.to({DType.FP32: torch.float32, DType.BF16: torch.bfloat16}[type.dtype]).double().numpy()
        self.numbers = Case(case.job, values)
        reads = tuple(replace(v, element_type=stored.get(v.name, v.element_type)) for v in case.job.reads)
        self.job: Any = replace(case.job, reads=reads)

    def operands(self) -> tuple[tuple[torch.Tensor, ...], ...]:
        out = []
        for v, numbers in zip(self.job.reads, self.numbers.operands(), strict=True):
            tiles = [self._bytes(v, box) for box in v.boxes] if isinstance(v.element_type, Stored) else numbers
            out.append(tuple(tiles))
        return tuple(out)

    def _bytes(self, v: View, box: Box) -> torch.Tensor:
        type, raw = v.element_type, self.raw[v.name]
        assert isinstance(type, Stored)
        before = raw.ndim - 1
        whole = self.numbers.values[v.name].shape
        first = type.bytes_of(box.start[before] * prod(whole[before + 1 :]))
        of_row = slice(first, first + type.bytes_of(type.row_elements(box.shape)))
        return torch.from_numpy(np.ascontiguousarray(raw[(*box.slices[:before], of_row)])).reshape(-1)


def computed(job: ContractJob, operands: Any, out: torch.Tensor, products: Products, limit: int = 8 << 20) -> TorchKernel:
    kernel = prepare_contract(job, limit, products)
    kernel(operands, out, None)
    return kernel


FORMATS = [*QUANTISED, BlockFormat.BF16, BlockFormat.FP16]


def projection(format: BlockFormat, rows: int, columns: int = 70, inner: int | None = None, cuts: Any = None) -> StoredCase:
    """y[r,c] = x[r,k] * w[c,k]."""
    n = inner or 2 * max(32, format.elements)
    reads = (view("x", rows, n), view("w", columns, n, cuts=cuts))
    case = contract(ld("x", *"rk"), ld("w", *"ck"), "k", "rc", {"r": rows, "k": n, "c": columns}, reads)
    return StoredCase(case, {"w": Stored(format, 1, DType.FP32)}, seed=rows)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
def test_a_projection_is_that_of_the_numbers_to_the_bit(format: BlockFormat, rows: int) -> None:
    case = projection(format, rows)
    for products in EACH:
        out, plain = case.numbers.poisoned(), case.numbers.poisoned()
        computed(case.job, case.operands(), out, products)
        assert_right(case.numbers, out)
        if rows > 16 or products is COMPILED:
            computed(case.numbers.job, case.numbers.operands(), plain, products)  # type: ignore[arg-type]
            assert torch.equal(out, plain)


def test_few_rows_take_blocks_apart_in_registers_and_more_in_panels() -> None:
    few, many = projection(BlockFormat.Q4_1, 16, 3000, 576), projection(BlockFormat.Q4_1, 17, 3000, 576)
    assert computed(few.job, few.operands(), few.numbers.poisoned(), COMPILED).scratch_bytes == 0
    kernel = computed(many.job, many.operands(), many.numbers.poisoned(), COMPILED)
    assert 4 * 576 * 64 <= kernel.scratch_bytes <= unpack_steps.PANEL_BYTES


def test_rows_are_taken_apart_once_where_a_block_of_the_product_needs_them_again() -> None:
    case = projection(BlockFormat.Q8_0, 5000, 200, 64)
    kernel = prepare_contract(case.job, 1 << 20, COMPILED)
    out = case.numbers.poisoned()
    kernel(case.operands(), out, None)
    assert_right(case.numbers, out)
    per_row = [n for n in range(len(kernel.steps)) if "unpack_rows" in repr(kernel.steps[n])]
    assert len(per_row) == 1 < len(kernel.steps)


@given(
    st.sampled_from(FORMATS), st.sampled_from([1, 2, 5, 20]), st.booleans(), st.sampled_from(["", "rows", "row", "both"]), st.booleans(),
    st.sampled_from(EACH), st.sampled_from([1, 3000, 8 << 20]),
)  # fmt: skip
def test_heads(format: BlockFormat, rows: int, twice: bool, cut: str, added: bool, products: Products, limit: int) -> None:
    """y[r,g,h] (+= z) = act(x[r,k,e] * w[g,h,k,e]) (* x * w2), rows of two dimensions, tiles cut before and within rows.

    A temporary that holds a part of a row at a time takes thousands of steps, most of all for blocks of 256 numbers: few rows have it."""
    each = max(16, format.elements)
    rows = min(rows, 2 if each > 32 else 5 if limit == 1 else rows) if limit <= 3000 else rows
    extent = {"r": rows, "g": 3, "h": 2, "k": 4, "e": each}
    cuts: Any = {**({0: [1]} if cut in ("rows", "both") else {}), **({2: [2]} if cut in ("row", "both") else {})}
    w = [view(name, 3, 2, 4, each, cuts=cuts) for name in ("w", "w2")]
    reads = (view("x", rows, 4, each), *w[: 1 + twice], *((view("z", rows, 3, 2),) if added else ()))
    more = (Contraction(ld("x", *"rke"), ld("w2", *"ghke"), letters("ke")),) if twice else ()
    epilogue = op("*", fn("sigmoid", Acc(0)), Acc(1)) if twice else Acc(0)
    case = contract(
        ld("x", *"rke"), ld("w", *"ghke"), "ke", "rgh", extent, reads,
        op("+", ld("z", *"rgh"), epilogue) if added else epilogue, more=more,
    )  # fmt: skip
    stored = StoredCase(case, {name: Stored(format, 2, DType.FP32) for name in ("w", "w2")[: 1 + twice]}, seed=7)
    out, plain = case.poisoned(), case.poisoned()
    kernel = computed(stored.job, stored.operands(), out, products, limit)
    assert_right(stored.numbers, out)
    computed(stored.numbers.job, stored.numbers.operands(), plain, products, limit)  # type: ignore[arg-type]
    assert_right(stored.numbers, plain)
    assert kernel.scratch_bytes < 1 << 23


@pytest.mark.parametrize("format", [BlockFormat.Q4_0, BlockFormat.Q4_K, BlockFormat.BF16])
@pytest.mark.parametrize("rows", [1, 30])
def test_a_sum_over_rows_and_a_layer_of_several(format: BlockFormat, rows: int) -> None:
    """y[r,k] = x[r,c] * w[1,c,k]: the matrix is read column by column."""
    n = 2 * max(32, format.elements)
    reads = (view("x", rows, 9), view("w", 3, 9, n))
    case = contract(ld("x", *"rc"), ld("w", Num(1), *"ck"), "c", "rk", {"r": rows, "c": 9, "k": n}, reads)
    stored = StoredCase(case, {"w": Stored(format, 1, DType.FP32)}, seed=3)
    for products in EACH:
        out = case.poisoned()
        computed(stored.job, stored.operands(), out, products)
        assert_right(stored.numbers, out)


@pytest.mark.parametrize("format", [BlockFormat.Q4_1, BlockFormat.Q6_K, BlockFormat.BF16])
def test_a_weight_times_itself(format: BlockFormat) -> None:
    """r[k,d] = v[k,j] * v[d,j] in several panels, and p[k,q] = w[0,k,j] * w[2,q,j]: both factors are rows of one weight."""
    n, rows = 2 * max(32, format.elements), (600 << 10) // (8 * max(32, format.elements)) + 70
    whole = contract(ld("v", *"kj"), ld("v", *"dj"), "j", "kd", {"k": rows, "d": rows, "j": n}, (view("v", rows, n),))
    slices = contract(ld("v", Num(0), *"kj"), ld("v", Num(2), *"qj"), "j", "kq", {"k": 30, "q": 20, "j": n}, (view("v", 3, 30, n),))
    for case in (whole, slices):
        stored = StoredCase(case, {"v": Stored(format, 1, DType.FP32)}, seed=9)
        v = stored.numbers.values["v"]
        want = (v @ v.T) if case is whole else expected(stored.numbers)  # whose definition, element by element, would have gigabytes
        assert want.dtype == np.float64
        for products in EACH:
            out = case.poisoned()
            computed(stored.job, stored.operands(), out, products)
            assert_right(stored.numbers, out, f" ({products})", want)


def test_a_part_of_a_row_that_no_block_ends_at() -> None:
    """A task of a chain sums over 24 of 64 numbers; its tile holds whole blocks."""
    case = contract(ld("x", *"rk"), ld("w", *"ck"), "k", "rc", {"r": 4, "k": (8, 32), "c": 6}, (view("x", 4, 64), view("w", 6, 64)))
    stored = StoredCase(case, {"w": Stored(BlockFormat.Q8_0, 1, DType.FP32)}, seed=1)
    out = case.poisoned()
    computed(stored.job, stored.operands(), out, COMPILED)
    assert_right(stored.numbers, out)


@pytest.mark.parametrize("rows", [2, 20])
def test_numbers_are_rounded_to_the_runs_dtype(rows: int) -> None:
    n = 64
    case = contract(ld("x", *"rk"), ld("w", *"ck"), "k", "rc", {"r": rows, "k": n, "c": 9}, (view("x", rows, n), view("w", 9, n)))
    stored = StoredCase(case, {"w": Stored(BlockFormat.Q8_0, 1, DType.BF16)}, seed=1)
    out = case.poisoned()
    kernel = computed(stored.job, stored.operands(), out, COMPILED)
    assert_right(stored.numbers, out)
    assert kernel.temporary_bytes >= 2 * 9 * n, "the rounded copy is not counted"


@pytest.mark.parametrize("format", FORMATS)
def test_without_a_compiler_the_definition_is_computed(format: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    case = projection(format, 20)
    out, by_definition = case.numbers.poisoned(), case.numbers.poisoned()
    computed(case.job, case.operands(), out, Products(ONLY_TORCH))
    monkeypatch.setattr(unpack_steps, "why_not_llvm", lambda: "it is not there")
    kernel = computed(case.job, case.operands(), by_definition, Products(ONLY_TORCH))
    assert torch.equal(out, by_definition)
    assert (kernel.temporary_bytes > 0) is format.is_quantised


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("cuts", [{}, {0: [4, 11]}, {1: [1]}])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_rows_that_are_looked_up(format: BlockFormat, cuts: dict[int, list[int]], dtype: DType) -> None:
    """x[b,s,h,k] = table[tokens[b,s], h, k], rows of two dimensions."""
    n = max(32, format.elements)
    table = view("table", 20, 2, n, cuts=cuts)
    job = GatherJob(
        ranges(b=2, s=5, h=2, k=n), (table, view("tokens", 2, 5, dtype=DType.INT32)),
        View("out", dtype, (Box((0, 0, 0, 0), (2, 5, 2, n)),)), letters("bshk"), ld("table", ld("tokens", *"bs"), *"hk"),
    )  # fmt: skip
    tokens = np.array([[0, 19, 7, 7, 3], [4, 10, 11, 12, 0]])
    values = {"table": np.zeros((20, 2, n)), "tokens": tokens}
    stored = StoredCase(Case(job, values), {"table": Stored(format, 2, dtype)}, seed=5)
    kernel = prepare_gather(stored.job)
    assert isinstance(kernel, GatherKernel)
    out = stored.numbers.poisoned()
    assert kernel(stored.operands(), out, None) == out.nbytes
    assert torch.equal(out.double(), torch.from_numpy(stored.numbers.values["table"][tokens]))
