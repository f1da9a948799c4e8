"""Loops compiled for the processor at hand: functions as numpy has them in float64, reductions whose bits depend on their row alone, and
which of the shipped specs' statements are compiled at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import MapJob
from einpage.einsum_front.tile.split import split
from einpage.kernels.instructions import bind
from einpage.kernels.instructions.instruction_list import InstructionList
from einpage.kernels.layout.window import BoundStep
from einpage.kernels.on_llvm.compile import NativeCall, why_not_llvm
from einpage.kernels.on_llvm.functions import OPS
from einpage.kernels.on_llvm.loop_nests import (
    Applied,
    Array,
    Constant,
    Element,
    Loaded,
    LoopNests,
    Nest,
    Spacing,
    loop_nests,
    loop_nests_text,
)
from einpage.kernels.on_torch import map as map_
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.on_torch.written_rows import prepare_written_rows
from kernels_maps import MAPS
from kernels_naive import Case
from specs_small import small_program

pytestmark = pytest.mark.skipif(why_not_llvm() is not None, reason=str(why_not_llvm()))
UNTOUCHED = np.float32(7.25)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-40,
    -1e-40,
    1e-5,
    88.7,
    88.8,
    -87.4,
    -103.9,
    -104.1,
    3.4e38,
    -3.4e38,
    np.inf,
    -np.inf,
    np.nan,
    0.624,
    0.626,
]
ULPS = {"exp": 2, "sin": 2, "cos": 2, "tanh": 3, "sigmoid": 3, "silu": 4, "gelu_tanh": 6, "sqrt": 0.5, "rsqrt": 1.5, "relu": 0, "abs": 0}
"""Units in the last place; of sin and cos in units of 1; of products with what is nearly 0, in those of its last place."""


def run(nests: LoopNests, extents: Sequence[int], arrays: Sequence[NDArray[np.generic]], strides: Sequence[Sequence[int]]) -> None:
    table = list(extents)
    for array, steps in zip(arrays, strides, strict=True):
        table += [array.ctypes.data, *steps]
    numbers = np.array(table, np.int64)
    assert len(table) == nests.table_size
    loop_nests(nests)(numbers.ctypes.data)


def elementwise(op: str, *args: NDArray[np.float32]) -> NDArray[np.float32]:
    """`op` of vectors, written before elements that stay as they are."""
    line = Array(Element.FP32, (Spacing.ONE,))
    values = (*(Loaded(n) for n in range(len(args))), Applied(op, tuple(range(len(args)))))
    nests = LoopNests(1, (line,) * (len(args) + 1), (Nest((0,), values, ((len(args), len(args)),)),))
    out = np.full(len(args[0]) + 5, UNTOUCHED, np.float32)
    run(nests, [len(args[0])], [*args, out], [[1]] * (len(args) + 1))
    assert (out[-5:] == UNTOUCHED).all()
    return out[:-5]


def angles() -> NDArray[np.float32]:
    rng = np.random.default_rng(3)
    return np.concatenate(
        (rng.uniform(-7, 7, 4001), rng.uniform(-1e5, 1e5, 4001), rng.uniform(-4.2e5, 4.2e5, 4001), [7e6, 1e9, 3e38])
    ).astype(np.float32)


@pytest.mark.parametrize("name", sorted(ULPS))
def test_functions_are_within_units_in_the_last_place(name: str) -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate((np.array(SPECIAL), rng.normal(0, 1, 3000), rng.normal(0, 30, 3000), rng.uniform(-110, 95, 3001))).astype(np.float32)
    if name in ("sin", "cos"):
        x = np.concatenate((x, angles()))
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name].meaning(np, x.astype(np.float64))
        rounded = wanted.astype(np.float32)
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        if name in ("sin", "cos"):
            unit = np.full(len(x), 2.0**-24)
        if name == "silu":
            unit = np.maximum(unit, np.abs(x) * 2.0**-149)
        if name == "gelu_tanh":
            unit = np.maximum(unit, np.spacing(np.abs(x)))
        found = elementwise(name, x)
        wrong = np.abs(found - wanted) / unit
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    assert (same | (wrong <= ULPS[name])).all(), [
        (x[n], found[n], wanted[n], wrong[n]) for n in np.flatnonzero(~(same | (wrong <= ULPS[name])))[:5]
    ]


@pytest.mark.parametrize("op", ["min", "max", "<", "<=", ">", ">=", "==", "!=", "+", "-", "*", "/"])
def test_arithmetic_and_comparisons_are_torchs(op: str) -> None:
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(SPECIAL, SPECIAL))
    numbers = {"min": torch.minimum, "max": torch.maximum, "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}
    truths = {"<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne}
    wanted = (numbers | truths)[op](torch.from_numpy(x), torch.from_numpy(y)).to(torch.float32).numpy()
    if op in numbers:
        assert np.array_equal(elementwise(op, x, y), wanted, equal_nan=True)
        return
    line = Array(Element.FP32, (Spacing.ONE,))
    values = (Loaded(0), Loaded(1), Applied(op, (0, 1)), Applied("number", (2,)))
    out = np.full(len(x), UNTOUCHED, np.float32)
    run(LoopNests(1, (line,) * 3, (Nest((0,), values, ((2, 3),)),)), [len(x)], [x, y, out], [[1]] * 3)
    assert np.array_equal(out, wanted)


@cache
def reducing(reduction: str, inner: Spacing) -> LoopNests:
    values = (Loaded(0), Constant(2.0), Applied("*", (0, 1)))
    arrays = (Array(Element.FP32, (Spacing.MANY, inner)), Array(Element.FP32, (Spacing.MANY, Spacing.NONE)))
    return LoopNests(2, arrays, (Nest((0, 1), values, ((1, 2),), reduction, frozenset((1,))),))


@given(st.sampled_from(["sum", "mean", "max", "min"]), st.integers(1, 4), st.integers(1, 70), st.sampled_from([1, 3]), st.booleans())
def test_reductions(reduction: str, rows: int, columns: int, stride: int, nan: bool) -> None:
    x = np.random.default_rng(columns).normal(0, 1, (rows, columns * stride + 9)).astype(np.float32)
    seen = x[:, : columns * stride : stride]
    if nan:
        seen[0, columns // 2] = np.nan
    x[:, columns * stride :] = np.inf
    out = np.full(rows + 3, UNTOUCHED, np.float32)
    nests = reducing(reduction, Spacing.ONE if stride == 1 else Spacing.MANY)
    run(nests, [rows, columns], [x, out], [[x.shape[1], stride], [1, 0]])
    wanted = getattr(np, reduction)(2.0 * seen.astype(np.float64), axis=1)
    assert np.allclose(out[:rows], wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert (out[rows:] == UNTOUCHED).all()
    alone = np.full(1, UNTOUCHED, np.float32)
    run(nests, [1, columns], [x[rows - 1 :], alone], [[x.shape[1], stride], [1, 0]])
    assert np.array_equal(alone, out[rows - 1 : rows], equal_nan=True)  # a row's bits are its own


def test_every_op_has_a_kernel_that_llvm_takes() -> None:
    """By the verifier, of one, two or three vectors; those of truths have them from a comparison."""
    line = Array(Element.FP32, (Spacing.ONE,))
    loaded = (Loaded(0), Loaded(1), Applied("<", (0, 1)))
    args = {"and": (2, 2), "or": (2, 2), "not": (2,), "number": (2,), "where": (2, 0, 1)}
    for op in OPS:
        count = args.get(op) or ((0, 1) if (op in FUNCTIONS and FUNCTIONS[op].arity == 2) or not op.isidentifier() else (0,))
        last = (Applied("number", (3,)),) if op in ("and", "or", "not", "<", "<=", ">", ">=", "==", "!=") else ()
        values = (*loaded, Applied(op, count), *last)
        nests = LoopNests(1, (line,) * 3, (Nest((0,), values, ((2, len(values) - 1),)),))
        x = np.linspace(0.1, 2, 21, dtype=np.float32)
        out = np.full(21, UNTOUCHED, np.float32)
        run(nests, [21], [x, x[::-1].copy(), out], [[1]] * 3)
        assert (out != UNTOUCHED).all(), op


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "no_letters", "rms_norm_tiled"])
def test_loops_give_what_torchs_calls_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = MAPS[name]()
    found, wanted = case.poisoned(), case.poisoned()
    prepare_map(case.job)(case.operands(), found, None)
    monkeypatch.setattr(bind, "why_not_llvm", lambda: "not here")
    prepare_map(case.job)(case.operands(), wanted, None)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def maps_of_a_token(past: int) -> list[MapJob]:
    """Of the small LLaMA at so many positions, but for those that only copy rows."""
    graph = split(fuse(small_program("llama", {"batch": 1, "seq": 1, "past": past, "room": 64})), {}, DType.FP32)
    jobs = dict.fromkeys(task.job for task in graph.tasks if isinstance(task.job, MapJob))
    return [job for job in jobs if isinstance(job, MapJob) and prepare_written_rows(job) is None]


def compiled_texts(jobs: Sequence[MapJob], monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """The texts of which `jobs` have functions, and how many of their lists have none."""
    texts, without = set[str](), list[InstructionList]()

    def noted(nests: LoopNests, holds_lock: bool) -> NativeCall:
        texts.add(loop_nests_text(nests))
        return loop_nests(nests, holds_lock)

    def bound(listed: InstructionList, *args: Any) -> BoundStep:
        without.extend([listed] if listed.compiled is None else [])
        return bind.bind(listed, *args)

    monkeypatch.setattr(bind, "loop_nests", noted)
    monkeypatch.setattr(map_, "bind", bound)
    for job in jobs:
        types = [torch.int32 if view.dtype is DType.INT32 else torch.float32 for view in job.reads]
        tiles = tuple(tuple(torch.ones(b.shape, dtype=t) for b in view.boxes) for view, t in zip(job.reads, types, strict=True))
        prepare_map(job)(tiles, torch.empty(job.result.boxes[0].shape), None)
    return texts, len(without)


def test_a_tokens_maps_are_compiled_and_few_functions_serve_all_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, without = compiled_texts(maps_of_a_token(64), monkeypatch)
    assert without == 0
    assert len(texts) <= 5, "norms of all tokens and of the last ones, that last one, and what turns queries and keys by their position"
    assert compiled_texts(maps_of_a_token(128), monkeypatch) == (texts, without)
