"""Inlining: the expression of a map in place of its value, and when that is allowed.

In: a map and its reader. Out: expressions. A map is inlined where that repeats no computation and the expression does not get too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Num, Reduce, children, substitute
from einpage.einsum_front.algebra.rewrite import axes_only, rename
from einpage.einsum_front.graph.opgraph import FusedOp, MapOp, is_bare_contraction

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


@dataclass(frozen=True, slots=True)
class Contents:
    """What an expression consists of."""

    expr: Expr
    nodes: int
    loads: tuple[Load, ...]
    """Those inside index expressions included, in reading order, duplicates too."""
    reduced: frozenset[Letter]
    """Letters of all reductions; there are none just where there is no reduction."""


class KnownContents:
    """Contents of expressions that grow out of each other: a part that was asked for before is not walked again."""

    def __init__(self) -> None:
        self._by_id: dict[int, Contents] = {}
        """They hold their expressions, so an id stays that of one."""

    def of(self, e: Expr) -> Contents:
        """The contents of `e`."""
        if (known := self._by_id.get(id(e))) is not None:
            return known
        nodes, loads, reduced = 0, list[Load](), set[Letter]()
        stack = [e]
        while stack:
            node = stack.pop()
            if (known := self._by_id.get(id(node))) is not None:
                nodes += known.nodes
                loads += known.loads
                reduced |= known.reduced
                continue
            nodes += 1
            if isinstance(node, Load):
                loads.append(node)
            elif isinstance(node, Reduce):
                reduced.update(node.letters)
            if inner := children(node):
                stack += inner[::-1]
        self._by_id[id(e)] = found = Contents(e, nodes, tuple(loads), frozenset(reduced))
        return found

    def loads_of(self, op: MapOp) -> list[Load]:
        """Every load of a map, as `op_loads`."""
        return [load for part in op.parts for load in self.of(part.expr).loads]


def may_inline(producer: MapOp, reader: MapOp, by_value: Mapping[str, FusedOp], known: KnownContents) -> bool:
    """Whether inlining neither repeats a row reduction, nor puts one into a reduction over rows, nor takes a contraction's epilogue away.

    A sum over all rows of what a row reduction gives could not be cut, neither within rows nor between them.
    """
    target = {i.letter for i in producer.parts[0].target if isinstance(i, Axis)}
    uses = [load for load in known.loads_of(reader) if load.name == producer.value]
    if reduced := known.of(producer.parts[0].expr).reduced:
        if any(axes_only(use) is None for use in uses):
            return False
        letters = {i.letter for part in reader.parts for i in part.target if isinstance(i, Axis)}
        over = frozenset[Letter]().union(*(known.of(part.expr).reduced for part in reader.parts))
        return letters <= target | reduced and over <= reduced
    if any(not isinstance(index, (Axis, Num)) for use in uses for index in use.indices):
        return False
    finishes = any(is_bare_contraction(by_value[load.name]) for load in known.loads_of(producer) if load.name in by_value)
    return not (finishes and (len(reader.parts) > 1 or known.of(reader.parts[0].expr).reduced))


def is_short_enough(producer: MapOp, reader: MapOp, known: KnownContents) -> bool:
    """Whether `reader` stays under MOST_NODES with `producer` written out at each use: `x = x * tanh(x)` doubles each time."""
    uses = sum(load.name == producer.value for load in known.loads_of(reader))
    return sum(known.of(part.expr).nodes for part in reader.parts) + uses * known.of(producer.parts[0].expr).nodes <= MOST_NODES


def with_inlined(e: Expr, producer: MapOp) -> Expr:
    """`e` with `producer` inlined at each of its loads. Raises Capture."""
    return substitute(e, lambda node: inlined(producer, node) if isinstance(node, Load) and node.name == producer.value else None)
