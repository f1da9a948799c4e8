"""A plan in a file: to be saved, verified, diffed and run again, perhaps on another machine.

In: a MemGraph and the recipe it was made by (the caller's own words: spec, settings, dtype …). Out: JSON, one section a line, and back.
The file holds everything but the tasks' jobs, which follow from the recipe: a graph read back has `job=None`. Writing is atomic. Reading
checks types and references and refuses what is not a plan; whether the plan is *right* is decided by the judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType, element_type
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import read_bytes, write_atomically
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed
from einpage.einsum_front.base.units import Nbytes, shown
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value, Written
from einpage.memplan.graph.memgraph import (
    Compute,
    Edges,
    Extent,
    Free,
    HostGather,
    MemGraph,
    Move,
    Node,
    Offset,
    Phase,
    PlanSet,
    Residency,
    ResidencyId,
)  # fmt: skip
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.machine.places import DEVICE, HOST, Place, PlaceKind

FORMAT, SET_FORMAT = "einpage-plan", "einpage-plan-set"
VERSION = 5
MOST_BYTES = 256 << 20
"""Of a file."""
_MOST_PARSED = 2 << 30
"""Bytes of memory, as counted before it is parsed: 400,000 nodes of 5,000 bytes, which take half of that."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What a plan file holds."""

    memgraph: MemGraph
    recipe: Mapping[str, Any]
    """As given to save_plan."""


@dataclass(frozen=True, slots=True)
class SavedPlanSet:
    """What the file of a plan set holds."""

    plans: PlanSet
    recipe: Mapping[str, Any]
    """As given to save_plan_set."""


def save_plan(path: str | Path, memgraph: MemGraph, recipe: Mapping[str, Any]) -> None:
    """Write a plan to `path`, all of it or nothing. `recipe` must be JSON. Raises UsageError where the file cannot be written."""
    _write(path, {"format": FORMAT, "version": VERSION, "recipe": recipe, **_plan_out(memgraph)})


def save_plan_set(path: str | Path, plans: PlanSet, recipe: Mapping[str, Any]) -> None:
    """Write a plan set to `path`, as save_plan does a plan."""
    phases = {
        f"phase {n}": {"past": phase.past, "extra": phase.extra, "tokens": phase.tokens, "reads": phase.reads, **_plan_out(phase.memgraph)}
        for n, phase in enumerate(plans.phases)
    }
    head = {"format": SET_FORMAT, "version": VERSION, "recipe": recipe}
    lengths = {"shortest": plans.shortest, "longest": plans.longest, "positions": plans.positions, "spread": plans.spread}
    _write(path, {**head, **lengths, "phases": len(plans.phases), **phases})


def _write(path: str | Path, sections: Mapping[str, object]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(section, separators=(',', ':'))}" for name, section in sections.items())
    write_atomically(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def _plan_out(memgraph: MemGraph) -> dict[str, object]:
    graph = memgraph.graph
    others = [[place.kind.value, place.index, nbytes] for place, nbytes in memgraph.arenas if place not in (DEVICE, HOST)]
    return {
        "graph": {"name": graph.name, "dtype": graph.dtype.value, "split": graph.split, "outputs": graph.outputs},
        "values": [_value_out(v) for v in graph.values],
        "ops": [[op.name, op.kind, op.flops, op.bytes_touched, op.description, op.seconds] for op in graph.ops],
        "tensors": [[t.name, t.value, t.box.start, t.box.end, t.element_type.value, t.kind.value] for t in graph.tensors],
        "tasks": [
            [
                *(t.name, t.op, t.operands, t.result, t.inplace, t.flops, t.bytes_touched, t.workspace_bytes, t.gathers, t.seconds),
                *([one.tensor, one.inplace] for one in t.others),
            ]
            for t in graph.tasks
        ],
        "arenas": {
            "budget_bytes": memgraph.budget_bytes,
            "host_bytes": memgraph.host_bytes,
            **({"others": others} if others else {}),
            "alignment": memgraph.alignment,
        },
        "loops": memgraph.loops,
        "residencies": [
            [r.tensor, r.place.kind.value, r.place.index, [[e.offset, e.nbytes] for e in r.extents]] for r in memgraph.residencies
        ],
        "nodes": [_node_out(node) for node in memgraph.nodes],
        "edge_sources": memgraph.edges.source.tolist(),
        "edge_targets": memgraph.edges.target.tolist(),
        "edge_kinds": memgraph.edges.kind.tolist(),
        "start": memgraph.start,
        "end": memgraph.end,
    }


def load_plan(path: str | Path) -> SavedPlan:
    """Read a plan that save_plan wrote. Raises UsageError, naming the file and the section, for anything else."""
    found = load_saved(path)
    if isinstance(found, SavedPlanSet):
        raise UsageError(f"{path}: a plan set, of {len(found.plans.phases)} plans, where one plan is wanted")
    return found


def load_plan_set(path: str | Path) -> SavedPlanSet:
    """Read a plan set that save_plan_set wrote. Raises UsageError, naming the file and the section, for anything else."""
    found = load_saved(path)
    if isinstance(found, SavedPlan):
        raise UsageError(f"{path}: one plan, where a plan set is wanted; `einpage plan SPEC --generate N --out FILE` writes one")
    return found


def load_saved(path: str | Path) -> SavedPlan | SavedPlanSet:
    """Read what save_plan or save_plan_set wrote. Raises UsageError, naming the file and the section, for anything else."""
    raw, where = _read(Path(path)), str(path)
    found = _memgraph_in(raw, where) if raw["format"] == FORMAT else _plan_set_in(raw, where)
    recipe = raw.get("recipe")
    if not isinstance(recipe, dict):
        raise UsageError(f"{where}: damaged plan file: recipe is missing or no mapping")
    return SavedPlan(found, recipe) if isinstance(found, MemGraph) else SavedPlanSet(found, recipe)


def _plan_set_in(raw: Mapping[str, Any], where: str) -> PlanSet:
    with _section(where, "phases"):
        parts = [raw[f"phase {n}"] for n in range(count_of(raw["phases"]))]
        phases = tuple(
            Phase(
                count_of(part["past"]), count_of(part["extra"]), _positive(part["tokens"]), _bool(part["reads"]), _memgraph_in(part, where)
            )
            for part in parts
        )
        shortest, longest, positions = (_positive(raw[name]) for name in ("shortest", "longest", "positions"))
        return PlanSet(phases, shortest, longest, positions, count_of(raw["spread"]))


def _memgraph_in(raw: Mapping[str, Any], where: str) -> MemGraph:
    with _section(where, "graph"):
        graph = _graph_in(raw)
        graph.verify()
    with _section(where, "plan"):
        return _plan_in(raw, graph)


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = parsed(read_bytes(path, MOST_BYTES), _MOST_PARSED)
    except JsonTooLarge as error:
        raise UsageError(f"{path}: {error}, so no plan file") from error
    except JsonError as error:
        raise UsageError(f"{path}: truncated or not a plan file: {error}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read plan file {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(raw, dict) or raw.get("format") not in (FORMAT, SET_FORMAT):
        raise UsageError(f"{path}: not a plan file (`format` is not {FORMAT!r}); `einpage plan … --out FILE` writes one")
    if raw.get("version") != VERSION:
        raise UsageError(f"{path}: plan file of version {shown(raw.get('version'))}; this einpage reads version {VERSION}: plan again")
    return raw


@contextmanager
def _section(where: str, name: str) -> Iterator[None]:
    """An error inside means a damaged file, not a bug of ours."""
    try:
        yield
    except (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: damaged plan file ({name}): {type(error).__name__}: {str(error)[:MOST_TOLD]}") from error


@contextmanager
def of_recipe(where: str) -> Iterator[None]:
    """Around what reads a recipe: an error inside is raised as a UsageError, since the file is damaged."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        lacks = str(error)[:MOST_TOLD]
        raise UsageError(f"{where}: damaged plan file: its recipe has no {lacks}, which it takes to make its graph again") from error


def _value_out(v: Value) -> list[object]:
    sources = [[s.name, s.groups, *([s.plus] if s.plus else [])] for s in v.sources]
    return [v.name, v.base, v.shape, v.element_type.value, v.kind.value, sources, v.default]


def _node_out(node: Node) -> list[object]:
    match node:
        case Compute():
            workspace = None if node.workspace is None else [node.workspace.offset, node.workspace.nbytes]
            return ["compute", node.task, node.operands, node.creates, workspace, *node.others]
        case HostGather():
            return ["gather", node.task, node.operands, node.creates]
        case Move():
            return ["move", *(residency for copy in node.copies for residency in copy)]
        case Free():
            return ["free", node.residency]


MOST_NUMBER = 1.7e308
MOST_SECONDS = 1e12
"""Of a task: thirty thousand years."""
MOST_TOLD = 300
"""Characters of what is wrong with a section."""
MOST = 2**62
"""Of every whole number in a plan file, so that sums of two stay inside 64 bits."""


def _int(x: object) -> int:
    if type(x) is not int:
        raise TypeError(f"{shown(x)} is not a whole number")
    if abs(x) > MOST:
        raise ValueError(f"{shown(x)} is beyond 64 bits")
    return x


def _str(x: object) -> str:
    if type(x) is not str:
        raise TypeError(f"{shown(x)} is not a text")
    return x


def _bool(x: object) -> bool:
    if type(x) is not bool:
        raise TypeError(f"{shown(x)} is not true or false")
    return x


def _ints(x: Sequence[object]) -> tuple[int, ...]:
    if type(x) is not list:
        raise TypeError(f"{shown(x)} is not a list")
    return tuple(_int(n) for n in x)


def _positive(x: object) -> int:
    if _int(x) < 1:
        raise ValueError(f"{x} is not positive")
    return _int(x)


def count_of(x: object) -> int:
    """One of a recipe or of a plan. Raises TypeError or ValueError for what is none."""
    if _int(x) < 0:
        raise ValueError(f"{x} is negative")
    return _int(x)


def _seconds(x: object) -> float | None:
    if x is None:
        return None
    if isinstance(x, bool) or not isinstance(x, int | float) or not 0 <= x <= MOST_SECONDS:
        raise TypeError(f"{shown(x)} is not a number of seconds")
    return float(x)


def _finite(x: object) -> float:
    if isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) <= MOST_NUMBER:
        raise TypeError(f"{shown(x)} is not a finite number")
    return float(x)


def _id(x: object, count: int) -> int:
    if not 0 <= _int(x) < count:
        raise IndexError(f"{shown(x)} is not one of {count}")
    return _int(x)


def _graph_in(raw: Mapping[str, Any]) -> TaskGraph:
    head = raw["graph"]
    tensors = tuple(_tensor_in(i, row) for i, row in enumerate(raw["tensors"]))
    return TaskGraph(
        name=_str(head["name"]),
        dtype=DType(head["dtype"]),
        split=tuple((Letter(_str(letter)), _int(pieces)) for letter, pieces in head["split"]),
        values=tuple(_value_in(row) for row in raw["values"]),
        tensors=tensors,
        tasks=tuple(_task_in(i, row, len(tensors)) for i, row in enumerate(raw["tasks"])),
        ops=tuple(
            Op(OpId(i), _str(name), _str(kind), _int(flops), Nbytes(_int(nbytes)), _str(description), _seconds(seconds))
            for i, (name, kind, flops, nbytes, description, seconds) in enumerate(raw["ops"])
        ),
        outputs=tuple((_str(name), _str(value)) for name, value in head["outputs"]),
    )


def _value_in(row: Sequence[Any]) -> Value:
    name, base, shape, dtype, kind, sources, default = row
    if default is not None and type(default) not in (int, float):
        raise TypeError(f"default {shown(default)} is not a number")
    read = tuple(Source(_str(s), tuple(_ints(group) for group in groups), *map(_finite, plus)) for s, groups, *plus in sources)
    return Value(_str(name), _str(base), _ints(shape), element_type(_str(dtype), _ints(shape)), Kind(kind), read, default)


def _tensor_in(i: int, row: Sequence[Any]) -> Tensor:
    name, value, start, end, dtype, kind = row
    box = Box(_ints(start), _ints(end))
    found = Tensor(TensorId(i), _str(name), _str(value), box, element_type(_str(dtype), box.shape), Kind(kind))
    _int(found.nbytes)
    return found


def _task_in(i: int, row: Sequence[Any], tensors: int) -> Task:
    name, op, operands, result, inplace, flops, touched, workspace, gathers, seconds, *others = row
    read = tuple(_tensors_in(operand, tensors) for operand in operands)
    beside = tuple(Written(TensorId(_id(t, tensors)), _tensors_in(over, tensors)) for t, over in others)
    return Task(
        TaskId(i), _str(name), OpId(_int(op)), read, TensorId(_id(result, tensors)), _tensors_in(inplace, tensors), _int(flops),
        Nbytes(_int(touched)), Nbytes(_int(workspace)), None, _bool(gathers), _seconds(seconds), beside,
    )  # fmt: skip


def _tensors_in(row: Sequence[Any], tensors: int) -> tuple[TensorId, ...]:
    return tuple(TensorId(_id(t, tensors)) for t in row)


def _plan_in(raw: Mapping[str, Any], graph: TaskGraph) -> MemGraph:
    residencies = Residencies.of(tuple(_residency_in(i, row) for i, row in enumerate(raw["residencies"])))
    edges = Edges(
        np.array(_ints(raw["edge_sources"]), np.int32),
        np.array(_ints(raw["edge_targets"]), np.int32),
        np.array(_ints(raw["edge_kinds"]), np.uint8),
    )
    return MemGraph(
        graph=graph,
        arenas=(
            (DEVICE, Nbytes(_int(raw["arenas"]["budget_bytes"]))),
            (HOST, Nbytes(_int(raw["arenas"]["host_bytes"]))),
            *((Place(PlaceKind(kind), _int(index)), Nbytes(_int(nbytes))) for kind, index, nbytes in raw["arenas"].get("others", ())),
        ),
        residencies=residencies,
        nodes=Nodes.of(tuple(_node_in(row) for row in raw["nodes"])),
        edges=edges,
        start=tuple(ResidencyId(r) for r in _ints(raw["start"])),
        end=tuple(ResidencyId(r) for r in _ints(raw["end"])),
        alignment=_positive(raw["arenas"]["alignment"]),
        loops=_bool(raw["loops"]),
    )


def _residency_in(i: int, row: Sequence[Any]) -> Residency:
    tensor, kind, index, extents = row
    read = tuple(_extent_in(extent) for extent in extents)
    return Residency(ResidencyId(i), TensorId(_int(tensor)), Place(PlaceKind(kind), _int(index)), read)


def _extent_in(row: Sequence[Any]) -> Extent:
    offset, nbytes = row
    return Extent(Offset(_int(offset)), Nbytes(_int(nbytes)))


def _node_in(row: Sequence[Any]) -> Node:
    match row:
        case ["compute", task, operands, creates, workspace, *others]:
            extent = None if workspace is None else _extent_in(workspace)
            beside = tuple(ResidencyId(_int(r)) for r in others)
            return Compute(TaskId(_int(task)), _operands_in(operands), ResidencyId(_int(creates)), extent, beside)
        case ["gather", task, operands, creates]:
            return HostGather(TaskId(_int(task)), _operands_in(operands), ResidencyId(_int(creates)))
        case ["move", source, target, *others]:
            told = [ResidencyId(_int(r)) for r in (source, target, *others)]
            first, *rest = zip(told[::2], told[1::2], strict=True)
            return Move(*first, tuple(rest))
        case ["free", residency]:
            return Free(ResidencyId(_int(residency)))
        case _:
            raise ValueError(f"{shown(row)} is no node")


def _operands_in(operands: Sequence[Sequence[Any]]) -> tuple[tuple[ResidencyId, ...], ...]:
    return tuple(tuple(ResidencyId(_int(r)) for r in operand) for operand in operands)
