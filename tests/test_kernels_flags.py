"""Flags behind tiles: whether numbers are finite, at any element, in any kernel, beside torch's definition."""

from __future__ import annotations

from math import inf, nan, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Letter, Load, Num, Reduce, Reduction
from einpage.einsum_front.algebra.rewrite import one_hot_of
from einpage.einsum_front.base.dtype import RUN_DTYPES, Checked, DType, element_type
from einpage.einsum_front.graph.job import Box, Contraction, ContractJob, Job, MapJob, OverflowJob, PairsJob, Part, Range, View
from einpage.kernels.layout.flags import finite_test, flag_of
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import Backend, prepare

M, N, B = Letter("m"), Letter("n"), Letter("b")
BAD = (inf, -inf, nan, -nan)


def view(name: str, dtype: DType, *shape: int, start: tuple[int, ...] | None = None, checked: bool = False) -> View:
    first = start or (0,) * len(shape)
    box = Box(first, tuple(a + n for a, n in zip(first, shape, strict=True)))
    return View(name, Checked(dtype) if checked else dtype, (box,))


def ranges(**extents: int) -> tuple[Range, ...]:
    return tuple(Range(Letter(x), 0, n) for x, n in extents.items())


def copy_job(dtype: DType, rows: int, columns: int) -> Job:
    """A map: the source as it is, times 1."""
    part = Part((Axis(M), Axis(N)), Binary("*", Load("x", (Axis(M), Axis(N))), Num(1)))
    return MapJob(ranges(m=rows, n=columns), (view("x", dtype, rows, columns),), view("y", dtype, rows, columns, checked=True), (part,))


def product_job(dtype: DType, rows: int, columns: int, epilogue: Binary | Acc) -> Job:
    """sum[b](x[b,m] * y[b,n]), as a gradient is."""
    x, y = Load("x", (Axis(B), Axis(M))), Load("y", (Axis(B), Axis(N)))
    reads = (view("x", dtype, 3, rows), view("y", dtype, 3, columns))
    result = view("d_w", dtype, rows, columns, checked=True)
    return ContractJob(ranges(b=3, m=rows, n=columns), reads, result, (Contraction(x, y, (B,)),), (M, N), epilogue, None, True)


def with_flag(tile: Tensor) -> Tensor:
    """A copy of `tile` with a flag behind it, whose value is not set."""
    type = Checked(next(dtype for dtype in RUN_DTYPES if TORCH_DTYPE[dtype] is tile.dtype))
    whole = torch.empty(type.bytes_of(tile.numel()) // tile.element_size(), dtype=tile.dtype)
    strides = torch.empty(tile.shape, device="meta").stride()
    return whole.as_strided(tile.shape, strides).copy_(tile)


def ran(job: Job, operands: tuple[Tensor, ...], backend: Backend = Backend.TORCH) -> tuple[Tensor, float]:
    """The result, and its flag, both poisoned before."""
    result = with_flag(torch.full(job.result.boxes[0].shape, nan, dtype=TORCH_DTYPE[job.result.dtype]))
    flag_of(result).fill_(7.0)
    prepare(job, backend)(tuple((x,) for x in operands), result)
    return result, float(flag_of(result))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_numbers_are_told_apart_at_every_element(data: st.DataObject) -> None:
    """Any numbers but one are finite, the largest and the smallest there are among them; then one is not."""
    dtype = TORCH_DTYPE[data.draw(st.sampled_from(RUN_DTYPES))]
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 70)))
    info = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, info.max, info.min, info.tiny, -info.smallest_normal / 2]
    numbers = torch.tensor(data.draw(st.lists(st.sampled_from(edges), min_size=prod(shape), max_size=prod(shape))), dtype=dtype).view(shape)
    window = numbers[:, data.draw(st.integers(0, shape[1] - 1)) :]
    assert finite_test(numbers)() and finite_test(window)()
    at = data.draw(st.integers(0, window.numel() - 1))
    window[at // window.shape[1], at % window.shape[1]] = data.draw(st.sampled_from(BAD))
    assert not finite_test(window)() and not finite_test(numbers)()


PLACES = {"first": 0.0, "middle": 0.5, "last": 1.0}
BACKENDS = [Backend.TORCH, pytest.param(Backend.TRITON, marks=pytest.mark.interpreter)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_a_map_flags_what_it_writes(place: str, bad: float, dtype: DType, backend: Backend) -> None:
    rows, columns = 7, 37
    x = torch.randn(rows, columns).to(TORCH_DTYPE[dtype])
    result, flag = ran(copy_job(dtype, rows, columns), (x,), backend)
    assert flag == 0 and torch.equal(result, x)
    x.view(-1)[int(PLACES[place] * (x.numel() - 1))] = bad
    result, flag = ran(copy_job(dtype, rows, columns), (x,), backend)
    assert flag == 1 and torch.equal(result.isfinite(), x.isfinite())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("epilogue", [Acc(0), Binary("*", Acc(0), Num(0.5))], ids=["alone", "halved"])
def test_a_product_flags_what_overflows_in_its_dtype(epilogue: Binary | Acc, place: str, dtype: DType, backend: Backend) -> None:
    """One element of the result is beyond the dtype: factors are finite, and all other elements too."""
    rows, columns = 70, 65
    largest = torch.finfo(TORCH_DTYPE[dtype]).max ** 0.5
    at = int(PLACES[place] * (rows * columns - 1))
    x, y = torch.zeros(3, rows), torch.ones(3, columns)
    x[0, at // columns], y[0] = largest, 0.25
    job = product_job(dtype, rows, columns, epilogue)
    x, y = x.to(TORCH_DTYPE[dtype]), y.to(TORCH_DTYPE[dtype])
    assert ran(job, (x, y), backend)[1] == 0
    y[0, at % columns] = 4 * largest
    result, flag = ran(job, (x, y), backend)
    assert flag == 1 and (~result.isfinite()).nonzero().tolist() == [[at // columns, at % columns]]


@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
def test_a_large_product_is_flagged_block_by_block(dtype: DType) -> None:
    """A tile of several blocks: the last element of the last one is the only one that is not finite, and then none is."""
    x, y = torch.ones(3, 1100).to(TORCH_DTYPE[dtype]), torch.ones(3, 700).to(TORCH_DTYPE[dtype])
    job = product_job(dtype, 1100, 700, Acc(0))
    x[:, -1], y[:, -1] = torch.finfo(x.dtype).max, 2
    result, flag = ran(job, (x, y))
    assert flag == 1 and not bool(result.isfinite().all())
    x[:, -1] = 1
    assert ran(job, (x, y))[1] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
def test_rows_that_are_added_are_flagged(dtype: DType, backend: Backend) -> None:
    """An embedding's gradient: rows added where an index says, or compared with it."""
    v, m, s = Letter("v"), Letter("m"), Letter("s")
    hot = Binary("==", Load("tokens", (Axis(s),)), Axis(v))
    weight = Call("where", (hot, Num(1), Num(0)))
    assert one_hot_of(weight) is not None
    reads = (view("tokens", DType.INT32, 5), view("d_x", dtype, 5, 6))
    result = view("d_embed", dtype, 11, 6, checked=True)
    job = PairsJob(
        ranges(v=11, m=6, s=5), reads, result, (), Num(0), weight, Load("d_x", (Axis(s), Axis(m))), (s,), s, False, (v, m), Acc(0)
    )
    tokens, rows = torch.tensor([1, 10, 3, 1, 0], dtype=torch.int32), torch.ones(5, 6).to(TORCH_DTYPE[dtype])
    assert ran(job, (tokens, rows), backend)[1] == 0
    rows[1, 5] = nan
    result_tile, flag = ran(job, (tokens, rows), backend)
    bad = [[10, 5]] if backend is Backend.TORCH else [[n, 5] for n in range(11)]  # 0 * NaN, where rows are compared
    assert flag == 1 and result_tile.isnan().nonzero().tolist() == bad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("flags", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)])
@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
def test_flags_are_joined_without_reading_a_number(dtype: DType, flags: tuple[int, ...], backend: Backend) -> None:
    """Two tiles of NaN, whose flags alone count, what was looked at before, and the carry."""
    boxes = (Box((0, 0), (3, 5)), Box((3, 0), (4, 5)))
    reads = (View("d_w", Checked(dtype), boxes), view("before", DType.FP32), view("carry", DType.FP32, 1))
    job = OverflowJob(ranges(m=4, n=5), reads, view("result", DType.FP32))
    tiles = tuple(with_flag(torch.full(box.shape, nan, dtype=TORCH_DTYPE[dtype])) for box in boxes)
    for tile, flag in zip(tiles, flags, strict=False):
        flag_of(tile).fill_(flag)
    result = torch.full((), nan)
    prepare(job, backend)((tiles, (torch.tensor(float(flags[2])),), (torch.tensor([float(flags[3])]),)), result)
    assert float(result) == max(flags)


@pytest.mark.parametrize("dtype", RUN_DTYPES, ids=lambda d: d.value)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (4, 4)])
def test_a_flag_is_four_bytes_after_the_numbers(shape: tuple[int, ...], dtype: DType) -> None:
    type = Checked(dtype)
    assert type.bytes_of(prod(shape)) - dtype.bytes_of(prod(shape)) in (4, 6)
    assert element_type(type.value, shape) == type
    tile = with_flag(torch.ones(shape, dtype=TORCH_DTYPE[dtype]))
    flag_of(tile).fill_(1)
    assert tile.untyped_storage().nbytes() == type.bytes_of(prod(shape)) and bool((tile == 1).all())
    assert tile.untyped_storage().tolist()[-4:] == [0, 0, 128, 63]


def test_a_reduction_with_several_blocks_keeps_its_flag() -> None:
    """A norm's weight: a row reduction whose result is flagged, the first of its elements alone."""
    x = torch.ones(4, 300)
    part = Part((Axis(N),), Reduce(Reduction.SUM, (B,), Load("x", (Axis(B), Axis(N)))))
    job = MapJob(ranges(b=4, n=300), (view("x", DType.FP32, 4, 300),), view("d_g", DType.FP32, 300, checked=True), (part,))
    assert ran(job, (x,))[1] == 0
    x[2, 0] = inf
    assert ran(job, (x,))[1] == 1
