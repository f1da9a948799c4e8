"""Jobs: what one task computes, as data that both a graph and a kernel understand.

A job names letters with ranges, the operands it reads (each an ordered tuple of packed row-major tiles, given as boxes in the
value's own coordinates) and the tile it writes; a map may write several. It knows no tensor ids and no offsets, so the same layer
at another depth has an equal job, and a kernel is prepared once for both.

    value h [s=128, m=64], cut at s=64:      reads = View("h", FP32, (Box((0,0),(64,64)), Box((64,0),(128,64))))
    a task for rows 64..128 of y = h * w:    ranges = (s: 64..128, n: 0..32, m: 0..64)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import sub
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Expr, Letter, Load
from einpage.einsum_front.base.dtype import Checked, DType, ElementType, as_numbers


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open box of indices of a value: one `start` and `end` per dimension."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents per dimension."""
        return tuple(map(sub, self.end, self.start))

    @property
    def size(self) -> int:
        """Elements in the box."""
        return prod(map(sub, self.end, self.start))

    @property
    def slices(self) -> tuple[slice, ...]:
        """What picks its elements from an array of the whole value."""
        return tuple(map(slice, self.start, self.end))

    def intersects(self, other: Box) -> bool:
        """True where the two boxes share an element (always, for two boxes of no dimensions)."""
        return all(a < d and c < b for a, b, c, d in zip(self.start, self.end, other.start, other.end, strict=True))

    def contains(self, other: Box) -> bool:
        """True where every element of `other` lies in this box."""
        return all(a <= c and d <= b for a, b, c, d in zip(self.start, self.end, other.start, other.end, strict=True))


@dataclass(frozen=True, slots=True)
class Range:
    """A letter and the half-open interval a job covers of it."""

    letter: Letter
    start: int
    end: int

    @property
    def extent(self) -> int:
        """How many numbers the letter takes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class View:
    """One operand (or the result) as a job sees it."""

    name: str
    """The name loads use; the spec's own word, made unique within the job."""
    element_type: ElementType
    boxes: tuple[Box, ...]
    """The tiles in order: disjoint, each packed row-major; together they hold all that the job reads of the value."""

    @property
    def dtype(self) -> DType:
        """Of an operand that is numbers; whoever reads blocks asks for `element_type`."""
        return as_numbers(self.element_type)

    @property
    def is_checked(self) -> bool:
        """Whether a flag behind each tile says if its numbers are finite."""
        return isinstance(self.element_type, Checked)


@dataclass(frozen=True, slots=True)
class Part:
    """One statement of a pointwise job: `result[target] = expr`. A target index is an `Axis` or a `Num`."""

    target: tuple[Expr, ...]
    expr: Expr
    result: int = 0
    """Which of its job's results it is of."""


@dataclass(frozen=True, slots=True)
class MapJob:
    """Pointwise statements and row reductions. Each letter that a `Reduce` binds has its whole row in `ranges`."""

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    result: View
    parts: tuple[Part, ...]
    others: tuple[View, ...] = ()
    """Results beside the first, of the same box. Of such a job each element of each is made of the operands as they were before any
    result was written, so that each may be written over an operand that is read at the target's own letters."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """acc[x.letters + y.letters - letters] = sum over `letters` of x * y, in fp32. Indices are axes or numbers."""

    x: Load
    y: Load
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class ContractJob:
    """One or several contractions over the same output letters, then a pointwise epilogue.

    A contraction letter may be split over a chain of jobs: every job but the last writes its fp32 accumulators,
    stacked along a new first dimension in the order of `contractions`; every job but the first reads them through `carry`.
    """

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    result: View
    """Last of a chain: the value's tile. Otherwise fp32, the n contractions stacked in front: Box((0, *start), (n, *end))."""
    contractions: tuple[Contraction, ...]
    target: tuple[Letter, ...]
    """The result's letters, in order."""
    epilogue: Expr
    """Over the target letters; reads accumulators through `Acc(i)`. Used only where `last`."""
    carry: int | None
    """Index in `reads` of the incoming accumulators, or None for the first of a chain."""
    last: bool


@dataclass(frozen=True, slots=True)
class AttentionJob:
    """result[target] = sum over t of softmax[t](score) * v, never materialising the score matrix.

    `score` reads the product of q and k through `Acc(0)`; letters of `score_letters` are summed in that product.
    A row whose scores are all -inf gives 0. `epilogue` reads the attention output through `Acc(1)`.
    """

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    result: View
    q: Load
    k: Load
    score_letters: tuple[Letter, ...]
    score: Expr
    row: Letter
    """The letter the softmax runs over, present in k and v and not in q."""
    v: Load
    target: tuple[Letter, ...]
    epilogue: Expr


@dataclass(frozen=True, slots=True)
class PairsJob:
    """result[target] = sum over `letters` of weight * factor, never materialising the weights of all pairs, as those of queries and keys.

    `weight` reads `products` through `Acc(i)`; all of them have the pairs' letters, which are `letters` and some of the target's. Where
    `score` is -inf by its mask, the weight is 0 (of a logarithm, -inf). `epilogue` reads the sum through `Acc(n)` of n products.
    """

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    result: View
    products: tuple[Contraction, ...]
    score: Expr
    """where(mask, Acc(0), -inf), or Acc(0)."""
    weight: Expr
    factor: Load | None
    """None: weights alone are added up."""
    letters: tuple[Letter, ...]
    row: Letter
    """That of `letters` in whose ranges a mask leaves something out."""
    is_logarithm: bool
    """Of the sum of the exponentials of weights; inf where all weights are -inf, so that exp(weight - it) is 0."""
    target: tuple[Letter, ...]
    epilogue: Expr


@dataclass(frozen=True, slots=True)
class GatherJob:
    """result[target] = table[indices], rows copied straight from the table on the host: no kernel, a transfer over the link."""

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    """The table's tiles on the host, then those of each integer input that its index is made of, on the host too."""
    result: View
    target: tuple[Letter, ...]
    load: Load
    """The table's load: exactly one of its indices is made of integer inputs; the others are axes that it has not, or numbers."""


@dataclass(frozen=True, slots=True)
class OverflowJob:
    """result = 1 where the flag of some tile of `reads[0]` is set, or one of the other reads, each one number, is not 0; else 0.

    No number of a tile is read: what wrote it left the flag.
    """

    ranges: tuple[Range, ...]
    reads: tuple[View, ...]
    """Tiles that are checked; where there is one, the flag of what was looked at before; where there is one, the carry."""
    result: View


Job: TypeAlias = "MapJob | ContractJob | AttentionJob | PairsJob | GatherJob | OverflowJob"


def results_of(job: Job) -> tuple[View, ...]:
    """All that a job writes."""
    return (job.result, *job.others) if isinstance(job, MapJob) else (job.result,)


def range_by_letter(job: Job) -> dict[Letter, Range]:
    """The ranges of a job, by their letters."""
    return {r.letter: r for r in job.ranges}
