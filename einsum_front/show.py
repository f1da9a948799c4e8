"""What `einpage show` prints: sizes, FLOPs, what was fused into what and what was not, the largest working set.

In: an OpGraph and the TaskGraph made of it. Out: text. Repeated layers are printed once, with how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import prod

from einpage.einsum_front.opgraph import FusedOp, OpGraph
from einpage.einsum_front.taskgraph import Kind, Op, TaskGraph


def summary(opgraph: OpGraph, graph: TaskGraph) -> dict[str, object]:
    """The figures of `show`, as they go into `--json`."""
    weights = [v for v in graph.values if v.kind is Kind.WEIGHT]
    return {
        "spec": graph.name,
        "dtype": graph.dtype.value,
        "sizes": dict(opgraph.program.sizes),
        "parameters": sum(prod(v.shape) for v in weights),
        "weight_bytes": sum(prod(v.shape) * v.dtype.nbytes for v in weights),
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
    lines = [
        f"{graph.name}  ({graph.dtype.value})  outputs: {', '.join(name for name, _ in graph.outputs)}",
        f"sizes       {sizes}",
        f"parameters  {s['parameters']:,}  = {s['weight_bytes']:,} bytes",
        f"work        {s['flops']:,} FLOPs in {s['ops']} operations (at most {s['most_ops_in_a_layer']} a layer), {s['tasks']} tasks",
        f"split       {' '.join(f'{k}={n}' for k, n in graph.split) or 'none'}",
        "",
        *_layers(opgraph, graph),
    ]
    lines += ["", *(f"not fused   {reason}" for reason in opgraph.unfused)] if opgraph.unfused else []
    return "\n".join(lines)


def _layers(opgraph: OpGraph, graph: TaskGraph) -> Iterator[str]:
    """Each run of equal layers once."""
    layers = [list(pairs) for _, pairs in groupby(zip(opgraph.ops, graph.ops, strict=True), key=lambda pair: pair[0].loop)]
    for _, same in groupby(layers, key=lambda layer: tuple(_signature(a, b) for a, b in layer)):
        alike = list(same)
        first = alike[0]
        loop = first[0][0].loop
        head = f"repeat {'.'.join(map(str, loop))}" if loop else "outside repeats"
        if len(alike) > 1:
            head += f" .. {'.'.join(map(str, alike[-1][0][0].loop))}  ({len(alike)} alike, {len(first)} operations each)"
        yield head
        for fused, op in first:
            shape = "x".join(map(str, fused.shape)) or "scalar"
            note = f"  with {op.note}" if op.note else ""
            yield f"  {op.kind:<9} {fused.base:<12} [{shape}]  {op.flops:,} FLOPs{note}"


def _signature(fused: FusedOp, op: Op) -> tuple[object, ...]:
    return (op.kind, fused.base, fused.shape, op.note)
