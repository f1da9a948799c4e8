"""A training step: a Program that computes a loss, its gradients, and the next values of weights and of what the optimiser keeps.

In: a Document with `train:`. Out: a TrainingStep. Weights, what is kept for each, and the number of the step are states, written whole:
what they are at the end is what they are at the start of the next step.

    loss  ──►  d_w for each trained w  ──►  next_m_w, next_v_w, next_w            states: w, m_w, v_w, step

In another dtype than fp32, what is kept for each weight is fp32, a copy of it among them, `master_w`, of which the update makes both. With
a loss scale, updates come after all gradients: `overflow` says whether one of them is not finite, and everything stays as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod

from einpage.einsum_front.algebra.expr import Binary, Expr, Load, Num
from einpage.einsum_front.algebra.rewrite import any_not_finite
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError, did_you_mean, listing
from einpage.einsum_front.differentiate.gradients import gradient_reaches, with_gradients
from einpage.einsum_front.differentiate.optimiser import (
    FP32_COPY,
    GOOD_STEPS,
    GRADIENT,
    LOSS_SCALE,
    OVERFLOW,
    RATE,
    STEP,
    WEIGHT,
    LossScale,
    Optimiser,
    Updates,
    optimiser_of,
    scale_of,
    unless,
)
from einpage.einsum_front.fuse.show import statement_layers
from einpage.einsum_front.fuse.tied_weights import with_shared_weights
from einpage.einsum_front.graph.describe import statements
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Input, Output, Program, State, Weight, fresh_name
from einpage.einsum_front.spec.document import Document, TrainEntry, statements_of
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
    fp32_copies: Mapping[str, str]
    """By a weight that trains, the name of its copy in fp32; none in fp32."""
    overflow: str | None
    """The output that says whether some gradient is not finite; None where the loss is not scaled."""


def for_training(document: Document) -> Document:
    """`document` with the inputs and statements that only training has. Raises UsageError where it has no `train:`."""
    train = document.train
    if train is None:
        raise UsageError(f"{document.path}: no `train:` says what to train; add one, with `loss:` and `optimiser:` (specs/README.md)")
    return replace(document, inputs=(*document.inputs, *train.inputs), body=(*document.body, *train.body))


def training_step(program: Program, document: Document, dtype: DType = DType.FP32) -> TrainingStep:
    """The step of `program`, which is elaborated from `for_training(document)` and whose weights are tied, in a run of `dtype`. Raises
    SpecError."""
    train, source = document.train, document.source
    assert train is not None
    program = with_shared_weights(program)
    loss = _loss(program, train, source)
    known = {**program.sizes, **program.scalars}
    optimiser, scale = optimiser_of(train, source, known), scale_of(train, dtype, source, known)
    alone = replace(_in_fp32(program, train), outputs=(Output(train.loss.word, loss, (), ()),), states=())
    trained = _trained(alone, loss, train, source)
    _refuse_used_names(program, train, source, scale)
    model = frozenset(d.name for d in alone.definitions)
    differentiated = alone if scale is None else _scaled(alone, loss, scale, train)
    made = with_gradients(differentiated, differentiated.outputs[-1].name, [w.name for w in trained])
    return _with_updates(made, trained, optimiser, scale, train, model, None if dtype is DType.FP32 else DType.FP32)


def _in_fp32(program: Program, train: TrainEntry) -> Program:
    """`program` whose statements under `train:` are computed and kept in fp32, as the loss of thousands of tokens wants."""
    spans = {statement.span for statement in statements_of(train.body)}
    return replace(program, definitions=tuple(replace(d, dtype=DType.FP32) if d.span in spans else d for d in program.definitions))


def _scaled(program: Program, loss: str, scale: LossScale, train: TrainEntry) -> Program:
    """`program` with the scaled loss, a second output."""
    names = {d.name for d in program.definitions} | {i.name for i in program.inputs} | {w.name for w in program.weights}
    word = fresh_name(f"scaled_{train.loss.word}", names)
    product = Part((), Binary("*", Load(loss, ()), Load(LOSS_SCALE, ())))
    scaled = Definition(word, word, (), (product,), (), train.span, dtype=DType.FP32)
    start = [(LOSS_SCALE, scale.start), (GOOD_STEPS, 0.0)]
    return replace(
        program,
        inputs=(*program.inputs, *(Input(name, (), (), DType.FP32, number, train.span) for name, number in start)),
        definitions=(*program.definitions, scaled),
        outputs=(*program.outputs, Output(word, word, (), ())),
    )


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


def _refuse_used_names(program: Program, train: TrainEntry, source: SourceFile, scale: LossScale | None) -> None:
    names = {i.name for i in program.inputs} | {w.base for w in program.weights} | {d.base for d in program.definitions}
    meaning = {STEP: "the number of the step", RATE: "the learning rate"}
    if scale is not None:
        meaning |= {LOSS_SCALE: "what the loss is multiplied by", GOOD_STEPS: "the number of finite steps", OVERFLOW: "whether one is not"}
    for word, what in meaning.items():
        if word in names or word in program.extents:
            cure = f"in training, `{word}` is {what}: choose another name"
            raise source.error(train.span, f"`{word}` names something in this spec", cure=cure)


def _with_updates(
    program: Program,
    trained: list[Weight],
    optimiser: Optimiser,
    scale: LossScale | None,
    train: TrainEntry,
    model: frozenset[str],
    kept_in: DType | None,
) -> TrainingStep:
    """`program`, which has gradients, with the updates of `trained`: each after the gradient that it reads, or, of a scaled loss, all
    after all. What is kept for weights, copies of them among it, is `kept_in` a dtype that is another than the run's; None: it is not."""
    gradient = {o.name: o for o in program.outputs}
    names = {x.name for x in program.definitions} | {i.name for i in program.inputs} | {w.name for w in program.weights}
    flags = _flags(program, [gradient[f"d_{w.name}"] for w in trained]) if scale is not None else {}
    overflow = None if scale is None else Load(list(flags.values())[-1][-1].name, ())
    updates = Updates(optimiser, names, overflow)
    inputs = [Input(STEP, (), (), DType.FP32, 0.0, train.span)]
    scalars = {STEP: f"next_{STEP}"}
    if optimiser.rate is not None:
        inputs.append(Input(RATE, (), (), DType.FP32, float(optimiser.rate), train.span))
        scalars[RATE] = RATE
    states = [State(STEP, STEP, (), (), None, scalars[STEP], 0)]
    fp32_copies = {w.name: fresh_name(f"{FP32_COPY}{w.name}", names) for w in trained} if kept_in is not None else {}
    after: dict[str, list[Definition]] = {}
    for weight in trained:
        output = gradient[f"d_{weight.name}"]
        made_by = next((d for d in program.definitions if d.name == output.value), program.definitions[-1])
        kept = {state: fresh_name(f"{state}_{weight.name}", names) for state in optimiser.states}
        inputs += [Input(name, output.letters, weight.shape, kept_in, 0.0, weight.span) for name in kept.values()]
        copy = fp32_copies.get(weight.name, weight.name)
        start = {WEIGHT: copy, GRADIENT: output.value, **kept}
        own = replace(made_by, name=weight.name, base=weight.base, shape=weight.shape, parts=(), dtype=kept_in)
        made, end = updates.of(own, output.letters, start, scalars)
        if kept_in is not None:
            made.append(updates.rounded(own, output.letters, end[WEIGHT]))
            states.append(State(weight.name, weight.base, output.letters, weight.shape, None, made[-1].name, 0))
        after.setdefault(made_by.name, []).extend(made)
        states.append(
            State(copy, f"{FP32_COPY}{weight.base}" if fp32_copies else weight.base, output.letters, weight.shape, None, end[WEIGHT], 0)
        )
        states += [State(kept[s], f"{s}_{weight.base}", output.letters, weight.shape, None, end[s], 0) for s in kept]
    counted = Binary("+", Load(STEP, ()), Num(1))
    ends = {STEP: counted if overflow is None else unless(overflow, Load(STEP, ()), counted)}
    if scale is not None and overflow is not None:
        ends[LOSS_SCALE], ends[GOOD_STEPS] = scale.next_values(overflow)
        states += [State(word, word, (), (), None, f"next_{word}", 0) for word in (LOSS_SCALE, GOOD_STEPS)]
    last = [Definition(f"next_{word}", f"next_{word}", (), (Part((), e),), (), train.span, dtype=DType.FP32) for word, e in ends.items()]
    if overflow is None:
        definitions = [*last, *(x for d in program.definitions for x in (d, *after.get(d.name, ())))]
    else:
        definitions = [x for d in program.definitions for x in (d, *flags.get(d.name, ()))]
        definitions += [*last, *(x for made in after.values() for x in made)]
    outputs = [o for o in program.outputs if o.name == train.loss.word]
    if overflow is not None:
        outputs.append(Output(OVERFLOW, overflow.name, (), ()))
    copies = [
        replace(w, name=fp32_copies[w.name], base=f"{FP32_COPY}{w.base}", dtype=kept_in, stored=None)
        for w in trained
        if w.name in fp32_copies
    ]
    whole = replace(
        program,
        inputs=(*program.inputs, *inputs),
        weights=(*program.weights, *copies),
        definitions=tuple(definitions),
        outputs=tuple(outputs),
        states=tuple(states),
    )
    made_names = frozenset(d.name for d in definitions) - model
    return TrainingStep(whole, tuple(w.name for w in trained), made_names, fp32_copies, None if overflow is None else OVERFLOW)


def _flags(program: Program, gradients: list[Output]) -> dict[str, list[Definition]]:
    """By definition, in the order of `program`, those to put behind it: whether the gradient that it makes, or one before, is not finite.
    A gradient that none makes, which is the scale itself, is looked at last."""
    letters_by_value = {o.value: o.letters for o in gradients}
    maker_by_value = {d.name: d for d in program.definitions if d.name in letters_by_value}
    maker_by_value |= {value: program.definitions[-1] for value in letters_by_value if value not in maker_by_value}
    found: dict[str, list[Definition]] = {}
    before: Expr = Num(0)
    for n, (value, d) in enumerate(maker_by_value.items()):
        name = f"{OVERFLOW}.{n}" if n else OVERFLOW
        part = Part((), any_not_finite(value, letters_by_value[value], before))
        found.setdefault(d.name, []).append(replace(d, name=name, base=OVERFLOW, shape=(), parts=(part,), dtype=DType.FP32))
        before = Load(name, ())
    return found


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
    own = {statement.name for statement in statements_of(document.train.body)}
    weights = [w for w in step.program.weights if w.name in step.weights]
    kept = [s for s in step.program.states if s.name not in step.weights and s.name not in (STEP, LOSS_SCALE, GOOD_STEPS)]
    loss = [d for d in step.program.definitions if d.name not in step.made and d.base in own | {step.program.outputs[0].name}]
    return "\n".join(
        [
            f"trains      {sum(prod(w.shape) for w in weights):,} parameters in {len(weights)} weights of {len(step.program.weights)}",
            f"keeps       {sum(prod(s.shape) for s in kept):,} numbers beside them in {len(kept)} states, and the number of the step",
            *(
                ["scales      the loss by `loss_scale`; a step with a gradient that is not finite changes nothing else"]
                if step.overflow
                else []
            ),
            "",
            "loss",
            *statement_layers(loss),
            "",
            "gradients and updates",
            *statement_layers([d for d in step.program.definitions if d.name in step.made]),
        ]
    )
