"""What a kernel has to do, as far as its time depends on it: a job in a handful of numbers.

In: a task. Out: its Work. Products are known by their rows, the smaller of their two sides: with few of them the other operand is read
for little arithmetic. Pointwise work is counted by distinct operations, for a kernel computes equal expressions once, and only over the
letters that an operation depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod
from typing import assert_never

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Reduce, Unary, free_letters, loads, walk
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.base.libraries import MOST_QUERIES, MOST_UNPACKED_ROWS
from einpage.einsum_front.graph.job import (
    AttentionJob,
    Contraction,
    ContractJob,
    GatherJob,
    Job,
    MapJob,
    OverflowJob,
    PairsJob,
    range_by_letter,
)
from einpage.einsum_front.graph.taskgraph import Task
from einpage.einsum_front.graph.written_rows import written_rows


class KernelKind(Enum):
    """Kinds of kernels whose times follow different laws."""

    PRODUCT = "product"
    ATTENTION = "attention"
    FEW_QUERIES = "attention of few queries"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Work:
    kind: KernelKind
    rows: int = 0
    """Of a product, the smaller of rows and columns; of attention, the keys of a row; 0 for a map."""
    flops: int = 0
    """In products, attention's included."""
    heads: int = 0
    """How many products of its own kind an attention consists of: the values of the letters that queries and keys share."""
    operations: int = 0
    """Distinct pointwise operations and reductions."""
    elements: int = 0
    """Computed by them altogether."""
    functions: int = 0
    """Likewise by costly functions, as cos and gelu."""
    looks_up: bool = False
    """Whether an index is data."""
    unpacked: int = 0
    """Of a product with more rows than our own kernels have sums of: the numbers of stored weights, which are unpacked first."""
    strided: bool = False
    """Whether the larger operand of a product is a part of wider rows."""
    by_columns: bool = False
    """Whether the innermost letter of an operand of a product is not one that is summed over."""


def work_of(task: Task) -> Work | None:
    """The work of `task`; None for a gather, and where the job is not known, as in a plan read from a file."""
    return None if task.job is None else _work(_Same(task.job, task.flops))


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A job by its identity: layers share their jobs, and to hash one takes longer than to count its work."""

    job: Job
    flops: int

    def __hash__(self) -> int:
        return hash((id(self.job), self.flops))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.job is other.job and self.flops == other.flops


@lru_cache(maxsize=4096)
def _work(of: _Same) -> Work | None:
    job = of.job
    extents = {letter: r.extent for letter, r in range_by_letter(job).items()}
    match job:
        case MapJob() if written_rows(job) is not None:  # what was there is copied, and rows are
            return Work(KernelKind.MAP, operations=2, elements=prod(extents.values()))
        case MapJob():
            expressions = [part.expr for part in job.parts]
            looks_up = any(loads(index) for e in expressions for load in loads(e) for index in load.indices)
            return Work(KernelKind.MAP, 0, 0, 0, *_pointwise(expressions, extents, ()), looks_up)
        case ContractJob():
            rows = min(_rows(c, extents) for c in job.contractions)
            flops = sum(2 * prod(extents[x] for x in free_letters(c.x) | free_letters(c.y)) for c in job.contractions)
            pointwise = _pointwise([job.epilogue], extents, job.target) if job.last else (0, 0, 0)
            unpacked = sum(_unpacked(job, c, extents) for c in job.contractions) if rows > MOST_UNPACKED_ROWS else 0
            strided = any(_strided(job, c, extents) for c in job.contractions)
            by_columns = any(_by_columns(load, c, extents) for c in job.contractions for load in (c.x, c.y))
            return Work(KernelKind.PRODUCT, rows, flops, 0, *pointwise, unpacked=unpacked, strided=strided, by_columns=by_columns)
        case AttentionJob():
            shared = (free_letters(job.q) & free_letters(job.k)).difference(job.score_letters)
            queries = prod(extents[x] for x in free_letters(job.q) - free_letters(job.k))
            kind = KernelKind.FEW_QUERIES if queries <= MOST_QUERIES else KernelKind.ATTENTION
            return Work(kind, extents[job.row], of.flops, prod(extents[x] for x in shared))
        case PairsJob(products=()):  # rows are added to a result of zeros
            return Work(KernelKind.MAP, operations=2, elements=prod(extents[x] for x in job.target) + of.flops, looks_up=True)
        case PairsJob():
            shared = frozenset.intersection(*((free_letters(c.x) & free_letters(c.y)).difference(c.letters) for c in job.products))
            return Work(KernelKind.ATTENTION, extents[job.row], of.flops, prod(extents[x] for x in shared))
        case GatherJob():
            return None
        case OverflowJob():
            return Work(KernelKind.MAP, operations=1, elements=sum(len(view.boxes) for view in job.reads))
    assert_never(job)


def _rows(c: Contraction, extents: Mapping[Letter, int]) -> int:
    of_x, of_y = free_letters(c.x), free_letters(c.y)
    return min(prod(extents[x] for x in of_x - of_y), prod(extents[x] for x in of_y - of_x))


def _unpacked(job: ContractJob, c: Contraction, extents: Mapping[Letter, int]) -> int:
    """The numbers that a contraction reads of operands that are kept as they are stored."""
    stored = {view.name for view in job.reads if isinstance(view.element_type, Stored)}
    return sum(prod(extents[x] for x in free_letters(load)) for load in (c.x, c.y) if load.name in stored)


def _strided(job: ContractJob, c: Contraction, extents: Mapping[Letter, int]) -> bool:
    """Whether rows of the larger operand are parts of those of a tile; of the other, they are packed in no time."""
    load = max((c.x, c.y), key=lambda load: prod(extents[x] for x in free_letters(load)))
    boxes = next(view.boxes for view in job.reads if view.name == load.name)
    innermost = [(at, i.letter) for at, i in enumerate(load.indices) if isinstance(i, Axis) and extents[i.letter] > 1][-1:]
    return any(box.shape[at] > extents[letter] for at, letter in innermost for box in boxes)


def _by_columns(load: Load, c: Contraction, extents: Mapping[Letter, int]) -> bool:
    """Whether what lies side by side in an operand is not summed over."""
    innermost = [i.letter for i in load.indices if isinstance(i, Axis) and extents[i.letter] > 1][-1:]
    return not set(innermost) <= set(c.letters)


def _pointwise(expressions: Iterable[Expr], extents: Mapping[Letter, int], target: tuple[Letter, ...]) -> tuple[int, int, int]:
    """(operations, elements, elements of functions); `target` are the letters of accumulators."""
    operations = elements = functions = 0
    for node in dict.fromkeys(n for e in expressions for n in walk(e) if isinstance(n, Unary | Binary | Call | Reduce)):
        body = node.body if isinstance(node, Reduce) else node
        letters = free_letters(body)
        if any(isinstance(n, Acc) for n in walk(body)):
            letters = letters.union(target)
        computed = prod(extents.get(x, 1) for x in letters)
        operations += 1
        if isinstance(node, Call) and FUNCTIONS[node.fn].costly:
            functions += computed
        else:
            elements += computed
    return operations, elements, functions
