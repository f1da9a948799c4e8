"""Sums over pairs in blocks: rows without any key, sums that grow block by block, masks from either side, rows that are added."""

from __future__ import annotations

import math

import numpy as np
import pytest

from einpage.einsum_front.algebra.expr import Acc, Expr, Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Contraction, PairsJob
from einpage.kernels.on_torch.added_rows import prepare_added_rows
from einpage.kernels.on_torch.pairs import prepare_pairs
from kernels_build import fill, fn, ld, letters, op, ranges, result, view
from kernels_naive import Case, assert_right

BAND = op("and", op("<=", "t", "s"), op(">", op("+", "t", 6), op("+", "s", 0)))


def logarithm(mask: Expr) -> Case:
    """Queries 9 .. 20 of 20 keys; with BAND some see six, the first of them none of the last."""
    reads = (view("q", 20, 3), view("p", 20, 3))
    products = (Contraction(ld("q", "s", "d"), ld("p", "t", "d"), letters("d")),)
    job = PairsJob(
        ranges(s=(2, 20), t=20, d=3), reads, result("o", 18, at=(2,)), products, fn("where", mask, Acc(0), -math.inf),
        fn("where", mask, op("*", Acc(0), 3.0), -math.inf), None, letters("t"), Letter("t"), True, letters("s"), Acc(1),
    )  # fmt: skip
    return fill(job, 3)


def by_keys(mask: Expr) -> Case:
    """Keys 0 .. 40, each summed over the queries that see it."""
    reads = (view("q", 40, 3), view("p", 40, 3), view("logs", 40), view("f", 40, 5))
    products = (Contraction(ld("q", "s", "d"), ld("p", "t", "d"), letters("d")),)
    weight = fn("exp", op("-", fn("where", mask, Acc(0), -math.inf), fn("abs", ld("logs", "s"))))
    job = PairsJob(
        ranges(s=40, t=40, d=3, e=5), reads, result("o", 40, 5), products, fn("where", mask, Acc(0), -math.inf), weight,
        ld("f", "s", "e"), letters("s"), Letter("s"), False, letters("te"), Acc(1),
    )  # fmt: skip
    return fill(job, 4)


def rows_added() -> Case:
    """To rows 3 .. 9, at indices of other tiles too."""
    reads = (view("ids", 12, dtype=DType.INT32), view("rows", 12, 4))
    weight = fn("where", op("==", ld("ids", "s"), "v"), 1, 0)
    job = PairsJob(
        ranges(v=(3, 9), s=12, m=4), reads, result("o", 6, 4, at=(3, 0)), (), Acc(0), weight, ld("rows", "s", "m"), letters("s"),
        Letter("s"), False, letters("vm"), Acc(0),
    )  # fmt: skip
    return fill(job, 5, ids=np.array([3, 8, 0, 3, 9, 11, 8, 4, 2, 3, 5, 8]))


CASES = {
    "band": lambda: logarithm(BAND),
    "rows without keys": lambda: logarithm(op("<", "t", op("-", "s", 9))),
    "by keys": lambda: by_keys(op("<=", "t", "s")),
    "by keys, a band": lambda: by_keys(BAND),
}


@pytest.mark.parametrize("limit", [1, 400, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_any_size(name: str, limit: int) -> None:
    case = CASES[name]()
    out = case.poisoned()
    assert isinstance(case.job, PairsJob)
    prepare_pairs(case.job, limit)(case.operands(), out, None)
    assert_right(case, out)
    assert not (out == -math.inf).any(), "a row without keys has inf"


@pytest.mark.interpreter
@pytest.mark.parametrize("name", CASES)
def test_triton_computes_the_same(name: str) -> None:
    from einpage.kernels.launch.kernel import triton_kernel
    from einpage.kernels.tiles.target import Target
    from einpage.kernels.tiles.tiles import Tiles

    case = CASES[name]()
    out = case.poisoned()
    triton_kernel(case.job, Target(attention=Tiles(16, 16, 0, 4, 1)))(case.operands(), out, None)
    assert_right(case, out)


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_rows_are_added_to_zeros_and_those_of_other_tiles_are_left_out(limit: int) -> None:
    case = rows_added()
    out = case.poisoned()
    assert isinstance(case.job, PairsJob)
    prepare_added_rows(case.job, limit)(case.operands(), out, None)
    assert_right(case, out)
