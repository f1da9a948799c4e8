"""The judge of a plan set: each plan is right by itself, and what one leaves is what the next begins with.

In: a PlanSet. Out: None, or a SetViolation that says which phase and what. States are recognised by their name: an input that is an output
too. That a phase's outputs are on the host at its end, and a loop's residents where they were, the judge of plans has proved; here

    read ──► next ──► next ──►     weights at the same host offsets throughout; from token to token weights only ever leave the device
      states    states   states    whole, as long as before, and within a phase each tile that a pass writes is one that the next reads
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from einpage.einsum_front.base.units import shown
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor
from einpage.memplan.graph.memgraph import MemGraph, Phase, PlanSet
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, HOST, PlaceKind

Shape: TypeAlias = tuple[int, ...]
STATE = (Kind.INPUT, Kind.CONSTANT)
"""What a state is at the start of a pass."""
TilePlace: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Start and end of a tile's box, and its offset."""


class SetReason(Enum):
    """What can be wrong with a plan set, in the order in which the judge looks."""

    EMPTY = "there are no phases"
    WRONG_PLAN = "the judge rejects the plan of a phase"
    OTHER_ARENA = "two phases have device arenas, or host budgets, of different sizes"
    POSITION_MISSING = "some position is served by no phase"
    NO_LOOP = "a phase after those that read prompts reads one, or does not end as it began"
    WEIGHT_ELSEWHERE = "a weight is elsewhere on the host, or on the disk, than in the first phase"
    WEIGHT_LOADED = "a weight is resident where a phase begins, and was not so, at this offset, in the phase before"
    STATE_LOST = "a state that a phase begins with is not among what the phase before leaves, or is shorter there"
    STATE_STALE = "a tile of a state that a pass writes is none that the next pass reads"


@dataclass(frozen=True, slots=True)
class SetViolation:
    reason: SetReason
    phase: int
    """Which."""
    message: str
    """For a person: the reason, and what it is about."""


def judge_set(plans: PlanSet) -> SetViolation | None:
    """The first thing wrong with a plan set, or None: then its phases may run in turn, each as often as its positions want."""
    return next(_wrong_plans(plans), None) or judge_sequence(plans)


def judge_sequence(plans: PlanSet) -> SetViolation | None:
    """The same for plans that the judge has passed each by itself."""
    return next(_wrong_sequence(plans), None)


def _wrong_plans(plans: PlanSet) -> Iterator[SetViolation]:
    for n, phase in enumerate(plans.phases):
        wrong = judge(phase.memgraph)
        if wrong is not None:
            yield _at(SetReason.WRONG_PLAN, n, f"{wrong.reason.name}: {wrong.message}")


def _wrong_sequence(plans: PlanSet) -> Iterator[SetViolation]:
    phases = plans.phases
    if not phases:
        yield _at(SetReason.EMPTY, 0, "a set has one at least")
    reads = next((n for n, phase in enumerate(phases) if not phase.reads), len(phases))
    for n, phase in enumerate(phases):
        yield from _same_memory(phases[0], phase, n)
        if n >= reads and (phase.reads or not phase.memgraph.loops):
            yield _at(SetReason.NO_LOOP, n, f"{phase.extra + 1} passes")
    yield from _positions_read(plans, phases[:reads])
    yield from _positions(plans, reads)
    for n in range(reads + 1, len(phases)):
        yield from _weights_left_alone(phases[n - 1].memgraph, phases[n].memgraph, n)
    if phases:
        yield from _rows_there(phases)
    for n, phase in enumerate(phases):
        for before in phases:
            yield from _states_there(before, phase, n)
        if phase.extra or not phase.reads:
            yield from _carried(phase.memgraph, n)


def _same_memory(first: Phase, phase: Phase, n: int) -> Iterator[SetViolation]:
    had, has = first.memgraph, phase.memgraph
    if had.budget_bytes != has.budget_bytes:
        yield _at(SetReason.OTHER_ARENA, n, f"{has.budget_bytes} bytes after {had.budget_bytes}")
    there, here = _weights_stored(had), _weights_stored(has)
    if here.keys() == there.keys():  # other tiles are loaded anew
        for name in (name for name in here if here[name] != there[name]):
            yield _at(SetReason.WEIGHT_ELSEWHERE, n, f"{name} at {here[name][2]}, in the first phase at {there[name][2]}")
    if had.arena_bytes(HOST) != has.arena_bytes(HOST) and (had.has_disk or has.has_disk):
        yield _at(SetReason.OTHER_ARENA, n, f"a host of {has.host_bytes} bytes after {had.host_bytes}")


def _positions_read(plans: PlanSet, reads: Sequence[Phase]) -> Iterator[SetViolation]:
    """Proves: prompts are read at once, or in chunks that may begin wherever one before it ends, from 0 on."""
    if not 1 <= plans.shortest <= plans.longest <= plans.positions or not reads:
        yield _at(SetReason.POSITION_MISSING, 0, f"prompts of {plans.shortest} to {plans.longest}, in {plans.positions}")
    reached = 0
    for n, phase in enumerate(reads):
        if phase.past > reached or (n and phase.past <= reads[n - 1].past):
            yield _at(SetReason.POSITION_MISSING, n, f"before {phase.past}")
        reached = phase.past + phase.extra + 1


def _positions(plans: PlanSet, reads: int) -> Iterator[SetViolation]:
    """Proves: from the end of the shortest prompt on, wherever the shortest sequence is, one loop serves all sequences."""
    loops, last = plans.phases[reads:], plans.positions - 1
    if not loops and plans.longest < plans.positions:
        yield _at(SetReason.POSITION_MISSING, reads, f"after {plans.longest}")
    is_chunked = reads > 0 and plans.phases[0].tokens != plans.longest
    for n, phase in enumerate(loops, reads):
        following = plans.phases[n + 1].past if n + 1 < len(plans.phases) else last + 1 - plans.spread
        if (n == reads and phase.past > (0 if is_chunked else plans.shortest)) or following <= phase.past:
            yield _at(SetReason.POSITION_MISSING, n, f"before {phase.past}")
        if phase.past + phase.extra < min(following - 1 + plans.spread, last):
            yield _at(SetReason.POSITION_MISSING, n, f"after {phase.past + phase.extra}")


def _weights_left_alone(had: MemGraph, has: MemGraph, n: int) -> Iterator[SetViolation]:
    """Proves: what of the weights is resident for a token was so for the one before, at the same offset."""
    resident = _resident_weights(had)
    for name, place in _resident_weights(has).items():
        if resident.get(name) != place:
            yield _at(SetReason.WEIGHT_LOADED, n, f"{name} at {place[2]}")


def _rows_there(phases: Sequence[Phase]) -> Iterator[SetViolation]:
    """Proves: a state that grows from phase to phase has a row for each position that a phase says it serves."""
    shapes = [_left(phase.memgraph.graph) for phase in phases]
    for name in shapes[0]:
        found = [shape[name] for shape in shapes if name in shape]
        axes = [axis for axis, sizes in enumerate(zip(*found, strict=False)) if len(set(sizes)) > 1]
        for n, (phase, shape) in enumerate(zip(phases, found, strict=False)):
            reach = phase.past + phase.extra + phase.tokens
            if len(axes) == 1 and len(found) == len(phases) and shape[axes[0]] < reach:
                yield _at(SetReason.STATE_LOST, n, f"{name} of shape {shown(shape)}, and positions up to {reach}")


def _states_there(before: Phase, phase: Phase, n: int) -> Iterator[SetViolation]:
    """Proves: whatever `phase` begins with is there after `before`."""
    left = _left(before.memgraph.graph)
    for name, shape in _states_read(phase.memgraph.graph).items():
        if name not in left or not _covers(left[name], shape, before.past + before.extra + before.tokens):
            yield _at(SetReason.STATE_LOST, n, f"{name} of shape {shown(shape)} after {shown(left.get(name))}")


def _covers(left: Shape, shape: Shape, reach: int) -> bool:
    """Whether a state of the shape `left` has what one of `shape` holds after `reach` positions: they differ along one axis at most."""
    if len(left) != len(shape):
        return False
    differ = [(had, has) for had, has in zip(left, shape, strict=True) if had != has]
    return len(differ) <= 1 and all(had >= min(has, reach) for had, has in differ)


def _carried(memgraph: MemGraph, n: int) -> Iterator[SetViolation]:
    """Proves: of each state, a tile that some task writes has the place of one that was an input of the pass."""
    graph = memgraph.graph
    value_by_output = dict(graph.outputs)
    tiles = _tiles_by_value(graph)
    for name in _states_read(graph):
        first, last = tiles.get(name, []), tiles.get(value_by_output[name], [])
        read = {(t.box.start, t.box.end) for t in first if t.kind is Kind.INPUT}
        for t in last:
            if t.value != name and first and (t.box.start, t.box.end) not in read:
                yield _at(SetReason.STATE_STALE, n, t.name)


def _left(graph: TaskGraph) -> dict[str, Shape]:
    """By name, what a pass leaves on the host."""
    shape_by_value = {value.name: value.shape for value in graph.values}
    return {name: shape_by_value[value] for name, value in graph.outputs}


def _states_read(graph: TaskGraph) -> dict[str, Shape]:
    """By name, the states that a pass reads."""
    outputs = {name for name, _ in graph.outputs}
    return {value.name: value.shape for value in graph.values if value.kind in STATE and value.name in outputs}


def _tiles_by_value(graph: TaskGraph) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for tensor in graph.tensors:
        found.setdefault(tensor.value, []).append(tensor)
    return found


def _weights_stored(memgraph: MemGraph) -> dict[str, TilePlace]:
    """On the host, or where that is a tier, on the disk behind it."""
    return _weights(memgraph, PlaceKind.DISK if memgraph.has_disk else PlaceKind.HOST)


def _resident_weights(memgraph: MemGraph) -> dict[str, TilePlace]:
    return _weights(memgraph, DEVICE.kind)


def _weights(memgraph: MemGraph, kind: PlaceKind) -> dict[str, TilePlace]:
    tensors = memgraph.graph.tensors
    there = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place.kind is kind]
    found = [(tensors[r.tensor], int(r.extents[0].offset)) for r in there]
    return {t.name: (t.box.start, t.box.end, offset) for t, offset in found if t.kind is Kind.WEIGHT}


def _at(reason: SetReason, phase: int, what: str) -> SetViolation:
    return SetViolation(reason, phase, f"{reason.value}: {what} (phase {phase})")
