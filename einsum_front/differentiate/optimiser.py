"""Optimisers: statements that make the next value of a weight and of what is kept for it, element by element.

In: `train:` as written. Out: an Optimiser, its statements and numbers; and for a weight, its gradient and what is kept for it, definitions.
In the statements `w` is the weight, `g` its gradient, `step` the number of the step, from 1, and `rate` an input, so that a run may change
it from step to step; the other numbers are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Name, Num, Reduce, rebuild, walk
from einpage.einsum_front.base.errors import SpecError, did_you_mean, listing
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition
from einpage.einsum_front.spec.document import TrainEntry
from einpage.einsum_front.spec.parse import Statement, parse_statement
from einpage.einsum_front.spec.sizes import Evaluator, usable_name
from einpage.einsum_front.spec.source import Snippet, SourceFile

WEIGHT, GRADIENT, STEP, RATE = "w", "g", "step", "rate"


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

    def __init__(self, optimiser: Optimiser, used: set[str]) -> None:
        """`used`: the names of values so far, to which those made here are added."""
        self._optimiser, self._used = optimiser, used

    def of(
        self, weight: Definition, letters: tuple[Letter, ...], start: Mapping[str, str], scalars: Mapping[str, str]
    ) -> tuple[list[Definition], dict[str, str]]:
        """What a step does with `weight` (its name, base, shape, loop and span), over `letters`. In: by word, the values at the start, `g`
        among them, and the values without dimensions. Out: definitions, and by word the values at the end. Raises SpecError.
        """
        value_by_word, made, axes = dict(start), list[Definition](), tuple(map(Axis, letters))

        def resolved(e: Expr) -> Expr:
            match e:
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

        for statement in self._optimiser.update:
            right: Expr = Binary("+", Name(statement.name, statement.span), statement.expr) if statement.adds else statement.expr
            name = self._fresh(f"next_{statement.name}_{weight.name}" if statement.name != WEIGHT else f"next_{weight.name}")
            base = f"next_{weight.base}" if statement.name == WEIGHT else f"next_{statement.name}_{weight.base}"
            made.append(Definition(name, base, weight.shape, (Part(axes, resolved(right)),), weight.loop, weight.span))
            value_by_word[statement.name] = name
        return made, {word: value_by_word[word] for word in start}

    def _number(self, e: Name, words: list[str]) -> Expr:
        numbers = {**self._optimiser.numbers, **arithmetic.CONSTANTS}
        if e.word in numbers:
            return Num(numbers[e.word])
        raise self._unknown(e, [*words, *numbers])

    def _unknown(self, e: Name, words: list[str]) -> SpecError:
        cure = did_you_mean(e.word, words) or "declare it under `numbers:` or `state:` of `train`"
        return self._optimiser.source.error(e.span, f"unknown name `{e.word}` in an update", exists=listing(words), cure=cure)

    def _fresh(self, name: str) -> str:
        name = name.replace("@", ".")
        unique, again = name, 2
        while unique in self._used:
            unique, again = f"{name}_{again}", again + 1
        self._used.add(unique)
        return unique
