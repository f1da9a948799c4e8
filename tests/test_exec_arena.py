"""Arenas: views share memory with no copy, poison is wrong as every type, outputs are put together from their tiles."""

from __future__ import annotations

import mmap
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.exec.device.arena import HostArena, MappedArena, host_copies, outputs, used_extents
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.memplan.graph.memgraph import Compute, Extent, Offset
from einpage.memplan.machine.places import DEVICE
from hand_plan import hand_plan
from plain_plan import plain_plan
from real_bytes import filled_host
from strategies import data, random_graph


def extent(offset: int, nbytes: int) -> Extent:
    return Extent(Offset(offset), Nbytes(nbytes))


def test_views_share_the_arenas_bytes() -> None:
    arena = MappedArena(4096)
    whole = arena.view(extent(256, 24), (2, 3), DType.FP32)
    again = arena.view(extent(256, 24), (3, 2), DType.FP32)
    whole[1, 2] = 7.0
    assert again[2, 1] == 7.0
    assert arena.bytes(extent(276, 4)).view(np.float32)[0] == 7.0
    assert whole.data_ptr() % 256 == 0
    assert whole.is_contiguous()


def test_scalars_and_every_type_have_views() -> None:
    arena = MappedArena(4096)
    for dtype in DType:
        view = arena.view(extent(512, dtype.nbytes), (), dtype)
        view.fill_(1)
        assert view.shape == ()
        assert view.item() == 1


@pytest.mark.parametrize(("place", "shape"), [(extent(0, 24), (2, 2)), (extent(4080, 24), (2, 3))])
def test_a_view_that_does_not_fit_is_our_bug(place: Extent, shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        MappedArena(4096).view(place, shape, DType.FP32)


def test_an_arena_of_nothing() -> None:
    assert MappedArena(0).nbytes == 0


def test_a_view_outlives_the_arenas_name() -> None:
    view = MappedArena(1 << 20).view(extent(0, 1 << 20), (1 << 18,), DType.FP32)
    view.fill_(3.0)
    assert view.sum().item() == 3.0 * 2**18


def test_poison_is_nan_and_an_impossible_index() -> None:
    arena = MappedArena(1024, touch=True)
    arena.poison()
    for dtype in (DType.FP32, DType.BF16, DType.FP16):
        assert arena.view(extent(0, 1024), (1024 // dtype.nbytes,), dtype).isnan().all()
    assert (arena.view(extent(0, 1024), (256,), DType.INT32) > 2**30).all()
    assert (arena.view(extent(0, 1024), (128,), DType.INT64) > 2**62).all()


def test_poison_keeps_to_its_extent() -> None:
    arena = MappedArena(1024)
    arena.poison(extent(256, 7))
    touched = np.flatnonzero(arena.bytes(extent(0, 1024)))
    assert touched.tolist() == list(range(256, 263))


@pytest.mark.parametrize("seed", range(6))
def test_used_bytes_are_those_of_residencies_and_workspaces(seed: int) -> None:
    memgraph = plain_plan(random_graph(seed))
    used = np.zeros(memgraph.budget_bytes, bool)
    extents = [r.extents[0] for r in memgraph.residencies if r.place == DEVICE]
    extents += [n.workspace for n in memgraph.nodes if isinstance(n, Compute) and n.workspace is not None]
    for e in extents:
        used[e.offset : e.end] = True
    found = list(used_extents(memgraph))
    assert all(a.end < b.offset for a, b in pairwise(found)), "in order, and apart"
    told = np.zeros(memgraph.budget_bytes, bool)
    for e in found:
        told[e.offset : e.end] = True
    assert np.array_equal(told, used)


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def test_an_arena_larger_than_a_plan_takes_no_more_memory() -> None:
    """A budget is a limit: what no plan uses of it is not backed."""
    plan = plain_plan(random_graph(0)).with_arena(DEVICE, 8 << 30)
    before = resident()
    device = CpuDevice(plan, CpuMemory(HostArena(plan.host_bytes), plan.budget_bytes))
    assert device.arena_bytes == 8 << 30
    assert resident() - before < 1 << 30


def test_host_copies_are_what_is_on_the_host_at_the_start() -> None:
    plan = hand_plan()
    slots = host_copies(plan, HostArena(plan.host_bytes))
    assert {plan.graph.tensors[t].name: tuple(s.shape) for t, s in slots.items()} == {"table": (4, 64), "rows": (2,), "w": (64,)}
    assert [s.dtype for s in slots.values()] == [torch.float32, torch.int32, torch.float32]


def test_outputs_are_put_together_from_their_tiles() -> None:
    """Each tile of an output is written where the plan ends it; the value is whole, by the output's name."""
    for seed in range(6):
        graph = random_graph(seed)
        plan = plain_plan(graph)
        host = filled_host(plan, data(graph, seed))
        for r in plan.end:
            residency = plan.residencies[r]
            tensor = graph.tensors[residency.tensor]
            shape = next(v.shape for v in graph.values if v.name == tensor.value)
            whole = torch.arange(prod(shape)).float().view(shape)
            box = tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))
            host.view(residency.extents[0], tensor.shape, tensor.dtype).copy_(whole[box])
        for name, value in graph.outputs:
            found = outputs(plan, host)[name]
            shape = next(v.shape for v in graph.values if v.name == value)
            assert torch.equal(found, torch.arange(found.numel()).view(shape).to(found.dtype)), name


def test_an_output_that_is_not_there_is_our_bug() -> None:
    plan = hand_plan()
    lost = replace(plan, end=plan.start)
    with pytest.raises(AssertionError, match="output b is not on the host"):
        outputs(lost, HostArena(plan.host_bytes))


def test_dropped_pages_are_zero_and_their_neighbours_stay() -> None:
    page = mmap.PAGESIZE
    arena = MappedArena(4 * page)
    arena.poison()
    before = arena.bytes(Extent(Offset(0), Nbytes(4 * page))).copy()
    arena.drop(Extent(Offset(256), Nbytes(page - 256)))
    arena.drop(Extent(Offset(page - 256), Nbytes(2 * page)))
    after = arena.bytes(Extent(Offset(0), Nbytes(4 * page)))
    assert not after[page : 2 * page].any()
    assert (after[:page] == before[:page]).all() and (after[2 * page :] == before[2 * page :]).all()
