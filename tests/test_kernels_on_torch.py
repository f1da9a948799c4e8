"""The plain-torch kernels against the naive fp64 definition: every case, in small blocks too, poisoned, updated in place, in
bounded memory.
"""

from __future__ import annotations

import math
import weakref
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, MapJob, Part
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.on_torch.attention import prepare_attention
from einpage.kernels.on_torch.contract import prepare_contract
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.prepare import Backend, PreparedKernels, prepare, scratch_bytes
from kernels_build import ex, fill, fn, ld, op, ranges, result, view
from kernels_cases import ATTENTIONS, CONTRACTS, GATHERS, attention, causal, gated, gather, plain_heads, project, unproject
from kernels_maps import MAPS, embedding, last_token, rms_norm, rotation
from kernels_naive import TOLERANCE, Case, assert_right, expected, relative_error

ALL = {**MAPS, **CONTRACTS, **ATTENTIONS, **GATHERS}
BLOCKED = {**MAPS, **CONTRACTS, **ATTENTIONS}


def program(case: Case, limit: int) -> TorchKernel:
    match case.job:
        case MapJob() as job:
            return prepare_map(job, limit)
        case ContractJob() as job:
            return prepare_contract(job, limit)
        case AttentionJob() as job:
            return prepare_attention(job, limit)
    raise AssertionError(case)


@pytest.mark.parametrize("name", ALL)
def test_equals_the_naive_definition(name: str) -> None:
    case = ALL[name]()
    out = case.poisoned()
    prepare(case.job, Backend.TORCH)(case.operands(), out, None)
    assert_right(case, out, f" ({name})")


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
@pytest.mark.parametrize("limit", [1, 700, 1 << 20])
def test_what_parts_share_is_rounded_once(dtype: DType, limit: int) -> None:
    """A square is a part, and an operand of others, for which bf16 has too few digits and fp16 no such number."""
    x = ld("x", "s")
    square = op("*", x, x)
    parts = tuple(Part((ex("s"), ex(i)), body) for i, body in enumerate((square, op("-", square, op("*", x, 256)), op("/", square, 4096))))
    values = np.arange(250.0, 263.0)
    case = fill(MapJob(ranges(s=13), (view("x", 13, dtype=dtype),), result("y", 13, 3, dtype=dtype), parts), x=values)
    out = case.poisoned()
    program(case, limit)(case.operands(), out, None)
    v = torch.from_numpy(case.values["x"]).float()
    assert torch.equal(out, torch.stack([v * v, v * v - v * 256, v * v / 4096], 1).to(out.dtype))


@pytest.mark.parametrize("limit", [1, 700])
@pytest.mark.parametrize("name", BLOCKED)
def test_small_blocks_give_the_same(name: str, limit: int) -> None:
    case = BLOCKED[name]()
    out = case.poisoned()
    program(case, limit)(case.operands(), out, None)
    assert_right(case, out, f" ({name}, blocks of {limit} bytes)")


class Allocations(TorchDispatchMode):
    """Counts the bytes of live tensors that torch calls made while it was on."""

    def __init__(self, known: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor):
                self._count(t)
        self.peak = max(self.peak, sum(self.live.values()))
        return out

    def _count(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        if storage.data_ptr() not in self.known and storage._cdata not in self.live:
            self.live[storage._cdata] = storage.nbytes()
            weakref.finalize(t, self.live.pop, storage._cdata, None)


@pytest.mark.parametrize("limit", [1, 8 << 20])
@pytest.mark.parametrize("name", BLOCKED)
def test_temporaries_stay_within_what_is_declared(name: str, limit: int) -> None:
    case = BLOCKED[name]()
    kernel, operands, out = program(case, limit), case.operands(), case.poisoned()
    with Allocations((out, *(t for o in operands for t in o))) as allocations:
        kernel(operands, out, None)
    small = 64 * len(case.job.ranges) + 64  # numbers as tensors, and the like
    assert allocations.peak <= kernel.scratch_bytes + small, f"{name}: {allocations.peak} bytes live, {kernel.scratch_bytes} declared"


def test_kernels_of_a_plan_hold_what_the_largest_of_them_holds() -> None:
    """In whatever order they are prepared, and each again."""
    jobs = [case.job for case in (gated(s=30, f=90), rms_norm(s=3, m=2), rms_norm(s=300, m=200), gated(s=3, f=9))]
    for order in permutations(jobs):
        kernels = PreparedKernels(Backend.TORCH)
        for n, job in enumerate((*order, order[0]), 1):
            kernels.of(job)
            found = [kernel for other in order[:n] if isinstance(kernel := prepare(other), TorchKernel)]
            shared = max(sum(kernel.scratch) for kernel in found)
            assert kernels.scratch_elements == shared
            assert kernels.scratch_bytes == 4 * shared + max(kernel.temporary_bytes for kernel in found)
            assert kernels.scratch_bytes >= max(scratch_bytes(other) for other in order[:n])


def test_large_jobs_are_blocked() -> None:
    for case in (gated(s=700, f=9000), rms_norm(s=3000, m=2000)):
        assert scratch_bytes(case.job) <= 8 << 20, case.job.result.name


def taken(case: Case, name: str) -> tuple[tuple[tuple[torch.Tensor, ...], ...], torch.Tensor]:
    """The case's operands, with the result lying where operand `name` lies."""
    operands = case.operands()
    out = next(o[0] for v, o in zip(case.job.reads, operands, strict=True) if v.name == name)
    return operands, out


@pytest.mark.parametrize(
    ("case", "operand"), [(rms_norm(), "x"), (unproject(), "x"), (ATTENTIONS["biased_gated"](), "gate"), (MAPS["pythonic"](), "x")]
)
@pytest.mark.parametrize("limit", [1, 900, 8 << 20])
def test_the_result_may_take_over_an_operand(case: Case, operand: str, limit: int) -> None:
    kernel = program(case, limit)
    apart = case.poisoned()
    kernel(case.operands(), apart, None)
    operands, out = taken(case, operand)
    kernel(operands, out, None)
    assert torch.equal(apart, out), f"{case.job.result.name} differs when it takes over {operand}"


def test_runs_are_bitwise_equal() -> None:
    case = unproject()
    outs = []
    for _ in range(3):
        out = case.poisoned()
        prepare(case.job)(case.operands(), out, None)
        outs.append(out)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_equal_jobs_share_a_kernel() -> None:
    assert prepare(project().job) is prepare(project().job)
    assert prepare(project().job) is not prepare(project(s=4).job)


@pytest.mark.parametrize("cuts", [None, {1: [4, 8]}])
@pytest.mark.parametrize("bad", [0, 10])
def test_an_index_outside_is_named(bad: int, cuts: dict[int, list[int]] | None) -> None:
    case = last_token(cuts)
    case = Case(case.job, {**case.values, "lengths": np.array([4, bad, 1])})
    with pytest.raises(IndexOutOfRange, match=rf"index {bad - 1} is outside dimension 1 of x, which has 9"):
        prepare(case.job)(case.operands(), case.poisoned(), None)


@pytest.mark.parametrize("cuts", [None, {0: [4, 9]}])
@pytest.mark.parametrize("bad", [-1, 12])
def test_a_gathered_index_outside_is_named_with_its_place(bad: int, cuts: dict[int, list[int]] | None) -> None:
    case = gather(cuts=cuts, tokens=np.array([[11, 0, 3, 3, 7, 1], [2, 5, bad, 10, 6, 9]]))
    with pytest.raises(IndexOutOfRange, match=rf"index {bad} \(at position \[1, 2\]\) is outside dimension 0 of table, which has 12"):
        prepare(case.job)(case.operands(), case.poisoned(), None)


@pytest.mark.parametrize("name", GATHERS)
def test_a_gather_moves_the_rows_and_no_more(name: str) -> None:
    case = GATHERS[name]()
    out = case.poisoned()
    assert prepare(case.job)(case.operands(), out, None) == out.nbytes


def test_a_gather_looks_at_tiles_that_hold_its_rows_only() -> None:
    """A tile of rows that nobody asks for may be anything, and costs nothing; every order of rows is right."""
    for tokens in ([[11, 0, 3, 3, 7, 1], [2, 5, 8, 10, 6, 9]], [[4] * 6, [7, 5] * 3], [[0, 11] * 3, [11] * 6]):
        case = gather(cuts={0: [1, 4, 8]}, tokens=np.array(tokens))
        table, indices = case.operands()
        assert len(table) == 4
        wanted = {next(i for i, b in enumerate(case.job.reads[0].boxes) if b.start[0] <= row < b.end[0]) for row in np.ravel(tokens)}
        left_out = [tile if i in wanted else torch.full_like(tile, math.nan) for i, tile in enumerate(table)]
        out = case.poisoned()
        prepare(case.job)((tuple(left_out), indices), out, None)
        assert_right(case, out)
        assert len(list(prepare(case.job)._tiles_with(indices[0].flatten()))) == len(wanted)  # type: ignore[attr-defined]


def test_a_wrong_mask_a_swapped_operand_and_another_number_are_noticed() -> None:
    """The tolerance rejects what it must: each mutant's result against the definition of the right job."""
    late = fn("where", op("<", "t", "s"), op("/", Acc(0), 3.0), -math.inf)
    gates, turned, found, heads = gated(), rotation(), embedding(), plain_heads()
    mutants = {
        "a mask one key short": (attention(), attention(score=late)),
        "another theta": (turned, rotation(theta=10100.0)),
        "gate and up swapped": (gates, Case(gates.job, {**gates.values, "w1": gates.values["w3"], "w3": gates.values["w1"]})),
        "sequences swapped": (found, Case(found.job, {**found.values, "tokens": found.values["tokens"][::-1]})),
        "heads swapped": (heads, Case(heads.job, {**heads.values, "k": heads.values["k"][::-1]})),
    }
    for what, (right, wrong) in mutants.items():
        out = wrong.poisoned()
        prepare(wrong.job)(wrong.operands(), out, None)
        assert relative_error(out, expected(right)) > 10 * TOLERANCE[DType.FP32], what


def test_emptied_blocks_are_not_computed() -> None:
    """A window over a long sequence costs a fraction of the scratch and products of the whole."""
    wide = attention(s=(0, 512), b=1, e=2)
    narrow = attention(s=(384, 512), t=512, b=1, e=2, score=causal(Acc(0), op("<", op("-", "s", "t"), 32)))
    whole = prepare_attention(attention(s=(384, 512), t=512, b=1, e=2, score=causal()).job, 8 << 20)
    assert prepare_attention(narrow.job, 8 << 20).scratch[1] < 0.5 * whole.scratch[1], "the scores of keys outside the window were laid out"
    assert prepare_attention(wide.job, 200_000).scratch_bytes <= 200_000
