"""Finding attention: contraction → pointwise → softmax → contraction, as one op that never holds the scores.

In: the ops so far and how often each value is read. Out: an AttentionOp for a contraction that ends such a chain, or the reason why not.
Nothing here knows the word attention in a spec: the pattern follows from the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Reduce, Reduction, free_letters, loads, size, substitute
from einpage.einsum_front.algebra.rewrite import Capture, axes_only, plain_letters, rename, rename_load
from einpage.einsum_front.graph.describe import spoken
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, MapOp, has_reduce, is_bare_contraction

MOST_NODES = 300
"""An expression is not fused into a longer one than this: a value that is read twice is written out twice."""


class NotAttention(Exception):
    """Why a chain that looks like attention is not fused."""


def inlined(producer: FusedOp, load: Load) -> Expr:
    """The expression of a one-part map `producer`, as seen through `load`. Raises Capture."""
    assert isinstance(producer, MapOp)
    (part,) = producer.parts
    mapping = {axis.letter: index for axis, index in zip(part.target, load.indices, strict=True) if isinstance(axis, Axis)}
    return rename(part.expr, mapping)


def is_inlinable(op: FusedOp | None) -> bool:
    """A map of one statement whose target is letters alone."""
    return isinstance(op, MapOp) and len(op.parts) == 1 and all(isinstance(i, Axis) for i in op.parts[0].target)


def match_attention(
    last: ContractOp, op_by_value: Mapping[str, FusedOp], readers: Mapping[str, int]
) -> tuple[AttentionOp, frozenset[str]] | None:
    """The attention that `last` ends and the values that vanish in it; None where its operands hold no softmax.

    Raises NotAttention with the reason where there is a softmax but the chain cannot be one op.
    """
    contraction = last.contractions[0]
    if len(contraction.letters) != 1:
        return None
    row = contraction.letters[0]
    for p, v in ((contraction.x, contraction.y), (contraction.y, contraction.x)):
        producer = op_by_value.get(p.name)
        if producer is None or not is_inlinable(producer) or axes_only(p) is None:
            continue
        try:
            found, gone = _inline_pointwise(inlined(producer, p), op_by_value, readers)
        except Capture:
            continue
        if not (isinstance(found, Reduce) and found.op is Reduction.SOFTMAX and found.letters == (row,)):
            continue
        if gone & {load.name for load in loads(found)}:
            raise NotAttention(f"{spoken(last.base)}: its softmax {spoken(producer.base)} reads its scores at other elements too")
        if readers[p.name] != 1:
            raise NotAttention(f"{spoken(last.base)}: its softmax {spoken(producer.base)} is read elsewhere too")
        return _build(last, found.body, row, v, op_by_value, readers, gone | {p.name})
    return None


def _inline_pointwise(e: Expr, op_by_value: Mapping[str, FusedOp], readers: Mapping[str, int]) -> tuple[Expr, frozenset[str]]:
    """`e` with every map that only it reads folded in, and the names of those maps. Raises Capture, also where it gets too long."""
    gone: set[str] = set()
    nodes = size(e)

    def step(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or readers.get(node.name) != 1:
            return None
        producer = op_by_value.get(node.name)
        if producer is None or not is_inlinable(producer) or axes_only(node) is None:
            return None
        gone.add(node.name)
        found = inlined(producer, node)
        nonlocal nodes
        nodes += size(found)
        if nodes > MOST_NODES:
            raise Capture
        return substitute(found, step)

    return substitute(e, step), frozenset(gone)


def _build(
    last: ContractOp, body: Expr, row: Letter, v: Load, op_by_value: Mapping[str, FusedOp], readers: Mapping[str, int], gone: frozenset[str]
) -> tuple[AttentionOp, frozenset[str]]:
    products = {load for load in loads(body) if load.name in op_by_value and is_bare_contraction(op_by_value[load.name])}
    if len(products) != 1:
        raise NotAttention(f"{spoken(last.base)}: its softmax reads {len(products)} contractions, not one")
    (product,) = products
    score_op = op_by_value[product.name]
    assert isinstance(score_op, ContractOp)
    letters = axes_only(product)
    if readers[product.name] != 1 or letters is None or row not in letters or has_reduce(body):
        raise NotAttention(f"{spoken(last.base)}: the scores {spoken(score_op.base)} are read elsewhere, or not element by element")
    mapping: dict[Letter, Expr] = {a: Axis(b) for a, b in zip(score_op.target, letters, strict=True)}
    inner = score_op.contractions[0]
    if set(inner.letters) & set(letters):
        raise NotAttention(f"{spoken(last.base)}: a letter of {spoken(score_op.base)} has two meanings here")
    x, y = rename_load(inner.x, mapping), rename_load(inner.y, mapping)
    x_letters, y_letters, v_letters = plain_letters(x), plain_letters(y), plain_letters(v)
    if x_letters is None or y_letters is None or v_letters is None:
        raise NotAttention(f"{spoken(last.base)}: an operand is not read by plain letters")
    if row in x_letters:
        x, y, x_letters, y_letters = y, x, y_letters, x_letters
    if row in x_letters or row not in y_letters:
        raise NotAttention(f"{spoken(last.base)}: both sides of the scores have the softmax letter {row}")
    if not set(x_letters) - set(inner.letters) <= set(last.target):
        raise NotAttention(f"{spoken(last.base)}: a letter of the query is summed after the softmax")
    score = substitute(body, lambda node: Acc(0) if node == product else None)
    of_scores = {*x_letters, *y_letters}
    if alone := sorted(free_letters(score) - of_scores):
        raise NotAttention(f"{spoken(last.base)}: its scores have {', '.join(alone)}, which is in neither query nor key")
    if alone := sorted(set(last.target) - of_scores - set(v_letters)):
        raise NotAttention(f"{spoken(last.base)}: {', '.join(alone)} is in none of its operands")
    fused = tuple(op_by_value[name].base for name in sorted({*gone, product.name}))
    op = AttentionOp(
        last.value, last.base, last.shape, last.loop, last.target, x, y, inner.letters, score, row, v, Acc(1), (*last.fused, *fused)
    )
    return op, gone | {product.name}
