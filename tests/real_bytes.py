"""Running plans on real bytes, and the same graphs without any paging, for tests.

`direct` keeps every tensor forever and calls the same kernels in task order: what a plan, whatever it moves and frees, must
reproduce bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.exec.device.arena import HostArena, host_copies, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Measured
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.prepare import Backend, prepare
from einpage.memplan.graph.memgraph import MemGraph
from single_runs import run_serial

Data = Mapping[str, NDArray[Any]]


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.end, strict=True))


def direct(graph: TaskGraph, values: Data, backend: Backend = Backend.TORCH) -> dict[str, Tensor]:
    """Every output, by name, from tensors that are never moved and are NaN before they are written."""
    tiles: dict[TensorId, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.value in values:
            tiles[tensor.id] = torch.from_numpy(np.array(values[tensor.value][slices(tensor.box)])).to(TORCH_DTYPE[tensor.dtype])
        else:
            tiles[tensor.id] = torch.full(tensor.shape, torch.nan).to(TORCH_DTYPE[tensor.dtype])
    for task in graph.tasks:
        assert task.job is not None
        workspace = torch.zeros(task.workspace_bytes, dtype=torch.uint8) if task.workspace_bytes else None
        result, *others = (tiles[t] for t in task.results)
        prepare(task.job, backend)(tuple(tuple(tiles[t] for t in operand) for operand in task.operands), result, workspace, *others)
    found: dict[str, Tensor] = {}
    for name, value in graph.outputs:
        parts = [t for t in graph.tensors if t.value == value or (t.value == name and t.kind is Kind.CONSTANT)]
        shape = next(v.shape for v in graph.values if v.name == value)
        found[name] = torch.empty(shape, dtype=tiles[parts[0].id].dtype)
        for part in parts:
            found[name][slices(part.box)] = tiles[part.id]
    return found


def filled_host(plan: MemGraph, values: Data) -> HostArena:
    """A poisoned host arena with weights and inputs in their places."""
    host = HostArena(plan.host_bytes)
    host.poison()
    for t, slot in host_copies(plan, host).items():
        tensor = plan.graph.tensors[t]
        slot.copy_(torch.from_numpy(np.array(values[tensor.value][slices(tensor.box)])))
    return host


def run_on_bytes(
    plan: MemGraph, values: Data, dispatch: Callable[[MemGraph, Device], Measured] = run_serial, *, poison: bool = True
) -> dict[str, Tensor]:
    """Every output, by name, of a run of `plan` on the CPU device."""
    host = filled_host(plan, values)
    device = CpuDevice(plan, CpuMemory(host, plan.budget_bytes), poison=poison)
    device.preload()
    dispatch(plan, device)
    return outputs(plan, host)


def differences(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names of outputs that are not bitwise equal (a NaN equals nothing)."""
    assert got.keys() == expected.keys()
    return [name for name in sorted(expected) if not torch.equal(got[name], expected[name])]
