"""`einpage generate` for a person: the text as it comes on stdout, what it took on stderr; with `--json` an object a prompt.

A text ends at a token of the checkpoint that says so, at a stop string, or after `--max-new` tokens. Ctrl-C ends it with what was said.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from io import TextIOWrapper
from time import perf_counter

from einpage.checkpoints.match.resolve import open_weights
from einpage.checkpoints.text.chat_template import Message, load_template
from einpage.checkpoints.text.continuation import Continuation
from einpage.checkpoints.text.tokenizer import CURE, Tokenizer, TokenizerError, end_tokens, load_tokenizer
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes, format_seconds, refuse_outside
from einpage.einsum_front.graph.program import WeightsAs
from einpage.exec.command.options import prompt_texts, request_of, settings_of
from einpage.exec.command.plan import Told
from einpage.exec.command.run import budget_of, device_of, machine_of, progress_bars, spec_of, stuck, takes_blocks, thread_warnings
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.load.inputs import encode_prompts, refuse_surrogates
from einpage.exec.planning.judged_plan import machine_now
from einpage.exec.planning.model import Model, ModelAt, open_model, refuse_lacking_sizes, refuse_option_positions
from einpage.exec.planning.plan_set import PlannedSet, replayed
from einpage.exec.planning.text_lengths import MOST_LOOKUP, MOST_POSITIONS, TextLengths
from einpage.exec.run.choose import ChosenDevice, RunOptions, choices_for, dispatch_of, kernels_for
from einpage.exec.run.generation import Conversation, Generation, GenerationFigures, plan_generation, refuse_prompts
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampling
from einpage.exec.system.interrupt import INTERRUPTED
from einpage.memplan.graph.memgraph import PlanSet
from einpage.memplan.graph.planfile import count_of, load_plan_set, of_recipe
from einpage.memplan.report import stored_text

DEFAULT_TEMPERATURE = 0.8
"""Where neither --greedy nor --temperature is given."""


def generate_command(a: argparse.Namespace) -> int:
    """The `generate` command. Raises the errors of every stage; returns 0, or 130 where it was interrupted after its first token."""
    saved = saved_plans(a) if a.plan else None
    if a.weights and not a.prompt:
        raise UsageError("generate needs a --prompt: a text, @FILE, or - for stdin")
    setup = setup_of(a, "generate")
    texts = prompt_texts(a.prompt)
    prompts = encode_prompts(setup.tokenizer, texts)
    prompts = replace(prompts, lists=tuple(row[: len(row) - len(setup.tokenizer.suffix)] for row in prompts.lists))
    answers = [Continuation(text, ids, setup.tokenizer, setup.ends, a.stop) for text, ids in zip(texts, prompts.lists, strict=True)]
    told = Told()
    with progress_bars(setup.device.why, told.text, setup.notices, quiet=a.json) as shown:
        began = perf_counter()
        machine = shown.without_spinner(machine_of(a, setup.device.kind))
        if saved is None:
            lengths = replace(TextLengths.of(prompts.lists, a.max_new), lookup=a.lookup)
            refuse_prompts(setup.model_at, lengths, prompts)
            plans = plan_generation(setup.model_at, machine, setup.options, lengths, told.planning)
        else:
            saved.texts.refuse_others(prompts.lists, a.max_new)
            plans = replayed(saved.plans, saved.texts, setup.model_at, machine_now(machine), setup.options.plan)
        plan_s = perf_counter() - began
        shown.planned(plans.first.planned)
        generation = Generation(plans, setup.options, LoadedModel(setup.options, shown.loading))
    warnings = [*generation.warnings, *setup.warnings]
    for warning in warnings if not a.json else ():
        print(f"warning: {warning}", file=sys.stderr)
    with closing(generation):
        tokens = generation.tokens(prompts.lists, a.max_new, setup.sampling, Hooks(stuck=stuck))
        status = _say(tokens, answers, a.json or len(answers) > 1)
    if a.json:
        for answer in answers:
            figures = figures_of(generation.figures, plans, plan_s)
            print(json.dumps({**answer.facts(), **figures, "warnings": [*warnings, *without_text(answers)]}))
        return status
    print("" if len(answers) == 1 else "\n\n".join(f"{answer.prompt!r}\n{answer.text}" for answer in answers))
    for warning in without_text(answers):
        print(f"warning: {warning}", file=sys.stderr)
    print(rendered(generation.figures, plans, plan_s, answers), file=sys.stderr)
    return status


@dataclass(frozen=True, slots=True)
class Setup:
    """What generate and chat have in common: all that their options say, the checkpoint opened."""

    device: ChosenDevice
    options: RunOptions
    tokenizer: Tokenizer
    ends: frozenset[int]
    model_at: ModelAt
    sampling: Sampling
    warnings: Sequence[str]
    notices: Sequence[str]
    """What was chosen since nobody said it."""


def setup_of(a: argparse.Namespace, command: str) -> Setup:
    """Raises UsageError, WeightError, SpecError: what can be refused before anything is planned."""
    warnings = thread_warnings(a.threads)
    if not a.weights:
        raise UsageError(f"{command} needs --weights: a checkpoint's path")
    refuse_outside("--max-new", a.max_new, 1, MOST_POSITIONS)
    refuse_outside("--lookup", a.lookup, 0, MOST_LOOKUP)
    notices: list[str] = []
    sampling, spec = sampling_of(a), spec_of(a, notices)
    refuse_lacking_sizes(spec)
    chosen, settings = device_of(a), settings_of(a.set)
    request = request_of(a, budget_of(a, chosen.kind, notices), takes_blocks(chosen.kind, a.kernels))
    choices, refused = choices_for(a.fp32_products, chosen.kind, request.dtype)
    warnings += [] if refused is None else [refused]
    options = RunOptions(
        plan=request,
        dispatch=dispatch_of(a.dispatch, False),
        dispatch_is_open=a.dispatch is None,
        device=chosen.kind,
        kernels=kernels_for(a.kernels, chosen.kind),
        choices=choices,
    )
    try:
        tokenizer = load_tokenizer(a.weights)
    except TokenizerError as error:
        raise UsageError(str(error).replace(CURE, f"{command} needs a checkpoint that has one")) from error
    checkpoint, ends = open_weights(a.weights), end_tokens(a.weights)

    def model_at(sizes: Mapping[str, int]) -> Model:
        for name in sizes.keys() & settings.keys():
            raise UsageError(f"--set {name}: {command} sets it")
        return open_model(spec, {**settings, **sizes}, checkpoint, None, tokenizer)

    return Setup(chosen, options, tokenizer, ends, model_at, sampling, warnings, notices)


def _say(tokens: Generator[list[int], None, None], answers: Sequence[Continuation], quiet: bool) -> int:
    """Print the first answer as it comes, unless `quiet`, until all have ended; the exit status."""
    said, status = 0, 0
    try:
        for _ in spoken(tokens, answers):
            if not quiet:
                sys.stdout.write(answers[0].text[said:])
                sys.stdout.flush()
            said = len(answers[0].text)
    except KeyboardInterrupt:
        status = INTERRUPTED
        for answer in answers:
            answer.finish = "interrupted" if answer.finish == "length" else answer.finish
    if not quiet:
        sys.stdout.write(answers[0].text[said:])
    return status


def without_text(answers: Sequence[Continuation]) -> list[str]:
    """A warning where tokens have no text."""
    unknown = [token for answer in answers for token in answer.unknown]
    return [f"{len(unknown)} tokens have no text, id {unknown[0]} first: the tokenizer does not know them"] if unknown else []


def sampling_of(a: argparse.Namespace) -> Sampling:
    """How the next token is chosen. Raises UsageError for options that exclude each other, and stop strings that are none."""
    if a.greedy and a.temperature is not None:
        raise UsageError("--greedy and --temperature exclude each other")
    if (a.greedy or a.temperature == 0) and (a.top_k or a.top_p != 1.0 or a.min_p or a.seed):
        best = "--greedy" if a.greedy else "--temperature 0"
        raise UsageError(f"{best} takes the best token: --top-k, --top-p, --min-p and --seed have no effect beside it; leave them out")
    if "" in a.stop:
        raise UsageError("--stop is empty: every text would end before it begins; write a text, or leave it out")
    for stop in a.stop:
        refuse_surrogates(stop, "--stop")
    temperature = 0.0 if a.greedy else DEFAULT_TEMPERATURE if a.temperature is None else a.temperature
    return Sampling(temperature, a.top_k, a.top_p, a.min_p, a.repetition_penalty, a.seed)


def saved_plans(a: argparse.Namespace) -> SavedTexts:
    """The plan set of --plan, whose recipe gives `a` its budget, dtype and settings. Raises UsageError for options that it decides."""
    decided = {
        "--budget": a.budget,
        "--dtype": a.dtype,
        "--set": a.set,
        "--split": a.split,
        "--no-fuse": a.no_fuse,
        "--weights-as": a.weights_as,
    }
    decided |= {"--lookup": a.lookup or None, "--plan-seconds": a.plan_seconds, "--plan-steps": a.plan_steps}
    given = [name for name, value in decided.items() if value not in (None, [])]
    if given:
        raise UsageError(f"{', '.join(given)}: --plan {a.plan} says it; leave out")
    saved = load_plan_set(a.plan)
    recipe = saved.recipe
    with of_recipe(a.plan):
        texts = TextLengths(
            **{name: count_of(recipe["texts"][name]) for name in ("batch", "longest", "shortest", "max_new", "chunk", "lookup")}
        )
        a.dtype, a.budget = DType(recipe["dtype"]).value, str(count_of(recipe["budget_bytes"]))
        a.set = [f"{name}={value}" for name, value in recipe["settings"].items()]
        a.weights_as = WeightsAs.of_recipe(recipe.get("weights_as", WeightsAs.RUN.value)).value
        a.no_fuse = ",".join(map(str, recipe["no_fuse"])) or None
    return SavedTexts(saved.plans, texts)


@dataclass(frozen=True, slots=True)
class SavedTexts:
    """A plan set that was saved, and what it is for."""

    plans: PlanSet
    texts: TextLengths


def spoken(tokens: Generator[list[int], None, None], answers: Sequence[Continuation]) -> Iterator[str]:
    """Pieces of the first answer as they come, until all have ended."""
    try:
        with closing(tokens) as passes:
            for found in passes:
                said = [answer.add(token) for answer, token in zip(answers, found, strict=True)]
                yield said[0]
                if all(answer.ended for answer in answers):
                    return
    finally:
        rest = [answer.rest() for answer in answers]
    yield rest[0]


def figures_of(figures: GenerationFigures, plans: PlannedSet, plan_s: float) -> dict[str, object]:
    """What `--json` says of the time of each prompt; null for what was not measured."""
    steps, new, prompts = figures.steps if figures.decode_s else 0, figures.new_tokens, plans.texts.batch
    return {
        "time_to_first_token_s": figures.time_to_first_token_s,
        "tokens_per_s": new / figures.decode_s if steps else None,
        "bytes_per_token": figures.moved_bytes // (new * prompts) if steps else None,
        "predicted_tokens_per_s": new / figures.predicted_s if steps else None,
        "tokens_per_pass": new / steps if steps else None,
        "loaded_bytes": figures.loaded_bytes,
        "plan_s": plan_s,
        "plans": len(plans.plan_set.phases),
        "host_bytes": plans.host_bytes,
    }


def rendered(figures: GenerationFigures, plans: PlannedSet, plan_s: float, answers: Sequence[Continuation]) -> str:
    """What it took, for a person."""
    budget_bytes = plans.budget_bytes
    count = sum(len(answer.tokens) for answer in answers)
    lines = [f"tokens      {count}" + (f" of {len(answers)} prompts, in batches of as many" if len(answers) > 1 else "")]
    if figures.steps and figures.decode_s:
        rate, predicted = figures.new_tokens / figures.decode_s, figures.new_tokens / figures.predicted_s
        each = format_bytes(figures.moved_bytes // figures.steps)
        lines[0] += f"; {rate * len(answers):.1f} a second (predicted {predicted * len(answers):.1f}), {each} moved a pass"
        if plans.texts.lookup:
            lines[0] += f", {figures.new_tokens / figures.steps:.2f} tokens a pass"
    lines.append(f"first       after {format_seconds(figures.time_to_first_token_s)}")
    lines.append(f"plans       {len(plans.plan_set.phases)}, each and all together judged right, made or read in {format_seconds(plan_s)}")
    if (report := plans.first.planned.report).weight_formats:
        lines.append(f"weights     {stored_text(report)}")
    lines.append(f"memory      arena {format_bytes(budget_bytes)}, host {format_bytes(plans.host_bytes)}")
    return "\n".join(lines)


CHUNK = 64
"""Tokens of a pass in which chat reads what is new."""


def chat_command(a: argparse.Namespace) -> int:
    """The `chat` command: a line of stdin is a turn. Raises the errors of every stage; returns 0, or 130 where it was interrupted."""
    if sys.stdin is None:
        raise UsageError("stdin is closed: chat reads its turns from there, a line each")
    refuse_outside("--positions", a.positions, 2 * CHUNK, MOST_POSITIONS)
    setup, template = setup_of(a, "chat"), load_template(a.weights)
    messages: list[Message] = []
    if a.system:
        refuse_surrogates(a.system, "--system")
        messages.append({"role": "system", "content": a.system})
    template.render([*messages, {"role": "user", "content": "?"}])
    refuse_option_positions(setup.model_at, 1, "--positions", a.positions)
    texts, told = TextLengths(1, a.positions - 1, 1, 2, CHUNK, a.lookup), Told()
    with progress_bars(setup.device.why, told.text, setup.notices, quiet=a.json) as shown:
        machine = shown.without_spinner(machine_of(a, setup.device.kind))
        began = perf_counter()
        plans = plan_generation(setup.model_at, machine, setup.options, texts, told.planning)
        plan_s = perf_counter() - began
        shown.planned(plans.first.planned)
        generation = Generation(plans, setup.options, LoadedModel(setup.options, shown.loading))
    warnings = [*generation.warnings, *setup.warnings]
    for warning in () if a.json else warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with closing(generation), closing(Conversation(generation, Hooks(stuck=stuck))) as conversation:
        read = list[int]()
        for line in _turns():
            messages.append({"role": "user", "content": line})
            ids = setup.tokenizer.encode_rendered(template.render(messages))
            left = a.positions + 1 - len(ids)
            if left < 1:
                cure = "begin anew, or say --positions"
                raise UsageError(f"the dialogue has {len(ids)} tokens, and positions run out at {a.positions}: {cure}")
            same = next((n for n, (old, new) in enumerate(zip(read, ids, strict=False)) if old != new), len(read))
            conversation.go_back(max(0, min(same, len(ids) - 1)))
            answer = Continuation(line, ids, setup.tokenizer, setup.ends, a.stop)
            status = _say(conversation.tokens([ids], min(a.max_new, left), setup.sampling), [answer], a.json)
            read = [*ids, *answer.tokens][: conversation.lengths[0]]
            if status == INTERRUPTED:  # in the middle of a pass nobody knows what was written
                conversation.close()
            messages.append({"role": "assistant", "content": answer.text})
            if a.json:
                figures = figures_of(generation.figures, plans, plan_s)
                told_left = {"positions_left": left - len(answer.tokens), "warnings": [*warnings, *without_text([answer])]}
                print(json.dumps({**answer.facts(), **figures, **told_left}), flush=True)
            else:
                print(flush=True)
                for warning in without_text([answer]):
                    print(f"warning: {warning}", file=sys.stderr)
                if answer.finish == "length" and left <= a.max_new:
                    print("einpage: positions have run out; say --positions for more", file=sys.stderr)
            if status == INTERRUPTED and not sys.stdin.isatty():
                return INTERRUPTED
    return 0


def _turns() -> Iterator[str]:
    """Lines of stdin that hold something."""
    is_asked = sys.stdin.isatty()
    if isinstance(sys.stdin, TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdin.encoding).name == "ascii"
        sys.stdin.reconfigure(encoding="utf-8" if is_ascii else None, errors="surrogateescape")
    while True:
        if is_asked:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin: not UTF-8: {error.reason}") from error
        if not line:
            return
        if line.strip():
            refuse_surrogates(line, "stdin")
            yield line.rstrip("\r\n")
