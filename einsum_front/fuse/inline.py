"""Inlining: the expression of a map in place of its value, and when that is allowed.

In: a map and its reader. Out: expressions. A map is inlined where that repeats no computation and the expression does not get too long.
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Num, Reduce, size, substitute, walk
from einpage.einsum_front.algebra.rewrite import axes_only, rename
from einpage.einsum_front.graph.opgraph import FusedOp, MapOp, has_reduce, is_bare_contraction, op_loads

MOST_NODES = 300
"""An expression is not fused into a longer one than this: a value that is read twice is written out twice."""


def inlined(producer: FusedOp, load: Load) -> Expr:
    """The expression of a one-part map `producer`, as seen through `load`. Raises Capture."""
    assert isinstance(producer, MapOp)
    (part,) = producer.parts
    mapping = {axis.letter: index for axis, index in zip(part.target, load.indices, strict=True) if isinstance(axis, Axis)}
    return rename(part.expr, mapping)


def is_inlinable(op: FusedOp | None) -> bool:
    """True for a map of one statement whose target is letters alone."""
    return isinstance(op, MapOp) and len(op.parts) == 1 and all(isinstance(i, Axis) for i in op.parts[0].target)


def may_inline(producer: MapOp, reader: MapOp, by_value: Mapping[str, FusedOp]) -> bool:
    """Whether inlining neither repeats a row reduction nor takes a contraction's epilogue away."""
    target = {i.letter for i in producer.parts[0].target if isinstance(i, Axis)}
    uses = [load for load in op_loads(reader) if load.name == producer.value]
    if has_reduce(producer.parts[0].expr):
        if any(axes_only(use) is None for use in uses):
            return False
        reduced = _bound_letters(producer)
        letters = {i.letter for part in reader.parts for i in part.target if isinstance(i, Axis)}
        return letters <= target | reduced
    if any(not isinstance(index, (Axis, Num)) for use in uses for index in use.indices):
        return False
    finishes = any(is_bare_contraction(by_value[load.name]) for load in op_loads(producer) if load.name in by_value)
    return not (finishes and (len(reader.parts) > 1 or has_reduce(reader.parts[0].expr)))


def is_short_enough(producer: MapOp, reader: MapOp) -> bool:
    """Whether `reader` stays under MOST_NODES with `producer` written out at each use: `x = x * tanh(x)` doubles each time."""
    uses = sum(load.name == producer.value for load in op_loads(reader))
    return sum(size(part.expr) for part in reader.parts) + uses * size(producer.parts[0].expr) <= MOST_NODES


def _bound_letters(op: MapOp) -> set[Letter]:
    return {letter for part in op.parts for node in walk(part.expr) if isinstance(node, Reduce) for letter in node.letters}


def with_inlined(e: Expr, producer: MapOp) -> Expr:
    """`e` with `producer` inlined at each of its loads. Raises Capture."""
    return substitute(e, lambda node: inlined(producer, node) if isinstance(node, Load) and node.name == producer.value else None)
