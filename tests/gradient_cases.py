"""Programs with a loss, their gradients by the reference, and what judges these: torch's autograd and differences, in fp64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Load, Reduce, Reduction
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.differentiate.gradients import with_gradients
from einpage.einsum_front.differentiate.rules import value_loads
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Input, Output, Program

Data = Mapping[str, NDArray[Any]]
LOSS = "loss"


def with_loss(program: Program, outputs: Sequence[str] | None = None) -> Program:
    """`program` with an output `loss`: the sum of its outputs, each times an input `toward_OUTPUT` of its shape."""
    terms: list[Expr] = []
    inputs: list[Input] = []
    for o in program.outputs:
        if outputs is None or o.name in outputs:
            axes = tuple(map(Axis, o.letters))
            inputs.append(Input(f"toward_{o.name}", o.letters, o.shape, None, None, Span(1, 1)))
            found: Expr = Binary("*", Load(o.value, axes), Load(f"toward_{o.name}", axes))
            terms.append(Reduce(Reduction.SUM, o.letters, found) if axes else found)
    total = reduce(lambda x, y: Binary("+", x, y), terms)
    loss = Definition("loss.0", LOSS, (), (Part((), total),), (), Span(1, 1))
    return replace(
        program,
        inputs=(*program.inputs, *inputs),
        definitions=(*program.definitions, loss),
        outputs=(*program.outputs, Output(LOSS, "loss.0", (), ())),
    )


def reachable(program: Program) -> list[str]:
    """The weights and float inputs that the loss depends on, but those that weigh outputs and states."""
    found = {next(o.value for o in program.outputs if o.name == LOSS)}
    for definition in reversed(program.definitions):
        if definition.name in found:
            found.update(load.name for part in definition.parts for load in value_loads(part.expr))
    states = {s.name for s in program.states}
    floats = [i.name for i in program.inputs if (i.dtype is None or i.dtype.is_float) and not i.name.startswith("toward_")]
    return [name for name in (*(w.name for w in program.weights), *floats) if name in found - states]


def with_towards(program: Program, data: Data, seed: int) -> dict[str, NDArray[Any]]:
    """`data` and what weighs the outputs."""
    rng = np.random.default_rng(seed + 1)
    return {**data, **{i.name: rng.uniform(-1, 1, i.shape) for i in program.inputs if i.name.startswith("toward_")}}


def tensors_of(data: Data) -> dict[str, Tensor]:
    """In fp64, integers as they are."""
    found = {name: torch.from_numpy(np.asarray(array)) for name, array in data.items()}
    return {name: x.double() if x.is_floating_point() else x for name, x in found.items()}


def own_gradients(program: Program, names: Sequence[str], data: Data) -> dict[str, Tensor]:
    """By name, from the program that `with_gradients` makes."""
    made, values = with_gradients(program, LOSS, names), tensors_of(data)
    found = evaluate(made, values, values, torch.float64, [f"d_{name}" for name in names])
    return {name: found[f"d_{name}"] for name in names}


def autograd(program: Program, names: Sequence[str], data: Data) -> dict[str, Tensor]:
    """By name, from torch's own differentiation of the reference evaluator."""
    values = tensors_of(data)
    leaves = [values[name].clone().requires_grad_() for name in names]
    given = {**values, **dict(zip(names, leaves, strict=True))}
    loss = evaluate(program, given, given, torch.float64, [LOSS])[LOSS]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return {name: torch.zeros_like(x) if g is None else g for name, x, g in zip(names, leaves, found, strict=True)}


def off_by(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """By name, the largest difference as a share of the largest expected number; of the largest of all, where that is but a rounding error:
    a key's bias has a gradient of 0."""
    size = {name: float(x.abs().max()) if x.numel() else 0.0 for name, x in expected.items()}
    largest = max(size.values(), default=0.0) or 1.0
    scale = {name: own if own > 1e-9 * largest else largest for name, own in size.items()}
    return {name: float((found[name] - x).abs().max()) / scale[name] for name, x in expected.items()}


def slopes(program: Program, name: str, data: Data, direction: Tensor, step: float) -> tuple[float, float]:
    """How fast the loss grows as one leaf goes back and forth along a direction: by the step before, by the step behind."""
    values = tensors_of(data)

    def loss(at: float) -> float:
        given = {**values, name: values[name] + at * direction}
        return float(evaluate(program, given, given, torch.float64, [LOSS])[LOSS])

    here = loss(0.0)
    return (here - loss(-step)) / step, (loss(step) - here) / step
