"""`einpage generate` for a person: the text as it comes on stdout, what it took on stderr; with `--json` an object a prompt.

A text ends at a token of the checkpoint that says so, at a stop string, or after `--max-new` tokens. Ctrl-C ends it with what was said.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes
from einpage.exec.command.options import prompt_texts, request_of, settings_of
from einpage.exec.command.run import device_of, machine_of, progress_bars, stuck, thread_warnings
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.load.inputs import encode_prompts, refuse_surrogates
from einpage.exec.load.tokenizer import CURE, TextPieces, Tokenizer, TokenizerError, end_tokens, load_tokenizer
from einpage.exec.planning.model import Model, open_model, refuse_lacking_sizes
from einpage.exec.run.choose import RunOptions, dispatch_of, kernels_for
from einpage.exec.run.generation import SIZES, Generation, GenerationFigures
from einpage.exec.run.sampling import Sampling
from einpage.exec.system.interrupt import INTERRUPTED

DEFAULT_TEMPERATURE = 0.8
"""Where neither --greedy nor --temperature is given."""


def generate_command(a: argparse.Namespace) -> int:
    """The `generate` command. Raises the errors of every stage; returns 0, or 130 where it was interrupted after its first token."""
    budget = parse_bytes(a.budget, "--budget")
    warnings = thread_warnings(a.threads)
    if not a.weights:
        raise UsageError("generate needs --weights: a checkpoint's path")
    if not a.prompt:
        raise UsageError("generate needs a --prompt: a text, @FILE, or - for stdin")
    if a.greedy and a.temperature is not None:
        raise UsageError("--greedy and --temperature exclude each other")
    if a.greedy and (a.top_k or a.top_p != 1.0 or a.min_p or a.seed):
        raise UsageError("--greedy takes the best token: --top-k, --top-p, --min-p and --seed have no effect beside it; leave them out")
    if "" in a.stop:
        raise UsageError("--stop is empty: every text would end before it begins; write a text, or leave it out")
    for stop in a.stop:
        refuse_surrogates(stop, "--stop")
    refuse_lacking_sizes(a.spec, SIZES)
    chosen = device_of(a)
    temperature = 0.0 if a.greedy else DEFAULT_TEMPERATURE if a.temperature is None else a.temperature
    sampling = Sampling(temperature, a.top_k, a.top_p, a.min_p, a.repetition_penalty, a.seed)
    options = RunOptions(
        plan=request_of(a, budget), dispatch=dispatch_of(a.dispatch, False), device=chosen.kind, kernels=kernels_for(a.kernels, chosen.kind)
    )
    settings = settings_of(a.set)
    texts = prompt_texts(a.prompt)
    try:
        tokenizer = load_tokenizer(a.weights)
    except TokenizerError as error:
        raise UsageError(str(error).replace(CURE, "generate needs a checkpoint that has one")) from error
    prompts = encode_prompts(tokenizer, texts)
    prompts = replace(prompts, lists=tuple(row[: len(row) - len(tokenizer.suffix)] for row in prompts.lists))

    def model_at(sizes: Mapping[str, int]) -> Model:
        for name in sizes.keys() & settings.keys():
            raise UsageError(f"--set {name}: generate sets it")
        return open_model(a.spec, {**settings, **sizes}, a.weights, None, tokenizer)

    ends = end_tokens(a.weights)
    answers = [Answer(text, ids, tokenizer, ends, a.stop) for text, ids in zip(texts, prompts.lists, strict=True)]
    machine = machine_of(a, chosen.kind)
    with progress_bars(chosen.why, lambda: "planning", quiet=a.json) as shown:
        machine = shown.without_spinner(machine)
        generation = Generation(model_at, machine, options, prompts, a.max_new, shown.loading, Hooks(stuck=stuck), shown.planned)
        warnings = [*generation.warnings, *warnings]
    for warning in warnings if not a.json else ():
        print(f"warning: {warning}", file=sys.stderr)
    status = 0
    try:
        for said in spoken(generation, sampling, answers):
            if not a.json and len(answers) == 1:
                sys.stdout.write(said)
                sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
        for answer in answers:
            answer.finish = "interrupted" if answer.finish == "length" else answer.finish
    unknown = [token for answer in answers for token in answer.unknown]
    without_text = [f"{len(unknown)} tokens have no text, id {unknown[0]} first: the tokenizer does not know them"] if unknown else []
    if a.json:
        for answer in answers:
            facts = {**answer.facts(), **figures_of(generation.figures, len(answers)), "warnings": [*warnings, *without_text]}
            print(json.dumps(facts))
        return status
    print("" if len(answers) == 1 else "\n\n".join(f"{answer.prompt!r}\n{answer.text}" for answer in answers))
    for warning in without_text:
        print(f"warning: {warning}", file=sys.stderr)
    print(rendered(generation.figures, options.plan.budget_bytes, answers), file=sys.stderr)
    return status


class Answer:
    """What follows one prompt."""

    def __init__(self, prompt: str, ids: Sequence[int], tokenizer: Tokenizer, ends: frozenset[int], stops: Sequence[str]) -> None:
        self.prompt, self.tokens, self.text, self.ended = prompt, list[int](), "", False
        self._tokenizer = tokenizer
        self._pieces, self._ends, self._stops = TextPieces(tokenizer), ends, stops
        self.finish = "length"
        """Why it ends: an `end` token, a `stop` string, its `length`, or `interrupted`."""
        self._held = ""
        """The end of the text, which may be the beginning of a stop string."""

    def add(self, token: int) -> str:
        """The text that one more token makes certain."""
        if self.ended:
            return ""
        if token in self._ends:
            self.ended, self.finish = True, "end"
            return self._said(self._held + self._pieces.rest())
        self.tokens.append(token)
        new = self._held + self._pieces.add(token)
        if any(stop in new for stop in self._stops):
            self.ended, self.finish = True, "stop"
            return self._said(new[: min(new.index(stop) for stop in self._stops if stop in new)])
        held = max((n for stop in self._stops for n in range(1, len(stop)) if new.endswith(stop[:n])), default=0)
        self._held = new[len(new) - held :]
        return self._said(new[: len(new) - held])

    def rest(self) -> str:
        """What was held back, where no more tokens come."""
        if self.ended:
            return ""
        self.ended = True
        return self._said(self._held + self._pieces.rest())

    @property
    def unknown(self) -> list[int]:
        """Ids that the tokenizer has no token for: the model has more rows than the tokenizer tokens."""
        return [token for token in self.tokens if not self._tokenizer.knows(token)]

    def _said(self, text: str) -> str:
        self.text += text
        return text

    def facts(self) -> dict[str, object]:
        """Of the JSON object."""
        return {"prompt": self.prompt, "text": self.text, "tokens": self.tokens, "finish": self.finish}


def spoken(generation: Generation, sampling: Sampling, answers: Sequence[Answer]) -> Iterator[str]:
    """Pieces of the first answer as they come, until all have ended."""
    try:
        with closing(generation.tokens(sampling)) as passes:
            for found in passes:
                said = [answer.add(token) for answer, token in zip(answers, found, strict=True)]
                yield said[0]
                if all(answer.ended for answer in answers):
                    return
    finally:
        rest = [answer.rest() for answer in answers]
    yield rest[0]


def figures_of(figures: GenerationFigures, prompts: int) -> dict[str, object]:
    """What `--json` says of the time of each of so many prompts; null for what was not measured."""
    steps = figures.steps if figures.decode_s else 0
    return {
        "time_to_first_token_s": figures.time_to_first_token_s,
        "tokens_per_s": steps / figures.decode_s if steps else None,
        "bytes_per_token": figures.moved_bytes // (steps * prompts) if steps else None,
        "predicted_tokens_per_s": steps / figures.predicted_s if steps else None,
        "plan_s": figures.plan_s,
        "plans": figures.plans,
        "host_bytes": figures.host_bytes,
    }


def rendered(figures: GenerationFigures, budget_bytes: int, answers: Sequence[Answer]) -> str:
    """What it took, for a person."""
    count = sum(len(answer.tokens) for answer in answers)
    lines = [f"tokens      {count}" + (f" of {len(answers)} prompts, in batches of as many" if len(answers) > 1 else "")]
    if figures.steps and figures.decode_s:
        rate, predicted = figures.steps / figures.decode_s, figures.steps / figures.predicted_s
        each = format_bytes(figures.moved_bytes // figures.steps)
        lines[0] += f"; {rate * len(answers):.1f} a second (predicted {predicted * len(answers):.1f}), {each} moved a pass"
    first, planning = format_seconds(figures.time_to_first_token_s), format_seconds(figures.plan_s)
    lines.append(f"first       after {first}")
    lines.append(f"plans       {figures.plans}, all judged right, made in {planning}")
    lines.append(f"memory      arena {format_bytes(budget_bytes)}, host {format_bytes(figures.host_bytes)}")
    return "\n".join(lines)
