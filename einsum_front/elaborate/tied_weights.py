"""Tied weights: a weight that a checkpoint does not hold is read from the one that stands in for it.

In: a program and the names of a checkpoint's tensors. Out: the program without the weights that are absent and have an
`or:`, their loads renamed. A weight that is absent and has none stays, for the loader to report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from einpage.einsum_front.algebra.expr import Expr, Load, loads, rebuild
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Program, Weight


def tie(program: Program, present: Collection[str]) -> Program:
    """`program` for a checkpoint that holds exactly the tensors named in `present`."""
    names = frozenset(present)
    stand_in = {w.name: w.fallback for w in program.weights if w.fallback is not None and not _is_present(w, names)}
    if not stand_in:
        return program
    return replace(
        program,
        weights=tuple(w for w in program.weights if w.name not in stand_in),
        definitions=tuple(_tied(d, stand_in) for d in program.definitions),
        outputs=tuple(replace(o, value=stand_in.get(o.value, o.value)) for o in program.outputs),
    )


def _is_present(weight: Weight, names: frozenset[str]) -> bool:
    return any(source.name in names for source in weight.sources)


def _tied(definition: Definition, stand_in: Mapping[str, str]) -> Definition:
    if not any(load.name in stand_in for part in definition.parts for load in loads(part.expr)):
        return definition

    def renamed(e: Expr) -> Expr:
        e = rebuild(e, renamed)
        return replace(e, name=stand_in[e.name]) if isinstance(e, Load) and e.name in stand_in else e

    return replace(definition, parts=tuple(Part(p.target, renamed(p.expr)) for p in definition.parts))
