"""Which weights a graph keeps as their checkpoint stores them: those of which every use unpacks what it reads.

In: fused operations, the run's dtype. Out: an element type by weight. A product unpacks its factors panel by panel, a gather the rows it
fetches; whatever else reads a weight (a norm, an epilogue, an attention) wants numbers, and then all uses get them.
"""

from __future__ import annotations

from collections.abc import Iterator

from einpage.einsum_front.algebra.expr import Axis, Num, loads
from einpage.einsum_front.base.dtype import DType, Stored
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, GatherOp, OpGraph, op_loads


def kept_as_stored(opgraph: OpGraph, dtype: DType) -> dict[str, Stored]:
    """By name, the weights that stay stored. One that the run's dtype stores as well is not among them: it is what it would be anyway."""
    as_stored = {w.name: w.stored for w in opgraph.program.weights if w.stored is not None and w.stored.format.value != dtype.value}
    if not as_stored:
        return {}
    refused = {name for op in opgraph.ops for name in _wants_numbers(op)}
    return {name: Stored(stored.format, stored.dims, dtype) for name, stored in as_stored.items() if name not in refused}


def _wants_numbers(op: FusedOp) -> Iterator[str]:
    """The values that `op` reads otherwise than by unpacking."""
    match op:
        case ContractOp():
            factors = [side for c in op.contractions for side in (c.x, c.y)]
            unpacked = {load.name for load in factors if all(isinstance(i, Axis | Num) for i in load.indices)}
            yield from (load.name for load in loads(op.epilogue))
            yield from (load.name for load in factors if load.name not in unpacked)
        case GatherOp():
            yield from (load.name for index in op.load.indices for load in loads(index))
        case _:
            yield from (load.name for load in op_loads(op))
