"""The CPU device on real bytes: all dispatchers and all orders agree bit for bit, and poison finds a missing edge."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.device.arena import POISON, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.serial import random_order
from einpage.exec.errors import NodeError
from einpage.kernels.errors import IndexOutOfRange
from einpage.memplan.graph.memgraph import Compute, EdgeKind, Edges, Extent, Free, HostGather, MemGraph, NodeId, Offset
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from plain_plan import plain_plan
from real_bytes import Data, differences, direct, filled_host, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import data, random_graph

SEEDS = (0, 1, 3, 6, 14, 21)
"""Graphs with gathers, chains, takeovers, workspaces; the plans have 18 to 600 nodes."""


def made(seed: int, dtype: DType = DType.FP32) -> tuple[TaskGraph, MemGraph, Data]:
    graph = random_graph(seed, dtype=dtype)
    plan = plain_plan(graph)
    return graph, plain_plan(graph, 2 * plan.budget_bytes), data(graph, seed)


def without_edge(plan: MemGraph, index: int) -> MemGraph:
    edges = plan.edges
    kept = np.delete(np.arange(len(edges)), index)
    return replace(plan, edges=Edges(edges.source[kept], edges.target[kept], edges.kind[kept]))


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_dispatcher_and_ten_random_orders_give_the_direct_result(seed: int, dtype: DType) -> None:
    graph, plan, values = made(seed, dtype)
    expected = direct(graph, values)
    for dispatch in (run_serial, run_dynamic, run_static):
        assert differences(run_on_bytes(plan, values, dispatch), expected) == []
    for order in range(10):
        by_order = partial(run_serial, order=random_order(plan, order))
        assert differences(run_on_bytes(plan, values, by_order), expected) == []


def test_the_result_does_not_need_poison() -> None:
    graph, plan, values = made(1)
    assert differences(run_on_bytes(plan, values, run_static, poison=False), direct(graph, values)) == []


def test_a_second_pass_gives_the_same() -> None:
    graph, plan, values = made(1)
    host = filled_host(plan, values)
    device = CpuDevice(plan, CpuMemory(host, plan.budget_bytes), poison=True)
    for _ in range(3):
        measured = run_dynamic(plan, device)
        assert differences(outputs(plan, host), direct(graph, values)) == []
        assert measured.moved_bytes == moved_bytes_by_queue(plan)


@pytest.mark.parametrize("kind", EdgeKind, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("seed", [1, 6])
def test_a_missing_edge_is_caught_in_some_order(seed: int, kind: EdgeKind) -> None:
    """Remove one edge that no other path implies: then some order reads poison, or bytes that are not there yet or no longer."""
    graph, plan, values = made(seed)
    expected = direct(graph, values)
    rng = np.random.default_rng(seed)
    tried = 0
    for index in rng.permutation(len(plan.edges)).tolist():
        source, target = int(plan.edges.source[index]), int(plan.edges.target[index])
        broken = without_edge(plan, index)
        if tried == 5:
            break
        if plan.edges.kind[index] != kind or isinstance(plan.nodes[target], Free) or reaches(broken, source, target):
            continue
        tried += 1
        assert any(is_wrong(broken, values, expected, order) for order in range(40)), f"edge {source} to {target}"
    assert tried >= 3


def is_wrong(plan: MemGraph, values: Data, expected: dict[str, torch.Tensor], order: int) -> bool:
    try:
        return bool(differences(run_on_bytes(plan, values, partial(run_serial, order=random_order(plan, order))), expected))
    except NodeError as error:
        return isinstance(error.__cause__, IndexOutOfRange)


def reaches(plan: MemGraph, source: int, target: int) -> bool:
    reached = {source}
    for s, t in zip(plan.edges.source.tolist(), plan.edges.target.tolist(), strict=True):
        if s in reached and t <= target:
            reached.add(t)
    return target in reached


def test_an_index_outside_the_table_names_the_gather() -> None:
    graph, plan, values = next(m for m in map(made, range(100)) if any(isinstance(n, HostGather) for n in m[1].nodes))
    indices = next(v.name for v in graph.values if v.dtype is DType.INT32)
    bad = {**values, indices: values[indices] + 1000}
    for dispatch in (run_serial, run_dynamic, run_static):
        with pytest.raises(NodeError, match=r"gather .* on the h2d engine: IndexOutOfRange") as caught:
            run_on_bytes(plan, bad, dispatch)
        assert caught.value.exit_status == 2


def test_the_arena_is_exactly_the_budget_and_what_is_outside_is_reported() -> None:
    _, plan, values = made(14)
    device = CpuDevice(plan, CpuMemory(filled_host(plan, values), plan.budget_bytes))
    assert device.arena_bytes == plan.budget_bytes
    assert device.outside_arena_bytes > 0
    assert device.name == "cpu"


def openmp_threads() -> Callable[[], int]:
    """OpenMP's own number of threads for a team that the calling thread opens. To ask torch for its number changes this one."""
    mapped = Path("/proc/self/maps")
    libraries = {line.split()[-1] for line in mapped.read_text().splitlines() if "omp" in line} if mapped.exists() else set()
    found = [library for library in libraries if Path(library).name.startswith(("libgomp", "libiomp", "libomp"))]
    if not found:
        pytest.skip("no OpenMP library is mapped by that name")
    asked: Callable[[], int] = ctypes.CDLL(found[0]).omp_get_max_threads
    return asked


@pytest.mark.parametrize("dispatch", [run_serial, run_dynamic, run_static])
def test_kernels_have_the_threads_they_were_given_on_every_engine(dispatch: Callable[..., Measured]) -> None:
    """A new thread uses as many as the machine has cores until it is initialised; one team too many spins on the cores that copies need."""
    _, plan, values = made(6)
    before, asked = torch.get_num_threads(), openmp_threads()
    seen: list[int] = []

    class Looking(CpuDevice):
        def compute(self, node: NodeId) -> None:
            seen.append(asked())
            super().compute(node)

    try:
        for threads in (before + 1, before + 2):
            seen.clear()
            device = Looking(plan, CpuMemory(filled_host(plan, values), plan.budget_bytes), threads=threads)
            dispatch(plan, device)
            assert set(seen) == {threads}
            torch.set_num_threads(before)  # as another model does, between two runs of this one
            dispatch(plan, device)
            assert set(seen) == {threads}
    finally:
        torch.set_num_threads(before)


def test_poison_is_left_wherever_contents_have_ended() -> None:
    """After a run that frees everything on the device, every byte of the arena that was ever used is poison; without poison, none is."""
    _, plan, values = made(14)
    for poison in (True, False):
        device = CpuDevice(plan, CpuMemory(filled_host(plan, values), plan.budget_bytes), poison=poison)
        run_dynamic(plan, device)
        words = device._device.bytes(Extent(Offset(0), plan.budget_bytes)).view("<u2")
        assert (words == POISON).all() == poison
        assert (words != POISON).all() != poison


def test_workspace_is_poisoned_after_use() -> None:
    _, plan, values = made(14)
    node, used = next((NodeId(i), n.workspace) for i, n in enumerate(plan.nodes) if isinstance(n, Compute) and n.workspace)
    assert used is not None
    for poison in (True, False):
        device = CpuDevice(plan, CpuMemory(filled_host(plan, values), plan.budget_bytes), poison=poison)
        device._device.bytes(used)[:] = 1
        device.compute(node)
        words = device._device.bytes(used)[: used.nbytes // 2 * 2].view("<u2")
        assert (words == (POISON if poison else 0x0101)).all()
