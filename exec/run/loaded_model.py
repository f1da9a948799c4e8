"""A model in memory, for plans that run in turns: its weights are on the host once, the device's arena is made once, and the plans that ran
last stay ready to run again.

In: RunOptions, PlannedPhases. Out: ReadyPhases, each a device, its dispatcher and views of what goes in and out. What a plan leaves on the
device is not loaded again by the next, where that has it at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import RLock

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Kind, Tensor
from einpage.exec.device.arena import HostArena, host_copies, host_results, output_readers, outputs
from einpage.exec.device.cpu import CpuMemory
from einpage.exec.device.device import Device
from einpage.exec.device.stream_memory import StreamMemory
from einpage.exec.dispatch.engine import Dispatcher, Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.serial import SerialDispatcher
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.load.inputs import bind_inputs
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.model import Model
from einpage.exec.planning.plan_set import PlannedPhase
from einpage.exec.run.choose import DeviceKind, RunOptions, dispatcher_type, make_device, make_memory
from einpage.exec.run.prepared import disk_of, fill_inputs, load_residents, refuse_host, spilled_bytes
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset
from einpage.memplan.graph.packed import Residencies
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import HOST

Loading = Callable[[str, int], None]
MOVED_BYTES = 64 << 20
"""Of a block in which weights go to a larger arena: only so much of them is in memory twice."""
TRIES = 3
"""Passes by each of two dispatchers, of which the shortest counts, before the faster one runs the others."""
KEPT = 3
"""Plans that are ready at once: those of prompts, where nothing is on the device yet and later, and the bucket after them."""


class LoadedModel:
    """Weights on the host, for all plans that have them at the same offsets, and the memory in which these run. To be closed."""

    def __init__(self, options: RunOptions, loading: Loading | None = None) -> None:
        """`loading` is told of every block that is loaded."""
        self._options, self._loading = options, loading
        self.host = HostArena(0)
        self._weights_at: Mapping[str, int] = {}
        """By tile, the host offset of those that are loaded."""
        self._end = 0
        """Bytes of the arena up to the last of them."""
        self.owner: object = None
        """Who has inputs and states beside the weights: whoever came last."""
        self.not_finite: tuple[NotFiniteWeight, ...] = ()
        self.scratch_bytes = 0
        """Of the disk's, that plans have for what they spill there."""
        self._disk: OpenDisk | None = None
        self._lock = RLock()
        self._memory: CpuMemory | StreamMemory | None = None
        self._ready: dict[PlannedPhase, ReadyPhase] = {}
        """The one that was asked for last is the last."""

    def close(self) -> None:
        """Give back all that the device holds, and end what was begun; what is asked for afterwards is made anew."""
        with self._lock, ExitStack() as closed:
            self.owner = None
            ready, memory, self._ready, self._memory = [*self._ready.values()], self._memory, {}, None
            if self._disk is not None:
                closed.callback(self._disk.store.close)
                self._disk = None
            if memory is not None:
                closed.callback(memory.close)
            for phase in ready:
                closed.callback(phase.close)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Other threads wait until this is left. Raises EngineBusy where an engine still works that was interrupted before."""
        with self._lock:
            if self._memory is not None:
                self._memory.wait_for_engines()
            yield

    def rest(self, owner: object) -> None:
        """Let the engines' threads go until something runs again: where `owner` came last, and no other thread uses the model."""
        if self._lock.acquire(blocking=False):  # a generator that was dropped may be closed anywhere
            try:
                if self.owner is owner:
                    for phase in self._ready.values():
                        phase.rest()
            finally:
                self._lock.release()

    def memory(self, nbytes: int) -> CpuMemory | StreamMemory:
        """The host's arena, and one of `nbytes` on the device: the same, of one size, as long as the host's is."""
        if self._memory is None:
            self._memory = make_memory(self._options.device, self.host, nbytes, disk=self._disk)
        assert self._memory.nbytes == nbytes, "a model has one budget"
        return self._memory

    def ready(self, phase: PlannedPhase, machine: Machine) -> ReadyPhase:
        """`phase` on the device, or its first pass, as what is there has it; of those that were asked for before, KEPT stay ready."""
        memory = self.memory(phase.planned.memgraph.budget_bytes)
        if phase.first is not None:
            phase = phase.beginning(memory.missing_bytes(phase.planned.memgraph))
        found = self._ready.pop(phase, None) or ReadyPhase(phase, memory, machine, self._options)
        self._ready[phase] = found
        while len(self._ready) > KEPT:
            self._ready.pop(next(iter(self._ready))).close()
        return found

    def grow_to(self, nbytes: int) -> None:
        """An arena of so many bytes at least, the weights in it. Raises DoesNotFit where the host has too little memory."""
        if nbytes <= self.host.nbytes:
            return
        options = self._options
        self.close()
        refuse_host(options.device, nbytes, nbytes - self._end, options.plan.budget_bytes)
        larger, weights_at, end = HostArena(nbytes), self._weights_at, self._end
        self._weights_at, self._end = {}, 0  # whatever ends this early, they are loaded anew
        for start in range(0, end, MOVED_BYTES):
            part = Extent(Offset(start), Nbytes(min(MOVED_BYTES, end - start)))
            larger.bytes(part)[:] = self.host.bytes(part)
            self.host.drop(part)
        self.host, self._weights_at, self._end = larger, weights_at, end

    def load(self, model: Model, planned: Planned) -> None:
        """Weights to where the plan has them: as a rule they are there. Raises WeightError, DiskError."""
        memgraph = planned.memgraph
        if memgraph.has_disk:
            self._open_disk(model, planned)
            return
        tensors, there = memgraph.graph.tensors, Residencies.of(memgraph.residencies).at(HOST)
        residencies = [memgraph.residencies[r] for r in memgraph.start if there[r]]
        on_host = [r for r in residencies if tensors[r.tensor].kind is Kind.WEIGHT]
        weights_at = {tensors[r.tensor].name: int(r.extents[0].offset) for r in on_host}
        if weights_at == self._weights_at:
            return
        assert model.resolved is not None, "a model without weights can be planned, not run"
        self._weights_at, self._end = {}, 0
        self.not_finite = fill(memgraph.graph, model.resolved, host_copies(memgraph, self.host), self._loading)
        self._weights_at, self._end = weights_at, max((r.extents[0].end for r in on_host), default=0)

    def _open_disk(self, model: Model, planned: Planned) -> None:
        """The disk with the weights of a plan: as a rule it is open."""
        assert model.resolved is not None, "a model without weights can be planned, not run"
        names = {t.name for t in planned.graph.tensors if t.kind is Kind.WEIGHT}
        disk, scratch_bytes = self._disk, max(self.scratch_bytes, spilled_bytes(planned.memgraph))
        if disk is not None and names <= disk.offset_by_name.keys() and scratch_bytes <= disk.scratch_bytes:
            return
        self.close()
        self._disk = disk = disk_of(planned, model.resolved, scratch_bytes, self._loading)
        self.not_finite = disk.not_finite


class ReadyPhase:
    """A phase on a device: it can be run as often as wanted."""

    def __init__(self, phase: PlannedPhase, memory: CpuMemory | StreamMemory, machine: Machine, options: RunOptions) -> None:
        self.phase = phase
        self._memory, self._machine, self._options = memory, machine, options
        memgraph, host = phase.planned.memgraph, memory.host
        self._memgraph, self._host, self._at_start = memgraph, host, host_copies(memgraph, host)
        self._device = make_device(memgraph, memory, machine, options.kernels, poison=options.poison, choices=options.choices)
        self._dispatcher = _dispatcher(memgraph, options)
        tensors = memgraph.graph.tensors
        program = phase.model.program
        states, value_by_output = program.states, dict(memgraph.graph.outputs)
        by_value: dict[str, list[Tensor]] = {}
        for tensor in tensors:
            by_value.setdefault(tensor.value, []).append(tensor)
        self._first = {state.name: by_value.get(state.name, []) for state in states}
        at_end = host_results(memgraph, host)
        self._carried = [
            (self._at_start[first.id], at_end[last.id])
            for state in states
            for first in self._first[state.name]
            for last in by_value.get(value_by_output[state.name], [])
            if first.box == last.box and first.kind is Kind.INPUT
        ]
        """Tiles of states at the start and, as a run leaves them, at the end."""
        self._own_inputs = without_states(program)
        names = {i.name for i in self._own_inputs.inputs}
        self._given = [tensor for tensor in tensors if tensor.value in names]
        self._logits = output_readers(memgraph, host, (phase.output,))[phase.output]

    def close(self) -> None:
        """Let the engines' threads and the device go."""
        try:
            self._dispatcher.close()
        finally:
            self._device.close()

    def rest(self) -> None:
        """Let the engines' threads go until it runs again."""
        self._dispatcher.close()

    def put_states(self, whole_by_name: Mapping[str, torch.Tensor] | None) -> None:
        """What passes of another phase left, as far as it goes; 0 beyond, and everywhere where there was none."""
        for name, tiles in self._first.items():
            for t in tiles:
                target = self._at_start[t.id]
                target.zero_()
                if whole_by_name is not None:
                    part = whole_by_name[name][t.box.slices]
                    target[tuple(slice(0, n) for n in part.shape)] = part

    def states(self) -> dict[str, torch.Tensor]:
        """As they are after the last pass."""
        return outputs(self._memgraph, self._host, {state.name for state in self.phase.model.program.states})

    def preload(self) -> int:
        """Make resident what a pass begins with, where others ran last; answers the bytes. Before that its states have to be there."""
        loaded = load_residents(self._memgraph, self._memory, self._machine, self._options) if self._memgraph.has_disk else 0
        return loaded + self._device.preload()

    def run(self, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        """One pass: [b, v] logits after each sequence. The states that it leaves are those that the next begins with."""
        fill_inputs(self._given, bind_inputs(self._own_inputs, None, arrays), self._at_start)
        measured = self._dispatcher.run(self._device, hooks)
        for first, last in self._carried:
            first.copy_(last)
        return self._logits(), measured


class FasterDispatcher:
    """Of two dispatchers of one plan, that which turns out to be the faster here. Where copies are few and short, threads that hand over to
    each other take longer than copies that wait for kernels; how much longer, a plan does not say."""

    def __init__(self, first: Dispatcher, other: Callable[[], Dispatcher]) -> None:
        """`first` runs the first pass, which is slow in any case, and all of a plan that is not run again."""
        self._first, self._make_other = first, other
        self._other: Dispatcher | None = None
        self._seconds: tuple[list[float], list[float]] = [], []
        self._has_run = False

    def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
        """As Dispatcher.run: by each in turns, TRIES times, then by the one whose shortest pass was the shorter."""
        if not self._has_run:
            self._has_run = True
            return self._first.run(device, hooks)
        if self._other is None:
            self._other = self._make_other()
        of_first, of_other = self._seconds
        if len(of_other) < TRIES:
            runs_other = len(of_other) < len(of_first)
        else:
            runs_other = min(of_other) < min(of_first)
        measured = (self._other if runs_other else self._first).run(device, hooks)
        if len(of_other) < TRIES:
            self._seconds[runs_other].append(measured.wall_s)
        return measured

    def close(self) -> None:
        """End their threads."""
        self._first.close()
        if self._other is not None:
            self._other.close()


def _dispatcher(memgraph: MemGraph, options: RunOptions) -> Dispatcher | FasterDispatcher:
    asked = dispatcher_type(options.device, options.dispatch)(memgraph)
    if options.device is DeviceKind.CPU and options.dispatch_is_open:
        return FasterDispatcher(asked, lambda: SerialDispatcher(memgraph))
    return asked


def without_states(program: Program) -> Program:
    """Its inputs less the states."""
    states = {state.name for state in program.states}
    return replace(program, inputs=tuple(i for i in program.inputs if i.name not in states))
