"""Each function of the language as kernels compute it, against the naive twin: its torch form, its Triton form, and what they cost."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Expr
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.graph.job import MapJob, Part
from einpage.kernels.prepare import Backend, prepare
from kernels_build import ex, fill, fn, ld, ranges, result, view
from kernels_naive import Case, assert_right
from naive_functions import COSTLY, NAIVE, arguments


def pointwise(name: str, *numbers: float) -> Case:
    """A job of one call; the last arguments are `numbers`."""
    values = arguments(name, FUNCTIONS[name].arity - len(numbers))
    names = "xyz"[: len(values)]
    call: Expr = fn(name, *(ld(x, "s") for x in names), *numbers)
    job = MapJob(ranges(s=37), tuple(view(x, 37) for x in names), result("r", 37), (Part((ex("s"),), call),))
    return fill(job, **dict(zip(names, values, strict=True)))


def indexed(name: str) -> Case:
    """A job that reads `x` at the function's value of a letter and whole numbers."""
    call = fn(name, "s", *(3, 5)[: FUNCTIONS[name].arity - 1])
    return fill(MapJob(ranges(s=7), (view("x", 9),), result("r", 7), (Part((ex("s"),), ld("x", call)),)))


def run(case: Case, backend: Backend) -> torch.Tensor:
    out = case.poisoned()
    prepare(case.job, backend)(case.operands(), out, None)
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_torch_form(name: str) -> None:
    """Alone, then in a job, and with a number as its last argument."""
    values = arguments(name, FUNCTIONS[name].arity)
    tensors = [torch.from_numpy(x.astype(np.float32)) for x in values]
    form = FUNCTIONS[name].torch(torch)
    found = form(tensors[0] != 0, *tensors[1:]) if name == "where" else form(*tensors)
    want = NAIVE[name](*(x.double().numpy() for x in tensors))
    torch.testing.assert_close(found.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-6)
    for case in (pointwise(name), *([pointwise(name, 0.75)] if len(values) > 1 else [])):
        assert_right(case, run(case, Backend.TORCH), f" ({name})")


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if not f.temporary])
def test_a_torch_form_without_a_temporary_fills_a_result(name: str) -> None:
    f = FUNCTIONS[name]
    tensors = [torch.ones(3, dtype=torch.bool) if name == "where" and i == 0 else torch.ones(3) for i in range(f.arity)]
    out = torch.full((3,), torch.nan)
    f.torch(torch)(*tensors, out=out)
    assert not out.isnan().any()


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.interval is not None])
def test_a_function_of_whole_numbers_may_stand_in_an_index(name: str) -> None:
    assert_right(indexed(name), run(indexed(name), Backend.TORCH), f" (an index by {name})")


@pytest.mark.interpreter
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_triton_form(name: str) -> None:
    pytest.importorskip("triton")
    for case in (pointwise(name), *([pointwise(name, 0.75)] if FUNCTIONS[name].arity > 1 else [])):
        assert_right(case, run(case, Backend.TRITON), f" ({name})")


@pytest.mark.interpreter
@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.interval is not None])
def test_a_function_of_whole_numbers_may_stand_in_an_index_of_a_triton_kernel(name: str) -> None:
    pytest.importorskip("triton")
    assert_right(indexed(name), run(indexed(name), Backend.TRITON), f" (an index by {name})")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_costly_function_of_some_letters_is_not_computed_for_every_other(name: str) -> None:
    """Such letters get an axis of the kernel's block to themselves."""
    pytest.importorskip("triton")
    from einpage.kernels.on_triton.map_shape import map_shape

    arity = FUNCTIONS[name].arity
    body = fn(name, *(ld("x", "s") for _ in range(arity)))
    parts = (Part((ex("h"), ex("s")), body),)
    job = MapJob(ranges(h=64, s=64), (view("x", 64),), result("r", 64, 64), parts)
    shape = map_shape(job, tuple(r.letter for r in job.ranges), parts)
    assert bool(shape.columns) == (name in COSTLY)


def test_helpers_are_those_that_the_preamble_knows() -> None:
    pytest.importorskip("triton")
    from einpage.kernels.writer import math
    from einpage.kernels.writer.preamble import MATH

    source = inspect.getsource(math)
    assert [line.split("(")[0].removeprefix("def ") for line in source.splitlines() if line.startswith("def ")] == list(MATH)
