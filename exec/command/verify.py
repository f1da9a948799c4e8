"""`einpage verify`: a saved plan is judged again; and, where the spec or trace is at hand, its graph is compared with what that says.

The judge proves that a plan does what its own graph asks for. Whether that is the graph of the model is another question: with `--spec`
or `--graph` it is made anew by the file's recipe (settings, dtype, split) and must be the same in every tensor and task.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.planning.model import open_model
from einpage.exec.planning.task_graph import split_as_told
from einpage.memplan.graph.planfile import load_plan
from einpage.memplan.judge.validate import judge

OTHER_GRAPH = "OTHER_GRAPH"
"""The reason where a plan is right for another graph."""


def verify_command(a: argparse.Namespace) -> int:
    """The `verify` command: 0 where the plan is right, 2 where it is not. Raises UsageError, SpecError."""
    saved = load_plan(Path(a.plan))
    violation = judge(saved.memgraph)
    wanted = wanted_graph(a, saved.recipe)
    other = None if wanted is None or violation is not None else difference(saved.memgraph.graph, wanted)
    facts = {
        "plan": a.plan,
        "verified": violation is None and other is None,
        "reason": violation.reason.name if violation is not None else OTHER_GRAPH if other is not None else None,
        "nodes": [] if violation is None else list(violation.nodes),
        "message": violation.message if violation is not None else other or "",
        "compared_with": a.spec or a.graph,
        "tasks": len(saved.memgraph.graph.tasks),
        "node_count": len(saved.memgraph.nodes),
        "edges": len(saved.memgraph.edges),
    }
    if a.json:
        print(json.dumps(facts))
    elif facts["verified"]:
        told = f"its graph is that of {a.spec or a.graph}" if wanted is not None else "its graph as the file says it: --spec compares that"
        print(f"{a.plan}: verified: {facts['tasks']} tasks, {facts['node_count']} nodes, {facts['edges']} edges; {told}")
    else:
        where = f" (nodes {facts['nodes']})" if violation is not None else ""
        print(f"{a.plan}: rejected: {facts['reason']}: {facts['message']}{where}", file=sys.stderr)
    return 0 if facts["verified"] else 2


def wanted_graph(a: argparse.Namespace, recipe: Mapping[str, Any]) -> TaskGraph | None:
    """The graph that `a.spec` or `a.graph` and the recipe make; None where neither is given. Raises UsageError, SpecError."""
    if a.spec and a.graph:
        raise UsageError(f"--spec {a.spec} and --graph {a.graph} exclude each other: give one of them")
    if a.weights and not a.spec:
        raise UsageError("--weights gives a spec its sizes: add --spec")
    made_of = "graph" if "graph" in recipe else "spec"
    if (a.spec and made_of != "spec") or (a.graph and made_of != "graph"):
        raise UsageError(f"{a.plan} was made of a {'trace' if made_of == 'graph' else 'spec'}, {recipe.get(made_of)}: compare it with that")
    if a.graph:
        return read_trace(a.graph)
    if not a.spec:
        return None
    try:
        dtype, outputs, no_fuse = DType(recipe["dtype"]), list(recipe["outputs"]), tuple(recipe["no_fuse"])
        pieces = {Letter(str(letter)): int(n) for letter, n in recipe["split"].items()}
        settings = {str(name): value for name, value in recipe["settings"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{a.plan}: damaged plan file: its recipe has no {error}, which it takes to make its graph again") from error
    return split_as_told(open_model(a.spec, settings, a.weights).program, dtype, pieces, outputs, no_fuse).graph


def difference(found: TaskGraph, wanted: TaskGraph) -> str | None:
    """The first thing in which `found` (of a file: it has no jobs) is another graph than `wanted`; None where they are the same."""
    for name in ("name", "dtype", "split", "outputs"):
        has, should = getattr(found, name), getattr(wanted, name)
        if has != should:
            return f"the graph's {name} is {has!r}, and should be {should!r}"
    plain = replace(wanted, tasks=tuple(replace(task, job=None) for task in wanted.tasks))
    for name in ("values", "ops", "tensors", "tasks"):
        has, should = getattr(found, name), getattr(plain, name)
        if len(has) != len(should):
            return f"the graph has {len(has)} {name}, and should have {len(should)}"
        for i, (one, other) in enumerate(zip(has, should, strict=True)):
            for field in fields(one):
                a, b = getattr(one, field.name), getattr(other, field.name)
                if a != b:
                    return f"{name} {i}: {one.name}: {field.name} is {a!r}, and should be {b!r}"
    return None
