"""How much work an expression is: FLOPs over ranges of letters, the same count for whole ops and for their tiles."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Reduce, Region, Unary, free_letters, walk
from einpage.einsum_front.algebra.masks import condition, pairs, without_data
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, MapOp


def flops(op: FusedOp, ranges: Region, at_least: bool) -> int:
    """FLOPs of `op` over `ranges`, multiply-adds as two; `at_least` leaves out attention pairs of blocks that a kernel may skip."""
    match op:
        case MapOp():
            return sum(pointwise_flops(part.expr, ranges) for part in op.parts)
        case ContractOp():
            total = pointwise_flops(op.epilogue, ranges)
            for c in op.contractions:
                total += 2 * extent(free_letters(c.x) | free_letters(c.y), ranges)
            return total
        case AttentionOp():
            return _attention_flops(op, ranges, at_least)
        case _:
            return 0


def extent(letters: Iterable[Letter], ranges: Region) -> int:
    """How many points the ranges of `letters` span."""
    return prod(ranges[letter][1] - ranges[letter][0] for letter in letters)


def pointwise_flops(e: Expr, ranges: Region) -> int:
    """One FLOP an operation and point; index arithmetic is free."""
    total = 0
    stack = [e]
    while stack:
        node = stack.pop()
        match node:
            case Load():
                continue
            case Reduce():
                total += extent(free_letters(node.body), ranges)
                stack.append(node.body)
            case Unary(_, x):
                total += extent(free_letters(node), ranges)
                stack.append(x)
            case Binary(_, x, y):
                total += extent(free_letters(node), ranges)
                stack += [x, y]
            case Call(_, args):
                total += extent(free_letters(node), ranges)
                stack += args
            case _:
                continue
    return total


def _attention_flops(op: AttentionOp, ranges: Region, at_least: bool) -> int:
    rows = [i.letter for i in op.q.indices if isinstance(i, Axis) and i.letter not in op.score_letters]
    mask = condition(op.score)
    in_mask = [letter for letter in rows if mask is not None and letter in free_letters(without_data(mask))]
    query = in_mask[0] if len(in_mask) == 1 else None
    seen = pairs(op.score, query, op.row, ranges, at_least)
    others = extent([letter for letter in rows if letter != query], ranges)
    depth_in = extent(op.score_letters, ranges)
    depth_out = extent([letter for letter in op.target if letter not in rows], ranges)
    pointwise = sum(1 for node in walk(op.score) if isinstance(node, (Unary, Binary, Call)))
    return others * seen * (2 * depth_in + 2 * depth_out + pointwise)
