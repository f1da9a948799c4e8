"""Generation: token after token from a model that is held open, its states carried from pass to pass and from phase to phase.

In: a PlannedSet (exec/planning/plan_set.py) and its weights. Out: ids, as they come. Weights are on the host once, where all phases have
them. Between passes of a phase, the last tile of a state becomes the first of the next; between phases whole states are put together
on the host and cut anew, and the device keeps the weights that both have at the same offsets.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.load.inputs import LENGTHS, TOKENS, TokenLists, bind_inputs, refuse_ids_outside
from einpage.exec.planning.judged_plan import MachineSource, least_host_bytes, stored_warnings
from einpage.exec.planning.model import AT, ModelAt, asked, opened, refuse_positions
from einpage.exec.planning.plan_set import PlannedPhase, PlannedSet, Planning, plan_texts
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.exec.run.choose import RunOptions, refuse_host_budget
from einpage.exec.run.loaded_model import LoadedModel, ReadyPhase, without_states
from einpage.exec.run.prepared import refuse_above_host, sector_bytes_of, spilled_bytes, within_device
from einpage.exec.run.report import weight_warnings
from einpage.exec.run.sampling import Sampler, Sampling
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue

LOOKED_UP = (4, 3, 2)
"""How many tokens have to be the same."""


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
    bind_inputs(without_states(model.program), None, _inputs(prompts.lists, [0] * texts.batch, texts.longest))


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
    refuse_host_budget(options.device, request.host_budget_bytes)
    refuse_positions(model_at, texts.batch, texts.longest, texts.max_new + texts.lookup)
    largest = (*texts.reads(), *texts.buckets())[-1]
    model, output = opened(model_at, texts, largest)
    if request.host_budget_bytes is None:
        what = f"weights, inputs and states of {texts.positions} positions (fewer with a smaller --max-new)"
        refuse_above_host(least_host_bytes(*asked(model, output, request)), 0, what)
    elif model.resolved is not None:
        request = replace(request, skew=partial(sector_bytes_of, resolved=model.resolved))
    return plan_texts(model_at, within_device(machine, request.budget_bytes), request, texts, planning)


class Generation:
    """A model held open: its weights are loaded, and it generates as often as it is asked."""

    def __init__(self, plans: PlannedSet, options: RunOptions, loaded: LoadedModel) -> None:
        """Loads the weights that are not there. Raises DoesNotFit where the host has too little memory, WeightError."""
        self.plans, self.options, self.loaded = plans, options, loaded
        with loaded.alone():
            loaded.grow_to(plans.host_bytes)
            loaded.scratch_bytes = max(spilled_bytes(phase.memgraph) for phase in plans.plan_set.phases)
            loaded.load(plans.first.model, plans.first.planned)
        self.warnings = (
            *plans.first.model.warnings,
            *stored_warnings(plans.first.planned, options.plan.weights_as),
            *weight_warnings(loaded.not_finite, options.plan.dtype),
        )
        self.figures = GenerationFigures()

    def close(self) -> None:
        """Let all that the device holds go."""
        self.loaded.close()

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
        self._phase: ReadyPhase | None = None
        generation.loaded.owner = self

    def close(self) -> None:
        """Let the engines' threads go; what was read is forgotten."""
        self._phase, self.lengths = None, [0] * len(self.lengths)
        self._generation.loaded.rest(self)

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
        loaded = self._generation.loaded
        with loaded.alone():
            if loaded.owner is not self:
                raise UsageError("another text was begun on this model, in the memory of this one: one at a time; begin anew")
            try:
                ready = self._ready(phase, figures)
                logits, measured = ready.run(_inputs(rows, self.lengths, phase.bucket.tokens), self._hooks)
                self.lengths = [at + len(row) for at, row in zip(self.lengths, rows, strict=True)]
            except BaseException:
                self.close()  # states are as nobody knows
                raise
        if is_counted:
            figures.steps += 1
            figures.moved_bytes += sum(nbytes for queue, nbytes in measured.moved_bytes.items() if queue in (Queue.H2D, Queue.D2H))
            figures.predicted_s += phase.seconds
        return logits if logits.dim() == 3 else logits.unsqueeze(1)

    def _ready(self, phase: PlannedPhase, figures: GenerationFigures) -> ReadyPhase:
        """The phase on the device, with the states as the one before has left them."""
        before = self._phase
        if before is not None and before.phase is phase:
            return before
        generation = self._generation
        states = None
        if before is not None:
            states = before.states()
            before.rest()
        generation.loaded.load(phase.model, phase.planned)
        self._phase = ready = generation.loaded.ready(phase, generation.plans.machine)
        ready.put_states(states)
        loaded = ready.preload()
        if not phase.bucket.is_read:
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
