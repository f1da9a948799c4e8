"""Matching what is computed of the weights of all pairs, as an attention's gradients are: sums over pairs that never hold the weights.

In: the ops, and a softmax over a letter of pairs, of scores that are a contraction and pointwise maps. Out: the ops with each contraction
of such weights as a PairsOp, and the weights gone; None where somebody reads them otherwise. Weights are exponentials of scores less the
logarithm of their sum, which is a statistic of rows (FlashAttention-2, Dao 2023, algorithm 2). No word of a spec marks them.

    p[s,t] = softmax[t](c[s,t])         l[s] = log sum[t](exp(c[s,t]))        p = exp(c - l)
    g[s,t] = p * (d - sum[t](p * d))    r[s] = sum[t](p * d)                  g = p * (d - r)
    dq[s,e] = sum[t](g[s,t] * k[t,e])   a PairsOp, which computes c, d block by block; of d = sum[v](do * v[t,v]), r is sum[v](do * o)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import inf

from einpage.einsum_front.algebra.expr import (
    Acc,
    Axis,
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Num,
    Reduce,
    Reduction,
    Unary,
    free_letters,
    loads,
    size,
    substitute,
)
from einpage.einsum_front.algebra.guards import Guard, conjuncts
from einpage.einsum_front.algebra.masks import is_minus_infinity
from einpage.einsum_front.algebra.rewrite import Capture, axes_only, plain_letters, rename, rename_load
from einpage.einsum_front.fuse.inline import MOST_NODES, inlined, is_inlinable
from einpage.einsum_front.graph.job import Contraction, Part
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, MapOp, PairsOp, has_reduce, is_bare_contraction, op_loads

MOST_DEPTH = 32
"""Statements that are written out, each within the one that reads it."""


def is_softmax(op: FusedOp) -> bool:
    """A map that is a softmax over one of its letters."""
    if not is_inlinable(op):
        return False
    assert isinstance(op, MapOp)
    e = op.parts[0].expr
    return isinstance(e, Reduce) and e.op is Reduction.SOFTMAX and len(e.letters) == 1 and set(e.letters) <= free_letters(e.body)


def match_pairs(ops: Sequence[FusedOp], softmax: str, outputs: set[str], extents: Mapping[Letter, int]) -> list[FusedOp] | None:
    """`ops` with all that is computed of the value `softmax` fused; None where it cannot be."""
    try:
        return _Pairs(ops, softmax, outputs, extents).fused()
    except (_Otherwise, Capture):
        return None


class _Otherwise(Exception):
    """The weights, or what they are computed from, are read otherwise."""


class _Pairs:
    """The values over all pairs that one softmax leads to, each as an expression over contractions and what is smaller."""

    def __init__(self, ops: Sequence[FusedOp], softmax: str, outputs: set[str], extents: Mapping[Letter, int]) -> None:
        self.ops, self.softmax, self.outputs, self.extents = ops, softmax, outputs, extents
        self.op_by_value = {op.value: op for op in ops}
        self.expr_by_value: dict[str, tuple[tuple[Letter, ...], Expr]] = {}
        """Over the letters of its target; loads of contractions among `products`."""
        self.products: set[str] = set()
        self.inside: set[str] = set()
        """Values that exist in blocks alone."""
        self.pairs = 0
        """How many letters a pair has."""

    def fused(self) -> list[FusedOp]:
        """The ops, in order."""
        found: list[FusedOp] = []
        readers: list[FusedOp] = []
        for op in self.ops:
            if op.value == self.softmax:
                found += self._softmax(op)
            elif self.expr_by_value and any(load.name in self.expr_by_value for load in op_loads(op)):
                readers.append(op)
                found += self._reader(op)
            else:
                found.append(op)
        of_pairs = self.inside | self.products
        for op in found:
            if op.value not in of_pairs and any(load.name in of_pairs for load in op_loads(op)):
                raise _Otherwise
        if of_pairs & self.outputs or not readers or all(op.value in self.inside for op in readers):
            raise _Otherwise
        return _scaled([op for op in found if op.value not in of_pairs], self.outputs)

    def _softmax(self, op: FusedOp) -> list[FusedOp]:
        """The logarithm of its sums."""
        assert isinstance(op, MapOp)
        e, target = op.parts[0].expr, _target(op)
        assert isinstance(e, Reduce)
        (row,), self.pairs = e.letters, len(target)
        body = self._resolved(e.body, target)
        rows = tuple(x for x in target if x != row)
        logarithm = self._sum(op, f"{op.value}~log", rows, body, None, (row,), is_logarithm=True)
        statistic = Load(logarithm.value, tuple(map(Axis, rows)))
        self.inside.add(op.value)
        self.expr_by_value[op.value] = target, Call("exp", (Binary("-", body, statistic),))
        return [logarithm]

    def _reader(self, op: FusedOp) -> list[FusedOp]:
        """What is left of an op that reads values over all pairs."""
        if isinstance(op, ContractOp) and is_bare_contraction(op):
            return [self._contraction(op)]
        if not is_inlinable(op):
            raise _Otherwise
        assert isinstance(op, MapOp)
        target, made = _target(op), list[FusedOp]()
        if len(target) != self.pairs:
            raise _Otherwise

        def statistic(node: Expr) -> Expr | None:
            if not isinstance(node, Reduce):
                return None
            rows = tuple(x for x in target if x not in node.letters)
            body = self._resolved(node.body, target)
            if node.op is not Reduction.SUM or free_letters(node.body) != set(target) or len(rows) + len(node.letters) != len(target):
                raise _Otherwise
            value = f"{op.value}~rows{len(made) or ''}"
            made.append(self._rows(op, value, rows, node.body, body, node.letters))
            return Load(value, tuple(map(Axis, rows)))

        e = self._resolved(substitute(op.parts[0].expr, statistic), target)
        self.inside.add(op.value)
        self.expr_by_value[op.value] = target, e
        return made

    def _rows(self, op: MapOp, value: str, rows: tuple[Letter, ...], written: Expr, body: Expr, letters: tuple[Letter, ...]) -> FusedOp:
        """A sum of each row. That of weights times what a row is multiplied with the same values for is smaller: sum[t](p * (g . v)) is
        g . o, where the attention o is sum[t](p * v)."""
        match written:
            case Binary("*", Load(p), Load(d)) | Binary("*", Load(d), Load(p)) if p == self.softmax and d in self.products:
                weights, product = _load_of(written, p), self._contraction_of(_load_of(written, d))
                attended = next((x for x in self.ops if isinstance(x, AttentionOp) and x.epilogue == Acc(1)), None)
                for attended in (x for x in self.ops if isinstance(x, AttentionOp) and x.epilogue == Acc(1)):
                    if (found := self._attended(attended, weights, product, rows, letters)) is not None:
                        total = Reduce(Reduction.SUM, product.letters, Binary("*", *found))
                        shape = tuple(self.extents[x] for x in rows)
                        return MapOp(value, f"{op.base}~rows", shape, op.loop, (Part(tuple(map(Axis, rows)), total),))
        return self._sum(op, value, rows, body, None, letters)

    def _attended(
        self, op: AttentionOp, weights: Load, product: Contraction, rows: tuple[Letter, ...], letters: tuple[Letter, ...]
    ) -> tuple[Load, Load] | None:
        """Where `op` is the sum of `weights` times the side of `product` with the summed letter: the other side, and what `op` gives."""
        target, e = self.expr_by_value[self.softmax]
        assert isinstance(e, Call) and isinstance(e.args[0], Binary)
        score = rename(e.args[0].x, dict(zip(target, weights.indices, strict=True)))
        found = sorted({x for x in loads(score) if x.name in self.products}, key=str)
        sides = [(x, y) for x, y in ((product.x, product.y), (product.y, product.x)) if set(letters) <= free_letters(y)]
        if len(found) != 1 or (op.row,) != letters or len(sides) != 1 or sides[0][1] != op.v:
            return None
        of_scores = self._contraction_of(found[0])
        score = substitute(score, lambda node: Acc(0) if node == found[0] else None)
        same = {op.q, op.k} == {of_scores.x, of_scores.y} and set(op.score_letters) == set(of_scores.letters) and score == op.score
        is_whole = set(op.target) == {*rows, *product.letters} and free_letters(sides[0][0]) == set(op.target)
        return (sides[0][0], Load(op.value, tuple(map(Axis, op.target)))) if same and is_whole else None

    def _contraction(self, op: ContractOp) -> PairsOp:
        """A contraction of weights with what is no weight."""
        c = op.contractions[0]
        sides = [(p, factor) for p, factor in ((c.x, c.y), (c.y, c.x)) if p.name in self.expr_by_value]
        if len(sides) != 1:
            raise _Otherwise
        ((p, factor),) = sides
        letters = axes_only(p)
        plain = plain_letters(factor)
        if letters is None or plain is None or not set(c.letters) <= set(letters) & set(plain) or factor.name in self.products:
            raise _Otherwise
        if not set(letters) - set(c.letters) <= set(op.target):
            raise _Otherwise
        found = self._sum(op, op.value, op.target, self._resolved(p, letters), factor, c.letters)
        return replace(found, base=op.base, fused=(*op.fused, *sorted(self.op_by_value[x].base for x in self.inside)))

    def _resolved(self, e: Expr, pair: tuple[Letter, ...]) -> Expr:
        """`e` with every value over all pairs written out, down to contractions and what is read anyway."""
        nodes, depth = size(e), 0

        def count(found: Expr) -> None:
            nonlocal nodes
            nodes += size(found)
            if nodes > MOST_NODES or depth > MOST_DEPTH:
                raise _Otherwise

        def step(node: Expr) -> Expr | None:
            nonlocal depth
            if not isinstance(node, Load):
                return None
            producer, letters = self.op_by_value.get(node.name), axes_only(node)
            known = self.expr_by_value.get(node.name)
            if known is None and (producer is None or letters is None or set(letters) != set(pair)):
                return None
            if letters is None or set(letters) != set(pair):
                raise _Otherwise
            if known is not None:
                found = rename(known[1], dict(zip(known[0], node.indices, strict=True)))
                count(found)
                return found
            if producer is not None and is_bare_contraction(producer):
                self.products.add(node.name)
                return node
            if not is_inlinable(producer):
                return None
            assert isinstance(producer, MapOp)
            if has_reduce(producer.parts[0].expr):
                return None
            self.inside.add(node.name)
            found = inlined(producer, node)
            depth += 1
            count(found)  # before what it reads is written out in turn: of a chain whose links are read twice that doubles at each
            found = substitute(found, step)
            depth -= 1
            return found

        return substitute(e, step)

    def _contraction_of(self, load: Load) -> Contraction:
        """What a product gives, in the letters it is read by."""
        op = self.op_by_value[load.name]
        assert isinstance(op, ContractOp)
        c = op.contractions[0]
        letters = axes_only(load)
        assert letters is not None
        if set(c.letters) & set(letters):
            raise _Otherwise
        mapping: dict[Letter, Expr] = {a: Axis(b) for a, b in zip(op.target, letters, strict=True)}
        x, y = rename_load(c.x, mapping), rename_load(c.y, mapping)
        if plain_letters(x) is None or plain_letters(y) is None:
            raise _Otherwise
        return Contraction(x, y, c.letters)

    def _sum(
        self,
        op: FusedOp,
        value: str,
        target: tuple[Letter, ...],
        e: Expr,
        factor: Load | None,
        letters: tuple[Letter, ...],
        *,
        is_logarithm: bool = False,
    ) -> PairsOp:
        """The sum of `e`, of every pair, times `factor`."""
        found = dict.fromkeys(load for load in loads(e) if load.name in self.products)
        if not found or has_reduce(e):
            raise _Otherwise
        products = tuple(map(self._contraction_of, found))
        number = {load: n for n, load in enumerate(found)}
        weight = substitute(_guarded_once(e), lambda node: Acc(number[node]) if isinstance(node, Load) and node in number else None)
        mask = _mask(weight, of_exponent=is_logarithm)
        score: Expr = Acc(0) if mask is None else Call("where", (mask, Acc(0), Num(-inf)))
        of_mask = frozenset() if mask is None else free_letters(mask)
        row = max(letters, key=lambda x: (x in of_mask, self.extents[x], x))
        if any(row in free_letters(c.x) and row in free_letters(c.y) for c in products):
            raise _Otherwise
        inner = {x for c in products for x in c.letters}
        if inner & {x for load in loads(weight) for x in free_letters(load)} or (factor and inner & set(letters)):
            raise _Otherwise
        shape = tuple(self.extents[x] for x in target)
        base = value if op.value != value else op.base
        base = f"{op.base}~{value.rpartition('~')[2]}" if base == value else base
        end = Acc(len(products))
        return PairsOp(value, base, shape, op.loop, target, products, score, weight, factor, letters, row, is_logarithm, end)


def _target(op: MapOp) -> tuple[Letter, ...]:
    return tuple(i.letter for i in op.parts[0].target if isinstance(i, Axis))


def _load_of(e: Expr, name: str) -> Load:
    return next(load for load in loads(e) if load.name == name)


def _mask(e: Expr, *, of_exponent: bool) -> Expr | None:
    """A condition outside which `e` is 0 (of an exponent, -inf); None where none is known."""
    found = dict.fromkeys(_conditions(e, of_exponent))
    return reduce(lambda x, y: Binary("and", x, y), found) if found else None


def _guarded_once(e: Expr) -> Expr:
    """`e` without a condition at its root outside which it is 0 anyway."""
    match e:
        case Call("where", (condition, x, Num(0))) if set(conjuncts((Guard(condition, True),))) <= {
            guard for c in _conditions(x, False) for guard in conjuncts((Guard(c, True),))
        }:
            return _guarded_once(x)
        case _:
            return e


def _conditions(e: Expr, of_exponent: bool) -> list[Expr]:
    """All of which hold wherever `e` is not 0 (of an exponent, not -inf)."""
    match e:
        case Call("where", (condition, x, other)) if is_minus_infinity(other) if of_exponent else other == Num(0):
            return [condition, *_conditions(x, of_exponent)]
        case Call("exp", (x,)) if not of_exponent:
            return _conditions(x, True)
        case Binary("-", x, _) if of_exponent:
            return _conditions(x, True)
        case Binary("*", x, y) if not of_exponent:
            return [*_conditions(x, False), *_conditions(y, False)]
        case Binary("/", x, _) | Unary("-", x) if not of_exponent:
            return _conditions(x, False)
        case _:
            return []


def _scaled(ops: list[FusedOp], outputs: set[str]) -> list[FusedOp]:
    """`ops`, each sum over pairs that only a map of it alone reads as one with that map."""
    found = {op.value: op for op in ops}
    for op in ops:
        if not is_inlinable(op):
            continue
        assert isinstance(op, MapOp)
        e, target = op.parts[0].expr, _target(op)
        read = set(op_loads(op))
        of_pairs = found.get(next(iter(read)).name) if len(read) == 1 else None
        if not isinstance(of_pairs, PairsOp) or of_pairs.factor is None or of_pairs.epilogue != Acc(len(of_pairs.products)):
            continue
        (load,) = read
        is_only = of_pairs.value not in outputs and sum(load in op_loads(x) or load.name in {y.name for y in op_loads(x)} for x in ops) == 1
        if (
            is_only
            and not has_reduce(e)
            and axes_only(load) == of_pairs.target
            and set(target) == set(of_pairs.target)
            and op.unchanged is None
        ):
            epilogue = substitute(e, lambda node, load=load, end=of_pairs.epilogue: end if node == load else None)  # type: ignore[misc]
            fused = (*of_pairs.fused, *op.fused)
            found[op.value] = replace(of_pairs, value=op.value, base=op.base, shape=op.shape, target=target, epilogue=epilogue, fused=fused)
            del found[of_pairs.value]
    return list(found.values())
