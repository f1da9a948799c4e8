"""Which weights a graph keeps as their checkpoint stores them: those of which every use unpacks what it reads.

In: fused operations, the run's dtype, and what is wanted. Out: an element type by weight. A product unpacks its factors, a gather the
rows that it fetches; whatever else reads a weight (a norm, an epilogue, an attention) wants numbers, and then all uses get them.
"""

from __future__ import annotations

from collections.abc import Iterator

from einpage.einsum_front.algebra.expr import Axis, Num, loads
from einpage.einsum_front.base.dtype import DType, Stored
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, GatherOp, OpGraph, op_loads
from einpage.einsum_front.graph.program import WeightsAs


def stored_weights(opgraph: OpGraph, dtype: DType, weights_as: WeightsAs) -> dict[str, Stored]:
    """By name, the weights that stay stored."""
    wanted = {w.name: w.stored for w in opgraph.program.weights if w.stored is not None and weights_as.wants_stored(w, dtype)}
    if not wanted:
        return {}
    rank = {w.name: len(w.shape) for w in opgraph.program.weights}
    refused = {name for op in opgraph.ops for name in _as_numbers(op, {name: rank[name] - rows.dims for name, rows in wanted.items()})}
    return {name: Stored(rows.format, rows.dims, dtype) for name, rows in wanted.items() if name not in refused}


def _as_numbers(op: FusedOp, before_rows: dict[str, int]) -> Iterator[str]:
    """The values that `op` reads otherwise than by taking them apart; `before_rows` counts a weight's dimensions before its rows'."""
    match op:
        case ContractOp():
            yield from (load.name for load in loads(op.epilogue))
            for load in (side for c in op.contractions for side in (c.x, c.y)):
                if not all(isinstance(i, Axis | Num) for i in load.indices):
                    yield load.name
        case GatherOp():
            looked_up = [bool(loads(index)) for index in op.load.indices]
            if looked_up.index(True) != 0 or before_rows.get(op.load.name, 1) != 1:
                yield op.load.name
            yield from (load.name for index in op.load.indices for load in loads(index))
        case _:
            yield from (load.name for load in op_loads(op))
