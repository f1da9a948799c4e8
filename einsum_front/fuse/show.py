"""What `einpage show` prints: sizes, FLOPs, what was fused into what and what was not, the largest working set.

In: an OpGraph and the TaskGraph made of it. Out: text. Repeated layers are printed once, with how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from einpage.einsum_front.algebra.expr import Expr, Load, rebuild
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import one_line
from einpage.einsum_front.graph.describe import display_name, statements
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.opgraph import FusedOp, OpGraph, target_letters
from einpage.einsum_front.graph.program import Definition, Program, State
from einpage.einsum_front.graph.taskgraph import Kind, Op, TaskGraph


def summary(opgraph: OpGraph, graph: TaskGraph) -> dict[str, object]:
    """The figures of `show`, as they go into `--json`."""
    weights = [v for v in graph.values if v.kind is Kind.WEIGHT]
    return {
        "spec": graph.name,
        "dtype": graph.dtype.value,
        "sizes": dict(opgraph.program.sizes),
        **({"lists": {name: [*numbers] for name, numbers in opgraph.program.lists.items()}} if opgraph.program.lists else {}),
        **({"states": _states(opgraph.program, graph.dtype)} if opgraph.program.states else {}),
        "parameters": sum(prod(v.shape) for v in weights),
        "weight_bytes": sum(v.element_type.bytes_of(prod(v.shape)) for v in weights),
        "flops": sum(op.flops for op in graph.ops),
        "ops": len(graph.ops),
        "tasks": len(graph.tasks),
        "split": {str(letter): n for letter, n in graph.split},
        "outputs": [name for name, _ in graph.outputs],
        "most_ops_in_a_layer": max((len(list(ops)) for loop, ops in groupby(opgraph.ops, key=lambda op: op.loop) if loop), default=0),
        "unfused": list(opgraph.unfused),
    }


def render(opgraph: OpGraph, graph: TaskGraph) -> str:
    """The same for a person, ending with the ops of each kind of layer."""
    s = summary(opgraph, graph)
    sizes = "  ".join(f"{name}={n}" for name, n in opgraph.program.sizes.items())
    a_layer = f" (at most {s['most_ops_in_a_layer']} a layer)" if s["most_ops_in_a_layer"] else ""
    lines = [
        f"{one_line(graph.name)}  ({graph.dtype.value})  outputs: {', '.join(name for name, _ in graph.outputs)}",
        f"sizes       {sizes}",
        *(f"list        {name}={' '.join(f'{n:g}' for n in numbers)}" for name, numbers in opgraph.program.lists.items()),
        *(_state_line(fact) for fact in _states(opgraph.program, graph.dtype)),
        f"parameters  {s['parameters']:,}  = {s['weight_bytes']:,} bytes",
        f"work        {s['flops']:,} FLOPs in {_operations(len(graph.ops))}{a_layer}, {len(graph.tasks)} tasks",
        f"split       {' '.join(f'{k}={n}' for k, n in graph.split) or 'none: `plan` chooses one for a budget, --split fixes one'}",
        "",
        *_layers(opgraph, graph),
    ]
    lines += ["", *(f"not fused   {reason}" for reason in opgraph.unfused)] if opgraph.unfused else []
    return "\n".join(lines)


def statement_layers(definitions: Sequence[Definition]) -> Iterator[str]:
    """The statements of `definitions`, of iterations that are alike those of the first alone, with how many there are."""
    layers = [tuple(found) for _, found in groupby(definitions, key=lambda d: d.loop)]
    for _, same in groupby(layers, key=lambda layer: tuple(line for d in layer for line in statements(_by_bases(d)))):
        alike = list(same)
        first, last = alike[0][0].loop, alike[-1][0].loop
        others = f" .. {'.'.join(map(str, last))}  ({len(alike)} alike)" if len(alike) > 1 else ""
        if len(layers) > 1:
            yield f"repeat {'.'.join(map(str, first))}{others}" if first else "outside repeats"
        yield from (f"  {line}" for d in alike[0] for line in statements(d))


def _by_bases(definition: Definition) -> Definition:
    """`definition` with each value called as the spec calls it."""

    def base(name: str) -> str:
        return name.partition("@")[0].partition(".")[0]

    def renamed(e: Expr) -> Expr:
        found = rebuild(e, renamed)
        return replace(found, name=base(found.name)) if isinstance(found, Load) else found

    parts = tuple(Part(part.target, renamed(part.expr)) for part in definition.parts)
    return replace(definition, name=definition.base, parts=parts)


def _states(program: Program, dtype: DType) -> list[dict[str, object]]:
    """What a run leaves to the next: states that are alike but for their layer, once."""
    alike: dict[tuple[object, ...], list[State]] = {}
    for state in program.states:
        alike.setdefault((state.base, state.letters, state.shape, state.along), []).append(state)
    return [
        {
            "name": first.base,
            "axes": {str(letter): n for letter, n in zip(first.letters, first.shape, strict=True)},
            "along": None if first.along is None else str(first.letters[first.along]),
            "count": len(same),
            "bytes": len(same) * prod(first.shape) * dtype.nbytes,
        }
        for same in alike.values()
        for first in same[:1]
    ]


def _state_line(fact: dict[str, object]) -> str:
    axes = fact["axes"]
    assert isinstance(axes, dict)
    shape = " ".join(f"{letter}={n}" for letter, n in axes.items()) or "scalar"
    rows = "" if fact["along"] is None else f", rows along {fact['along']}"
    return f"state       {fact['name']}  {shape}{rows}; {fact['count']} in all, {fact['bytes']:,} bytes"


def _layers(opgraph: OpGraph, graph: TaskGraph) -> Iterator[str]:
    """Each run of equal layers once."""
    layers = [list(pairs) for _, pairs in groupby(zip(opgraph.ops, graph.ops, strict=True), key=lambda pair: pair[0].loop)]
    shapes = max((len(_shape(op)) for op in opgraph.ops), default=0)
    figures = max((len(f"{op.flops:,}") for op in graph.ops), default=0)
    for _, same in groupby(layers, key=lambda layer: tuple(_signature(a, b) for a, b in layer)):
        alike = list(same)
        first = alike[0]
        loop = first[0][0].loop
        head = f"repeat {'.'.join(map(str, loop))}" if loop else "outside repeats"
        if len(alike) > 1:
            head += f" .. {'.'.join(map(str, alike[-1][0][0].loop))}  ({len(alike)} alike, {_operations(len(first))} each)"
        if len(layers) > 1:
            yield head
        for fused, op in first:
            description = f"  {op.description}" if op.description else ""
            yield f"  {op.kind:<9} {display_name(fused.base):<12} {_shape(fused):<{shapes}}  {op.flops:>{figures},} FLOPs{description}"


def _shape(op: FusedOp) -> str:
    """The extents of an op's value, each behind its letter: `b=1 s=128 m=64`."""
    return " ".join(f"{letter}={n}" if letter else str(n) for letter, n in zip(target_letters(op), op.shape, strict=True)) or "scalar"


def _operations(n: int) -> str:
    return f"{n} operation" + "s" * (n != 1)


def _signature(fused: FusedOp, op: Op) -> tuple[object, ...]:
    return (op.kind, fused.base, fused.shape, op.description)
