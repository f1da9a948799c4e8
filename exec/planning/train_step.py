"""A training step as what is planned: one Program whose outputs are the loss and every state as the step leaves it.

In: a spec that says how it is trained, opened with the checkpoint it begins from, and numbers that replace those of the spec. Out: a
TrainStep. Weights that train are numbers, however the checkpoint stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from einpage.checkpoints.files.checkpoint import Checkpoint
from einpage.checkpoints.text.tokenizer import Tokenizer
from einpage.einsum_front.algebra.expr import Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError, listing
from einpage.einsum_front.differentiate.next_token import with_training
from einpage.einsum_front.differentiate.optimiser import KNOWN, LOSS_SCALE, RATE
from einpage.einsum_front.differentiate.training import training_step
from einpage.einsum_front.graph.describe import statements
from einpage.einsum_front.graph.program import Program, Weight
from einpage.einsum_front.spec.document import UNSCALED, Document
from einpage.einsum_front.spec.parse import parse_expression
from einpage.einsum_front.spec.reader import load_document
from einpage.einsum_front.spec.sizes import Entry
from einpage.einsum_front.spec.source import Snippet
from einpage.exec.planning.model import Model, open_model
from einpage.exec.system.find_spec import spec_path

DYNAMIC = "dynamic"
"""The word of `--loss-scale` for what torch.amp.GradScaler does."""
DECAY = "decay"
"""The number of an optimiser that --weight-decay gives."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A step at known sizes, with the weights that it begins from."""

    model: Model
    """Its program is that of the step: it puts out the loss, and every state under its own name."""
    loss: str
    """The output that is the loss."""
    trained: tuple[str, ...]
    """The weights that train, by their unique names."""
    rate: float | None
    """The learning rate that the spec says; None where its optimiser reads none."""
    math: tuple[str, ...]
    """The statements of the model and its loss, and what the optimiser is: another spec has others."""
    fp32_copies: Mapping[str, str]
    """By a weight that trains, the name of its copy in fp32; none in fp32."""
    overflow: str | None
    """The output that is 1 where a step changed nothing since a gradient was not finite; None where the loss is not scaled."""

    @property
    def rate_input(self) -> str:
        """The input that is the learning rate."""
        return RATE

    @property
    def scale_state(self) -> str | None:
        """The state that the loss is multiplied by; None where it is not."""
        return LOSS_SCALE if self.overflow is not None else None

    @property
    def program(self) -> Program:
        """Of the step."""
        return self.model.program

    @property
    def outputs(self) -> tuple[str, ...]:
        """All of them, by name."""
        return tuple(o.name for o in self.program.outputs)


def size_names(spec: str | Path) -> frozenset[str]:
    """Of the sizes of `spec`. Raises SpecError, UsageError."""
    return frozenset(entry.name for entry in load_document(spec_path(spec)).sizes)


def open_step(
    spec: str | Path,
    settings: Mapping[str, str | int | float],
    weights: str | Checkpoint,
    tokenizer: Tokenizer | None = None,
    weight_decay: float | None = None,
    dtype: DType = DType.FP32,
    loss_scale: str | None = None,
) -> TrainStep:
    """The step of `spec`, whose `train:` says what to train, in a run of `dtype`; `loss_scale` is what `--loss-scale` says. Raises
    SpecError, UsageError, WeightError."""
    document = with_training(load_document(spec_path(spec)))
    model = open_model(spec, settings, weights, None, tokenizer, train=True)
    if weight_decay is not None:
        document = _with_decay(document, weight_decay)
    if loss_scale is not None:
        document = _with_scale(document, loss_scale)
    made = training_step(model.program, document, dtype)
    weights_as_numbers = tuple(_as_numbers(w, made.weights) for w in made.program.weights)
    program = replace(made.program, weights=weights_as_numbers).with_states_as_outputs()
    if model.resolved is not None:
        sources = model.resolved.source_by_weight
        copies = {copy: sources[weight] for weight, copy in made.fp32_copies.items()}
        model = replace(model, resolved=replace(model.resolved, source_by_weight={**sources, **copies}))
    rate = next((i.default for i in program.inputs if i.name == RATE), None)
    math = tuple(line for d in made.program.definitions if d.name not in made.made for line in statements(d))
    loss = made.program.outputs[0].name
    return TrainStep(replace(model, program=program), loss, made.weights, rate, math, made.fp32_copies, made.overflow)


def _with_scale(document: Document, text: str) -> Document:
    """With the loss scaled as `--loss-scale` says: `dynamic`, `none`, or numbers, `start=1024,interval=100`. Raises UsageError."""
    train = document.train
    assert train is not None
    if text == UNSCALED:
        return replace(document, train=replace(train, scaled=False, scale=()))
    entries = {entry.name: entry for entry in train.scale}
    for item in () if text == DYNAMIC else text.split(","):
        name, equals, number = item.partition("=")
        if not equals:
            raise UsageError(f"--loss-scale {text!r}: expected `{DYNAMIC}`, `{UNSCALED}`, or numbers, as `start=1024,interval=100`")
        snippet = Snippet.alone(number, f"--loss-scale {name}")
        entries[name] = Entry(name, parse_expression(snippet), snippet.whole(), snippet.source, None)
    return replace(document, train=replace(train, scaled=True, scale=tuple(entries.values())))


def _with_decay(document: Document, weight_decay: float) -> Document:
    """With another number for the optimiser's `decay`. Raises UsageError where it reads none."""
    train = document.train
    assert train is not None
    named = KNOWN[train.optimiser.text].numbers if train.optimiser is not None and train.optimiser.text in KNOWN else {}
    known = [*named, *(entry.name for entry in train.numbers)]
    if DECAY not in known:
        raise UsageError(f"--weight-decay: the optimiser of {document.path} reads no number `{DECAY}` ({listing(known)}); leave it out")
    entry = Entry(DECAY, Num(weight_decay), train.span, document.source, None)
    return replace(document, train=replace(train, numbers=(*(e for e in train.numbers if e.name != DECAY), entry)))


def _as_numbers(weight: Weight, trained: tuple[str, ...]) -> Weight:
    """A weight that trains is numbers, however the checkpoint stores it."""
    return replace(weight, stored=None) if weight.name in trained else weight
