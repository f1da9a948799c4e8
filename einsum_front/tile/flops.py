"""How much work an expression is: FLOPs over ranges of letters, the same count for whole ops and for their tiles."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Reduce, Region, Unary, free_letters, loads, walk
from einpage.einsum_front.algebra.masks import condition, keys_seen, pairs, without_data
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, MapOp, PairsOp, rows_of


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
            depth_out = extent([letter for letter in op.target if letter not in rows_of(op)], ranges)
            return _pair_flops(op, extent(op.score_letters, ranges) + depth_out, op.score, ranges, at_least)
        case PairsOp(products=()):
            return extent({*op.letters, *(letter for letter in op.target if letter not in rows_of(op))}, ranges)
        case PairsOp():
            depth = sum(extent(c.letters, ranges) for c in op.products)
            if op.factor is not None:
                depth += extent([letter for letter in op.target if letter not in rows_of(op)], ranges)
            return _pair_flops(op, depth, op.weight, ranges, at_least)
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


def least_elements(op: FusedOp, load: Load, ranges: Region, box: Box) -> int:
    """Of `box`, what `load` can touch over `ranges`: the elements that some task touches, however the op is cut."""
    return _seen_elements(op, load, ranges, box) if isinstance(op, AttentionOp | PairsOp) else _diagonal_elements(load, box)


def _diagonal_elements(load: Load, box: Box) -> int:
    """All of `box`, but for letters in several dimensions: a tile of x[i, i] has a square of the diagonal, and one element in the end."""
    extents_by_letters: dict[frozenset[Letter], int] = {}
    letters: frozenset[Letter]
    for index, n in zip(load.indices, box.shape, strict=True):
        letters = frozenset() if loads(index) else free_letters(index)  # data may point anywhere, whatever the tile
        for joined in [found for found in extents_by_letters if found & letters]:
            letters, n = letters | joined, max(n, extents_by_letters.pop(joined))
        extents_by_letters[letters] = n * extents_by_letters.get(letters, 1)
    return prod(extents_by_letters.values())


def _seen_elements(op: AttentionOp | PairsOp, load: Load, ranges: Region, box: Box) -> int:
    """A task leaves out what its own queries, of its own heads, do not see."""
    axes = {index.letter for index in load.indices if isinstance(index, Axis)}
    if condition(op.score) is None or op.row not in free_letters(load):
        return _diagonal_elements(load, box)
    if op.row not in axes:
        return 0
    query = masked_query(op)
    if query is None or query not in free_letters(load):
        seen = sum(end - start for start, end in keys_seen(op.score, query, op.row, ranges))
        return box.size // extent([op.row], ranges) * seen
    return box.size // extent([query, op.row], ranges) * pairs(op.score, query, op.row, ranges, True) if query in axes else 0


def masked_query(op: AttentionOp | PairsOp) -> Letter | None:
    """The letter of the queries that the mask compares with keys; None where it is none, or there are several."""
    mask = condition(op.score)
    in_mask = [letter for letter in rows_of(op) if mask is not None and letter in free_letters(without_data(mask))]
    return in_mask[0] if len(in_mask) == 1 else None


def _pair_flops(op: AttentionOp | PairsOp, depth: int, e: Expr, ranges: Region, at_least: bool) -> int:
    """Of products that have `depth` multiply-adds a pair in all, and of `e` for each pair."""
    query, summed = masked_query(op), op.letters if isinstance(op, PairsOp) else (op.row,)
    seen = pairs(op.score, query, op.row, ranges, at_least)
    others = extent([letter for letter in (*rows_of(op), *summed) if letter not in (query, op.row)], ranges)
    pointwise = sum(1 for node in walk(e) if isinstance(node, (Unary, Binary, Call)))
    return others * seen * (2 * depth + pointwise)
