"""A model held open: its weights are loaded once, and it answers as often as it is asked.

In: where a model is, and how it is to be run. Out: outputs for tokens, text for prompts. What was planned is kept: a plan set serves all
prompts up to its own length, so lengths are rounded up to powers of two and texts to the end of a bucket. All plans cut the weights alike,
and so have them at the same host offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from einpage.checkpoints.text.continuation import Continuation
from einpage.checkpoints.text.tokenizer import Tokenizer
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.arena import host_copies
from einpage.exec.load.inputs import TokenLists, bind_inputs, plain, token_lists
from einpage.exec.planning.common_pieces import weight_pieces
from einpage.exec.planning.judged_plan import MachineSource, Planned, compacted, plan_program
from einpage.exec.planning.model import Model, refuse_lacking_sizes
from einpage.exec.planning.plan_set import PlannedSet
from einpage.exec.planning.text_lengths import LEAST_POSITIONS, TextLengths
from einpage.exec.run.choose import RunOptions, make_device
from einpage.exec.run.generation import Generation, GenerationFigures, plan_generation, refuse_prompts
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.outputs import wanted_outputs
from einpage.exec.run.prepared import Prepared, fill_inputs, sector_bytes_of
from einpage.exec.run.sampling import Sampling
from einpage.exec.system.arguments import check_arguments
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.machine import Machine

LEAST_LENGTH = 16
"""Tokens of a prompt for which plans are made at least."""
KEPT = 8
"""Plan sets, and plans of passes, that are not made anew."""


@dataclass(slots=True, eq=False)
class OpenModel:
    """To be closed, or used in a `with`. Threads may share it: one pass runs at a time, and a text that is begun ends the one before."""

    spec: str
    model_at: Callable[[Mapping[str, int], TokenLists | None], Model]
    """The model at given sizes, or those that token lists imply."""
    machine: Machine | MachineSource
    options: RunOptions
    tokenizer: Tokenizer | None
    ends: frozenset[int]
    """Ids after which the model says no more."""
    figures: GenerationFigures | None = None
    """Of the last generation."""
    warnings: tuple[str, ...] = ()
    """About the checkpoint and its weights."""
    finish: str = ""
    """Why the last text ended: `end`, `stop` or `length`."""
    _loaded: LoadedModel = field(init=False)
    _pieces: Mapping[Letter, int] | None = None
    """Of the letters of weights, since the first plan."""
    _sets: list[PlannedSet] = field(default_factory=list)
    _passes: dict[tuple[int, int, tuple[str, ...]], Planned] = field(default_factory=dict)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._loaded = LoadedModel(self.options)

    def __enter__(self) -> OpenModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let weights and plans go; the model is of no use afterwards."""
        self._is_closed, loaded, self._loaded = True, self._loaded, LoadedModel(self.options)
        loaded.close()
        self._sets, self._passes = [], {}

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Generator[str, None, None]:
        """The text after `prompt`, a text or token ids, in pieces as they come. With `temperature` 0 the best token each time.

        Raises UsageError for a model that does not generate or has no tokenizer, and for numbers that mean nothing; DoesNotFit; NodeError.
        """
        self._refuse_closed()
        tokenizer = self._tokenizer()
        numbers = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty, "seed": seed}
        check_arguments({"max_new": max_new, "temperature": temperature, **numbers, "stop": stop})
        if temperature == 0 and (top_k or top_p != 1.0 or min_p or seed):
            raise UsageError("with temperature 0 the best token is taken: top_k, top_p, min_p and seed have no effect; give a temperature")
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        stops = [stop] if isinstance(stop, str) else list(stop)
        if "" in stops:
            raise UsageError("stop is empty: every text would end before it begins")
        self.finish, ids = "", self._ids(prompt)
        continuation = Continuation(prompt if isinstance(prompt, str) else "", ids, tokenizer, self.ends, stops)
        with closing(self.tokens(ids, max_new=max_new, sampling=sampling)) as found:
            for token in found:
                yield continuation.add(token)
                if continuation.ended:
                    break
        yield continuation.rest()
        self.finish = continuation.finish

    def tokens(self, prompt: Sequence[int], *, max_new: int, sampling: Sampling) -> Generator[int, None, None]:
        """The ids after those of `prompt`, as they come; the model's end tokens among them."""
        self._refuse_closed()
        refuse_lacking_sizes(self.spec)
        check_arguments({"max_new": max_new})
        ids = self._ids(prompt) if prompt else []
        TextLengths.of([ids], max_new).refuse_none()
        plans = self._plans_for(tuple(ids), max_new)
        generation = Generation(plans, self._plan_options(), self._loaded)
        self.figures, self.warnings = generation.figures, generation.warnings
        with closing(generation.tokens([ids], max_new, sampling)) as passes:
            for (token,) in passes:
                self.figures = generation.figures
                yield token
                self._refuse_closed()

    def prefill(self, tokens: str | Sequence[int] | Sequence[Sequence[int]], outputs: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
        """Outputs of the spec (the first, if none is named) for one text or several: arrays by name, in the declared shapes.

        Raises InputError for ids that the model does not have, UsageError, DoesNotFit, NodeError.
        """
        self._refuse_closed()
        given = token_lists([self._ids(tokens)] if isinstance(tokens, str) else plain(tokens), "tokens")
        check_arguments({"outputs": outputs})
        model = self.model_at({}, given)
        options = replace(self.options, plan=replace(self.options.plan, outputs=tuple(outputs)))
        request = replace(options.plan, outputs=wanted_outputs(model, options)).in_pieces(self._pieces or {})
        if request.host_budget_bytes is not None and model.resolved is not None:
            request = replace(request, skew=partial(sector_bytes_of, resolved=model.resolved))
        arrays = bind_inputs(model.program, given, {})
        key = (len(given.lists), given.longest, request.outputs)
        planned, loaded = self._passes.get(key), self._loaded
        if planned is None:
            planned = compacted(plan_program(model.program, self.machine, request))
            self.machine = planned.machine
            self._passes = {**dict([*self._passes.items()][1 - KEPT :]), key: planned}
        if self._pieces is None:
            self._pieces = weight_pieces(model.program, planned.graph)
        memgraph = planned.memgraph
        with loaded.alone():
            loaded.owner = None  # a text that was begun has lost its states
            loaded.grow_to(memgraph.host_bytes)
            loaded.load(model, planned)
            fill_inputs(planned.graph.tensors, arrays, host_copies(memgraph, loaded.host))
            device = make_device(
                memgraph,
                loaded.memory(memgraph.budget_bytes),
                planned.machine,
                options.kernels,
                poison=options.poison,
                choices=options.choices,
            )
            with closing(Prepared(model, options, planned, loaded.host, device)) as prepared:
                prepared.run(options.dispatch)
            return {name: tensor.float().numpy() for name, tensor in prepared.outputs().items()}

    def _plan_options(self) -> RunOptions:
        return replace(self.options, plan=self.options.plan.in_pieces(self._pieces or {}))

    def _plans_for(self, ids: tuple[int, ...], max_new: int) -> PlannedSet:
        """Plans for a prompt: those that serve it already, or new ones, for longer prompts and texts too where the model has positions."""
        for plans in self._sets:
            if plans.texts.longest < 2 * max(LEAST_LENGTH, len(ids)) and plans.texts.lacks([len(ids)], max_new) is None:
                return plans
        longest = max(LEAST_LENGTH, 1 << (len(ids) - 1).bit_length())
        positions = -(-(longest + max_new) // LEAST_POSITIONS) * LEAST_POSITIONS
        exact = TextLengths(1, len(ids), len(ids), max_new)
        refuse_prompts(self._sized, exact, TokenLists((ids,), "the prompt"))
        try:
            plans = self._planned(TextLengths(1, longest, 1, positions - longest + 1))
        except (UsageError, DoesNotFit):  # so many positions the model, or the budget, may not have
            plans = self._planned(exact)
        self.machine = plans.machine
        if self._pieces is None:
            self._pieces = weight_pieces(plans.first.model.program, plans.first.planned.graph)
        self._sets = [*self._sets[1 - KEPT :], plans]
        return plans

    def _planned(self, texts: TextLengths) -> PlannedSet:
        """In the pieces of the weights that are loaded, where texts fit in these."""
        try:
            return plan_generation(self._sized, self.machine, self._plan_options(), texts)
        except DoesNotFit:
            if self._pieces is None:
                raise
        return plan_generation(self._sized, self.machine, self.options, texts)

    def _sized(self, sizes: Mapping[str, int]) -> Model:
        return self.model_at(sizes, None)

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            return list(token_lists([plain(prompt)], "the prompt").lists[0])
        tokenizer = self._tokenizer()
        ids = tokenizer.encode(prompt)
        return ids[: len(ids) - len(tokenizer.suffix)]

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UsageError("the checkpoint has no tokenizer: give token ids, to `prefill` or `tokens`")
        return self.tokenizer

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise UsageError("the model is closed")
