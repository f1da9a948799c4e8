"""Epilogues: a pointwise map as the last step of the contraction it reads, on the accumulators before they are stored.

In: a map, the ops so far and how often each value is read. Out: a ContractOp. Contractions over one shared operand become one op, whose
epilogue reads them all: `silu(x @ w1) * (x @ w3)` reads `x` once. Whether a value is finite is told by what makes it, too: a map that folds
`not (abs(x) < inf)` over all of it is an OverflowOp, and what makes it leaves a flag behind each tile, of numbers that are at hand.

    overflow = max(before, max[o,i](not (abs(d_w[o,i]) < inf)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from einpage.einsum_front.algebra.expr import Acc, Axis, Call, Expr, Letter, Load, Num, Reduce, Reduction, loads, substitute
from einpage.einsum_front.algebra.rewrite import any_not_finite, axes_only, rename_load
from einpage.einsum_front.graph.job import Contraction
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, MapOp, OverflowOp, PairsOp, is_bare_contraction, op_loads
from einpage.einsum_front.graph.program import Program


def match_epilogue(
    op: MapOp, by_value: Mapping[str, FusedOp], readers: Mapping[str, int], position: Mapping[str, int]
) -> tuple[ContractOp, set[str]] | None:
    """The contraction(s) that map `op` finishes, with its expression as epilogue, and the values fused into it."""
    target = tuple(i.letter for i in op.parts[0].target if isinstance(i, Axis))
    found = _contractions_read(op, target, by_value, readers)
    if not found:
        return None
    last = max(found, key=lambda name: position[name])
    x, shared = _sharing_operand(found, found[last])
    shared.sort(key=lambda name: position[name])
    contractions = tuple(_with_left(found[name], x) for name in shared)
    index_by_name = {name: i for i, name in enumerate(shared)}
    epilogue = substitute(
        op.parts[0].expr, lambda node: Acc(index_by_name[node.name]) if isinstance(node, Load) and node.name in index_by_name else None
    )
    fused = tuple(by_value[name].base for name in shared)
    return ContractOp(op.value, op.base, op.shape, op.loop, target, contractions, epilogue, (*fused, *op.fused)), set(shared)


def _contractions_read(
    op: MapOp, target: tuple[Letter, ...], by_value: Mapping[str, FusedOp], readers: Mapping[str, int]
) -> dict[str, Contraction]:
    """The bare contractions that only `op` reads, each element once, by value and in the letters of `target`."""
    found: dict[str, Contraction] = {}
    for load in op_loads(op):
        producer = by_value.get(load.name)
        if producer is None or readers[load.name] != 1 or not isinstance(producer, ContractOp) or not is_bare_contraction(producer):
            continue
        letters = axes_only(load)
        once = len({use.indices for use in op_loads(op) if use.name == load.name}) == 1
        if letters is None or set(letters) != set(target) or not once:
            continue
        renamed = _renamed_contraction(producer, letters, target)
        if renamed is not None:
            found[load.name] = renamed
    return found


def _renamed_contraction(op: ContractOp, letters: tuple[Letter, ...], target: tuple[Letter, ...]) -> Contraction | None:
    """The contraction of `op` in the letters it is read by; None where one of them is summed in it."""
    contraction = op.contractions[0]
    if set(contraction.letters) & set(target):
        return None
    mapping: dict[Letter, Expr] = {a: Axis(b) for a, b in zip(op.target, letters, strict=True)}
    return Contraction(rename_load(contraction.x, mapping), rename_load(contraction.y, mapping), contraction.letters)


def _sharing_operand(contractions: Mapping[str, Contraction], last: Contraction) -> tuple[Load, list[str]]:
    """The operand of `last` that most of `contractions` share with it (its first where both do equally), and the names of those."""
    alike = [(name, c) for name, c in contractions.items() if c.letters == last.letters]
    by_operand = [(x, [name for name, c in alike if x in (c.x, c.y)]) for x in (last.x, last.y)]
    return max(by_operand, key=lambda found: len(found[1]))


def _with_left(contraction: Contraction, x: Load) -> Contraction:
    """`contraction` with its operand `x` on the left."""
    if contraction.x == x:
        return contraction
    return Contraction(contraction.y, contraction.x, contraction.letters)


def match_overflow(op: FusedOp, by_value: Mapping[str, FusedOp]) -> OverflowOp | None:
    """`op` by the flags of the tiles of a value that another op makes, where it is no more than that."""
    if not isinstance(op, MapOp) or op.shape or len(op.parts) != 1:
        return None
    match op.parts[0].expr:
        case Call("max", (Load() | Num(0) as before, Reduce(Reduction.MAX, letters, found))):
            checked = next(iter(loads(found)), None)
            if checked is None or op.parts[0].expr != any_not_finite(checked.name, letters, before):
                return None
            if (isinstance(before, Load) and before.indices) or not isinstance(by_value.get(checked.name), MapOp | ContractOp | PairsOp):
                return None
            return OverflowOp(op.value, op.base, (), op.loop, checked, before if isinstance(before, Load) else None)
    return None


def with_element_types(program: Program, ops: list[FusedOp]) -> list[FusedOp]:
    """`ops`, each knowing the dtype that its definition has, and whether its tiles are checked."""
    dtype_by_value = {d.name: d.dtype for d in program.definitions}
    checked = {op.checked.name for op in ops if isinstance(op, OverflowOp)}
    out: list[FusedOp] = []
    for op in ops:
        dtype = dtype_by_value.get(op.value.partition("~")[0])
        if isinstance(op, MapOp | ContractOp | PairsOp) and (dtype is not None or op.value in checked):
            op = replace(op, dtype=dtype, checked=op.value in checked)
        out.append(op)
    return out
