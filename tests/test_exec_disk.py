"""Plans with a disk, run on real files: bit for bit what plans without one give, the plan's sectors and no others, errors on their node."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_files import FailingEngine, HeldEngine, LastFirstEngine, LateEngine, read_bytes_counted
from disk_runs import disk_for, run_with_disk
from einpage.checkpoints.disk.block_store import DiskRead
from einpage.checkpoints.disk.direct_file import DiskError
from einpage.checkpoints.disk.engines import TransferOptions, make_engine
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.device import Device, NullDevice
from einpage.exec.dispatch.engine import Measured, Run
from einpage.exec.dispatch.progress import SILENT, Hooks, Progress
from einpage.exec.dispatch.serial import SerialDispatcher
from einpage.exec.dispatch.static import schedule
from einpage.exec.errors import CountMismatch, NodeError
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.graph.simulate import queues_of, sector_bytes
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import SECTOR, Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.residency.resident_sets import Start
from hand_plan import edges_of, hand_plan
from real_bytes import differences, direct
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, budgets, data, random_graph, task_graphs
from three_places import least_host, with_disk

MACHINE = with_disk(a_machine())
Dispatch = Callable[[MemGraph, Device], Measured]
DISPATCHES = [run_serial, run_dynamic, run_static]


def planned(graph: TaskGraph, budget: int, host: int, start: Start, skew: dict[str, int]) -> MemGraph:
    options = PlanOptions(start=start, host_bytes=host, skew=lambda graph: skew)
    try:
        return plan(graph, MACHINE, budget, options)
    except DoesNotFit as error:
        return plan(graph, MACHINE, budget, replace(options, host_bytes=error.misfit.smallest_budget))


@settings(max_examples=25, deadline=None)
@given(draw=st.data(), start=st.sampled_from([Start.COLD, Start.LOOP]))
def test_random_plans_give_what_no_paging_gives(draw: st.DataObject, start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = draw.draw(task_graphs(most_ops=5, dtypes=(DType.FP32,), joined=True))
    budget = draw.draw(budgets(graph))
    host = least_host(graph, budget, PlanOptions(start=start, host_bytes=1)) + SECTOR * draw.draw(st.integers(0, 20))
    skew = {t.name: 8 * draw.draw(st.integers(0, SECTOR // 8 - 1)) for t in graph.tensors} if draw.draw(st.booleans()) else {}
    made, values = planned(graph, budget, host, start, skew), data(graph)
    assert judge(made) is None
    expected, folder = direct(graph, values), tmp_path_factory.mktemp("disk")
    options = TransferOptions(depth=draw.draw(st.integers(1, 6)), block_bytes=SECTOR * draw.draw(st.integers(1, 8)))
    reads = LastFirstEngine(make_engine(options)) if draw.draw(st.booleans()) else None
    disk = disk_for(made, values, folder, skew, reads, options)
    for dispatch in DISPATCHES:
        found, device = run_with_disk(made, values, disk, dispatch, 1 + made.loops)
        assert differences(found, expected) == []
        assert device.disk_bytes[1] == sector_bytes(made, Queue.WRITE)
    disk.store.close()


@pytest.fixture(scope="module")
def case() -> tuple[TaskGraph, MemGraph]:
    """A graph whose plan reads several tensors, and writes."""
    for seed in range(200):
        graph = random_graph(seed, most_ops=8)
        budget = largest_budget(graph)
        made = planned(graph, budget, least_host(graph, budget, PlanOptions(host_bytes=1)), Start.COLD, {})
        if sector_bytes(made, Queue.WRITE) and sum(made.queue(NodeId(n)) == Queue.READ for n in range(len(made.nodes))) > 3:
            return graph, made
    raise AssertionError("no plan of so many spills to the disk")


def largest_budget(graph: TaskGraph) -> int:
    """Bytes of a device on which every task just fits."""
    return largest_footprint(graph, ALIGNMENT)[1]


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_the_kernel_counts_the_plans_sectors(dispatch: Dispatch, case: tuple[TaskGraph, MemGraph], tmp_path: Path) -> None:
    graph, made = case
    values = data(graph)
    disk = disk_for(made, values, tmp_path)
    if "through" in disk.store.path:
        pytest.skip(f"{tmp_path} has no O_DIRECT")
    run_with_disk(made, values, disk, dispatch)  # code is read from the disk as well, once
    before = read_bytes_counted()
    found, device = run_with_disk(made, values, disk, dispatch)
    counted = read_bytes_counted() - before
    assert counted == device.disk_bytes[0] and differences(found, direct(graph, values)) == []
    assert device.disk_bytes[0] - gathered_bytes(device) == sector_bytes(made, Queue.READ)
    disk.store.close()


def gathered_bytes(device: CpuDevice) -> int:
    assert device._disk is not None
    return device._disk.gathered_bytes


@pytest.mark.parametrize("dispatch", [run_dynamic, run_static])
def test_reads_overlap_and_end_in_any_order(dispatch: Dispatch, case: tuple[TaskGraph, MemGraph], tmp_path: Path) -> None:
    graph, made = case
    values = data(graph)
    reads = LastFirstEngine(make_engine(TransferOptions()))
    disk = disk_for(made, values, tmp_path, reads=reads)
    found, _ = run_with_disk(made, values, disk, dispatch)
    assert differences(found, direct(graph, values)) == []
    assert reads.most > 1
    disk.store.close()


@pytest.mark.parametrize("dispatch", [run_dynamic, run_static])
def test_a_read_that_becomes_ready_begins_beside_those_under_way(
    dispatch: Dispatch, case: tuple[TaskGraph, MemGraph], tmp_path: Path
) -> None:  # fmt: skip
    graph, made = case
    values = data(graph)
    reads = LateEngine(make_engine(TransferOptions()), 0.04)
    disk = disk_for(made, values, tmp_path, reads=reads)
    found, _ = run_with_disk(made, values, disk, dispatch)
    assert differences(found, direct(graph, values)) == []
    assert reads.begun_when_woken > 0
    disk.store.close()


def test_a_read_that_needs_another_waits_for_it_though_reads_overlap(case: tuple[TaskGraph, MemGraph]) -> None:
    _, made = case
    reads = [n for n in range(len(made.nodes)) if made.queue(NodeId(n)) == Queue.READ]
    engine = queues_of(made).index(Queue.READ)
    assert not any(other == engine for item in schedule(made).engines[engine] for other, _ in item.waits)
    pairs = zip(made.edges.source.tolist(), made.edges.target.tolist(), strict=True)
    tied = replace(made, edges=edges_of((*pairs, (reads[0], reads[1]))))
    assert schedule(made).engines[engine][1].waits == ()
    assert schedule(tied).engines[engine][1].waits == ((engine, 1),)


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("number", [errno.EIO, 0])
def test_an_error_is_said_of_its_node(number: int, dispatch: Dispatch, case: tuple[TaskGraph, MemGraph], tmp_path: Path) -> None:
    graph, made = case
    values = data(graph)
    options = TransferOptions()
    disk = disk_for(made, values, tmp_path, reads=FailingEngine(make_engine(options), 1, number))
    before = (tmp_path / "weights").read_bytes()
    with pytest.raises(NodeError) as found:
        run_with_disk(made, values, disk, dispatch)
    error = found.value
    assert made.queue(error.node) == Queue.READ and error.what == describe(made, error.node) and error.exit_status == 2
    assert isinstance(error.__cause__, DiskError) and "\n" not in str(error) and "on the disk_to_host engine" in str(error)
    assert (tmp_path / "weights").read_bytes() == before, "the source is untouched"
    outcome, _ = run_with_disk(made, values, disk, dispatch)
    assert differences(outcome, direct(graph, values)) == [], "the next run works"
    disk.store.close()


@pytest.mark.parametrize("dispatch", [run_dynamic, run_static])
def test_a_run_that_is_stopped_waits_for_what_is_in_flight_and_begins_no_more(
    dispatch: Callable[[MemGraph, Device, Hooks], Measured], case: tuple[TaskGraph, MemGraph], tmp_path: Path
) -> None:  # fmt: skip
    graph, made = case
    options = TransferOptions(depth=1, block_bytes=SECTOR)
    reads = HeldEngine(make_engine(options))
    disk = disk_for(made, data(graph), tmp_path, reads=reads, options=options)

    def interrupt(progress: Progress) -> None:
        if reads.begun:
            reads.over.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with_disk(made, data(graph), disk, lambda of, device: dispatch(of, device, Hooks(progress=interrupt, interval_s=0.01)))
    assert reads.begun == 1 and not disk.store._in_flight
    disk.store.close()


def test_nothing_wakes_a_device_whose_run_was_stopped() -> None:
    """It may be closed, and an engine that was in the middle of a node ends it only now."""
    woken: list[None] = []

    class Overlapping(NullDevice):
        most_reads = 1

        def begin(self, node: NodeId) -> bool:
            return False

        def ended(self) -> list[tuple[NodeId, Exception | None]]:
            return []

        def wake(self) -> None:
            woken.append(None)

        def drain(self) -> None:
            pass

    run = Run(SerialDispatcher(hand_plan()), Overlapping(hand_plan()), SILENT)
    run.wake_reads()
    run.stop()
    assert len(woken) == 2
    run.wake_reads()
    run.stop(ValueError())
    assert len(woken) == 2


def test_a_write_that_fails_is_said_of_its_node(case: tuple[TaskGraph, MemGraph], tmp_path: Path) -> None:
    graph, made = case
    values = data(graph)
    disk = disk_for(made, values, tmp_path)
    disk.store._writes = FailingEngine(make_engine(TransferOptions()), 0, errno.ENOSPC)
    with pytest.raises(NodeError, match="the disk is full; free some of it") as found:
        run_with_disk(made, values, disk)
    assert made.queue(found.value.node) == Queue.WRITE
    disk.store.close()


def cut_off(path: Path) -> None:
    os.truncate(path, 100)


def rewritten(path: Path) -> None:
    """Other bytes of the same length, at the same time."""
    before, data = path.stat(), bytes(255 - b for b in path.read_bytes())
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [cut_off, rewritten])
def test_a_file_that_changes_between_passes_is_told(
    change: Callable[[Path], None], case: tuple[TaskGraph, MemGraph], tmp_path: Path
) -> None:
    graph, made = case
    values = data(graph)
    disk = disk_for(made, values, tmp_path)
    run_with_disk(made, values, disk)
    change(tmp_path / "weights")
    with pytest.raises((NodeError, DiskError), match="changed while it was in use"):
        run_with_disk(made, values, disk)
    disk.store.close()


def test_sectors_that_are_not_the_plans_are_our_bug(case: tuple[TaskGraph, MemGraph], tmp_path: Path) -> None:
    graph, made = case
    values = data(graph)
    disk = disk_for(made, values, tmp_path)
    run = disk.store.run

    def twice(read: DiskRead) -> None:
        run(read)
        run(read)

    disk.store.run = twice  # type: ignore[method-assign]
    with pytest.raises(CountMismatch, match="the plan says"):
        run_with_disk(made, values, disk)
    disk.store.close()
