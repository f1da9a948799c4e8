"""The loops that sum a matrix product: which contractions share one, and which part of the inner letters each goes through.

In: the contractions of a job, a writer that knows its tiles. Out: `Loop`s. Where a factor lies in several tiles, loops are split where they
end along the inner letters. Contractions that share a factor and their letters run in one loop, which loads the factor once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Contraction, Range
from einpage.kernels.layout.affine import address
from einpage.kernels.writer.descriptor import joined
from einpage.kernels.writer.writer import Writer


@dataclass(frozen=True, slots=True)
class Term:
    """One contraction of a job: what stands on the left, what on the right."""

    number: int
    left: Load
    right: Load
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Terms summed together over one part of the ranges of their letters."""

    terms: tuple[Term, ...]
    ranges: tuple[Range, ...]
    runs: tuple[tuple[Letter, ...], ...]
    """Its letters, outermost first; one index stands for all letters of a run."""
    hoisted: bool
    """Whether addresses move by one number a step; else each step works out every letter of every lane."""

    @property
    def extents(self) -> list[int]:
        """[run] how many values its index takes: the product of the extents of its letters."""
        extent = {r.letter: r.extent for r in self.ranges}
        return [prod(extent[x] for x in run) for run in self.runs]


def grouped(contractions: Sequence[Contraction], crossed: Sequence[bool]) -> list[tuple[Term, ...]]:
    """The terms that one loop can sum: the same letters, and a factor in common with the first of them."""
    out: list[list[Term]] = []
    for n, (c, swap) in enumerate(zip(contractions, crossed, strict=True)):
        term = Term(n, c.y, c.x, c.letters) if swap else Term(n, c.x, c.y, c.letters)
        for group in out:
            head = group[0]
            if set(head.letters) == set(term.letters) and (head.left == term.left or head.right == term.right):
                group.append(term)
                break
        else:
            out.append([term])
    return [tuple(group) for group in out]


def loops(w: Writer, terms: tuple[Term, ...]) -> Iterator[Loop]:
    """One loop for every part of the inner letters in which no factor goes from one tile to the next."""
    factors = list(dict.fromkeys(load for t in terms for load in (t.left, t.right)))
    letters = terms[0].letters
    indices_by_load = {load: w.affine_indices(load) for load in factors}
    borders = {x: {w.range_by_letter[x].start, w.range_by_letter[x].end} for x in letters}
    for load in factors:
        for d, index in enumerate(load.indices):
            if isinstance(index, Axis) and index.letter in borders:
                r = w.range_by_letter[index.letter]
                borders[index.letter] |= {p for b in w.boxes(load) for p in (b.start[d], b.end[d]) if r.start < p < r.end}
    for spans in product(*(pairwise(sorted(borders[x])) for x in letters)):
        ranges = tuple(Range(x, *span) for x, span in zip(letters, spans, strict=True))
        with w.over(ranges):
            strides = [[dict(address(b, i).terms) for b in w.boxes(load) if w.meets(b, i)] for load, i in indices_by_load.items()]
            orders = dict.fromkeys([letters, *(_in_order(load, letters) for load in factors)])
            best = min((joined(w, order, [s for of_load in strides for s in of_load]) for order in orders), key=len)
            fastest = prod(w.range_by_letter[x].extent for x in best[-1]) if best else 1
            alike = all(len({s.get(x, 0) for s in of_load}) == 1 for of_load in strides for x in letters)
        yield Loop(terms, ranges, tuple(best), alike and (len(best) <= 1 or fastest % 16 == 0))


def _in_order(load: Load, letters: tuple[Letter, ...]) -> tuple[Letter, ...]:
    """`letters` as they lie in `load`, outermost first."""
    place = {i.letter: d for d, i in enumerate(load.indices) if isinstance(i, Axis)}
    return tuple(sorted(letters, key=lambda x: place.get(x, -1)))


def inner_size(found: Sequence[Loop], most: int) -> int:
    """The length of a step: at most `most`, and one that divides the fastest run wherever runs cannot be joined."""
    size = 16
    while size < most and any(prod(loop.extents) > size for loop in found):
        size *= 2
    for loop in found:
        while loop.hoisted and len(loop.runs) > 1 and loop.extents[-1] % size:
            size //= 2
    return size
