"""What others left in a file, judged, and nothing run: `einpage verify` of a saved plan, `einpage pack` of a CSV of buffers.

The judge proves that a plan does what its own graph asks for. Whether that is the graph of the model is another question: with `--spec`
or `--graph` it is made anew by the file's recipe (settings, dtype, split) and must be the same in every tensor and task. Buffers are packed
first: exit status 0 where they fit, 3 where no packing within the capacity was found: the report still names the lowest one, and no file
is written. Nothing here imports torch.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.base.files import refuse_overwriting, refuse_unwritable, write_atomically
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes
from einpage.einsum_front.graph.program import WeightsAs
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.command.options import files_read
from einpage.exec.planning.model import open_model
from einpage.exec.planning.plan_set import graph_of
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import difference, split_as_told
from einpage.exec.system.find_spec import spec_path
from einpage.exec.system.spinner import spinner
from einpage.memplan.errors import PackingDoesNotFit
from einpage.memplan.graph.memgraph import MemGraph, Phase
from einpage.memplan.graph.planfile import SavedPlan, SavedPlanSet, count_of, load_saved, of_recipe
from einpage.memplan.judge.plan_set import SetViolation, judge_set
from einpage.memplan.judge.reason import Violation
from einpage.memplan.judge.validate import judge
from einpage.memplan.packing.csv_file import packing_text, read_buffers
from einpage.memplan.packing.pack import Packed, pack

OTHER_GRAPH = "OTHER_GRAPH"
"""The reason where a plan is right for another graph."""


def verify_command(a: argparse.Namespace) -> int:
    """The `verify` command: 0 where the plan, or every plan of a set, is right, 2 where one is not. Raises UsageError, SpecError."""
    saved = load_saved(Path(a.plan))
    if a.weights and not a.spec:
        raise UsageError("--weights gives a spec its sizes: add --spec")
    facts = _facts_of_plan(a, saved) if isinstance(saved, SavedPlan) else _facts_of_set(a, saved)
    if a.json:
        print(json.dumps(facts))
    elif facts["verified"]:
        compared = facts["compared_with"]
        told = f"its graph is that of {compared}" if compared else "its graph as the file says it: --spec compares that"
        many = f"{facts['phases']} plans, each and all together; " if "phases" in facts else ""
        print(f"{a.plan}: verified: {many}{facts['tasks']} tasks, {facts['node_count']} nodes, {facts['edges']} edges; {told}")
    else:
        where = f" (nodes {facts['nodes']})" if facts["nodes"] else ""
        print(f"{a.plan}: rejected: {facts['reason']}: {facts['message']}{where}", file=sys.stderr)
    return 0 if facts["verified"] else 2


def _facts_of_plan(a: argparse.Namespace, saved: SavedPlan) -> dict[str, object]:
    violation = judge(saved.memgraph)
    wanted = wanted_graph(a, saved.recipe)
    other = None if wanted is None or violation is not None else difference(saved.memgraph.graph, wanted)
    return {**_facts(a, violation, other, [saved.memgraph]), "nodes": [] if violation is None else list(violation.nodes)}


def _facts_of_set(a: argparse.Namespace, saved: SavedPlanSet) -> dict[str, object]:
    if a.graph:
        raise UsageError(f"{a.plan} is a plan set, made of a spec, {saved.recipe.get('spec')}: compare it with that")
    violation, other = judge_set(saved.plans), None
    for n, phase in enumerate(saved.plans.phases if a.spec and violation is None else ()):
        wanted = _graph_of_phase(a, saved.recipe, phase)
        other = difference(phase.memgraph.graph, wanted)
        if other is not None:
            other = f"{other} (phase {n})"
            break
    memgraphs = [phase.memgraph for phase in saved.plans.phases]
    return {**_facts(a, violation, other, memgraphs), "phases": len(memgraphs)}


def _facts(
    a: argparse.Namespace, violation: Violation | SetViolation | None, other: str | None, memgraphs: Sequence[MemGraph]
) -> dict[str, object]:
    """`other` says how the graph differs from that of `--spec` or `--graph`."""
    return {
        "plan": a.plan,
        "verified": violation is None and other is None,
        "reason": violation.reason.name if violation is not None else OTHER_GRAPH if other is not None else None,
        "nodes": [],
        "message": violation.message if violation is not None else other or "",
        "compared_with": a.spec or a.graph,
        "tasks": sum(len(m.graph.tasks) for m in memgraphs),
        "node_count": sum(len(m.nodes) for m in memgraphs),
        "edges": sum(len(m.edges) for m in memgraphs),
    }


def _graph_of_phase(a: argparse.Namespace, recipe: Mapping[str, Any], phase: Phase) -> TaskGraph:
    """The graph of `a.spec` at the sizes of a phase. Raises UsageError, SpecError."""
    with of_recipe(a.plan):
        request = PlanRequest(
            0, dtype=DType(recipe["dtype"]), weights_as=_weights_as(a, recipe), no_fuse=tuple(map(str, recipe["no_fuse"]))
        )
        sizes = {"batch": count_of(recipe["texts"]["batch"]), "seq": phase.tokens, "past": phase.past, "room": phase.extra}
        settings = {str(name): value for name, value in recipe["settings"].items()}
    with _blaming_another_spec(a, recipe):
        return graph_of(open_model(a.spec, {**settings, **sizes}, a.weights), phase, request)


def wanted_graph(a: argparse.Namespace, recipe: Mapping[str, Any]) -> TaskGraph | None:
    """The graph that `a.spec` or `a.graph` and the recipe make; None where neither is given. Raises UsageError, SpecError."""
    if a.spec and a.graph:
        raise UsageError(f"--spec {a.spec} and --graph {a.graph} exclude each other: give one of them")
    made_of = "graph" if "graph" in recipe else "spec"
    if (a.spec and made_of != "spec") or (a.graph and made_of != "graph"):
        raise UsageError(f"{a.plan} was made of a {'trace' if made_of == 'graph' else 'spec'}, {recipe.get(made_of)}: compare it with that")
    if a.graph:
        return read_trace(a.graph)
    if not a.spec:
        return None
    with of_recipe(a.plan):
        dtype, outputs, no_fuse = DType(recipe["dtype"]), list(recipe["outputs"]), tuple(recipe["no_fuse"])
        pieces = {Letter(str(letter)): count_of(n) for letter, n in recipe["split"].items()}
        settings, weights_as = {str(name): value for name, value in recipe["settings"].items()}, _weights_as(a, recipe)
    with _blaming_another_spec(a, recipe):
        program = open_model(a.spec, settings, a.weights).program
        return split_as_told(program, dtype, pieces, outputs, no_fuse, weights_as).graph


def _weights_as(a: argparse.Namespace, recipe: Mapping[str, Any]) -> WeightsAs:
    """In which form a plan has its weights. Raises UsageError where only the checkpoint can say how they are stored, and none is given."""
    found = WeightsAs.of_recipe(recipe.get("weights_as", WeightsAs.RUN.value))
    if found is not WeightsAs.RUN and not a.weights:
        raise UsageError(f"{a.plan} keeps weights as their checkpoint stores them: give that too, as --weights PATH")
    return found


@contextmanager
def _blaming_another_spec(a: argparse.Namespace, recipe: Mapping[str, Any]) -> Iterator[None]:
    """An error inside is said of the file, where that was made of a spec of another name: nobody asked for its settings and outputs."""
    try:
        yield
    except (SpecError, UsageError) as error:
        if spec_path(a.spec).name == recipe.get("spec"):
            raise
        told = f"{a.plan} was made of {recipe.get('spec')}, and is no plan of {a.spec}"
        raise UsageError(f"{told}: {str(error).splitlines()[0]}; compare it with its own") from error


def pack_command(a: argparse.Namespace) -> int:
    """The `pack` command. Raises UsageError, and PackingDoesNotFit after the report is printed."""
    capacity = parse_bytes(a.capacity, "--capacity")
    if not (math.isfinite(a.seconds) and a.seconds > 0):
        raise UsageError(f"--seconds {a.seconds:g} is not a positive number of seconds")
    refuse_overwriting(files_read(a), a.out)
    refuse_unwritable(a.out)
    buffers = read_buffers(Path(a.file))
    with spinner(f"packing, for {a.seconds:g} s at most", quiet=a.json):
        packed = pack(buffers.rectangles, capacity, a.seconds, a.seed)
    print(json.dumps(packing_facts(buffers.names, packed)) if a.json else packing_rendered(packed))
    sys.stdout.flush()
    if not packed.fits:
        raise PackingDoesNotFit(packed.packing.height, capacity, packed.lower_bound, packed.proven_bound)
    if a.out:
        write_atomically(Path(a.out), packing_text(buffers.names, packed.packing))
    return 0


def packing_facts(names: Sequence[str], p: Packed) -> dict[str, object]:
    """A packing's figures as JSON; `ids` and `offsets` in the order of the buffers."""
    return {
        "buffers": len(p.packing.rectangles),
        "capacity": p.capacity,
        "fits": p.fits,
        "height": p.packing.height,
        "lower_bound": p.lower_bound,
        "proven_bound": p.proven_bound,
        "verified": True,
        "seconds": p.seconds,
        "ids": list(names),
        "offsets": list(p.packing.offsets),
    }


def packing_rendered(p: Packed) -> str:
    """A packing's figures for a person: sizes in bytes, time in seconds."""
    height, bound = p.packing.height, p.lower_bound
    ratio = f"{height / bound:.4f}" if bound else "1"
    proof = f"; proven {p.proven_bound:,}" if p.proven_bound > bound else ""
    return "\n".join(
        (
            f"buffers      {len(p.packing.rectangles)}; packed and judged in {format_seconds(p.seconds)}",
            f"capacity     {p.capacity:,} ({format_bytes(p.capacity)})",
            f"height       {height:,} ({format_bytes(height)}), {'fits' if p.fits else 'does not fit'}",
            f"lower bound  {bound:,} (the most that is alive at once){proof}; height ÷ bound {ratio}",
        )
    )
