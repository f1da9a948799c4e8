"""Generation: token after token from a model that is held open, its states carried from pass to pass and from phase to phase.

In: a PlannedSet (exec/planning/plan_set.py) and its weights. Out: ids, as they come. Weights are on the host once, where all phases have
them. Between passes of a phase, the last tile of a state becomes the first of the next; between phases whole states are put together
on the host and cut anew, and the device keeps the weights that both have at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Kind, Tensor
from einpage.exec.device.arena import HostArena, host_copies, host_results, output_readers, outputs
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.load.inputs import LENGTHS, TOKENS, TokenLists, bind_inputs, refuse_ids_outside
from einpage.exec.planning.judged_plan import MachineSource, least_host_bytes
from einpage.exec.planning.model import AT, Model, ModelAt, refuse_positions
from einpage.exec.planning.plan_set import PlannedPhase, PlannedSet, Planning, asked, opened, plan_texts
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.exec.run.choose import DeviceKind, RunOptions, dispatcher_type, make_device
from einpage.exec.run.prepared import fill_inputs, refuse_above_host, within_device
from einpage.exec.run.report import weight_warnings
from einpage.exec.run.sampling import Sampler, Sampling
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import PlaceKind, Queue

Loading = Callable[[str, int], None]
LOOKED_UP = (4, 3, 2)
"""How many tokens have to be the same."""
MOVED_BYTES = 64 << 20
"""Of a block in which weights go to a larger arena: only so much of them is in memory twice."""


@dataclass(slots=True)
class GenerationFigures:
    """Counted and timed while tokens come."""

    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0
    """All passes after the prompts' own, sampling and changes of phase included."""
    steps: int = 0
    """Passes after the prompts' own."""
    new_tokens: int = 0
    """Of each sequence, that these gave: as many, or more where what came next was looked up."""
    moved_bytes: int = 0
    """Over both links in those."""
    loaded_bytes: list[int] = field(default_factory=list)
    """By phase after the prompts' own: what was made resident before its first pass."""
    predicted_s: float = 0.0
    """What the plans say these passes take."""


def refuse_prompts(model_at: ModelAt, texts: TextLengths, prompts: TokenLists) -> None:
    """Raises InputError for `prompts`, of such `texts`, with ids that the model does not have, UsageError for a spec that does not
    generate, or not as far as that."""
    texts.refuse_none()
    refuse_positions(model_at, texts.batch, texts.longest, texts.max_new + texts.lookup)
    model, _ = opened(model_at, texts, Bucket(0, 0, texts.longest, True))
    refuse_ids_outside(next(i for i in model.program.inputs if i.name == TOKENS), prompts)
    bind_inputs(_without_states(model.program), None, _inputs(prompts.lists, [0] * texts.batch, texts.longest))


def plan_generation(
    model_at: ModelAt,
    machine: Machine | MachineSource,
    options: RunOptions,
    texts: TextLengths,
    planning: Planning | None = None,
) -> PlannedSet:
    """Plans of `texts` that this host and `machine` have room for, as plan_texts makes them.

    Raises UsageError for a spec that does not generate, or not as far as that; DoesNotFit.
    """
    request = options.plan
    texts.refuse_none()
    refuse_positions(model_at, texts.batch, texts.longest, texts.max_new + texts.lookup)
    largest = (*texts.reads(), *texts.buckets())[-1]
    what = f"weights, inputs and states of {texts.positions} positions (fewer with a smaller --max-new)"
    refuse_above_host(least_host_bytes(*asked(*opened(model_at, texts, largest), request)), 0, what)
    return plan_texts(model_at, within_device(machine, request.budget_bytes), request, texts, planning)


class LoadedWeights:
    """The host's arena with the weights of a model, for all plans that have them at the same offsets."""

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

    def grow_to(self, nbytes: int) -> None:
        """An arena of so many bytes at least, the weights in it. Raises DoesNotFit where the host has too little memory."""
        if nbytes <= self.host.nbytes:
            return
        options = self._options
        refuse_above_host(nbytes - self._end, options.plan.budget_bytes if options.device is DeviceKind.CPU else 0)
        larger, weights_at, end = HostArena(nbytes), self._weights_at, self._end
        self._weights_at, self._end = {}, 0  # whatever ends this early, they are loaded anew
        for start in range(0, end, MOVED_BYTES):
            part = Extent(Offset(start), Nbytes(min(MOVED_BYTES, end - start)))
            larger.bytes(part)[:] = self.host.bytes(part)
            self.host.drop(part)
        self.host, self._weights_at, self._end = larger, weights_at, end

    def load(self, model: Model, memgraph: MemGraph) -> None:
        """Weights to where the plan has them: as a rule they are there. Raises WeightError."""
        tensors = memgraph.graph.tensors
        residencies = [memgraph.residencies[r] for r in memgraph.start]
        on_host = [r for r in residencies if r.place.kind is PlaceKind.HOST and tensors[r.tensor].kind is Kind.WEIGHT]
        weights_at = {tensors[r.tensor].name: int(r.extents[0].offset) for r in on_host}
        if weights_at == self._weights_at:
            return
        assert model.resolved is not None, "a model without weights can be planned, not run"
        self._weights_at, self._end = {}, 0
        self.not_finite = fill(memgraph.graph, model.resolved, host_copies(memgraph, self.host), self._loading)
        self._weights_at, self._end = weights_at, max((r.extents[0].end for r in on_host), default=0)


class Generation:
    """A model held open: its weights are loaded, and it generates as often as it is asked."""

    def __init__(self, plans: PlannedSet, options: RunOptions, weights: LoadedWeights) -> None:
        """Loads the weights that are not there. Raises DoesNotFit where the host has too little memory, WeightError."""
        self.plans, self.options, self.weights = plans, options, weights
        weights.grow_to(plans.host_bytes)
        weights.load(plans.first.model, plans.first.planned.memgraph)
        self.warnings = (*plans.first.model.warnings, *weight_warnings(weights.not_finite, options.plan.dtype))
        self.figures = GenerationFigures()

    def tokens(
        self, prompts: Sequence[Sequence[int]], max_new: int, sampling: Sampling, hooks: Hooks = SILENT
    ) -> Generator[list[int], None, None]:
        """The next id of every sequence, `max_new` times. Raises UsageError for what was not planned for, and the errors of the engines."""
        self.plans.texts.refuse_others(prompts, max_new)
        with closing(Conversation(self, hooks)) as conversation:
            yield from conversation.tokens(prompts, max_new, sampling)


class Conversation:
    """Sequences that are read and written in turns, and their states: in the model's memory, so that one that is begun ends the one
    before."""

    def __init__(self, generation: Generation, hooks: Hooks = SILENT) -> None:
        self._generation, self._hooks = generation, hooks
        self.lengths = [0] * generation.plans.texts.batch
        """Tokens of each sequence that were read: those after them may be read as others, which is all that it takes to go back."""
        self._phase: _Ready | None = None
        generation.weights.owner = self

    def close(self) -> None:
        """Let the device go; what was read is forgotten."""
        phase, self._phase, self.lengths = self._phase, None, [0] * len(self.lengths)
        if phase is not None:
            phase.close()

    def go_back(self, length: int) -> None:
        """Forget what was read of every sequence from `length` tokens on; all of it, where a state cannot be taken back."""
        states = self._generation.plans.first.model.program.states
        if length < max(self.lengths) and any(state.along is None for state in states):
            self.close()
        self.lengths = [min(length, at) for at in self.lengths]

    def tokens(self, prompts: Sequence[Sequence[int]], max_new: int, sampling: Sampling) -> Generator[list[int], None, None]:
        """Read what is new of every sequence; then the next id of each, `max_new` times, of which the last is not read yet."""
        if not all(len(prompt) > at for prompt, at in zip(prompts, self.lengths, strict=True)):
            raise UsageError("there is no token to read: the text is empty")
        if max_new < 1:
            raise UsageError(f"--max-new {max_new} is not at least 1")
        figures = self._generation.figures = GenerationFigures()
        known = [list(prompt) for prompt in prompts]
        samplers = [Sampler(sampling, n) for n in range(len(known))]
        began, left = perf_counter(), max_new
        new: list[Sequence[int]] = [prompt[at:] for prompt, at in zip(prompts, self.lengths, strict=True)]
        rows = self.read(new, figures, is_prompt=True)
        drafts: list[Sequence[int]] = [()] * len(known)
        lookup = self._generation.plans.texts.lookup
        while True:
            for n in range(rows.shape[1]):
                found = [sampler.next(row[n], ids) for sampler, row, ids in zip(samplers, rows, known, strict=True)]
                for ids, token in zip(known, found, strict=True):
                    ids.append(token)
                if lookup:
                    self.lengths = [len(known[0]) - 1]  # of the tokens that were looked up and read, only those that came are text
                left -= 1
                if left + 1 == max_new:
                    figures.time_to_first_token_s = perf_counter() - began
                else:
                    figures.new_tokens += 1
                    figures.decode_s += perf_counter() - began
                yield found
                began = perf_counter()
                if not left or n == len(drafts[0]) or found[0] != drafts[0][n]:
                    break
            if not left:
                return
            if lookup:
                drafts = [looked_up(known[0], min(lookup, left - 1))]
            new = [[ids[-1], *draft] for ids, draft in zip(known, drafts, strict=True)]
            rows = self.read(new, figures, is_prompt=False)

    def read(self, rows: Sequence[Sequence[int]], figures: GenerationFigures, *, is_prompt: bool) -> torch.Tensor:
        """Logits [b, s, v] after so many more tokens of every sequence: of each one, or as many of all, or a prompt that nothing is before.
        After a prompt those of its last token, s = 1; else, where what comes next is looked up, after each token."""
        plans, start = self._generation.plans, min(self.lengths)
        texts = plans.texts
        if is_prompt and not texts.chunk and not start:
            return self._run(plans.first, rows, figures)
        begin, end, logits = 0, max(map(len, rows)), None
        while begin < end:
            phase = plans.read_at(start + begin) if texts.chunk and is_prompt else None
            bucket = plans.bucket_at(start + begin)
            if phase is None or -(-(end - begin) // bucket.bucket.tokens) * bucket.seconds < phase.seconds:
                phase = bucket
            part = [row[begin : begin + phase.bucket.tokens] for row in rows]
            logits = self._run(phase, part, figures, is_counted=not is_prompt)
            if is_prompt and not phase.bucket.is_read:
                last = max(map(len, part)) if texts.lookup else 1
                logits = logits[:, last - 1 : last]
            begin += phase.bucket.tokens
        assert logits is not None, "there is a token to read"
        return logits

    def _run(
        self, phase: PlannedPhase, rows: Sequence[Sequence[int]], figures: GenerationFigures, is_counted: bool = False
    ) -> torch.Tensor:
        """One pass over the next tokens of every sequence: logits [b, s, v], s = 1 where the phase has them after the last alone."""
        if self._generation.weights.owner is not self:
            raise UsageError("another text was begun on this model, in the memory of this one: one at a time; begin anew")
        ready = self._ready(phase, figures)
        logits, measured = ready.run(_inputs(rows, self.lengths, phase.bucket.tokens), self._hooks)
        self.lengths = [at + len(row) for at, row in zip(self.lengths, rows, strict=True)]
        if is_counted:
            figures.steps += 1
            figures.moved_bytes += sum(nbytes for queue, nbytes in measured.moved_bytes.items() if queue in (Queue.H2D, Queue.D2H))
            figures.predicted_s += phase.seconds
        return logits if logits.dim() == 3 else logits.unsqueeze(1)

    def _ready(self, phase: PlannedPhase, figures: GenerationFigures) -> _Ready:
        """The phase on the device, with the states as the one before has left them."""
        before = self._phase
        if before is not None and before.planned is phase:
            return before
        generation = self._generation
        states = None if before is None else before.states()
        generation.weights.load(phase.model, phase.planned.memgraph)
        after = None if before is None else before.device
        self._phase = ready = _Ready(phase, generation.weights.host, generation.plans.machine, generation.options, after)
        if before is not None:
            before.close()
        ready.put_states(states)
        loaded = ready.preload()
        if phase.planned.memgraph.loops:
            figures.loaded_bytes.append(loaded)
        return ready


def looked_up(ids: Sequence[int], most: int) -> Sequence[int]:
    """What came after the last few of `ids` where they stood before, the longest such few and the last such place first: a guess at what
    comes now, of `most` tokens at most (prompt lookup: Saxena 2023)."""
    for size in LOOKED_UP:
        end = list(ids[-size:])
        for start in range(len(ids) - size - 1, -1, -1):
            if ids[start : start + size] == end:
                return ids[start + size : start + size + most]
    return []


def _inputs(rows: Sequence[Sequence[int]], at: Sequence[int], tokens: int) -> dict[str, NDArray[np.int64]]:
    """Of a pass over `rows`, padded to `tokens`, from the positions `at` on."""
    padded = np.zeros((len(rows), tokens), np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return {TOKENS: padded, LENGTHS: np.array([len(ids) for ids in rows]), AT: np.array(at)}


def _without_states(program: Program) -> Program:
    """Its inputs less the states."""
    states = {state.name for state in program.states}
    return replace(program, inputs=tuple(i for i in program.inputs if i.name not in states))


class _Ready:
    """A phase on a device: it can be run as often as wanted."""

    def __init__(
        self, phase: PlannedPhase, host: HostArena, machine: Machine, options: RunOptions, after: CpuDevice | StreamDevice | None
    ) -> None:
        self.planned = phase
        memgraph = phase.planned.memgraph
        self._memgraph, self._host, self._at_start = memgraph, host, host_copies(memgraph, host)
        self.device = make_device(options.device, memgraph, host, machine, options.kernels, poison=options.poison, after=after)
        self._dispatcher = dispatcher_type(options.device, options.dispatch)(memgraph)
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
        self._logits = output_readers(memgraph, host, (phase.output,))[phase.output]
        self._is_closed = False

    def close(self) -> None:
        """Let the engines' threads and the device go, once."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._dispatcher.close()
            finally:
                self.device.close()

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
        return outputs(self._memgraph, self._host, {state.name for state in self.planned.model.program.states})

    def preload(self) -> int:
        """Make resident what the first pass begins with; answers the bytes. Before that its states have to be there."""
        return self.device.preload()

    def run(self, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        """One pass: [b, v] logits after each sequence. The states that it leaves are those that the next begins with."""
        fill_inputs(self._given, bind_inputs(self._own_inputs, None, arrays), self._at_start)
        measured = self._dispatcher.run(self.device, hooks)
        for first, last in self._carried:
            first.copy_(last)
        return self._logits(), measured
