"""Steps on a device: states at home on the host, each step a run of the plan, the loss read out.

In: a TrainStep and its plan. Out: a Trainer, whose states may be read, and set, between steps. Weights and what is kept for them are on the
host once, where the plan has them; a run's last moves put the next ones there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.program import State
from einpage.einsum_front.graph.taskgraph import Tensor
from einpage.exec.device.arena import HostArena, host_copies, output_readers
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Dispatcher, Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.train_step import TrainStep
from einpage.exec.run.choose import RunOptions, dispatcher_type, make_device, make_memory
from einpage.exec.run.prepared import fill_inputs, refuse_host
from einpage.exec.system.process_memory import give_back_memory
from einpage.exec.train.carried import states_on_device


@dataclass(frozen=True, slots=True)
class StepDone:
    """For whoever watches."""

    number: int
    """From 1."""
    loss: float
    rate: float | None
    wall_s: float
    tokens: int
    skipped: bool = False
    """Whether it changed neither weights nor what is kept for them, since a gradient was not finite."""
    loss_scale: float | None = None
    """That this step's loss was multiplied by; None where losses are not scaled."""


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A step that was run."""

    loss: float
    measured: Measured
    overflowed: bool
    """Whether a gradient was not finite, so that it changed nothing but the loss scale."""


class Trainer:
    """To be closed."""

    def __init__(self, step: TrainStep, planned: Planned, options: RunOptions, loading: Callable[[str, int], None] | None = None) -> None:
        """Load the weights; what is kept for them is 0, or a copy in fp32. `loading` is told of every block. Raises DoesNotFit where the
        host has too little memory, WeightError."""
        assert step.model.resolved is not None, "a model without weights can be planned, not trained"
        memgraph = planned.memgraph
        self.step, self.planned, self._memgraph = step, planned, memgraph
        refuse_host(options.device, memgraph.host_bytes, memgraph.host_bytes, options.plan.budget_bytes)
        with ExitStack() as undone:
            self.host: HostArena = HostArena(memgraph.host_bytes)
            self._at_start = host_copies(memgraph, self.host)
            self.not_finite: tuple[NotFiniteWeight, ...] = fill(planned.graph, step.model.resolved, self._at_start, loading)
            self._tiles: dict[str, list[Tensor]] = {}
            for tensor in planned.graph.tensors:
                if tensor.id in self._at_start:
                    self._tiles.setdefault(tensor.value, []).append(tensor)
            weights, number = {w.name for w in step.program.weights}, {i.name: i.default or 0 for i in step.program.inputs}
            for state in step.program.states:
                if state.name not in weights:
                    for tile in self._tiles[state.name]:
                        self._at_start[tile.id].fill_(number[state.name])
            give_back_memory(memgraph.host_bytes)
            memory = make_memory(options.device, self.host, memgraph.budget_bytes)
            undone.callback(memory.close)
            self.device: CpuDevice | StreamDevice = make_device(
                memgraph, memory, planned.machine, options.kernels, poison=options.poison, choices=options.choices
            )
            undone.callback(self.device.close)
            began = perf_counter()
            self._dispatcher: Dispatcher = dispatcher_type(options.device, options.dispatch)(memgraph)
            self.schedule_s = perf_counter() - began
            undone.callback(self._dispatcher.close)
            self._closing = undone.pop_all()
        self._is_there = False
        """Whether the states are as a step left them: those that stay on the device are newer there than on the host."""
        self._on_device = dict(states_on_device(memgraph))
        readers = output_readers(memgraph, self.host, (step.loss, *([step.overflow] if step.overflow else [])))
        self._loss = readers[step.loss]
        self._overflow = readers[step.overflow] if step.overflow else None

    def close(self) -> None:
        """Let the engines' threads and the device go; states stay readable."""
        self._closing.close()

    def take(self, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks = SILENT) -> Ran:
        """One step with these inputs, the rate among them. Raises the errors of the engines: the states are then of no use."""
        fill_inputs([tile for name in arrays for tile in self._tiles.get(name, ())], arrays, self._at_start)
        if not self._is_there:
            self.device.preload()  # what is resident, which later steps find as the one before left it
            self._is_there = True
        measured = self._dispatcher.run(self.device, hooks)
        return Ran(float(self._loss()), measured, self._overflow is not None and bool(self._overflow()))

    @property
    def loss_scale(self) -> float | None:
        """That the next step multiplies its loss by; None where losses are not scaled."""
        return None if self.step.scale_state is None else float(self.state(self.step.scale_state))

    def state(self, name: str) -> torch.Tensor:
        """A state, or a weight that does not train, as it is now: a new tensor in its own dtype, or a view of what is there."""
        parts = [(tile.box.slices, self._now(tile)) for tile in self._tiles[name]]
        if len(parts) == 1:
            return parts[0][1]
        whole = torch.empty(self._shape(name), dtype=parts[0][1].dtype)
        for slices, part in parts:
            whole[slices] = part
        return whole

    def _now(self, tile: Tensor) -> torch.Tensor:
        on_device = self._on_device.get(tile.id)
        return self.device.contents(on_device) if self._is_there and on_device is not None else self._at_start[tile.id]

    def put_state(self, name: str, whole: torch.Tensor) -> None:
        """Go on from there: before the first step."""
        assert not self._is_there, "the device has states that are newer"
        for tile in self._tiles[name]:
            self._at_start[tile.id].copy_(whole[tile.box.slices])

    @property
    def states(self) -> tuple[State, ...]:
        """Weights that train, what is kept for them, the number of the step."""
        return self.step.program.states

    def dtype_of(self, name: str) -> DType:
        """Of a state or a weight."""
        return self._tiles[name][0].dtype

    def _shape(self, name: str) -> tuple[int, ...]:
        return next(value.shape for value in self.planned.graph.values if value.name == name)
