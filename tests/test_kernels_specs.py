"""Every job of every shipped spec, whole and split into tiles: Triton's kernels (interpreted) against torch's, task by
task on the same operands."""

from __future__ import annotations

import math

import pytest
import torch

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, TaskGraph, Tensor
from einpage.einsum_front.tile.split import split
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import Backend, prepare
from kernels_naive import TOLERANCE, cut, relative_error
from specs_small import SMALL, Data, small_data, small_program

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

PIECES = {"llama": {"f": 2, "v": 3, "s": 2}, "gpt2": {"f": 2, "v": 3}, "mlp": {"h": 3}, "attention": {"s": 2}, "matmul_chain": {"r": 2}}


def graph_and_data(name: str, pieces: dict[str, int], dtype: DType) -> tuple[TaskGraph, Data]:
    program = small_program(name)
    return split(fuse(program), {Letter(x): n for x, n in pieces.items()}, dtype), small_data(program)


def host_copy(graph: TaskGraph, t: Tensor, data: Data) -> torch.Tensor:
    return cut(data[t.value], t.box, t.dtype)


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("tiled", [False, True], ids=["whole", "tiled"])
@pytest.mark.parametrize("name", SMALL)
def test_triton_equals_torch_on_every_job(name: str, tiled: bool, dtype: DType) -> None:
    graph, data = graph_and_data(name, PIECES[name] if tiled else {}, dtype)
    values: list[torch.Tensor | None] = [host_copy(graph, t, data) if t.kind in HOST_AT_START else None for t in graph.tensors]
    for task in graph.tasks:
        assert task.job is not None
        operands = tuple(tuple(values[t] for t in operand) for operand in task.operands)
        result = graph.tensors[task.result]
        outs = [torch.full(result.shape, math.nan, dtype=TORCH_DTYPE[result.dtype]) for _ in Backend]
        for out, backend in zip(outs, (Backend.TORCH, Backend.TRITON), strict=True):
            prepare(task.job, backend)(operands, out, None)  # type: ignore[arg-type]
        error = relative_error(outs[1], outs[0].double().numpy())
        assert error <= TOLERANCE[dtype], f"{task.name}: Triton differs from torch by {error:.2e}"
        values[task.result] = outs[0]
