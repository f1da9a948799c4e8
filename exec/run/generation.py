"""Generation: token after token from a model that is held open, its states carried from run to run.

In: a spec with `state:`, weights, prompts. Out: ids, as they come. There is a plan for the prompts and one for each **bucket** of positions
after them, made before its first token; what of a state lies before the bucket is the same in every pass of it, and may be resident as a
weight may. All plans have their weights at the same host offsets: they are loaded once.

    positions   0 ....... prompt ][ past | extra ][ past ........ | extra     ]
    plan            prompts          bucket 1           bucket 2
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Kind, Tensor
from einpage.exec.device.arena import HostArena, host_copies, host_results, outputs
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.load.inputs import LENGTHS, TOKENS, TokenLists, bind_inputs, refuse_ids_outside
from einpage.exec.planning.judged_plan import MachineSource, Planned, least_host_bytes, plan_program
from einpage.exec.planning.model import Model, ModelAt, refuse_positions
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.exec.run.choose import DeviceKind, RunOptions, make_device, repeated
from einpage.exec.run.outputs import logits_axes
from einpage.exec.run.prepared import compacted, fill_inputs, refuse_above_device, refuse_above_host
from einpage.exec.run.report import weight_warnings
from einpage.exec.run.sampling import Sampler, Sampling
from einpage.exec.system.process_memory import available_bytes
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import PlaceKind, Queue

AT = "at"
"""The input that says where the first token of a run stands, by sequence."""
SIZES = ("batch", "seq", "past", "room")
"""What a spec that generates is sized by: sequences, tokens of a run, positions before it, and for how many more runs a plan serves."""
LEAST_EXTRA, EXTRA_SHARE = 63, 4
"""Of a bucket: extra for so many tokens at least, and for a share of those before it."""


@dataclass(slots=True)
class GenerationFigures:
    """Counted and timed while tokens come."""

    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0
    """All passes after the prompts' own, sampling and planning included."""
    steps: int = 0
    """Passes after the prompts' own."""
    moved_bytes: int = 0
    """Over both links in those."""
    predicted_s: float = 0.0
    """What the plans say these passes take."""
    plan_s: float = 0.0
    plans: int = 0
    host_bytes: int = 0


class Generation:
    """Prompts of one batch, and the tokens after them."""

    def __init__(
        self,
        model_at: ModelAt,
        machine: Machine | MachineSource,
        options: RunOptions,
        prompts: TokenLists,
        max_new: int,
        loading: Callable[[str, int], None] | None = None,
        hooks: Hooks = SILENT,
        planned_hook: Callable[[Planned], None] | None = None,
    ) -> None:
        """Refuses what can be known before the first token, plans the prompts and the first bucket, and loads the weights. Raises
        UsageError for a spec that does not generate, or not as far as that, and the errors of every stage of a run. A function for a
        machine is called when all is refused that needs none."""
        if max_new < 1:
            raise UsageError(f"--max-new {max_new} is not at least 1")
        self._model_at, self._options, self._hooks = model_at, options, hooks
        self._lengths = [len(row) for row in prompts.lists]
        self._ids = [list(row) for row in prompts.lists]
        self._max_new = max_new
        self.figures = GenerationFigures()
        refuse_positions(model_at, len(self._ids), max(self._lengths), max_new)
        self._refuse_prompts(prompts)
        self._refuse_budget()
        self._machine = machine if isinstance(machine, Machine) else machine()
        refuse_above_device(self._machine, options.plan.budget_bytes)
        bucket = self._planned(*self._bucket_from(min(self._lengths)), 1) if max_new > 1 else None
        prompt = self._planned_alike(bucket, 0, 0, max(self._lengths))
        if bucket is not None and bucket.split != prompt.split:
            bucket = self._planned(bucket.past, bucket.extra, 1, prompt.split)
        self._bucket = bucket
        phases = [phase for phase in (prompt, bucket) if phase is not None]
        nbytes = max(phase.planned.memgraph.host_bytes for phase in phases)
        refuse_above_host(nbytes, options.plan.budget_bytes if options.device is DeviceKind.CPU else 0)
        self._host = HostArena(nbytes if options.device is DeviceKind.CUDA else nbytes + self._reserve(phases[-1], nbytes))
        self.figures.host_bytes = nbytes
        if planned_hook is not None:
            planned_hook(prompt.planned)
        self._prompt = prompt
        self._weights_at: Mapping[str, int] = {}
        """By tile, the host offset of those that are loaded."""
        self.warnings = (*prompt.model.warnings, *weight_warnings(self._load(prompt, loading), options.plan.dtype))

    def tokens(self, sampling: Sampling) -> Generator[list[int], None, None]:
        """The next id of every sequence, until there are as many as were asked for. Raises the errors of the engines."""
        samplers = [Sampler(sampling, n) for n in range(len(self._ids))]
        began = perf_counter()
        phase = _Ready(self._prompt, self._host, self._machine, self._options)
        phase.clear_states()
        phase.run(self._first_inputs(), self._hooks)
        logits = phase.logits()
        try:
            for n in range(self._max_new):
                if n:
                    began = perf_counter()
                    phase, logits = self._step(phase)
                found = [sampler.next(row, ids) for sampler, row, ids in zip(samplers, logits, self._ids, strict=True)]
                for ids, token in zip(self._ids, found, strict=True):
                    ids.append(token)
                if n:
                    self.figures.decode_s += perf_counter() - began
                else:
                    self.figures.time_to_first_token_s = perf_counter() - began
                yield found
        finally:
            phase.close()

    def _load(self, phase: _Phase, loading: Callable[[str, int], None] | None = None) -> tuple[NotFiniteWeight, ...]:
        """Weights to where the phase has them: as a rule they are there, since plans of one split cut and place them alike."""
        memgraph, model = phase.planned.memgraph, phase.model
        tensors = memgraph.graph.tensors
        residencies = [memgraph.residencies[r] for r in memgraph.start]
        on_host = [r for r in residencies if r.place.kind is PlaceKind.HOST and tensors[r.tensor].kind is Kind.WEIGHT]
        weights_at = {tensors[r.tensor].name: int(r.extents[0].offset) for r in on_host}
        if weights_at == self._weights_at:
            return ()
        assert model.resolved is not None, "a model without weights can be planned, not run"
        self._weights_at = weights_at
        return fill(phase.planned.graph, model.resolved, host_copies(memgraph, self._host), loading)

    def _step(self, phase: _Ready) -> tuple[_Ready, torch.Tensor]:
        """One pass with the last id of every sequence."""
        at = [len(ids) - 1 for ids in self._ids]
        planned = self._bucket
        assert planned is not None
        if phase.planned is self._prompt or max(at) > planned.past + planned.extra:
            states = phase.states()
            phase.close()
            if max(at) > planned.past + planned.extra:
                planned = self._planned_alike(planned, *self._bucket_from(min(at)), 1)
                self._bucket = planned
                self._grow(planned.planned.memgraph.host_bytes)
            self._load(planned)
            phase = _Ready(planned, self._host, self._machine, self._options)
            phase.put_states(states)
        measured = phase.run(
            {TOKENS: np.array([[ids[-1]] for ids in self._ids]), LENGTHS: np.ones(len(at), np.int64), AT: np.array(at)}, self._hooks
        )
        figures = self.figures
        figures.steps += 1
        figures.moved_bytes += sum(nbytes for queue, nbytes in measured.moved_bytes.items() if queue in (Queue.H2D, Queue.D2H))
        figures.predicted_s += phase.planned.planned.report.predicted_s
        return phase, phase.logits()

    def _bucket_from(self, past: int) -> tuple[int, int]:
        """The positions before a bucket, of the shortest sequence, and for how many more it serves."""
        left = self._max_new - 1 - (past - min(self._lengths))
        return past, max(self._lengths) - min(self._lengths) + max(0, min(max(LEAST_EXTRA, past // EXTRA_SHARE), left - 1))

    def _last_bucket(self) -> tuple[int, int] | None:
        """Where the last token that was asked for needs one."""
        bucket = self._bucket_from(min(self._lengths)) if self._max_new > 1 else None
        while bucket is not None and sum(bucket) < self._last:
            bucket = self._bucket_from(sum(bucket) + 1 - (max(self._lengths) - min(self._lengths)))
        return bucket

    @property
    def _last(self) -> int:
        """The last position of the longest sequence: the last token that was asked for is not read again."""
        return max(self._lengths) + self._max_new - 2

    def _refuse_prompts(self, prompts: TokenLists) -> None:
        """Raises InputError for ids that the model does not have."""
        program = self._model(0, 0, max(self._lengths)).program
        refuse_ids_outside(next(i for i in program.inputs if i.name == TOKENS), prompts)
        bind_inputs(_without_states(program), None, self._first_inputs())

    def _refuse_budget(self) -> None:
        """Raises DoesNotFit where the prompts or the last bucket cannot be planned, whatever the machine."""
        phases = [(0, 0, max(self._lengths))]
        if (bucket := self._last_bucket()) is not None:
            phases.append((*bucket, 1))
        for phase in phases:
            program, request, _ = self._request(self._model(*phase), *phase)
            what = f"weights, inputs and states of {sum(phase)} positions (fewer with a smaller --max-new)"
            refuse_above_host(least_host_bytes(program, request), 0, what)
            try:
                build_graph(program, request)
            except DoesNotFit as error:
                where = f" at position {self._last} (a smaller --max-new ends before it)" if phase[0] else ""
                raise DoesNotFit(replace(error.misfit, task=error.misfit.task + where)) from error

    def _first_inputs(self) -> dict[str, NDArray[np.int64]]:
        padded = np.zeros((len(self._ids), max(self._lengths)), np.int64)
        for row, ids in zip(padded, self._ids, strict=True):
            row[: len(ids)] = ids
        return {TOKENS: padded, LENGTHS: np.array(self._lengths), AT: np.zeros(len(self._ids), np.int64)}

    def _reserve(self, phase: _Phase, nbytes: int) -> int:
        """Address space for buckets to come, so that no weight is copied for them: pages are backed when they are touched."""
        weights = sum(t.nbytes for t in phase.planned.graph.tensors if t.kind is Kind.WEIGHT)
        positions = max(self._lengths) + self._max_new
        wanted = 2 * max(0, nbytes - weights) * positions // (phase.past + phase.extra + 1)
        available = available_bytes()
        return wanted if available is None else min(wanted, max(0, available - nbytes - self._options.plan.budget_bytes))

    def _grow(self, nbytes: int) -> None:
        self.figures.host_bytes = max(self.figures.host_bytes, nbytes)
        if nbytes <= self._host.nbytes:
            return
        refuse_above_host(nbytes, 0)
        larger = HostArena(nbytes)
        larger.whole()[: self._host.nbytes] = self._host.whole()
        self._host = larger

    def _planned_alike(self, other: _Phase | None, past: int, extra: int, seq: int) -> _Phase:
        """A plan in the pieces of another, where it fits in these."""
        if other is not None:
            try:
                return self._planned(past, extra, seq, other.split)
            except DoesNotFit:
                pass
        return self._planned(past, extra, seq)

    def _planned(self, past: int, extra: int, seq: int, split: Mapping[Letter, int] | None = None) -> _Phase:
        began = perf_counter()
        model = self._model(past, extra, seq)
        program, request, output = self._request(model, past, extra, seq, split)
        planned = compacted(plan_program(program, self._machine, request))
        self.figures.plan_s += perf_counter() - began
        self.figures.plans += 1
        return _Phase(model, planned, past, extra, output, _weight_split(model, planned))

    def _model(self, past: int, extra: int, seq: int) -> Model:
        model = self._model_at({"batch": len(self._ids), "seq": seq, "past": past, "room": extra})
        _refuse_no_generation(model.program)
        if len(set(self._lengths)) > 1 and (whole := [state.base for state in model.program.states if state.along is None]):
            what = f"prompts of {len(set(self._lengths))} lengths are padded"
            cure = "give prompts of one length, or one at a time"
            raise UsageError(f"{what}, and the state `{whole[0]}` would take the padding in; {cure}")
        return model

    def _request(
        self, model: Model, past: int, extra: int, seq: int, split: Mapping[Letter, int] | None = None
    ) -> tuple[Program, PlanRequest, str]:
        """What is planned, how, and the output that is the logits."""
        program = model.program.with_states_as_outputs()
        output = _logits_output(model)
        wanted = (output, *(state.name for state in program.states))
        pieces = {**self._options.plan.pieces, **(split or {})}
        return program, replace(self._options.plan, outputs=wanted, pieces=pieces, passes=None if seq > 1 else extra + 1), output


def _without_states(program: Program) -> Program:
    """Its inputs less the states."""
    states = {state.name for state in program.states}
    return replace(program, inputs=tuple(i for i in program.inputs if i.name not in states))


def _weight_split(model: Model, planned: Planned) -> dict[Letter, int]:
    letters = {letter for weight in model.program.weights for letter in weight.letters}
    return {letter: n for letter, n in planned.graph.split if letter in letters}


def _refuse_no_generation(program: Program) -> None:
    """Raises UsageError for a spec without states, or that lacks a size or an input."""
    if not program.states:
        cure = "specs/README.md says how to write one"
        raise UsageError(f"{program.path} has no `state:`, so nothing is left of one token for the next; {cure}")
    names = [i.name for i in program.inputs]
    missing = [f"the size `{size}`" for size in SIZES if size not in program.sizes]
    missing += [f"the input `{name}`" for name in (TOKENS, AT, LENGTHS) if name not in names]
    states = {state.name for state in program.states}
    missing += [
        f"a default for the input `{i.name}`" for i in program.inputs if i.default is None and i.name != TOKENS and i.name not in states
    ]
    if missing:
        raise UsageError(f"{program.path} does not generate: it lacks {', '.join(missing)}")


def _logits_output(model: Model) -> str:
    axes = logits_axes(model)
    found = [output.name for output in model.program.outputs if axes.get(output.name) == 2]
    if len(found) > 1:
        raise UsageError(f"{model.program.path}: {' and '.join(found)} could each be the logits of the next token; leave one of them out")
    if not found:
        raise UsageError(f"{model.program.path} declares no output of two axes (batch, vocabulary), the next token after each sequence")
    return found[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Phase:
    """A plan for runs at some positions."""

    model: Model
    planned: Planned
    past: int
    extra: int
    output: str
    split: Mapping[Letter, int]
    """Of the letters of weights."""


class _Ready:
    """A phase on a device: it can be run as often as wanted."""

    def __init__(self, phase: _Phase, host: HostArena, machine: Machine, options: RunOptions) -> None:
        self.planned, self._options = phase, options
        memgraph = phase.planned.memgraph
        self._memgraph, self._host, self._at_start = memgraph, host, host_copies(memgraph, host)
        self._device = make_device(options.device, memgraph, host, machine, options.kernels, poison=options.poison)
        self._pass = repeated(options.device, options.dispatch, memgraph)
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
        self._own_inputs = _without_states(program)
        names = {i.name for i in self._own_inputs.inputs}
        self._given = [tensor for tensor in tensors if tensor.value in names]
        self._is_loaded = self._is_closed = False

    def close(self) -> None:
        """Let the device go, once."""
        if not self._is_closed:
            self._is_closed = True
            self._device.close()

    def clear_states(self) -> None:
        for tiles in self._first.values():
            for t in tiles:
                self._at_start[t.id].zero_()

    def put_states(self, whole_by_name: Mapping[str, torch.Tensor]) -> None:
        """What runs of another phase left, as far as it goes; 0 beyond."""
        for name, tiles in self._first.items():
            found = whole_by_name[name]
            for t in tiles:
                target = self._at_start[t.id]
                part = found[t.box.slices]
                target.zero_()
                target[tuple(slice(0, n) for n in part.shape)] = part

    def states(self) -> dict[str, torch.Tensor]:
        """As they are after the last run."""
        return outputs(self._memgraph, self._host, {state.name for state in self.planned.model.program.states})

    def run(self, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks) -> Measured:
        """One pass; the states that it leaves are those that the next begins with."""
        fill_inputs(self._given, bind_inputs(self._own_inputs, None, arrays), self._at_start)
        if not self._is_loaded:
            self._device.preload()
            self._is_loaded = True
        measured = self._pass(self._device, hooks)
        for first, last in self._carried:
            first.copy_(last)
        return measured

    def logits(self) -> torch.Tensor:
        """[b, v] after each sequence."""
        return outputs(self._memgraph, self._host, (self.planned.output,))[self.planned.output]
