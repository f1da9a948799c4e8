"""Grids: how whole values are cut into tiles, and which tiles a box touches.

A computed value is cut as the op that writes it; a weight or an input is cut wherever some task's box of it starts or ends, so that
a task reads whole tiles of it. A state that is set whole is cut as the op that sets it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, free_letters, loads
from einpage.einsum_front.base.dtype import ElementType, Stored
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.graph.program import State
from einpage.einsum_front.graph.taskgraph import Kind, Value
from einpage.einsum_front.tile.template import Skeleton, Template, result_cuts, skeleton_of
from einpage.einsum_front.tile.tiling import Cuts, load_box, own_cuts, tiling_of


@dataclass(frozen=True, slots=True)
class Grid:
    """How a value is cut into tiles, numbered row-major."""

    cuts: tuple[Cuts, ...]
    """Cut points per dimension."""

    def inside(self, box: Box) -> list[int]:
        """The numbers of the tiles that share an element with `box`."""
        spans = []
        for c, a, b in zip(self.cuts, box.start, box.end, strict=True):
            spans.append(range(bisect_right(c, a) - 1, bisect_left(c, b)))
        numbers = [0]
        for span, c in zip(spans, self.cuts, strict=True):
            n = len(c) - 1
            numbers = [base * n + i for base in numbers for i in span]
        return numbers

    def box(self, number: int) -> Box:
        """The box of indices that tile `number` covers."""
        index = []
        for c in reversed(self.cuts):
            number, i = divmod(number, len(c) - 1)
            index.append(i)
        index.reverse()
        return Box(
            tuple(c[i] for c, i in zip(self.cuts, index, strict=True)), tuple(c[i + 1] for c, i in zip(self.cuts, index, strict=True))
        )


Templates: TypeAlias = "Mapping[str, tuple[Template, tuple[str, ...]]]"
"""By an op's value: its template, and the value in each slot."""


def templates_of(opgraph: OpGraph, values: Mapping[str, Value]) -> dict[str, tuple[Template, tuple[str, ...]]]:
    """The template of every op; equal templates are one object."""
    shapes = {name: value.shape for name, value in values.items()}
    bases = {name: value.base for name, value in values.items()}
    template_by_skeleton: dict[Skeleton, Template] = {}
    out = {}
    for op in opgraph.ops:
        skeleton, names = skeleton_of(op, bases, shapes)
        if skeleton not in template_by_skeleton:
            template_by_skeleton[skeleton] = Template.of(skeleton, tiling_of(op))
        out[op.value] = template_by_skeleton[skeleton], names
    return out


def replaced_whole(templates: Templates, states: Iterable[State]) -> dict[str, Template]:
    """By state that is set whole, what sets it: it is cut at the start as it is at the end, to lie in the same bytes, whatever reads it."""
    return {state.name: templates[state.last][0] for state in states if state.along is None and state.last in templates}


def host_grids(templates: Templates, cut: Mapping[Letter, Cuts], values: Mapping[str, Value], states: Iterable[State]) -> dict[str, Grid]:
    """Grids of weights and inputs: cut wherever some task's box of them starts or ends, or as what replaces them."""
    points: dict[str, list[set[int]]] = {}
    by_template: dict[Template, dict[str, tuple[set[int], ...]]] = {}
    slots = ((template, slot, name) for template, names in templates.values() for slot, name in zip(template.slots, names, strict=True))
    for template, slot, name in slots:
        if values[name].kind not in (Kind.WEIGHT, Kind.INPUT):
            continue
        if template not in by_template:
            by_template[template] = boundaries_read(template, cut)
        mine = points.setdefault(name, [{0, extent} for extent in values[name].shape])
        for have, more in zip(mine, by_template[template][slot], strict=True):
            have |= more
    grids = {name: host_grid(values[name].shape, values[name].element_type, of_value) for name, of_value in points.items()}
    return grids | {name: Grid(result_cuts(template, cut)) for name, template in replaced_whole(templates, states).items()}


def host_grid(shape: tuple[int, ...], dtype: ElementType, points: Sequence[set[int]]) -> Grid:
    """A weight or an input cut at `points` of each dimension; what is kept as it is stored only where its blocks allow."""
    if isinstance(dtype, Stored):
        points = [{p for p in of_dim if dtype.may_end_at(d, p, shape)} for d, of_dim in enumerate(points)]
    return Grid(tuple(tuple(sorted(of_dim)) for of_dim in points))


def boundaries_read(template: Template, cut: Mapping[Letter, Cuts]) -> dict[str, tuple[set[int], ...]]:
    """Per slot and dimension, where the boxes that the template's tasks read start and end."""
    out: dict[str, tuple[set[int], ...]] = {}
    own = own_cuts(template.tiling, cut)
    for slot, shape, loads_of_slot in zip(template.slots, template.shapes, template.loads, strict=True):
        sets: tuple[set[int], ...] = tuple(set() for _ in shape)
        for load in loads_of_slot:
            for points, index, extent in zip(sets, load.indices, shape, strict=True):
                points |= _index_points(index, extent, own)
        out[slot] = sets
    return out


def ranges_evaluated(template: Template, cut: Mapping[Letter, Cuts]) -> int:
    """In how many ranges `boundaries_read` evaluates an index that is more than a letter: what it takes long for."""
    own = own_cuts(template.tiling, cut)
    indices = [index for loads_of_slot in template.loads for load in loads_of_slot for index in load.indices]
    return sum(prod(len(own[letter]) - 1 for letter in free_letters(i)) for i in indices if not isinstance(i, Axis) and not loads(i))


def _index_points(index: Expr, extent: int, cut: Mapping[Letter, Cuts]) -> set[int]:
    match index:
        case Axis(letter):
            return set(cut[letter])
        case _ if loads(index):
            return set()
        case _:
            letters = sorted(free_letters(index))
            out: set[int] = set()
            for tile in product(*(range(len(cut[letter]) - 1) for letter in letters)):
                ranges = {letter: (cut[letter][i], cut[letter][i + 1]) for letter, i in zip(letters, tile, strict=True)}
                box = load_box(Load("", (index,)), ranges, (extent,))
                out |= {box.start[0], box.end[0]}
            return out
