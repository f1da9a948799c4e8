"""Matching rows that are added where an index says, as to the gradient of an embedding: a sum over pairs, of which most count for nothing.

In: a contraction of a one-hot matrix with what is no weight. Out: a PairsOp without products, whose kernel adds each row once, and for
which no one-hot matrix is made; None for any other contraction.

    d_embed[v,m] = sum[b,s](where(tokens[b,s] == v, 1, 0) * d_x[b,s,m])          d_embed = 0;  d_embed[tokens[b,s]] += d_x[b,s]
"""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.algebra.expr import Acc, Letter
from einpage.einsum_front.algebra.rewrite import Capture, axes_only, one_hot_of, plain_letters
from einpage.einsum_front.fuse.inline import inlined, is_inlinable
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, PairsOp, is_bare_contraction


def match_added_rows(
    op: FusedOp, by_value: Mapping[str, FusedOp], readers: Mapping[str, int], extents: Mapping[Letter, int]
) -> tuple[PairsOp, str] | None:
    """The sum that `op` is, and the one-hot value that only it reads."""
    if not isinstance(op, ContractOp) or not is_bare_contraction(op):
        return None
    c = op.contractions[0]
    for one_hot, factor in ((c.x, c.y), (c.y, c.x)):
        producer, plain = by_value.get(one_hot.name), plain_letters(factor)
        if not is_inlinable(producer) or readers[one_hot.name] != 1 or axes_only(one_hot) is None or plain is None:
            continue
        assert producer is not None
        try:
            weight = inlined(producer, one_hot)
        except Capture:
            continue
        found = one_hot_of(weight)
        if found is None:
            continue
        index, row = found
        letters = axes_only(index)
        if letters is not None and set(letters) == set(c.letters) <= set(plain) and row in op.target and row not in plain:
            longest = max(c.letters, key=lambda x: (extents[x], x))
            fused = (*op.fused, producer.base)
            return PairsOp(
                *(op.value, op.base, op.shape, op.loop, op.target, (), Acc(0), weight, factor, c.letters, longest, False, Acc(0)), fused
            ), one_hot.name
    return None
