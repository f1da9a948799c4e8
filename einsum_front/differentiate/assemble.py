"""A gradient put together: what its readers add, as the statements of one value.

In: contributions over the letters of a value's dimensions. Out: their sum as parts. Where every reader adds at a number of a dimension, as
to `q[s,0]` and `q[s,1]`, there is a partial definition for each number; a number that only some add at is a condition on the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from itertools import product

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Num, loads
from einpage.einsum_front.differentiate.adjoint import ZERO, plus, where
from einpage.einsum_front.differentiate.scatter import Contribution
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Program

MOST_PARTS = 16
"""Partial definitions of a gradient; of more, conditions on the index."""


def assembled(contributions: Sequence[Contribution], dims: Sequence[Letter], shape: tuple[int, ...]) -> tuple[Part, ...]:
    """The sum of `contributions` over `dims`, whose extents are `shape`; 0 where there are none."""
    apart: list[int] = []
    pieces = 1
    for dim, extent in enumerate(shape):
        if contributions and all(dim in dict(c.numbers) for c in contributions) and pieces * extent <= MOST_PARTS:
            apart, pieces = [*apart, dim], pieces * extent
    parts = []
    for numbers in product(*(range(shape[dim]) for dim in apart)):
        here = dict(zip(apart, numbers, strict=True))
        terms = [_placed(c, dims, here) for c in contributions if all(dict(c.numbers)[dim] == n for dim, n in here.items())]
        target = tuple(Num(here[dim]) if dim in here else Axis(letter) for dim, letter in enumerate(dims))
        parts.append(Part(target, reduce(plus, terms) if terms else ZERO))
    return tuple(parts)


def shapes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """By the name of every input, weight and value."""
    found = {i.name: i.shape for i in program.inputs} | {w.name: w.shape for w in program.weights}
    return found | {d.name: d.shape for d in program.definitions}


def _placed(contribution: Contribution, dims: Sequence[Letter], here: Mapping[int, int]) -> Expr:
    """Where it adds, of the part that is at the numbers `here`."""
    conditions: list[Expr] = [Binary("==", Axis(dims[dim]), Num(n)) for dim, n in contribution.numbers if dim not in here]
    return where(reduce(lambda x, y: Binary("and", x, y), conditions), contribution.expr) if conditions else contribution.expr


def dimension_letters(
    program: Program, names: Collection[str], extents: Mapping[Letter, int], another: Callable[[str, int, Collection[Letter]], Letter]
) -> dict[str, tuple[Letter, ...]]:
    """For each value of `names`, a letter for each of its dimensions, no two alike: the one that all readers use, where there is one, else
    the one that it is declared or set with."""
    letters_by_name: dict[str, list[list[Letter]]] = {}
    """By dimension, those it may have, the best first."""
    for name, letters in [*((i.name, i.letters) for i in program.inputs), *((w.name, w.letters) for w in program.weights)]:
        letters_by_name[name] = [[letter] for letter in letters]
    for definition in program.definitions:
        columns = zip(*(p.target for p in definition.parts), strict=True)
        letters_by_name[definition.name] = [[i.letter for i in column if isinstance(i, Axis)] for column in columns]
    read: dict[str, list[Load]] = {}
    for load in (load for d in program.definitions for part in d.parts for load in loads(part.expr) if load.name in names):
        read.setdefault(load.name, []).append(load)
    for name, uses in read.items():
        for options, column in zip(letters_by_name[name], zip(*(use.indices for use in uses), strict=True), strict=True):
            bare = dict.fromkeys(index.letter for index in column if isinstance(index, Axis))
            options[:] = [*bare, *options] if len(bare) == 1 else [*options, *bare]
    shapes = shapes_of(program)
    found: dict[str, tuple[Letter, ...]] = {}
    for name in sorted(names):
        own: list[Letter] = []
        for options, extent in zip(letters_by_name[name], shapes[name], strict=True):
            fits = [letter for letter in options if extents[letter] == extent]
            letter = next((x for x in fits if x not in own), None)
            if letter is None:
                others = fits or [x for x, n in extents.items() if n == extent]
                letter = next((x for x in others if x not in own), None) or another(others[0] if others else "u", extent, own)
            own.append(letter)
        found[name] = tuple(own)
    return found
