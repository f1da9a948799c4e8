"""A program evaluated one element at a time in Python floats: what the eager reference itself is compared with.

It knows letters as a dictionary of numbers and nothing of tensors, broadcasting or einsum.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import exp, inf

import numpy as np
import torch
from torch import Tensor

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Reduce, Reduction, Unary
from einpage.einsum_front.graph.program import Program
from naive_functions import NAIVE

Point = dict[Letter, int]


def evaluate_naively(program: Program, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every definition in float64; `values` are the inputs and weights by name."""
    known = dict(values)
    for definition in program.definitions:
        result = torch.full(definition.shape, torch.nan, dtype=torch.float64)
        for part in definition.parts:
            ranges = [
                range(program.extents[i.letter]) if isinstance(i, Axis) else [int(i.value)]
                for i in part.target
                if isinstance(i, Axis | Num)
            ]
            for index in product(*ranges):
                point = {i.letter: at for i, at in zip(part.target, index, strict=True) if isinstance(i, Axis)}
                result[index] = _number(part.expr, point, known, program.extents)
        known[definition.name] = result
    return known


def _number(e: Expr, point: Point, values: Mapping[str, Tensor], extents: Mapping[Letter, int]) -> float:
    def of(x: Expr) -> float:
        return _number(x, point, values, extents)

    match e:
        case Num():
            return e.value
        case Axis():
            return point[e.letter]
        case Load():
            index = tuple(of(i) for i in e.indices)
            assert all(i == int(i) >= 0 for i in index)
            return values[e.name][tuple(map(int, index))].item()
        case Unary():
            return arithmetic.unary(e.op, of(e.x))
        case Binary():
            return arithmetic.binary(e.op, of(e.x), of(e.y))
        case Call("where"):
            return of(e.args[1]) if of(e.args[0]) else of(e.args[2])
        case Call():
            return float(NAIVE[e.fn](*(np.float64(of(a)) for a in e.args)))
        case Reduce():
            return _reduction(e, point, values, extents)
        case _:
            raise AssertionError(e)


def _reduction(e: Reduce, point: Point, values: Mapping[str, Tensor], extents: Mapping[Letter, int]) -> float:
    points = [point | dict(zip(e.letters, at, strict=True)) for at in product(*(range(extents[x]) for x in e.letters))]
    row = [_number(e.body, p, values, extents) for p in points]
    match e.op:
        case Reduction.SUM:
            return sum(row)
        case Reduction.MEAN:
            return sum(row) / len(row)
        case Reduction.MAX:
            return max(row)
        case Reduction.MIN:
            return min(row)
        case Reduction.SOFTMAX:
            top = max(row)
            own = _number(e.body, point, values, extents)
            return 0.0 if top == -inf else exp(own - top) / sum(exp(x - top) for x in row)
