"""From what a user says to what a training run needs, everything refused that can be before anything is planned or loaded.

In: a TrainRequest, the words of the command line and of the Python API alike. Out: a TrainSetup: the step, what it reads, its rates, its
budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.text.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.load.inputs import InputError, TokenLists, refuse_surrogates
from einpage.exec.planning.train_step import TrainStep, open_step, size_names
from einpage.exec.run.choose import RunOptions, default_budget
from einpage.exec.run.loaded_model import without_states
from einpage.exec.train.batches import Batches, cut_text, token_batches
from einpage.exec.train.planned_step import budget_bytes, in_micro_batches
from einpage.exec.train.saved import TrainOptions
from einpage.exec.train.schedule import RateSchedule, RateShape

TEXT_SEQ = 128
"""Tokens of a sequence of a text, unasked."""


@dataclass(frozen=True, slots=True)
class TrainRequest:
    spec: str | Path
    weights: str
    how: TrainOptions
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    """Sizes and scalars of the spec."""
    text: str | None = None
    origin: str = "the text"
    """Of the text, for messages."""
    tokens: TokenLists | None = None
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    budget: str | int | None = None
    """Of the device: bytes, a size, or a share in %; None: what the device has to spare."""
    batch: int | None = None
    seq: int | None = None
    micro_batches: int | None = None
    rate: float | None = None
    """None: the spec's."""
    weight_decay: float | None = None
    schedule: str | None = None
    warmup: int | None = None
    loss_scale: str | None = None
    """`none`, `dynamic`, or numbers; None: the spec's, in fp16 dynamic."""


@dataclass(frozen=True, slots=True)
class TrainSetup:
    step: TrainStep
    batches: Batches
    schedule: RateSchedule | None
    options: RunOptions
    notices: tuple[str, ...]
    """What was chosen since nobody said it."""


def set_up(r: TrainRequest, options: RunOptions) -> TrainSetup:
    """`options` has everything but the budget. Raises SpecError, UsageError, InputError, WeightError; DoesNotFit where a share of the
    budget is asked for, and no split fits."""
    if r.text is not None and r.tokens is not None:
        raise UsageError("--data and --tokens both say what to learn; use one")
    if r.text is None and r.tokens is None and not r.arrays:
        raise UsageError("train needs what to learn: --data TEXT-FILE, or --tokens FILE.json, a list of sequences of token ids")
    if options.plan.host_budget_bytes is not None:
        raise UsageError("--host-budget: a training step reads weights and moments from the host and has no disk behind it; leave it out")
    settings = _settings(r)
    tokenizer = _tokenizer(r)
    tokens = r.tokens
    if r.text is not None and tokenizer is not None:
        refuse_surrogates(r.text, r.origin)
        tokens = cut_text(tokenizer.encode(r.text), _size(settings, "seq", TEXT_SEQ), _size(settings, "batch", 1), r.origin)
    if tokens is not None:
        sizes = size_names(r.spec)
        settings = {**{name: n for name, n in (("seq", tokens.longest), ("batch", 1)) if name in sizes}, **settings}
    step = open_step(r.spec, settings, r.weights, tokenizer, r.weight_decay, options.plan.dtype, r.loss_scale)
    batches = _batches(r, step, tokens)
    schedule = _schedule(r, step)
    request, notices = in_micro_batches(step, options.plan, r.micro_batches), tuple[str, ...]()
    if r.budget is None:
        nbytes, of = default_budget(options.device)
        notices = (f"budget: {format_bytes(nbytes)}, {of}",)
    else:
        nbytes = budget_bytes(r.budget, step, request) if isinstance(r.budget, str) else r.budget
    return TrainSetup(step, batches, schedule, replace(options, plan=replace(request, budget_bytes=nbytes)), notices)


def _settings(r: TrainRequest) -> dict[str, str | int | float]:
    """Sizes by name, --batch and --seq among them. Raises UsageError for one that is given twice, or is none."""
    settings = dict(r.settings)
    for name, n in (("batch", r.batch), ("seq", r.seq)):
        if n is None:
            continue
        if name in settings:
            raise UsageError(f"--{name} and --set {name} both give the size; use one")
        if n < 1:
            raise UsageError(f"--{name} {n} is not at least 1")
        settings[name] = n
    return settings


def _tokenizer(r: TrainRequest) -> Tokenizer | None:
    """The checkpoint's, where it has one; a text needs it."""
    try:
        return load_tokenizer(r.weights)
    except TokenizerError:
        if r.text is not None:
            raise
        return None


def _size(settings: Mapping[str, str | int | float], name: str, unasked: int) -> int:
    text = str(settings.get(name, unasked))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--set {name}={text}: a text is cut by it, so it must be a whole number of at least 1; say --{name} N")
    return int(text)


def _batches(r: TrainRequest, step: TrainStep, tokens: TokenLists | None) -> Batches:
    own = without_states(step.program)
    if tokens is None:
        return Batches(own, None, 1, r.arrays)
    sizes = step.program.sizes
    if tokens.longest > (seq := sizes.get("seq", tokens.longest)):
        at = next(i for i, row in enumerate(tokens.lists) if len(row) == tokens.longest)
        cure = f"sequences are used whole: say --seq {tokens.longest}, or leave it out"
        raise InputError(f"{tokens.origin}: sequence {at} has {tokens.longest} tokens, and seq is {seq}; {cure}")
    return token_batches(own, tokens, sizes.get("batch", 1), r.arrays)


def _schedule(r: TrainRequest, step: TrainStep) -> RateSchedule | None:
    """The learning rates. Raises UsageError where the optimiser reads none, and for a shape there is not."""
    if step.rate is None:
        given = [option for option, value in (("--lr", r.rate), ("--schedule", r.schedule), ("--warmup", r.warmup)) if value is not None]
        if given:
            raise UsageError(f"{given[0]}: the optimiser of {step.program.path} reads no `rate`; leave it out")
        return None
    words = [shape.value for shape in RateShape]
    if r.schedule is not None and r.schedule not in words:
        raise UsageError(f"--schedule {r.schedule!r}: expected {' or '.join(words)}")
    shape = RateShape.CONSTANT if r.schedule is None else RateShape(r.schedule)
    return RateSchedule(step.rate if r.rate is None else r.rate, r.how.steps, shape, r.warmup or 0)
