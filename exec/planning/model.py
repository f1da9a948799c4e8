"""First stage: a spec and the checkpoint it is opened with become a Model, in which every size is known.

In: a spec's path, `--set`, `--weights`, token lists. Out: a Model. A size comes from `--set`, else from the token lists, else from the
checkpoint's own metadata, else from the spec. Which letters run over the vocabulary is said here too, and so which outputs are logits.
Only headers of the checkpoint are read; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from einpage.checkpoints.files.checkpoint import Checkpoint, WeightError
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.metadata import check_metadata, spec_settings, tied_weights_warnings
from einpage.checkpoints.match.resolve import Resolved, open_weights, present_names, resolve, with_stored
from einpage.checkpoints.text.tokenizer import Tokenizer
from einpage.einsum_front.algebra.expr import Expr, Letter, Load, Name, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import EinpageError, UsageError, listing
from einpage.einsum_front.base.units import whole_number
from einpage.einsum_front.differentiate.next_token import with_training
from einpage.einsum_front.differentiate.training import for_training, training_facts, training_step, training_text
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import load_document
from einpage.einsum_front.spec.sizes import Setting
from einpage.exec.load.inputs import LENGTHS, TOKENS, TokenLists, token_sizes
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import refuse_by_first_iterations
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.exec.system.find_spec import SHIPPED, spec_names, spec_path


@dataclass(frozen=True, slots=True)
class Model:
    """A spec with all its sizes known, and the checkpoint it was opened with."""

    program: Program
    resolved: Resolved | None
    """None where no weights were given: enough to plan, not to run."""
    tokens: TokenLists | None = None
    """The token lists at hand, which gave `batch` and `seq` where nothing else did."""
    tokenizer: Tokenizer | None = None
    """Turns token ids into text, where the checkpoint has one."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with the checkpoint for this spec, and cannot be known here."""
    vocabulary: frozenset[Letter] = frozenset()
    """The letters over the vocabulary: an output over one of them is logits."""


MOST_LINES = 3
"""Told of each spec that does not fit a checkpoint."""
VOCABULARY_SIZE = "vocab"
"""The name of the size, where a spec says it so."""
AT = "at"
"""The input that says where the first token of a run stands, by sequence."""
SIZES = ("batch", "seq", "past", "room")
"""What a spec that generates is sized by: sequences, tokens of a run, positions before it, and for how many more runs a plan serves."""
ModelAt: TypeAlias = Callable[[Mapping[str, int]], Model]
"""The model at other sizes."""


def open_model(
    spec: str | Path,
    settings: Mapping[str, str | int | float] | None = None,
    weights: str | Checkpoint | None = None,
    tokens: TokenLists | None = None,
    tokenizer: Tokenizer | None = None,
    request: PlanRequest | None = None,
    train: bool = False,
) -> Model:
    """Read a spec, a file or the name of one that ships, and give every size its value. `weights` as in `--weights`, or opened already.
    With `train`, its statements for training are part of it.

    Raises SpecError, UsageError, WeightError, InputError: each before anything runs; DoesNotFit where a plan as in `request` is seen not to
    be, before all layers are elaborated.
    """
    document = load_document(spec_path(spec))
    document = for_training(with_training(document)) if train else document
    settings = dict(settings or {})
    checkpoint = open_weights(weights) if isinstance(weights, str) else weights
    sizes = {entry.name for entry in document.sizes}
    found = spec_settings(document, checkpoint, settings) if checkpoint is not None else {}
    implied = token_sizes(tokens, _whole_numbers(settings)) if tokens is not None else {}
    implied = {name: n for name, n in implied.items() if name in sizes}
    settings_by_name: dict[str, Setting] = {**found, **implied, **settings}
    warnings = check_metadata(document, checkpoint, settings_by_name) if checkpoint is not None else ()
    if request is not None and checkpoint is None:  # tied weights may change what is read
        refuse_by_first_iterations(document, settings_by_name, request)
    program = elaborate(document, settings_by_name)
    if tokens is not None:  # again, for settings that are expressions
        token_sizes(tokens, {name: program.sizes[name] for name in ("batch", "seq") if name in settings and name in sizes})
    vocabulary = vocabulary_letters(document, program)
    if checkpoint is None:
        return Model(program, None, tokens, tokenizer, vocabulary=vocabulary)
    present = present_names(program, checkpoint)
    warnings = (*warnings, *tied_weights_warnings(program, present, checkpoint))
    program = with_tied_weights(program, present)
    size_by_letter = {Letter(entry.name): entry.expr.word for entry in document.axes if isinstance(entry.expr, Name)}
    resolved = resolve(program, checkpoint, size_by_letter)
    return Model(with_stored(program, resolved), resolved, tokens, tokenizer, warnings, vocabulary)


def vocabulary_letters(document: Document, program: Program) -> frozenset[Letter]:
    """The letters of `program`, which is that of `document`, that run over the vocabulary, so that an output over one of them holds a
    number for each token.

    They are the letter of the axis at which token ids index a weight (`embed[tokens[b,s], m]`: the first of `embed`), the letters whose
    size is `vocab`, and those declared with the same size as one of these. Numbers decide nothing: a model as wide as its vocabulary is
    none.
    """
    indexed = _indexed_by_tokens(program)
    size_by_letter = {Letter(entry.name): entry.expr for entry in document.axes}
    sizes = [size for letter, size in size_by_letter.items() if letter in indexed and isinstance(size, Name)]
    return indexed | {letter for letter, size in size_by_letter.items() if size in (*sizes, Name(VOCABULARY_SIZE))}


def _indexed_by_tokens(program: Program) -> frozenset[Letter]:
    """Letters of the weights' axes at which an index reads token ids."""
    letters_by_weight = {weight.name: weight.letters for weight in program.weights}
    found: set[Letter] = set()
    one_by_statement = {(definition.base, definition.span): definition for definition in program.definitions}
    for definition in one_by_statement.values():  # iterations of a repeat differ in names alone
        for part in definition.parts:
            for node in walk(part.expr):
                if isinstance(node, Load) and node.name in letters_by_weight:
                    letters = letters_by_weight[node.name]
                    found.update(letter for letter, index in zip(letters, node.indices, strict=True) if _reads_tokens(index))
    return frozenset(found)


def _reads_tokens(index: Expr) -> bool:
    return any(isinstance(node, Load) and node.name == TOKENS for node in walk(index))


def shown_training(model: Model, spec: str | Path, dtype: DType) -> tuple[dict[str, object], str]:
    """A training step of `model`, which was opened with `train`, in `dtype`: its statements as facts, and for a person. Raises
    SpecError."""
    document = with_training(load_document(spec_path(spec)))
    step = training_step(model.program, document, dtype)
    return training_facts(step), training_text(step, document)


def spec_for(weights: str) -> str:
    """The name of the spec, of those that ship, whose math a checkpoint's metadata ask for and whose tensors it has. Where several are
    right, that of the model which the metadata name.

    Raises UsageError where there is none, with what is in the way of those whose tensors it has, or of the one that its metadata name;
    WeightError for a broken checkpoint.
    """
    checkpoint = open_weights(weights)
    if isinstance(checkpoint, RandomWeights):
        raise UsageError(f"--weights {weights} fit any spec: name one (shipped: {listing(spec_names())})")
    right: list[str] = []
    wrong: dict[str, EinpageError] = {}
    for name in spec_names():
        try:
            model = open_model(SHIPPED / f"{name}.yaml", _least_sizes(name), checkpoint)
        except EinpageError as error:
            wrong[name] = error
        else:
            right += [name] * bool(model.program.weights)
    config = checkpoint.config()
    named = [config.get(key) for key in ("model_type", "general.architecture")]
    if len(right) > 1 and (of_that_name := [name for name in right if name in named]):
        right = of_that_name
    if len(right) == 1:
        return right[0]
    if right:
        raise UsageError(f"{weights}: {' and '.join(right)} are each right for this checkpoint: name one")
    near = [name for name in wrong if _has_tensors(name, checkpoint)] or [name for name in wrong if name in named]
    told = [f"{name}: {line}" for name in near for line in _in_the_way(wrong[name])]
    cure = "write one, or change the nearest (specs/README.md)" if near else "none reads its tensors; write one (specs/README.md)"
    raise UsageError("\n  ".join([f"{weights}: no spec that ships is right for this checkpoint: {cure}", *told]))


def _in_the_way(error: EinpageError) -> list[str]:
    """What is in the way, a line each: the first few of those that a message lists after its head."""
    head, *listed = str(error).splitlines()
    told = [line.strip() for line in listed or [head]]
    more = [f"and {len(told) - MOST_LINES} more, which it says as SPEC"] if len(told) > MOST_LINES else []
    return [*told[:MOST_LINES], *more]


def _least_sizes(name: str) -> dict[str, int]:
    """Of a text of one token: no table of positions is too short for it."""
    sizes = {entry.name for entry in load_document(SHIPPED / f"{name}.yaml").sizes}
    return {size: n for size, n in (("batch", 1), ("seq", 1), ("past", 0), ("room", 0)) if size in sizes}


def _has_tensors(name: str, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has all that a spec reads, whatever its metadata say of the math."""
    document = load_document(SHIPPED / f"{name}.yaml")
    try:
        program = elaborate(document, {**spec_settings(document, checkpoint), **_least_sizes(name)})
        program = with_tied_weights(program, present_names(program, checkpoint))
        return bool(resolve(program, checkpoint).source_by_weight)
    except EinpageError:
        return False


def refuse_lacking_sizes(spec: str | Path) -> None:
    """Raises UsageError for a spec without the sizes of one that generates: an encoder's, or without states."""
    sizes = {entry.name for entry in load_document(spec_path(spec)).sizes}
    if missing := ", ".join(f"`{name}`" for name in SIZES if name not in sizes):
        cure = "specs/README.md says how to write one"
        raise UsageError(f"{spec} does not generate: it lacks the sizes {missing} of a spec with `state:`; {cure}")


def refuse_no_generation(model: Model) -> None:
    """Raises UsageError for a spec without states, or without an input by which one that generates is run."""
    program = model.program
    if not program.states:
        cure = "specs/README.md says how to write one"
        raise UsageError(f"{program.path} has no `state:`, so nothing is left of one token for the next; {cure}")
    names = [i.name for i in program.inputs]
    missing = [f"the input `{name}`" for name in (TOKENS, AT, LENGTHS) if name not in names]
    states = {state.name for state in program.states}
    missing += [
        f"a default for the input `{i.name}`" for i in program.inputs if i.default is None and i.name != TOKENS and i.name not in states
    ]
    if missing:
        raise UsageError(f"{program.path} does not generate: it lacks {', '.join(missing)}")


def whole_states(model: Model) -> list[str]:
    """The states that every pass writes whole."""
    return [state.base for state in model.program.states if state.along is None]


def refuse_positions(model_at: ModelAt, batch: int, longest: int, max_new: int) -> None:
    """Raises UsageError where the spec has too few positions for so many tokens after `longest`, as of a table that was learned, or of
    as many as its checkpoint says.

    The last token that is asked for is not read again. A spec that fails at every position raises its own error.
    """
    there = _positions_below(model_at, batch, longest + max_new - 1)
    if there is None:
        return
    most = there.count + 1 - longest
    cure = f"say --max-new {most}, or less" if most > 0 else f"shorten the text to {there.count} tokens"
    asked = f"{longest} tokens of the prompt" + (f" and --max-new {max_new}" if most > 0 else "")
    raise UsageError(f"{asked} are more than {there.text}; {cure} ({there.why})") from there.error


def refuse_option_positions(model_at: ModelAt, batch: int, option: str, positions: int) -> None:
    """As refuse_positions, of an option that says how many positions there are to be."""
    there = _positions_below(model_at, batch, positions)
    if there is not None:
        cure = f"say {option} {there.count}, or less"
        raise UsageError(f"{option} {positions} is more than {there.text}; {cure} ({there.why})") from there.error


@dataclass(frozen=True, slots=True)
class _TooFewPositions:
    """Of a spec that reads no token at position `count`."""

    count: int
    name: str
    error: EinpageError

    @property
    def text(self) -> str:
        """For messages."""
        return f"the {self.count} positions that {self.name} has"

    @property
    def why(self) -> str:
        """What the spec's own error says, without its place in the text; of the checkpoint's metadata, what they say."""
        head, *rows = str(self.error).splitlines()
        return rows[0].strip() if rows and isinstance(self.error, WeightError) else head


def _positions_below(model_at: ModelAt, batch: int, positions: int) -> _TooFewPositions | None:
    """How many positions a spec has, where they are fewer than so many; None where they are enough. Raises the spec's own error where it
    has none."""

    def refusal(position: int) -> EinpageError | None:
        try:
            model_at({"batch": batch, "seq": 1, "past": position, "room": 0})
        except EinpageError as error:
            return error
        return None

    found = refusal(positions - 1)
    if found is None:
        return None
    program = model_at({"batch": batch, "seq": 1, "past": 0, "room": 0}).program
    there, beyond = 0, positions - 1
    while beyond - there > 1:
        middle = (there + beyond) // 2
        wrong = refusal(middle)
        there, beyond, found = (middle, beyond, found) if wrong is None else (there, middle, wrong)
    return _TooFewPositions(there + 1, program.name, found)


def logits_axes(model: Model) -> dict[str, int]:
    """The outputs that are logits of the model's token lists, by name: 3 for those of every position [b, s, v], 2 for those of one [b, v].

    `b` and `s` are the letters of the input `tokens`, `v` is a letter over the vocabulary.
    """
    positions = next((i.letters for i in model.program.inputs if i.name == TOKENS and len(i.letters) == 2), None)
    if positions is None:
        return {}
    over = {o.name: o.letters[:-1] for o in model.program.outputs if o.letters and o.letters[-1] in model.vocabulary}
    return {name: len(before) + 1 for name, before in over.items() if before in (positions, positions[:1])}


def next_logits(model: Model, axes: int) -> str:
    """The output that is the logits of the next token, over so many axes: after each sequence, or after each token. Raises UsageError
    where there is none, or another."""
    axes_by_name, path = logits_axes(model), model.program.path
    found = [output.name for output in model.program.outputs if axes_by_name.get(output.name) == axes]
    if len(found) > 1:
        raise UsageError(f"{path}: {' and '.join(found)} could each be the logits of the next token; leave one of them out")
    if not found and axes == 2:
        raise UsageError(f"{path} declares no output of two axes (batch, vocabulary), the next token after each sequence")
    if not found:
        raise UsageError(f"--lookup: {path} declares no output of three axes (batch, sequence, vocabulary), the next token after each one")
    return found[0]


def _whole_numbers(settings: Mapping[str, str | int | float]) -> dict[str, int]:
    """Those settings that are whole numbers; `elaborate` evaluates expressions."""
    numbers = {name: whole_number(str(value)) for name, value in settings.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def opened(model_at: ModelAt, texts: TextLengths, bucket: Bucket) -> tuple[Model, str]:
    """The model of a phase, and its logits: after every token where what may come next is looked up. Raises UsageError for a spec that does
    not generate, or not such texts."""
    model = model_at({"batch": texts.batch, "seq": bucket.tokens, "past": bucket.past, "room": bucket.extra})
    refuse_no_generation(model)
    _refuse_padding(model, texts)
    return model, next_logits(model, 3 if texts.lookup and not bucket.is_read else 2)


def asked(model: Model, output: str, request: PlanRequest) -> tuple[Program, PlanRequest]:
    """What is planned of a phase: its logits and its states, in such pieces as there are."""
    program = model.program.with_states_as_outputs()
    wanted = (output, *(state.name for state in program.states))
    pieces = {letter: n for letter, n in request.pieces.items() if n <= program.extents.get(letter, n)}
    return program, replace(request, outputs=wanted, pieces=pieces)


def _refuse_padding(model: Model, texts: TextLengths) -> None:
    whole = whole_states(model)
    if not whole:
        return
    state = f"the state `{whole[0]}` is written whole"
    if texts.lookup:
        raise UsageError(f"--lookup: {state}, so what was read and does not come cannot be taken back; leave it out")
    if texts.longest > texts.shortest or texts.chunk:
        cure = "give prompts of one length, or one at a time"
        if texts.batch == 1:
            cure = "generate with the prompt at hand, which is planned for its own length"
        raise UsageError(f"{state}, and would take in the padding of prompts shorter than planned; {cure}")
