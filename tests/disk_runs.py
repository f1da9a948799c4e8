"""Plans with a disk run by the CPU device on real files, for tests: a cache file of packed weights, scratch, engines that may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.checkpoints.disk.block_store import BlockStore
from einpage.checkpoints.disk.direct_file import PAGE, open_direct, open_scratch
from einpage.checkpoints.disk.engines import TransferOptions, make_engine
from einpage.checkpoints.disk.transfer import Engine
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.exec.device.arena import HostArena, host_copies, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.device.device import Device
from einpage.exec.dispatch.engine import Measured
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.machine.places import DISK
from einpage.memplan.tiers.prologue import prologue
from real_bytes import slices
from single_runs import run_serial

Data = Mapping[str, NDArray[Any]]


def written_weights(graph: TaskGraph, values: Data, path: Path, skew: Mapping[str, int]) -> dict[str, int]:
    """A file with every weight tile of `graph`, each at a page and `skew` bytes; where, by name."""
    at, top = {}, 0
    with path.open("wb") as file:
        for tensor in graph.tensors:
            if tensor.kind is Kind.WEIGHT:
                at[tensor.name] = top + skew.get(tensor.name, 0)
                tile = torch.from_numpy(np.array(values[tensor.value][slices(tensor.box)])).to(TORCH_DTYPE[tensor.dtype])
                file.seek(at[tensor.name])
                file.write(tile.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
                top = aligned(at[tensor.name] + tensor.nbytes, PAGE)
    return at


def disk_for(
    plan: MemGraph,
    values: Data,
    folder: Path,
    skew: Mapping[str, int] | None = None,
    reads: Engine | None = None,
    options: TransferOptions | None = None,
) -> OpenDisk:
    """The disk of `plan`, its weights written now."""
    options = options or TransferOptions()
    at = written_weights(plan.graph, values, folder / "weights", skew or {})
    file = open_direct(folder / "weights")
    scratch_at = aligned(file.nbytes, PAGE)
    scratch_bytes = (plan.arena_bytes(DISK) or 0) - plan.stored_bytes
    scratch = (scratch_at, open_scratch(folder, scratch_bytes)) if scratch_bytes else None
    store = BlockStore([(0, file)], scratch, reads or make_engine(options), make_engine(options), options)
    return OpenDisk(store, at, scratch_at, scratch_bytes, ())


def run_with_disk(
    plan: MemGraph,
    values: Data,
    disk: OpenDisk,
    dispatch: Callable[[MemGraph, Device], Measured] = run_serial,
    passes: int = 1,
) -> tuple[dict[str, Tensor], CpuDevice]:
    """Every output, by name, after so many passes; and the device. A loop is brought to its beginning first."""
    host = HostArena(plan.host_bytes)
    host.poison()
    memory = CpuMemory(host, plan.budget_bytes, disk)
    for t, slot in host_copies(plan, host).items():
        tensor = plan.graph.tensors[t]
        if tensor.kind is not Kind.WEIGHT:
            slot.copy_(torch.from_numpy(np.array(values[tensor.value][slices(tensor.box)])))
    if plan.loops:
        first = prologue(plan)
        dispatch(first, CpuDevice(first, memory, poison=True))
    device = CpuDevice(plan, memory, poison=True)
    device.preload()
    for _ in range(passes):
        dispatch(plan, device)
    return outputs(plan, host), device
