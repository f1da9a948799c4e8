"""Tied weights: a weight that a checkpoint does not hold is replaced by the one its `or:` names.

In: a program and the names of a checkpoint's tensors. Out: the program without the weights that are absent and have an
`or:`, their loads renamed. A weight that is absent and has none is left, for the loader to report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from einpage.einsum_front.algebra.expr import Expr, Load, loads, rebuild
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Program, Weight


def with_tied_weights(program: Program, present: Collection[str]) -> Program:
    """`program` for a checkpoint that holds exactly the tensors named in `present`."""
    names = frozenset(present)
    return _with_replaced(program, {w.name: w.fallback for w in program.weights if w.fallback is not None and not _is_present(w, names)})


def with_shared_weights(program: Program) -> Program:
    """`program` with one weight for those that read the same tensors in the same way: trained, they stay one."""
    first: dict[tuple[object, ...], str] = {}
    for w in program.weights:
        first.setdefault((w.sources, w.shape, w.fallback), w.name)
    same = {w.name: first[w.sources, w.shape, w.fallback] for w in program.weights}
    return _with_replaced(program, {name: other for name, other in same.items() if other != name})


def _with_replaced(program: Program, replacement_by_name: Mapping[str, str]) -> Program:
    """`program` with other weights in place of some."""
    if not replacement_by_name:
        return program
    return replace(
        program,
        weights=tuple(
            replace(w, fallback=replacement_by_name.get(w.fallback, w.fallback)) if w.fallback is not None else w
            for w in program.weights
            if w.name not in replacement_by_name
        ),
        definitions=tuple(_tied(d, replacement_by_name) for d in program.definitions),
        outputs=tuple(replace(o, value=replacement_by_name.get(o.value, o.value)) for o in program.outputs),
    )


def _is_present(weight: Weight, names: frozenset[str]) -> bool:
    return any(source.name in names for source in weight.sources)


def _tied(definition: Definition, replacement_by_name: Mapping[str, str]) -> Definition:
    if not any(load.name in replacement_by_name for statement in definition.parts for load in loads(statement.expr)):
        return definition

    def renamed(e: Expr) -> Expr:
        e = rebuild(e, renamed)
        return replace(e, name=replacement_by_name[e.name]) if isinstance(e, Load) and e.name in replacement_by_name else e

    return replace(definition, parts=tuple(Part(p.target, renamed(p.expr)) for p in definition.parts))
