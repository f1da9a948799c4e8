"""Optimisers: statements that make the next value of a weight and of what is kept for it, element by element.

In: `train:` as written. Out: an Optimiser, its statements and numbers; and for a weight, its gradient and what is kept for it, definitions.
In the statements `w` is the weight, `g` its gradient, `step` the number of the step, from 1, and `rate` an input, so that a run may change
it from step to step; the other numbers are known. Where the loss is scaled, `g` is divided by the scale, and a step with a gradient that is
not finite leaves every value as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, rebuild, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError, did_you_mean, listing
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, fresh_name
from einpage.einsum_front.spec.document import TrainEntry
from einpage.einsum_front.spec.parse import Statement, parse_statement
from einpage.einsum_front.spec.sizes import Evaluator, usable_name
from einpage.einsum_front.spec.source import Snippet, SourceFile

WEIGHT, GRADIENT, STEP, RATE = "w", "g", "step", "rate"
LOSS_SCALE, GOOD_STEPS, OVERFLOW = "loss_scale", "good_steps", "overflow"
"""States of a step that scales its loss: the scale, how many steps in a row were finite; and whether this one was not."""


FP32_COPY = "master_"
"""Before the name of a weight that is kept in another dtype too."""


@dataclass(frozen=True, slots=True)
class Known:
    """An optimiser that is known by name."""

    states: tuple[str, ...]
    numbers: Mapping[str, float]
    update: tuple[str, ...]


KNOWN = {
    "sgd": Known((), {RATE: 1e-2, "decay": 0.0}, ("w = w - rate * (g + decay * w)",)),
    "adamw": Known(
        ("m", "v"),
        {RATE: 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 1e-2},
        (
            "m = beta1 * m + (1 - beta1) * g",
            "v = beta2 * v + (1 - beta2) * g * g",
            "w = w * (1 - rate * decay) - m * (rate / (1 - beta1 ** step)) / (sqrt(v) * (1 / sqrt(1 - beta2 ** step)) + eps)",
        ),
    ),
}
"""Stochastic gradient descent, and Adam with decoupled weight decay (Loshchilov and Hutter, 2019), with the numbers of PyTorch."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """What the loss is multiplied by before it is differentiated, so that small gradients are numbers in fp16; the numbers of PyTorch's
    GradScaler. A step with a gradient that is not finite changes neither weights nor what is kept for them."""

    start: float = 65536.0
    growth: float = 2.0
    """The scale is multiplied by it after `interval` finite steps in a row, where that is finite."""
    backoff: float = 0.5
    """And by this after a step that was not."""
    interval: int = 2000

    def next_values(self, overflow: Expr) -> tuple[Expr, Expr]:
        """Of the scale, and of how many steps were finite."""
        scale, more = Load(LOSS_SCALE, ()), Binary("+", Load(GOOD_STEPS, ()), Num(1))
        grown, enough = Binary("*", scale, Num(self.growth)), Binary(">=", more, Num(self.interval))
        grows = Binary("and", enough, Binary("<", grown, Num(inf)))
        return (
            unless(overflow, Binary("*", scale, Num(self.backoff)), Call("where", (grows, grown, scale))),
            unless(overflow, Num(0), Call("where", (enough, Num(0), more))),
        )


def unless(overflow: Expr, old: Expr, new: Expr) -> Expr:
    """`new`, or `old` of a step in which something is not finite: what is not chosen is not seen."""
    return Call("where", (Binary(">", overflow, Num(0)), old, new))


def scale_of(train: TrainEntry, dtype: DType, source: SourceFile, known: Mapping[str, arithmetic.Number]) -> LossScale | None:
    """How the loss is scaled in a run of `dtype`: as `train` says, else in fp16 alone. Raises SpecError."""
    if train.scaled is False or (train.scaled is None and dtype is not DType.FP16):
        return None
    evaluator, found = Evaluator({}, known), dict[str, arithmetic.Number]()
    for entry in train.scale:
        low, high, what = _SCALE_LIMITS.get(entry.name, (0, 0, ""))
        if not what:
            message = f"a loss scale has no number `{entry.name}`"
            raise entry.source.error(entry.span, message, exists=listing(_SCALE_LIMITS), cure=did_you_mean(entry.name, _SCALE_LIMITS))
        number = evaluator.number(entry.expr, entry.source)
        if not low <= number <= high or (entry.name == "interval" and number != int(number)):
            raise entry.source.error(entry.span, f"`{entry.name}` is {number}", expected=what)
        found[entry.name] = number
    start, growth, backoff = (float(found.get(name, getattr(LossScale(), name))) for name in ("start", "growth", "backoff"))
    return LossScale(start, growth, backoff, int(found.get("interval", LossScale().interval)))


_SCALE_LIMITS = {
    "start": (2.0**-100, 2.0**100, "a number above 0"),
    "growth": (1.0, 2.0**20, "a number of at least 1"),
    "backoff": (2.0**-20, 1.0, "a number above 0, at most 1"),
    "interval": (1, 2**24, "a whole number of at least 1"),
}


@dataclass(frozen=True, slots=True)
class Optimiser:
    """What a step does with each weight."""

    states: tuple[str, ...]
    """Names of what is kept for each weight, in its shape."""
    numbers: Mapping[str, arithmetic.Number]
    """By name, the rate among them."""
    rate: arithmetic.Number | None
    """None: the statements do not read it."""
    update: tuple[Statement, ...]
    """Their targets are `w`, states, or names of their own."""
    source: SourceFile


def optimiser_of(train: TrainEntry, source: SourceFile, known: Mapping[str, arithmetic.Number]) -> Optimiser:
    """The optimiser of `train`, whose numbers are over `known`. Raises SpecError."""
    evaluator = Evaluator({}, known)
    given = {entry.name: evaluator.number(entry.expr, source) for entry in train.numbers}
    if train.optimiser is None:
        if not train.update:
            cure = f"name one, `optimiser: adamw` ({listing(KNOWN)}), or write its statements under `update:`"
            raise source.error(train.span, "`train` lacks `optimiser`", cure=cure)
        found = Optimiser(tuple(s.text for s in train.states), given, given.get(RATE), train.update, source)
    else:
        found = _named(train, train.optimiser, given, source)
    _check(found, train, source)
    return found


def _named(train: TrainEntry, word: Snippet, given: Mapping[str, arithmetic.Number], source: SourceFile) -> Optimiser:
    if word.text not in KNOWN:
        cure = did_you_mean(word.text, KNOWN) or "or write its statements under `update:`"
        raise source.error(word.whole(), f"unknown optimiser `{word.text}`", exists=listing(KNOWN), cure=cure)
    if train.update or train.states:
        span = train.update[0].span if train.update else train.states[0].whole()
        raise source.error(span, f"statements beside `optimiser: {word.text}`", cure="leave out one of the two")
    own = KNOWN[word.text]
    for entry in train.numbers:
        if entry.name not in own.numbers:
            message = f"`{word.text}` reads no number `{entry.name}`"
            raise source.error(entry.span, message, exists=listing(own.numbers), cure=did_you_mean(entry.name, own.numbers))
    numbers = {**own.numbers, **given}
    update = tuple(parse_statement(Snippet.alone(line, word.text)) for line in own.update)
    return Optimiser(own.states, numbers, numbers[RATE], update, source)


def _check(optimiser: Optimiser, train: TrainEntry, source: SourceFile) -> None:
    """Raises SpecError for statements that are not element by element, or that leave the weight or a state as it was."""
    names = [WEIGHT, GRADIENT, STEP, RATE, *optimiser.numbers]
    for state in train.states:
        if not usable_name(state.text) or state.text in names:
            raise source.error(state.whole(), f"`{state.text}` cannot be the name of a state here", cure="choose another name")
    for statement in train.update:
        if statement.indices or any(isinstance(node, Load | Reduce) for node in walk(statement.expr)):
            message = "an update is of each element by itself: it has neither indices nor reductions"
            raise source.error(statement.span, message, cure="write `m = 0.9 * m + g`")
        if statement.name in names[1:]:
            raise source.error(statement.span, f"an update cannot set `{statement.name}`", expected="`w`, a state, or a name of its own")
    set_names = {statement.name for statement in optimiser.update}
    for word in (WEIGHT, *optimiser.states):
        if word not in set_names:
            what = "the weight, `w`" if word == WEIGHT else f"the state `{word}`"
            raise source.error(train.span, f"no statement of `update` sets {what}", cure=f"set it: `{word} = …`")


class Updates:
    """Definitions of the next values, for one weight after another."""

    def __init__(self, optimiser: Optimiser, used: set[str], overflow: Load | None = None) -> None:
        """`used`: the names of values so far, to which those made here are added. `overflow`: whether a gradient is not finite; gradients
        are then those of the scaled loss."""
        self._optimiser, self._used, self._overflow = optimiser, used, overflow

    def of(
        self, weight: Definition, letters: tuple[Letter, ...], start: Mapping[str, str], scalars: Mapping[str, str]
    ) -> tuple[list[Definition], dict[str, str]]:
        """What a step does with `weight` (its name, base, shape, dtype, loop and span), over `letters`. In: by word, the values at the
        start, `g` among them, and the values without dimensions. Out: definitions, and by word the values at the end. Raises SpecError.
        """
        value_by_word, made, axes = dict(start), list[Definition](), tuple(map(Axis, letters))
        last_by_word = {statement.name: n for n, statement in enumerate(self._optimiser.update)}

        def resolved(e: Expr) -> Expr:
            match e:
                case Name(word) if word == GRADIENT and self._overflow is not None:
                    return Binary("/", Load(value_by_word[word], axes), Load(LOSS_SCALE, ()))
                case Name(word) if word in value_by_word:
                    return Load(value_by_word[word], axes)
                case Name(word) if word in scalars:
                    return Load(scalars[word], ())
                case Name():
                    return self._number(e, [*value_by_word, *scalars])
                case _:
                    found = rebuild(e, resolved)
                    known = arithmetic.constant(found)
                    return found if known is None else Num(known)

        for n, statement in enumerate(self._optimiser.update):
            right: Expr = Binary("+", Name(statement.name, statement.span), statement.expr) if statement.adds else statement.expr
            word = (FP32_COPY if start[WEIGHT] != weight.name else "") if statement.name == WEIGHT else f"{statement.name}_"
            name, base = self._fresh(f"next_{word}{weight.name}"), f"next_{word}{weight.base}"
            found = resolved(right)
            if self._overflow is not None and statement.name in start and last_by_word[statement.name] == n:
                found = unless(self._overflow, Load(start[statement.name], axes), found)
            made.append(replace(weight, name=name, base=base, parts=(Part(axes, found),)))
            value_by_word[statement.name] = name
        return made, {word: value_by_word[word] for word in start}

    def rounded(self, weight: Definition, letters: tuple[Letter, ...], copy: str) -> Definition:
        """The next value of `weight` in the run's dtype, made of the next of its copy."""
        axes = tuple(map(Axis, letters))
        name = self._fresh(f"next_{weight.name}")
        return replace(weight, name=name, base=f"next_{weight.base}", parts=(Part(axes, Load(copy, axes)),), dtype=None)

    def _number(self, e: Name, words: list[str]) -> Expr:
        numbers = {**self._optimiser.numbers, **arithmetic.CONSTANTS}
        if e.word in numbers:
            return Num(numbers[e.word])
        raise self._unknown(e, [*words, *numbers])

    def _unknown(self, e: Name, words: list[str]) -> SpecError:
        cure = did_you_mean(e.word, words) or "declare it under `numbers:` or `state:` of `train`"
        return self._optimiser.source.error(e.span, f"unknown name `{e.word}` in an update", exists=listing(words), cure=cure)

    def _fresh(self, name: str) -> str:
        return fresh_name(name.replace("@", "."), self._used)
