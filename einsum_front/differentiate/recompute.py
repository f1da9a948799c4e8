"""What a fused attention keeps to itself, computed again for its gradient, so that it stays one operation.

In: a Program with gradients, and how many of its definitions are the model's. Out: the same, where gradients read copies of the scores and
weights of attentions that the model alone would fuse: `again_a` instead of `a`. The copy stands before the first gradient that reads it,
and no value of the size of all pairs of positions lives from a layer's turn forward to its turn back.
"""

from __future__ import annotations

from dataclasses import replace

from einpage.einsum_front.algebra.expr import Expr, Load, loads, rebuild
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Program

ATTENTION_ALONE = FuseOptions(attention=True, maps=False, epilogues=False)


def kept_by_attention(program: Program) -> frozenset[str]:
    """The values of `program` that are computed inside attentions alone."""
    graph = fuse(program, [o.name for o in program.outputs], ATTENTION_ALONE)
    computed = {op.value for op in graph.ops}
    used = {load.name for d in program.definitions for part in d.parts for load in loads(part.expr)}
    return frozenset(d.name for d in program.definitions if d.name not in computed and d.name in used)


def with_copies(program: Program, model: Program) -> Program:
    """`program`, which adds definitions to those of `model`, with copies of what attentions of `model` keep to themselves."""
    kept = kept_by_attention(model)
    own = len(model.definitions)
    by_name = {d.name: d for d in model.definitions}
    copied: dict[str, str] = {}
    definitions = list(program.definitions[:own])

    def copy(name: str) -> str:
        """The name of the copy, which stands among `definitions`."""
        if name not in copied:
            original = by_name[name]
            parts = tuple(Part(p.target, renamed(p.expr)) for p in original.parts)
            copied[name] = f"again_{name}"
            definitions.append(replace(original, name=copied[name], base=f"again_{original.base}", parts=parts))
        return copied[name]

    def renamed(e: Expr) -> Expr:
        found = rebuild(e, renamed)
        return replace(found, name=copy(found.name)) if isinstance(found, Load) and found.name in kept else found

    for definition in program.definitions[own:]:
        made = tuple(Part(p.target, renamed(p.expr)) for p in definition.parts)
        definitions.append(replace(definition, parts=made))
    return replace(program, definitions=tuple(definitions))
