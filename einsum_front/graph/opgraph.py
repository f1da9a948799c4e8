"""The OpGraph: fused operations over whole values, before any splitting.

Each op defines one SSA value. A map is pointwise statements and row reductions; a contract is one or several contractions with a pointwise
epilogue; an attention is contraction, softmax, contraction that never materialises its scores; sums over pairs are what its gradients
are, and never materialise them either; a gather reads rows of a host table; an overflow says whether a value is finite, by the flags that
what wrote its tiles left behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Reduce, free_letters, loads, walk
from einpage.einsum_front.base.dtype import FLAG, Checked, DType
from einpage.einsum_front.graph.job import Contraction, Part
from einpage.einsum_front.graph.program import Program, UnchangedRows


class _WithLoads:
    """What loads values; it is asked which so often that it remembers."""

    __slots__ = ("_loads",)
    _loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class MapOp(_WithLoads):
    """Pointwise statements and row reductions; fields as in `MapJob`."""

    value: str
    """The SSA value it defines, and below as in `Definition`."""
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    parts: tuple[Part, ...]
    fused: tuple[str, ...] = ()
    """Bases of the values that were folded into this op and no longer exist."""
    unchanged: UnchangedRows | None = None
    dtype: DType | None = None
    """Of the value; None: the run's."""
    checked: bool = False
    """Whether each tile of the value says whether it is finite."""


@dataclass(frozen=True, slots=True)
class ContractOp(_WithLoads):
    """Contractions over the same letters with a pointwise epilogue; fields as in `ContractJob`."""

    value: str
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    target: tuple[Letter, ...]
    contractions: tuple[Contraction, ...]
    epilogue: Expr
    fused: tuple[str, ...] = ()
    dtype: DType | None = None
    checked: bool = False


@dataclass(frozen=True, slots=True)
class AttentionOp(_WithLoads):
    """Fields as in `AttentionJob`."""

    value: str
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    target: tuple[Letter, ...]
    q: Load
    k: Load
    score_letters: tuple[Letter, ...]
    score: Expr
    row: Letter
    v: Load
    epilogue: Expr
    fused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairsOp(_WithLoads):
    """Fields as in `PairsJob`. Without a factor it is a statistic of rows, kept in fp32 whatever the dtype of the run."""

    value: str
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    target: tuple[Letter, ...]
    products: tuple[Contraction, ...]
    score: Expr
    weight: Expr
    factor: Load | None
    letters: tuple[Letter, ...]
    row: Letter
    is_logarithm: bool
    epilogue: Expr
    fused: tuple[str, ...] = ()
    dtype: DType | None = None
    checked: bool = False


@dataclass(frozen=True, slots=True)
class GatherOp(_WithLoads):
    """Rows of a host table; fields as in `GatherJob`."""

    value: str
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    target: tuple[Letter, ...]
    load: Load
    fused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OverflowOp(_WithLoads):
    """Whether some element of a value is NaN or infinite, or what was looked at before: 1 or 0, by the flags of the value's tiles."""

    value: str
    base: str
    shape: tuple[int, ...]
    loop: tuple[int, ...]
    checked: Load
    """The whole value, one letter a dimension; what makes it is `checked`."""
    before: Load | None
    """A number: the flag of others."""
    fused: tuple[str, ...] = ()


FusedOp: TypeAlias = "MapOp | ContractOp | AttentionOp | PairsOp | GatherOp | OverflowOp"

KIND_WORD: dict[type, str] = {
    MapOp: "map", ContractOp: "contract", AttentionOp: "attention", PairsOp: "pairs", GatherOp: "gather", OverflowOp: "overflow",
}  # fmt: skip
"""The `kind` of an `Op`."""


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Fused ops and the program they were made of."""

    program: Program
    ops: tuple[FusedOp, ...]
    """In a topological order."""
    outputs: tuple[tuple[str, str], ...]
    """(output name, value name), as asked for."""
    unfused: tuple[str, ...]
    """Why two neighbours were not fused, for a person, where one might have expected it."""


def expressions(op: FusedOp) -> tuple[Expr, ...]:
    """Every expression an op evaluates, its operand loads included."""
    match op:
        case MapOp():
            return tuple(part.expr for part in op.parts)
        case ContractOp():
            return (*(side for c in op.contractions for side in (c.x, c.y)), op.epilogue)
        case AttentionOp():
            return (op.q, op.k, op.v, op.score, op.epilogue)
        case PairsOp():
            factor = () if op.factor is None else (op.factor,)
            return (*(side for c in op.products for side in (c.x, c.y)), *factor, op.score, op.weight, op.epilogue)
        case GatherOp():
            return (op.load,)
        case OverflowOp():
            return (op.checked,) if op.before is None else (op.checked, op.before)


def op_loads(op: FusedOp) -> tuple[Load, ...]:
    """Every load of an op, in reading order, duplicates included."""
    try:
        return op._loads
    except AttributeError:
        object.__setattr__(op, "_loads", tuple(load for e in expressions(op) for load in loads(e)))
        return op._loads


def has_reduce(e: Expr) -> bool:
    """Whether `e` contains a reduction."""
    return any(isinstance(node, Reduce) for node in walk(e))


def is_bare_contraction(op: FusedOp) -> bool:
    """A contraction nothing has been fused into yet."""
    return isinstance(op, ContractOp) and len(op.contractions) == 1 and op.epilogue == Acc(0)


def dtype_of(op: FusedOp, dtype: DType) -> DType | Checked:
    """Of the op's value in a run of `dtype`."""
    match op:
        case PairsOp(factor=None):
            return DType.FP32
        case MapOp() | ContractOp() | PairsOp():
            return Checked(op.dtype or dtype) if op.checked else op.dtype or dtype
        case OverflowOp():
            return FLAG
        case AttentionOp() | GatherOp():
            return dtype


def rows_of(op: AttentionOp | PairsOp) -> list[Letter]:
    """The letters of pairs that are not summed: queries and heads of an attention."""
    if isinstance(op, AttentionOp):
        return [i.letter for i in op.q.indices if isinstance(i, Axis) and i.letter not in op.score_letters]
    if not op.products:
        of_pairs = free_letters(op.weight)
        return [letter for letter in op.target if letter in of_pairs]
    found = dict.fromkeys(i.letter for load in (op.products[0].x, op.products[0].y) for i in load.indices if isinstance(i, Axis))
    return [letter for letter in found if letter not in op.products[0].letters and letter not in op.letters]


def target_letters(op: FusedOp) -> tuple[Letter | None, ...]:
    """The letter of each dimension of the op's value; None where its statements put integers there."""
    if isinstance(op, OverflowOp):
        return ()
    if not isinstance(op, MapOp):
        return op.target
    columns = zip(*(part.target for part in op.parts), strict=True)
    return tuple(index.letter if isinstance(index := column[0], Axis) and all(c == index for c in column) else None for column in columns)
