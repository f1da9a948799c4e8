"""Matching attention: contraction → pointwise → softmax → contraction, as one op that never holds the scores (FlashAttention, Dao 2022).

In: the ops so far and how often each value is read. Out: an AttentionOp for a contraction that ends such a chain, or the reason why not.
No word of a spec marks an attention: the pattern follows from the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Reduce, Reduction, free_letters, loads, size, substitute
from einpage.einsum_front.algebra.rewrite import Capture, axes_only, plain_letters, rename_load
from einpage.einsum_front.fuse.inline import MOST_NODES, inlined, is_inlinable
from einpage.einsum_front.graph.describe import display_name
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, has_reduce, is_bare_contraction


class NotAttention(Exception):
    """Why a chain that looks like attention is not fused."""


def match_attention(
    last: ContractOp, op_by_value: Mapping[str, FusedOp], readers: Mapping[str, int]
) -> tuple[AttentionOp, frozenset[str]] | None:
    """The attention that `last` ends and the values fused into it; None where its operands hold no softmax.

    Raises NotAttention with the reason where there is a softmax but the chain cannot be one op.
    """
    name, contraction = display_name(last.base), last.contractions[0]
    if len(contraction.letters) != 1:
        return None
    row = contraction.letters[0]
    for p, v in ((contraction.x, contraction.y), (contraction.y, contraction.x)):
        producer = op_by_value.get(p.name)
        if producer is None or not is_inlinable(producer) or axes_only(p) is None:
            continue
        try:
            found, absorbed = _inline_pointwise(inlined(producer, p), op_by_value, readers)
        except Capture:
            continue
        if not (isinstance(found, Reduce) and found.op is Reduction.SOFTMAX and found.letters == (row,)):
            continue
        if absorbed & {load.name for load in loads(found)}:
            raise NotAttention(f"{name}: its softmax {display_name(producer.base)} reads its scores at other elements too")
        if readers[p.name] != 1:
            raise NotAttention(f"{name}: its softmax {display_name(producer.base)} is read elsewhere too")
        return _build(last, found.body, row, v, op_by_value, readers, absorbed | {p.name})
    return None


def _inline_pointwise(e: Expr, op_by_value: Mapping[str, FusedOp], readers: Mapping[str, int]) -> tuple[Expr, frozenset[str]]:
    """`e` with every map that only it reads inlined, and the names of those maps. Raises Capture, also past MOST_NODES."""
    absorbed: set[str] = set()
    nodes = size(e)

    def step(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or readers.get(node.name) != 1:
            return None
        producer = op_by_value.get(node.name)
        if producer is None or not is_inlinable(producer) or axes_only(node) is None:
            return None
        absorbed.add(node.name)
        found = inlined(producer, node)
        nonlocal nodes
        nodes += size(found)
        if nodes > MOST_NODES:
            raise Capture
        return substitute(found, step)

    return substitute(e, step), frozenset(absorbed)


def _build(
    last: ContractOp,
    body: Expr,
    row: Letter,
    v: Load,
    op_by_value: Mapping[str, FusedOp],
    readers: Mapping[str, int],
    absorbed: frozenset[str],
) -> tuple[AttentionOp, frozenset[str]]:
    """The attention of a softmax over `row` of the scores `body`, contracted with `v`. Raises NotAttention."""
    name = display_name(last.base)
    products = {load for load in loads(body) if load.name in op_by_value and is_bare_contraction(op_by_value[load.name])}
    if len(products) != 1:
        raise NotAttention(f"{name}: its softmax reads {len(products)} contractions, not one")
    (product,) = products
    score_op = op_by_value[product.name]
    assert isinstance(score_op, ContractOp)
    letters = axes_only(product)
    if readers[product.name] != 1 or letters is None or row not in letters or has_reduce(body):
        raise NotAttention(f"{name}: the scores {display_name(score_op.base)} are read elsewhere, or not element by element")
    mapping: dict[Letter, Expr] = {a: Axis(b) for a, b in zip(score_op.target, letters, strict=True)}
    inner = score_op.contractions[0]
    if set(inner.letters) & set(letters):
        raise NotAttention(f"{name}: a letter of {display_name(score_op.base)} has two meanings here")
    x, y = rename_load(inner.x, mapping), rename_load(inner.y, mapping)
    x_letters, y_letters, v_letters = plain_letters(x), plain_letters(y), plain_letters(v)
    if x_letters is None or y_letters is None or v_letters is None:
        raise NotAttention(f"{name}: an operand is not read by plain letters")
    if row in x_letters:
        x, y, x_letters, y_letters = y, x, y_letters, x_letters
    if row in x_letters or row not in y_letters:
        raise NotAttention(f"{name}: both sides of the scores have the softmax letter {row}")
    if not set(x_letters) - set(inner.letters) <= set(last.target):
        raise NotAttention(f"{name}: a letter of the query is summed after the softmax")
    score = substitute(body, lambda node: Acc(0) if node == product else None)
    of_scores = {*x_letters, *y_letters}
    if alone := sorted(free_letters(score) - of_scores):
        raise NotAttention(f"{name}: its scores have {', '.join(alone)}, which is in neither query nor key")
    if alone := sorted(set(last.target) - of_scores - set(v_letters)):
        raise NotAttention(f"{name}: {', '.join(alone)} is in none of its operands")
    fused = tuple(op_by_value[value].base for value in sorted({*absorbed, product.name}))
    op = AttentionOp(
        last.value, last.base, last.shape, last.loop, last.target, x, y, inner.letters, score, row, v, Acc(1), (*last.fused, *fused)
    )
    return op, absorbed | {product.name}
