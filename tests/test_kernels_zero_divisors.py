"""Indices that are truths, or that divide by data: torch's kernels, Triton's and the reference against a Python `if`, whole and cut.

Whole numbers have no quotient by 0: in an index it is an error that says where, unless a condition discards it. A value has IEEE's.
"""

from __future__ import annotations

import ast
import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.kernels.errors import DivisorIsZero
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.prepare import Backend
from einpage.kernels.tiles.target import Target
from kernel_ranges import overflows
from real_bytes import direct

SPEC = """\
einpage: 1
name: divided
sizes: {{n: 6, wide: 3}}
axes: {{i: n, j: n, m: wide}}
inputs: {{x: {{axes: i}}, p: {{axes: i, dtype: {integer}{ranged}}}}}
weights: {{w: {{axes: i m, from: w}}}}
body:
  - h[i] = x[i] + 0
  - y[{axes}] = {expression}
outputs: {{y: {{axes: {letters}}}}}
"""
P = np.array([0, 2, -2, 4, 5, 1])
X = np.arange(10, 16)
W = np.arange(18).reshape(6, 3)
BACKENDS = [Backend.TORCH, pytest.param(Backend.TRITON, marks=pytest.mark.interpreter)]
TRUTHS = [
    "h[p[i] > 0]",
    "h[not (p[i] > 0)]",
    "h[p[i] > 0 and p[i] > 1]",
    "h[p[i] > 4 or p[i] < 0]",
    "h[(p[i] > 0) <= (p[i] > 1)]",
    "h[i > 2]",
    "where(i > 0, h[i == 3], 7)",
    "h[0 <= p[i]]",
    "w[p[i] > 0, 1]",
    "w[3, p[i] > 0]",
    "w[p[i] > 0, i > 2]",
    "h[(p[i] > 0) + (p[i] > 1) + (i > 2)]",
    "h[1 - (p[i] > 0)]",
    "h[-(p[i] > 0) + 1]",
    "h[max(p[i] > 0, i > 2) * 3]",
    "h[where(p[i] > 0, p[i] > 1, i > 3)]",
    "h[2 // ((p[i] > 0) + 1)]",
    "h[(i > 2) == (p[i] > 0)]",
]
DIVIDED = [
    "where(p[i] > 0, h[i // p[i]], 3)",
    "where(p[i] <= 0, 3, h[i // p[i]])",
    "where(p[i] < 0, h[i // -p[i]], 3)",
    "where(p[i] != 0, h[i % p[i] + 1], 3)",
    "where(p[i] != 0 and i > 0, h[(i // p[i]) % 6], 3)",
    "where(p[i] == 0 or i < 2, 3, h[max(0, min(i // p[i], 5))])",
    "h[where(p[i] > 0, i // p[i], 0)]",
    "h[p[i] != 0 and i // p[i] > 0]",
    "where(p[i] > 1, where(i // (p[i] - 1) < 3, h[i // (p[i] - 1)], 1), 2)",
    "where(p[i] > 0 and h[i // p[i]] > 10, 1, 0)",
    "where(i >= 3, h[i // p[i]], 3)",
    "where(p[i] > 0, w[i // p[i], 1], 3)",
    "where(p[i] > 0, h[p[i // p[i]] + 2], 3)",
    "where(i > 2, h[5 // (i - 2)], 3)",
]


class _Choices(ast.NodeTransformer):
    """`where(c, x, y)` as `x if c else y`, which looks at one side alone."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "where":
            return ast.copy_location(ast.IfExp(*node.args), node)
        return node


class _Tensor:
    """`t[a, b]` where a and b may be truths."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self.values = values

    def __getitem__(self, index: object) -> int:
        found = self.values
        for i in index if isinstance(index, tuple) else (index,):
            assert 0 <= int(i) < len(found)
            found = found[int(i)]
        return int(found)


def want(expression: str) -> list[int]:
    code = compile(ast.fix_missing_locations(_Choices().visit(ast.parse(expression, mode="eval"))), "spec", "eval")
    return [int(eval(code, {"i": i, "p": _Tensor(P), "h": _Tensor(X), "w": _Tensor(W)})) for i in range(6)]


def program_of(expression: str, integer: str = "int32", ranged: str = "", axes: str = "i") -> Program:
    text = SPEC.format(expression=expression, integer=integer, ranged=ranged, axes=axes, letters=axes.replace(",", " "))
    return elaborate(read_document(text, "divided.yaml"))


def graph_of(program: Program, pieces: int = 1, dtype: DType = DType.FP32) -> TaskGraph:
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        return split(fuse(program), {Letter("i"): pieces} if pieces > 1 else {}, dtype)


def data(program: Program, p: NDArray[np.int64] = P, integer: str = "int32") -> dict[str, NDArray[np.generic]]:
    every = {"x": X.astype(np.float32), "p": p.astype(integer), "w": W.astype(np.float32)}
    return {name: every[name] for name in (*(i.name for i in program.inputs), *(w.name for w in program.weights))}


def by_reference(program: Program, p: NDArray[np.int64] = P) -> list[float]:
    tensors = {name: torch.from_numpy(array) for name, array in data(program, p).items()}
    return evaluate(program, tensors, {"w": torch.from_numpy(W.astype(np.float32))})["y"].flatten().tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("pieces", "dtype", "integer"), [(1, DType.FP32, "int32"), (3, DType.FP16, "int64"), (2, DType.BF16, "int32")])
@pytest.mark.parametrize("expression", TRUTHS + DIVIDED)
def test_an_index_is_what_python_gives(expression: str, pieces: int, dtype: DType, integer: str, backend: Backend) -> None:
    program = program_of(expression, integer)
    (got,) = direct(graph_of(program, pieces, dtype), data(program, integer=integer), backend).values()
    assert got.tolist() == want(expression)
    assert by_reference(program) == want(expression)


@pytest.mark.parametrize("integer", ["int32", "int64"])
@pytest.mark.parametrize("expression", TRUTHS)
def test_a_truth_in_an_index_is_widened_first(expression: str, integer: str) -> None:
    """`tl.int1` has no 2, and as an offset no 1 that is sure to be positive; the interpreter, where it is numpy's, shows neither."""
    tasks = graph_of(program_of(expression, integer)).tasks
    launches = [launch for task in tasks if not task.gathers for launch in launches_of(task.job, Target(90))]
    assert (launches or expression.startswith("w")) and not [line for launch in launches for line in overflows(launch)]


@pytest.mark.parametrize("expression", ["where(p[i] > 0, w[i // p[i], m], 3)", "w[p[i] > 0, m]", "w[p[i] > 0 and i > 3, m]"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_rows_of_a_table_on_the_host(expression: str, pieces: int) -> None:
    program = program_of(expression, axes="i,m")
    graph = graph_of(program, pieces)
    assert any(task.gathers for task in graph.tasks)
    (got,) = direct(graph, data(program)).values()
    assert got.tolist() == [[want(expression.replace("m]", f"{m}]"))[i] for m in range(3)] for i in range(6)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("h[i % p[i]]", r"`p\[i\]` is 0 at i = 4, .* of line 9 .*`i % p\[i\]`"),
        ("where(i > 2, h[i // p[i]], 0)", r"`p\[i\]` is 0 at i = 4, .* of line 9 .*`i // p\[i\]`"),
        ("where(p[i] < 5, h[i // (p[i] + 0)], 0)", r"`p\[i\] \+ 0` is 0 at i = 4"),
        ("h[min(5, 3 % (p[5] - 2))]", r"`p\[5\] - 2` is 0, .* of line 9"),
        ("w[i % p[i], 0]", r"`p\[i\]` is 0 at i = 4"),
    ],
)
def test_a_zero_that_counts_is_an_error_that_says_where(expression: str, said: str, pieces: int, backend: Backend) -> None:
    program, p = program_of(expression), np.array([1, 2, 3, 4, 0, 2])
    with pytest.raises(DivisorIsZero, match=said) as failed:
        direct(graph_of(program, pieces), data(program, p), backend)
    assert failed.value.exit_status == 2
    with pytest.raises(UsageError, match="is 0, and an index divides by it"):
        by_reference(program, p)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("sum[j](h[i % j])", r"`j`, by which the index `i % j` divides, may be 0"),
        ("sum[j](where(j < 3, h[min(5, i // j)], 0))", r"`j`, by which .* may be 0"),
        ("h[i // 0]", "the index `i // 0` divides by 0"),
        ("where(x[i] > 0, h[min(5, max(0, i // p[i]))], 0)", r"`p\[i\]` may be 0, .* divides, and `x\[i\]`, which is not made of whole"),
    ],
)
def test_a_zero_that_no_input_or_no_whole_number_decides_is_an_error_of_the_spec(expression: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        program_of(expression)


def test_a_range_or_a_condition_proves_the_index() -> None:
    """Nothing is left to check when it runs, and no condition is looked at twice."""
    for expression, ranged in (("where(p[i] > 0, h[i // p[i]], 3)", ", range: -2 .. 5"), ("h[i // p[i]]", ", range: 1 .. 5")):
        (part,) = program_of(expression, ranged=ranged).definitions[-1].parts
        assert "where" not in str(part.expr).removeprefix("Call(fn='where'")


VALUES = [
    "x[i] // p[i]",
    "x[i] % p[i]",
    "x[i] / p[i]",
    "(i - 2) // p[i]",
    "(i - 2) % p[i]",
    "p[i] // p[i]",
    "-x[i] // p[i]",
    "i // 0",
    "i % 0",
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("expression", VALUES)
def test_a_value_divided_by_zero_is_as_ieee_has_it(expression: str, backend: Backend) -> None:
    program = program_of(expression)
    (got,) = direct(graph_of(program), data(program), backend).values()

    def quotient(x: float, y: float, op: str) -> float:
        if y == 0:
            return math.nan if op == "%" or x == 0 else math.copysign(math.inf, x)
        return {"//": x // y, "%": x % y, "/": float(np.float32(x / y))}[op]

    op = next(op for op in ("//", "%", "/") if f" {op} " in expression)
    left, right = expression.split(f" {op} ")
    names = [{"i": i, "x": _Tensor(X), "p": _Tensor(P)} for i in range(6)]
    expected = [quotient(eval(left, n), eval(right, n), op) for n in names]
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(by_reference(program), expected)
