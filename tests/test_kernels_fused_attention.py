"""Attention by torch's own kernel: which jobs it takes, and that it computes them as they are defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from einpage.einsum_front.algebra.expr import Acc, Expr, Letter, Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.kernels.layout.blocks import SCRATCH_BYTES
from einpage.kernels.multiply.products import Products
from einpage.kernels.on_torch.attention import prepare_attention
from einpage.kernels.on_torch.fused_attention import causal, form_of, prepare_fused, scale_of
from kernels_allocated import allocated_bytes
from kernels_build import ex, fill, fn, ld, letters, op, ranges, result, view
from kernels_cases import attention, padded, windowed
from kernels_naive import Case, assert_right
from specs_small import SPECS

S, T = Letter("s"), Letter("t")


def up_to(mask: Expr, value: Expr | None = None) -> Expr:
    return fn("where", mask, value or op("/", Acc(0), 2), -math.inf)


def taken(case: Case) -> bool:
    """Whether torch's kernel takes it; it has computed it then, as defined."""
    assert isinstance(case.job, AttentionJob)
    kernel = prepare_fused(case.job)
    if kernel is None:
        return False
    out = case.poisoned()
    kernel(case.operands(), out)
    assert_right(case, out)
    return True


TAKEN: dict[str, Callable[[], Case]] = {
    "causal": attention,
    "one query": lambda: attention(s=(0, 1)),
    "of more than a block": lambda: attention(s=(0, 600), b=1),
    "fewer keys than queries": lambda: attention(s=(0, 11), t=7),
    "more keys than queries see": lambda: attention(s=(0, 5), t=11),
    "no mask": lambda: attention(score=op("*", 0.5, Acc(0)), t=7),
    "no scale": lambda: attention(score=up_to(op("<=", "t", "s"), Acc(0))),
    "scaled twice": lambda: attention(score=up_to(op("<=", "t", "s"), op("*", op("/", Acc(0), 4), 3))),
    "strictly less": lambda: attention(score=up_to(op("<", "t", op("+", "s", 1)))),
    "the other way round": lambda: attention(score=up_to(op(">=", op("-", "s", "t"), 0))),
    "three batches": lambda: attention(b=3, e=8),
    "a negative scale": lambda: attention(score=op("*", -0.5, Acc(0)), t=7),
    "queries after keys": lambda: attention(s=(5, 11)),
    "queries after keys, with an epilogue": lambda: attention(s=(5, 11), epilogue=op("*", op("+", Acc(1), 1), 0.25)),
    "a query sees the key after it": lambda: attention(score=up_to(op("<=", "t", op("+", "s", 1)))),
    "every query sees every key": lambda: attention(s=(20, 26), t=7),
    "keys in tiles, the last of them its own": lambda: attention(s=(6, 11), t=11, cuts=[2, 6]),
    "keys in tiles, no mask": lambda: attention(score=op("*", 0.5, Acc(0)), t=7, cuts=[3]),
    "with an epilogue": lambda: attention(epilogue=op("*", op("+", Acc(1), 1), 0.25)),
}
LEFT: dict[str, Callable[[], Case]] = {
    "windowed": windowed,
    "padded": padded,
    "bf16": lambda: attention(DType.BF16),
    "its own keys in tiles": lambda: attention(cuts=[3]),
    "a query does not see its own key": lambda: attention(score=up_to(op("<", "t", "s"))),
    "scores that are no product": lambda: attention(score=up_to(op("<=", "t", "s"), fn("tanh", Acc(0)))),
    "a negative scale beside a mask": lambda: attention(score=up_to(op("<=", "t", "s"), op("*", Acc(0), -0.5))),
    "a scale that fp32 does not hold": lambda: attention(score=up_to(op("<=", "t", "s"), op("*", op("*", Acc(0), 1e-30), 1e-30))),
    "biased scores": lambda: attention(score=up_to(op("<=", "t", "s"), op("+", Acc(0), "t"))),
    "scores of another sign": lambda: attention(score=up_to(op("<=", "s", "t"))),
    "every other key": lambda: attention(score=up_to(op("<=", op("*", "t", 2), "s"))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_computed_as_defined(name: str) -> None:
    assert taken(TAKEN[name]())


@pytest.mark.parametrize("name", LEFT)
def test_other_attention_is_left_alone(name: str) -> None:
    assert not taken(LEFT[name]())


def test_values_of_another_width_are_left_alone() -> None:
    r = ranges(s=6, t=6, e=4, d=8)
    reads = (view("q", 6, 4), view("p", 6, 4), view("v", 6, 8))
    q, k, v, score = ld("q", *"se"), ld("p", *"te"), ld("v", *"td"), up_to(op("<=", "t", "s"))
    assert not taken(fill(AttentionJob(r, reads, result("o", 6, 8), q, k, letters("e"), score, T, v, letters("sd"), Acc(1))))


@pytest.mark.parametrize("name", ["qse", "qes", "sqe", "esq"])
def test_operands_lie_as_it_reads_them_or_are_left_alone(name: str) -> None:
    """q heads [q], in any order; only of the orders that end with what is summed is an element beside the next."""
    r = ranges(q=3, s=6, t=6, e=4)
    shape = {"q": 3, "s": 6, "t": 6, "e": 4}
    keys = name.replace("s", "t")
    reads = (view("x", *(shape[a] for a in name)), view("p", *(shape[a] for a in keys)), view("v", *(shape[a] for a in keys)))
    job = AttentionJob(
        r, reads, result("o", *(shape[a] for a in name)), ld("x", *name), ld("p", *keys), letters("e"), up_to(op("<=", "t", "s")), T,
        ld("v", *keys), letters(name), Acc(1),
    )  # fmt: skip
    assert taken(fill(job)) == name.endswith("e")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sizes_are_computed_as_defined(data: st.DataObject) -> None:
    start, n, t = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 50))
    own_key = data.draw(st.sampled_from([0, 0, 1, -1]) | st.integers(0, 30))
    cuts = sorted(data.draw(st.sets(st.integers(1, t - 1), max_size=3))) if t > 1 else []
    score, b, e = up_to(op("<=", "t", op("+", "s", own_key - start))), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    own_keys_are_together = not any(own_key < cut < min(t, own_key + n) for cut in cuts)
    case = attention(s=(start, start + n), t=t, score=score, b=b, e=e, cuts=cuts)
    assert taken(case) == (own_key >= 0 and own_keys_are_together)


def test_masks_and_scales_are_read_off_scores() -> None:
    assert causal(op("<=", "t", "s"), T) == (S, 0)
    assert causal(op("<", op("+", "t", 3), op("+", 5, "s")), T) == (S, 1)
    assert causal(op(">", "s", "t"), T) == (S, -1)
    more_letters, twice = op("<=", op("+", "t", "u"), "s"), op("<=", op("*", 2, "t"), "s")
    for mask in (op("<=", "s", "t"), op("==", "t", "s"), more_letters, op("<=", "t", 4), twice, ex("t")):
        assert causal(mask, T) is None
    assert scale_of(op("/", op("*", 3, Acc(0)), 2)) == 1.5
    no_numbers = op("/", Acc(0), 0), op("*", Acc(0), 0), op("*", Acc(0), math.inf), op("*", Acc(0), 1e39), op("/", Acc(0), 1e38)
    for score in (*no_numbers, op("*", Acc(0), Acc(0)), op("/", 2, Acc(0)), Acc(1), Num(1)):
        assert scale_of(score) is None


def by_both(case: Case) -> list[torch.Tensor]:
    """The result of torch's kernel, and of the blocks."""
    assert isinstance(case.job, AttentionJob)
    fused, found = prepare_fused(case.job), []
    assert fused is not None
    for kernel in (fused, prepare_attention(case.job)):
        found.append(case.poisoned())
        kernel(case.operands(), found[-1])
    return found


@pytest.mark.parametrize("keys", [1, 4, 7, 20, 300])
@pytest.mark.parametrize("epilogue", [None, op("+", Acc(1), 1)])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("before", [0, 2, 30])
@pytest.mark.parametrize("what", ["q", "p", "own key", "overflow", "zeros"])
def test_scores_that_are_no_numbers_are_said_to_be_none(keys: int, epilogue: Expr | None, masked: bool, before: int, what: str) -> None:
    """Torch's kernel gives 0 to a short row of NaN, of the keys `before` the first query's own too."""
    t = before + keys
    cuts = [before] if before else None
    case = attention(s=(before, t), t=t, b=1, cuts=cuts, score=None if masked else op("*", 0.5, Acc(0)), epilogue=epilogue)
    q, p = np.array(case.values["q"]), np.array(case.values["p"])
    if what == "q":
        q[0, before] = math.nan
    elif what == "p":
        p[0, (keys + before) // 2] = math.nan
    elif what == "own key":
        p[0, before] = math.nan
    elif what == "overflow":
        q[:], p[:] = 1e20, 1e20
    else:
        q[:] = 0
    fused, blocks = by_both(Case(case.job, {**case.values, "q": q, "p": p}))
    assert torch.equal(fused.isnan(), blocks.isnan())
    assert fused.isnan().any() == (what != "zeros")
    close = (fused - blocks).abs() <= 1e-5 * blocks.abs().clamp(min=1)
    assert (close | fused.isnan()).all()


class _Allocations(TorchDispatchMode):
    """The bytes that torch's attention gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if "attention" in str(func):
            self.most = max(self.most, sum(t.untyped_storage().nbytes() for t in found))
        return found


@pytest.mark.parametrize("heads", [1, 40])
def test_what_it_allocates_is_counted_and_a_few_megabytes_at_most(heads: int) -> None:
    r = ranges(h=heads, s=2000, t=2000, e=64)
    shape = (2000, heads, 64)
    job = AttentionJob(
        r, (view("q", *shape), view("p", *shape), view("v", *shape)), result("o", *shape), ld("q", *"she"), ld("p", *"the"), letters("e"),
        up_to(op("<=", "t", "s")), T, ld("v", *"the"), letters("she"), Acc(1),
    )  # fmt: skip
    kernel = prepare_fused(job)
    assert kernel is not None
    case = fill(job)
    with _Allocations() as counted:
        kernel(case.operands(), case.poisoned())
    assert 0 < counted.most < kernel.temporary_bytes < kernel.scratch_bytes <= SCRATCH_BYTES


@pytest.mark.parametrize("epilogue", [None, op("+", Acc(1), 1)])
@pytest.mark.parametrize(("s", "cuts"), [((0, 700), None), ((700, 1400), None), ((700, 1400), [100, 700]), ((1400, 1407), None)])
def test_all_that_several_calls_allocate_is_counted(s: tuple[int, int], cuts: list[int] | None, epilogue: Expr | None) -> None:
    case = attention(s=s, t=s[1], cuts=cuts, epilogue=epilogue, e=16, b=1)
    assert isinstance(case.job, AttentionJob)
    kernel = prepare_fused(case.job, Products(threads=torch.get_num_threads()))
    assert kernel is not None
    assert allocated_bytes(kernel, case, case.poisoned()) <= kernel.scratch_bytes


@pytest.mark.parametrize("spec", ["llama", "gpt2", "qwen3", "opt"])
def test_prompts_of_shipped_decoders_are_computed_so(spec: str) -> None:
    model = open_model(SPECS / f"{spec}.yaml", {"seq": 9})
    tasks = build_graph(model.program, PlanRequest(1 << 40)).graph.tasks
    forms = [form_of(task.job) for task in tasks if isinstance(task.job, AttentionJob)]
    assert forms
    assert all(form is not None and form.own_key == 0 for form in forms)
