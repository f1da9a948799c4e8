"""Running a plan: weights and inputs into the host arena, the MemGraph replayed on a device, the outputs read out.

In: a Model with weights, and options. Out: a RunResult whose figures were counted, not copied from the plan. Nothing is written to disk
here; the command line does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.checkpoints.disk.engines import TransferOptions
from einpage.checkpoints.match.resolve import Resolved
from einpage.checkpoints.match.tile_places import tile_places
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.einsum_front.graph.taskgraph import TaskGraph, Tensor, TensorId
from einpage.exec.device.arena import HostArena, bytes_before_outputs, host_copies, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.device.device import Device, DeviceMemory
from einpage.exec.device.stream_memory import KeptMemory, refuse_pinning
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.serial import SerialDispatcher
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.load.inputs import bind_inputs, refuse_beyond
from einpage.exec.load.packed_tiles import OpenDisk, open_disk
from einpage.exec.planning.judged_plan import (
    MachineSource,
    Planned,
    RejectedPlan,
    compacted,
    least_host_bytes,
    machine_now,
    plan_program,
    stored_warnings,
)
from einpage.exec.planning.model import Model
from einpage.exec.run.choose import (
    DeviceKind,
    Dispatch,
    RunOptions,
    dispatcher_type,
    make_device,
    make_memory,
    refuse_host_budget,
)
from einpage.exec.run.find_nan import CheckedDevice, FoundNan, find_nan
from einpage.exec.run.outputs import output_warnings, text_figures, wanted_outputs
from einpage.exec.run.report import DeviceFigures, DiskFigures, RunReport, host_peaks, profile_warnings, weight_warnings
from einpage.exec.system.process_memory import available_bytes, give_back_memory, peak_resident_bytes, physical_bytes, rebuilt
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DISK, SECTOR
from einpage.memplan.problem.pace import Pace
from einpage.memplan.tiers.prologue import prologue


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """A finished run."""

    planned: Planned
    outputs: dict[str, torch.Tensor]
    """By name, on the CPU."""
    report: RunReport

    @property
    def measured(self) -> Measured:
        """The last pass."""
        return self.report.measured

    @property
    def facts(self) -> dict[str, object]:
        """The report as `run --json` prints it."""
        return self.report.facts()


@dataclass(slots=True, eq=False)
class Prepared:
    """A plan with its weights and inputs in place: everything slow is done, and it can be run as often as wanted."""

    model: Model
    options: RunOptions
    planned: Planned
    host: HostArena
    device: CpuDevice | StreamDevice
    own_memory: DeviceMemory | None = None
    """What of it nobody else uses."""
    not_finite: tuple[NotFiniteWeight, ...] = ()
    """What of the weights is not finite."""
    kept: KeptMemory | None = None
    """Whose arena it has, to be given back."""
    disk: OpenDisk | None = None
    """Of a plan with one, to be closed."""
    disk_bytes: list[tuple[int, int]] = field(default_factory=list)
    """Of each pass of the last run: read from the disk and written to it, in whole sectors."""
    loaded_bytes: int = 0
    """Read from the disk before the first pass of the last run, in whole sectors."""
    schedule_s: float = 0.0
    """What it took to make the dispatcher ready that ran last: once, whatever the number of runs, and in no run's time."""
    _dispatchers: dict[Dispatch, tuple[Dispatcher, float]] = field(default_factory=dict)

    def run(self, dispatch: Dispatch, hooks: Hooks = SILENT) -> list[Measured]:
        """Every pass that the options ask for. Raises the errors of the engines."""
        if dispatch not in self._dispatchers:
            began = perf_counter()
            made = dispatcher_type(self.options.device, dispatch)(self.planned.memgraph)
            self._dispatchers[dispatch] = made, perf_counter() - began
        dispatcher, self.schedule_s = self._dispatchers[dispatch]
        if self.disk is not None and self.own_memory is not None:
            self.loaded_bytes = load_residents(self.planned.memgraph, self.own_memory, self.planned.machine, self.options)
        self.device.preload()
        self.disk_bytes, passes = [], []
        for _ in range(self.options.plan.passes or 1):
            passes.append(dispatcher.run(self.device, hooks))
            if isinstance(self.device, CpuDevice):
                self.disk_bytes.append(self.device.disk_bytes)
        return passes

    def run_checked(self, hooks: Hooks = SILENT) -> tuple[list[Measured], FoundNan]:
        """As `run`, one node after the other, with every result looked at: where NaN and inf in the outputs come from."""
        memgraph = self.planned.memgraph
        device = CheckedDevice(memgraph, self.device)
        device.preload()
        with closing(SerialDispatcher(memgraph)) as dispatcher:
            passes = [dispatcher.run(device, hooks) for _ in range(self.options.plan.passes or 1)]
        return passes, find_nan(self.model.program, memgraph.graph, device.counts_by_task, host_copies(memgraph, self.host))

    def outputs(self) -> dict[str, torch.Tensor]:
        """What the last run left, by name: new tensors."""
        return outputs(self.planned.memgraph, self.host)

    def close(self) -> None:
        """Unpin host memory, or give it back where others go on with it; nothing runs afterwards."""
        with ExitStack() as closed:
            if self.kept is not None:
                closed.callback(self.kept.give_back)
            if self.disk is not None:
                closed.callback(self.disk.store.close)
            if self.own_memory is not None:
                closed.callback(self.own_memory.close)
            closed.callback(self.device.close)
            for dispatcher, _ in self._dispatchers.values():
                closed.callback(dispatcher.close)
            self._dispatchers = {}


def prepare_run(
    model: Model,
    machine: Machine | MachineSource,
    options: RunOptions,
    named: Mapping[str, NDArray[np.generic]] | None = None,
    loading: Callable[[str, int], None] | None = None,
    planned_hook: Callable[[Planned], None] | None = None,
    pace: Pace | None = None,
    kept: KeptMemory | None = None,
) -> Prepared:
    """Plan `model`, load its weights and inputs, make the device. Arguments and errors as run_model's, which runs the result once; `kept`
    has the host's arena for one prepared run after the other."""
    assert model.resolved is not None, "a model without weights can be planned, not run"
    began = perf_counter()
    program = model.program
    arrays = bind_inputs(program, model.tokens, named or {})
    refuse_infinite(arrays, options.plan.dtype)
    wanted = wanted_outputs(model, options)
    refuse_host_budget(options.device, options.plan.host_budget_bytes, options.find_nan)
    resolved = model.resolved
    request = replace(options.plan, outputs=wanted, skew=partial(sector_bytes_of, resolved=resolved))
    there = 0 if kept is None else kept.nbytes
    least_bytes = request.host_budget_bytes or least_host_bytes(program, request)
    refuse_host(options.device, least_bytes, least_bytes - there, 0)
    machine = within_device(machine, options.plan.budget_bytes)
    planned = rebuilt(lambda: compacted(plan_program(program, machine, request, began, pace)))
    memgraph = planned.memgraph
    refuse_host(options.device, memgraph.host_bytes, memgraph.host_bytes - there, options.plan.budget_bytes)
    if planned_hook is not None:
        planned_hook(planned)
    with ExitStack() as undone:
        if kept is not None:
            undone.callback(kept.give_back)
        disk = None
        if memgraph.has_disk:
            disk = disk_of(planned, resolved, spilled_bytes(memgraph), loading)
            undone.callback(disk.store.close)
        host = HostArena(memgraph.host_bytes) if kept is None else kept.lend(memgraph.host_bytes)
        slots = host_copies(memgraph, host)
        not_finite = fill(planned.graph, resolved, slots, loading) if disk is None else disk.not_finite
        fill_inputs(planned.graph.tensors, arrays, slots)
        del slots
        give_back_memory(memgraph.host_bytes)
        if kept is None or disk is not None:
            memory = make_memory(options.device, host, memgraph.budget_bytes, disk=disk)
        else:
            memory = kept.memory(memgraph.budget_bytes)
        undone.callback(memory.close)
        device = make_device(memgraph, memory, planned.machine, options.kernels, poison=options.poison, choices=options.choices)
        undone.pop_all()
    return Prepared(model, options, planned, host, device, memory, not_finite, kept, disk)


def disk_of(planned: Planned, resolved: Resolved, scratch_bytes: int, loading: Callable[[str, int], None] | None) -> OpenDisk:
    """The disk that the weights of a plan are read from, and `scratch_bytes` of what is spilled. Raises DiskError, WeightError."""
    return open_disk(planned.graph, resolved, tile_places(planned.graph, resolved), scratch_bytes, choice_of(planned.machine), loading)


def choice_of(machine: Machine) -> TransferOptions:
    """How `machine` reads its disk best; where nobody measured that, by io_uring."""
    if not machine.disk:
        return TransferOptions()
    best = machine.disk[0]
    return TransferOptions(best.engine, best.depth, best.block_bytes)


def spilled_bytes(memgraph: MemGraph) -> int:
    """Bytes of the disk's arena after the weights."""
    return (memgraph.arena_bytes(DISK) or 0) - memgraph.stored_bytes


def sector_bytes_of(graph: TaskGraph, resolved: Resolved) -> Mapping[str, int]:
    """The byte of a sector that each tile of a weight begins at on the disk, by name."""
    return {graph.tensors[t].name: offset % SECTOR for t, offset in tile_places(graph, resolved).offset_by_tensor.items()}


def load_residents(memgraph: MemGraph, memory: DeviceMemory, machine: Machine, options: RunOptions) -> int:
    """Load from the disk what a loop begins with on the device and the host, unless it is there; the bytes of the sectors that were read.

    Raises the errors of the engines."""
    if not memory.missing_bytes(memgraph):
        return 0
    first = prologue(memgraph)
    if (violation := judge(first)) is not None:
        raise RejectedPlan(violation)
    assert isinstance(memory, CpuMemory), "streams have no disk yet"
    device = CpuDevice(first, memory, threads=machine.threads, poison=options.poison)
    with closing(dispatcher_type(options.device, options.dispatch)(first)) as dispatcher:
        dispatcher.run(device)
    return device.disk_bytes[0]


def run_model(
    model: Model,
    machine: Machine | MachineSource,
    options: RunOptions,
    named: Mapping[str, NDArray[np.generic]] | None = None,
    hooks: Hooks = SILENT,
    loading: Callable[[str, int], None] | None = None,
    planned_hook: Callable[[Planned], None] | None = None,
    pace: Pace | None = None,
) -> RunResult:
    """Plan and run `model` on the device that `options` names; `named` holds inputs other than its tokens. A function for a machine is
    called when all is refused that needs none.

    `loading(weight, nbytes)` is told of every block of weights loaded, `planned_hook` of the plan before anything is loaded;
    `pace` is that of the search for the plan, where somebody watches it. Raises
    the errors of plan_program and the engines; DoesNotFit where the host has too little memory.
    """
    prepared = prepare_run(model, machine, options, named, loading, planned_hook, pace)
    planned, host, device = prepared.planned, prepared.host, prepared.device
    try:
        searched: FoundNan | None = None
        if options.find_nan:
            passes, searched = prepared.run_checked(hooks)
        else:
            passes = prepared.run(options.dispatch, hooks)
    except Exception:  # an interrupt does not wait for what the device still has to do
        prepared.close()
        raise
    figures = DeviceFigures(device.name, device.arena_bytes, device.outside_arena_bytes)
    slower = device.slower if isinstance(device, StreamDevice) else ()
    ways = tuple(device.ways.items()) if isinstance(device, StreamDevice) else ()
    disk = disk_figures(prepared)
    prepared.close()
    not_finite, schedule_s = prepared.not_finite, prepared.schedule_s
    del prepared, device  # its arena and the weights go before outputs, which may be as large, are put together
    host.drop(bytes_before_outputs(planned.memgraph))
    found = outputs(planned.memgraph, host)
    report = RunReport(
        plan=planned.report,
        device=figures,
        dispatch=Dispatch.SERIAL if options.find_nan else options.dispatch,
        kernels=options.kernels,
        choices=options.choices,
        ways=ways,
        threads=torch.get_num_threads(),
        passes=tuple(passes),
        peak_rss_bytes=peak_resident_bytes(),
        text=text_figures(found, model, options.perplexity),
        warnings=(),
        find_nan=searched,
        disk=disk,
        schedule_s=schedule_s,
    )
    warnings = (
        *model.warnings,
        *([] if options.tiles_refused is None else [options.tiles_refused]),
        *stored_warnings(planned, options.plan.weights_as),
        *weight_warnings(not_finite, options.plan.dtype),
        *output_warnings(found, report.text, searched is not None),
        *slower,
        *profile_warnings(planned.machine, options.device, report.wall_s, planned, passes),
    )
    return RunResult(planned, found, replace(report, warnings=warnings))


def disk_figures(prepared: Prepared) -> DiskFigures | None:
    """Of what `prepared` ran last; None where its plan has no disk."""
    if prepared.disk is None:
        return None
    read, written = zip(*prepared.disk_bytes, strict=True)
    peak, rounded = host_peaks(prepared.planned.memgraph)
    return DiskFigures(prepared.disk.store.path, read, written, prepared.loaded_bytes, peak, rounded)


def run_passes(memgraph: MemGraph, device: Device, options: RunOptions, dispatch: Dispatch, hooks: Hooks) -> Iterator[Measured]:
    """Preload the resident tensors; then run every pass, each when the one before is done."""
    device.preload()
    with closing(dispatcher_type(options.device, dispatch)(memgraph)) as dispatcher:
        for _ in range(options.plan.passes or 1):
            yield dispatcher.run(device, hooks)


def within_device(machine: Machine | MachineSource, budget_bytes: int) -> Machine | MachineSource:
    """`machine`, which is refused where the budget is more than it has: now, or when a function for it is called."""

    def checked() -> Machine:
        found = machine_now(machine)
        refuse_above_device(found, budget_bytes)
        return found

    return checked() if isinstance(machine, Machine) else checked


def refuse_above_device(machine: Machine, budget_bytes: int) -> None:
    """Raises UsageError for an arena larger than the device's memory."""
    if budget_bytes > machine.device_bytes:
        raise UsageError(
            f"budget {format_bytes(budget_bytes)} is more than the {format_bytes(machine.device_bytes)} that machine {machine.name} has; "
            "give a smaller --budget"
        )


def refuse_host(device: DeviceKind, host_bytes: int, more_bytes: int, budget_bytes: int) -> None:
    """Raises DoesNotFit where the host has too little memory for `more_bytes` of the `host_bytes` that a run has there, and for its device
    where that is the CPU; CannotPin for a host arena that leaves the machine too little."""
    if device is DeviceKind.CUDA:
        refuse_pinning(host_bytes, physical_bytes())
    refuse_above_host(more_bytes, budget_bytes if device is DeviceKind.CPU else 0)


def refuse_above_host(host_bytes: int, budget_bytes: int, what: str = "weights, inputs, spills and outputs") -> None:
    """Raises DoesNotFit where this machine has too little free memory for the arenas: better now than swapping later."""
    available = available_bytes()
    if available is not None and host_bytes + budget_bytes > available:
        free = max(0, available - budget_bytes)
        raise DoesNotFit(Misfit(what, "host", host_bytes, free, free, available, (), None))


def refuse_infinite(arrays: Mapping[str, NDArray[np.generic]], dtype: DType) -> None:
    """Raises InputError for an input with finite numbers that the run's dtype does not hold."""
    limits = torch.finfo(TORCH_DTYPE[dtype])
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            infinite = torch.tensor(array).to(TORCH_DTYPE[dtype]).isinf().numpy()
            refuse_beyond(name, array, infinite, dtype.value, limits.max)


def fill_inputs(tensors: Iterable[Tensor], arrays: Mapping[str, NDArray[np.generic]], slots: Mapping[TensorId, torch.Tensor]) -> None:
    """Copy every tile among `tensors` of a value in `arrays` into its host slot, in the tile's own element type."""
    for tensor in tensors:
        if tensor.value in arrays:
            slots[tensor.id].copy_(torch.from_numpy(np.asarray(arrays[tensor.value][tensor.box.slices], order="C")))
