"""A training step: a Program that computes a loss, its gradients, and the next values of weights and of what the optimiser keeps.

In: a Document with `train:`. Out: a TrainingStep. Weights, what is kept for each, and the number of the step are states, written whole:
what they are at the end is what they are at the start of the next step.

    loss  ──►  d_w for each trained w  ──►  next_m_w, next_v_w, next_w            states: w, m_w, v_w, step
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod

from einpage.einsum_front.algebra.expr import Binary, Load, Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError, did_you_mean, listing
from einpage.einsum_front.differentiate.gradients import gradient_reaches, with_gradients
from einpage.einsum_front.differentiate.optimiser import GRADIENT, RATE, STEP, WEIGHT, Optimiser, Updates, optimiser_of
from einpage.einsum_front.fuse.show import statement_layers
from einpage.einsum_front.fuse.tied_weights import with_shared_weights
from einpage.einsum_front.graph.describe import statements
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Input, Output, Program, State, Weight
from einpage.einsum_front.spec.document import Document, TrainEntry
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.source import Snippet, SourceFile


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step, and what it is made of."""

    program: Program
    """Its output is the loss; its states are the trained weights, what is kept for each, and `step`."""
    weights: tuple[str, ...]
    """Those that train, by their unique names."""
    made: frozenset[str]
    """Of the definitions, those of gradients and updates; the others are the model and its loss."""


def for_training(document: Document) -> Document:
    """`document` with the inputs and statements that only training has. Raises UsageError where it has no `train:`."""
    train = document.train
    if train is None:
        raise UsageError(f"{document.path}: no `train:` says what to train; add one, with `loss:` and `optimiser:` (specs/README.md)")
    return replace(document, inputs=(*document.inputs, *train.inputs), body=(*document.body, *train.body))


def training_step(program: Program, document: Document) -> TrainingStep:
    """The step of `program`, which is elaborated from `for_training(document)` and whose weights are tied. Raises SpecError."""
    train, source = document.train, document.source
    assert train is not None
    program = with_shared_weights(program)
    loss = _loss(program, train, source)
    alone = replace(program, outputs=(Output(train.loss.word, loss, (), ()),), states=())
    optimiser = optimiser_of(train, source, {**program.sizes, **program.scalars})
    trained = _trained(alone, loss, train, source)
    _refuse_used_names(program, train, source)
    made = with_gradients(alone, train.loss.word, [w.name for w in trained])
    return _with_updates(made, trained, optimiser, train, frozenset(d.name for d in alone.definitions))


def _loss(program: Program, train: TrainEntry, source: SourceFile) -> str:
    """The value that is the loss. Raises SpecError where there is none, or it is no single number."""
    word, span = train.loss.word, train.loss.span
    found = next((d for d in reversed(program.definitions) if d.base == word), None)
    if found is None:
        bases = list(dict.fromkeys(d.base for d in program.definitions))
        raise source.error(span, f"no statement sets the loss `{word}`", exists=listing(bases), cure=did_you_mean(word, bases))
    if found.shape:
        message = f"the loss `{word}` has shape {found.shape}"
        raise source.error(span, message, expected="one number", cure="sum it, or take its mean, in a statement under `train:`, `body:`")
    return found.name


def _trained(program: Program, loss: str, train: TrainEntry, source: SourceFile) -> list[Weight]:
    """The weights that train. Raises SpecError where none does."""
    reached = gradient_reaches(program, loss)
    if not train.weights:
        found = [w for w in program.weights if w.name in reached]
        if not found:
            cure = "comparisons, `//` and indices have no gradient"
            raise source.error(train.loss.span, f"the loss `{train.loss.word}` depends on no weight: it has no gradient", cure=cure)
        return found
    names = {name for glob in train.weights for name in _matched(glob, program, reached, train, source)}
    return [w for w in program.weights if w.name in names]


def _matched(glob: Snippet, program: Program, reached: Collection[str], train: TrainEntry, source: SourceFile) -> list[str]:
    found = [w for w in program.weights if any(fnmatchcase(name, glob.text) for name in (w.base, w.name, *(s.name for s in w.sources)))]
    if not found:
        inputs = [i for i in program.inputs if fnmatchcase(i.name, glob.text)]
        if inputs:
            what = "holds whole numbers" if inputs[0].dtype is not None and not inputs[0].dtype.is_float else "is given anew at each step"
            message = f"the input `{inputs[0].name}` {what}, and cannot be trained"
            raise source.error(glob.whole(), message, expected="weights")
        bases = list(dict.fromkeys(w.base for w in program.weights))
        raise source.error(glob.whole(), f"no weight is called `{glob.text}`", exists=listing(bases), cure=did_you_mean(glob.text, bases))
    names = [w.name for w in found if w.name in reached]
    if not names:
        message = f"the loss `{train.loss.word}` does not depend on `{found[0].base}`: it has no gradient"
        raise source.error(glob.whole(), message, cure="leave it out")
    return names


def _refuse_used_names(program: Program, train: TrainEntry, source: SourceFile) -> None:
    names = {i.name for i in program.inputs} | {w.base for w in program.weights} | {d.base for d in program.definitions}
    for word in (STEP, RATE):
        if word in names or word in program.extents:
            cure = "in training, `step` is the number of the step and `rate` the learning rate: choose another name"
            raise source.error(train.span, f"`{word}` names something in this spec", cure=cure)


def _with_updates(program: Program, trained: list[Weight], optimiser: Optimiser, train: TrainEntry, model: frozenset[str]) -> TrainingStep:
    """`program`, which has gradients, with the updates of `trained`, each after the gradient that it reads."""
    gradient = {o.name: o for o in program.outputs}
    names = {x.name for x in program.definitions} | {i.name for i in program.inputs} | {w.name for w in program.weights}
    updates = Updates(optimiser, names)
    inputs = [Input(STEP, (), (), DType.FP32, 0.0, train.span)]
    scalars = {STEP: f"next_{STEP}"}
    if optimiser.rate is not None:
        inputs.append(Input(RATE, (), (), DType.FP32, float(optimiser.rate), train.span))
        scalars[RATE] = RATE
    states = [State(STEP, STEP, (), (), None, scalars[STEP], 0)]
    counted = Part((), Binary("+", Load(STEP, ()), Num(1)))
    after: dict[str, list[Definition]] = {}
    for weight in trained:
        output = gradient[f"d_{weight.name}"]
        made_by = next(d for d in program.definitions if d.name == output.value)
        kept = {state: f"{state}_{weight.name}" for state in optimiser.states}
        inputs += [Input(name, output.letters, weight.shape, None, 0.0, weight.span) for name in kept.values()]
        start = {WEIGHT: weight.name, GRADIENT: output.value, **kept}
        own = replace(made_by, name=weight.name, base=weight.base, shape=weight.shape, parts=())
        made, end = updates.of(own, output.letters, start, scalars)
        after.setdefault(output.value, []).extend(made)
        states.append(State(weight.name, weight.base, output.letters, weight.shape, None, end[WEIGHT], 0))
        states += [State(kept[s], f"{s}_{weight.base}", output.letters, weight.shape, None, end[s], 0) for s in kept]
    step = Definition(scalars[STEP], f"next_{STEP}", (), (counted,), (), train.span)
    definitions = [step, *(x for d in program.definitions for x in (d, *after.get(d.name, ())))]
    whole = replace(
        program,
        inputs=(*program.inputs, *inputs),
        definitions=tuple(definitions),
        outputs=tuple(o for o in program.outputs if o.name == train.loss.word),
        states=tuple(states),
    )
    return TrainingStep(whole, tuple(w.name for w in trained), frozenset(d.name for d in definitions) - model)


def training_facts(step: TrainingStep) -> dict[str, object]:
    """The same as `training_text` says, all layers written out."""
    program = step.program
    return {
        "spec": program.name,
        "loss": program.outputs[0].name,
        "weights": list(step.weights),
        "states": {s.name: s.last for s in program.states},
        "statements": [line for d in program.definitions if d.name not in step.made for line in statements(d)],
        "made": [line for d in program.definitions if d.name in step.made for line in statements(d)],
    }


def training_text(step: TrainingStep, document: Document) -> str:
    """What `einpage show --train` prints: the statements of the loss, then those that were made, layers that are alike once."""
    assert document.train is not None
    own = {statement.name for statement in document.train.body if isinstance(statement, Statement)}
    weights = [w for w in step.program.weights if w.name in step.weights]
    kept = [s for s in step.program.states if s.name not in step.weights and s.name != STEP]
    loss = [d for d in step.program.definitions if d.name not in step.made and d.base in own | {step.program.outputs[0].name}]
    return "\n".join(
        [
            f"trains      {sum(prod(w.shape) for w in weights):,} parameters in {len(weights)} weights of {len(step.program.weights)}",
            f"keeps       {sum(prod(s.shape) for s in kept):,} numbers beside them in {len(kept)} states, and the number of the step",
            "",
            "loss",
            *statement_layers(loss),
            "",
            "gradients and updates",
            *statement_layers([d for d in step.program.definitions if d.name in step.made]),
        ]
    )
