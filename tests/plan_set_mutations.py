"""Plan sets made wrong where one phase hands over to the next, whatever the spec they are of.

In: a PlanSet that the judge passes, and a seeded `Random`. Out: one that it must refuse, or None where the set has nothing to make wrong
in that way. MUTATIONS has each with the reasons that the judge may give; together they have every reason there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset, Phase, PlanSet, Residency
from einpage.memplan.judge.plan_set import SetReason
from einpage.memplan.machine.places import DEVICE, HOST, Place

Mutation = Callable[[PlanSet, Random], PlanSet | None]


def with_phase(plans: PlanSet, n: int, **fields: object) -> PlanSet:
    """With other fields of the n-th phase."""
    phases = [replace(phase, **fields) if i == n else phase for i, phase in enumerate(plans.phases)]
    return replace(plans, phases=tuple(phases))


def with_tensor(memgraph: MemGraph, tensor: Tensor) -> MemGraph:
    tensors = tuple(tensor if t.id == tensor.id else t for t in memgraph.graph.tensors)
    return replace(memgraph, graph=replace(memgraph.graph, tensors=tensors))


def at_start(memgraph: MemGraph, place: Place, kind: Kind) -> list[Residency]:
    """What of that kind is at `place` before the first node."""
    there = map(memgraph.residencies.__getitem__, memgraph.start)
    return [r for r in there if r.place == place and memgraph.graph.tensors[r.tensor].kind is kind]


def loops_of(plans: PlanSet) -> list[int]:
    return [n for n, phase in enumerate(plans.phases) if not phase.reads]


def states_read(graph: TaskGraph) -> set[str]:
    outputs = {name for name, _ in graph.outputs}
    return {value.name for value in graph.values if value.kind in (Kind.INPUT, Kind.CONSTANT) and value.name in outputs}


def moved(memgraph: MemGraph, residency: Residency, offset: int) -> MemGraph:
    """One residency at another offset."""
    there = replace(residency, extents=(Extent(Offset(offset), residency.extents[0].nbytes),))
    return replace(memgraph, residencies=tuple(there if r.id == residency.id else r for r in memgraph.residencies))


def one_of(random: Random, found: list[PlanSet]) -> PlanSet | None:
    return random.choice(found) if found else None


def no_phases(plans: PlanSet, random: Random) -> PlanSet | None:
    return replace(plans, phases=())


def other_budget(plans: PlanSet, random: Random) -> PlanSet | None:
    if len(plans.phases) == 1:
        return None
    n = random.randrange(len(plans.phases))
    memgraph = plans.phases[n].memgraph
    return with_phase(plans, n, memgraph=memgraph.with_arena(DEVICE, memgraph.budget_bytes + 256))


def loop_left_out(plans: PlanSet, random: Random) -> PlanSet | None:
    """But for a first one of a chunk as long as the prompts: the others serve prompts that are read at once, which it may be taken for."""
    loops = loops_of(plans)
    if plans.phases[0].tokens == plans.longest and len(loops) > 1 and plans.phases[loops[1]].past <= plans.shortest:
        loops = loops[1:]
    return one_of(random, [replace(plans, phases=plans.phases[:n] + plans.phases[n + 1 :]) for n in loops])


def first_read_left_out(plans: PlanSet, random: Random) -> PlanSet | None:
    return replace(plans, phases=plans.phases[1:]) if len(plans.phases) > 1 else None


def middle_read_left_out(plans: PlanSet, random: Random) -> PlanSet | None:
    reads = len(plans.phases) - len(loops_of(plans))
    return None if reads < 3 else replace(plans, phases=plans.phases[:1] + plans.phases[2:])


def loop_ends_early(plans: PlanSet, random: Random) -> PlanSet | None:
    return one_of(random, [with_phase(plans, n, extra=plans.phases[n].extra - 1) for n in loops_of(plans)])


def loop_begins_late(plans: PlanSet, random: Random) -> PlanSet | None:
    return one_of(random, [with_phase(plans, n, past=plans.phases[n].past + 1) for n in loops_of(plans)[1:]])


def prompt_begins_late(plans: PlanSet, random: Random) -> PlanSet | None:
    return with_phase(plans, 0, past=1)


def longer_text(plans: PlanSet, random: Random) -> PlanSet | None:
    return replace(plans, positions=plans.positions + 1)


def wider_spread(plans: PlanSet, random: Random) -> PlanSet | None:
    return replace(plans, spread=plans.spread + 1) if len(loops_of(plans)) > 1 else None


def no_loop(plans: PlanSet, random: Random) -> PlanSet | None:
    found = [(n, plans.phases[n].memgraph) for n in loops_of(plans)[1:]]
    return one_of(random, [with_phase(plans, n, memgraph=replace(memgraph, loops=False)) for n, memgraph in found])


def host_weights_swapped(plans: PlanSet, random: Random) -> PlanSet | None:
    """Two of one size, in a phase whose weights are in the pieces of the first."""
    names = [{p.memgraph.graph.tensors[r.tensor].name for r in at_start(p.memgraph, HOST, Kind.WEIGHT)} for p in plans.phases]
    same = [n for n, phase in enumerate(plans.phases) if names[n] == names[0]]
    return one_of(random, [*_swapped(plans, same, HOST)]) if len(same) > 1 else None


def resident_weights_swapped(plans: PlanSet, random: Random) -> PlanSet | None:
    """Two of one size change places on the device, in a loop that comes after another."""
    return one_of(random, [*_swapped(plans, loops_of(plans)[1:], DEVICE)])


def _swapped(plans: PlanSet, phases: list[int], place: Place) -> Iterator[PlanSet]:
    for n in phases:
        memgraph = plans.phases[n].memgraph
        there = at_start(memgraph, place, Kind.WEIGHT)
        for one, other in [(a, b) for a in there for b in there if a.id < b.id and a.extents[0].nbytes == b.extents[0].nbytes][:3]:
            half = moved(memgraph, one, other.extents[0].offset)
            yield with_phase(plans, n, memgraph=moved(half, other, one.extents[0].offset))


def resident_moved(plans: PlanSet, random: Random) -> PlanSet | None:
    """A weight on the device stands elsewhere in a loop than in the one before."""
    found = [(n, r) for n in loops_of(plans)[1:] for r in at_start(plans.phases[n].memgraph, DEVICE, Kind.WEIGHT)]
    if not found:
        return None
    n, residency = random.choice(found)
    step = random.choice((-256, 256))
    return with_phase(plans, n, memgraph=moved(plans.phases[n].memgraph, residency, residency.extents[0].offset + step))


def resident_not_left(plans: PlanSet, random: Random) -> PlanSet | None:
    """A weight that a loop begins with is not what the one before ends with."""
    loops = loops_of(plans)
    found = [(n, r) for n in loops[1:] for r in at_start(plans.phases[n].memgraph, DEVICE, Kind.WEIGHT)]
    if not found:
        return None
    n, residency = random.choice(found)
    name = plans.phases[n].memgraph.graph.tensors[residency.tensor].name
    before = plans.phases[n - 1].memgraph
    gone = {r.id for r in before.residencies if r.place == DEVICE and before.graph.tensors[r.tensor].name == name}
    start, end = ([r for r in ids if r not in gone] for ids in (before.start, before.end))
    return with_phase(plans, n - 1, memgraph=replace(before, start=tuple(start), end=tuple(end)))


def state_not_left(plans: PlanSet, random: Random) -> PlanSet | None:
    """A state that another phase begins with is no output."""
    found = []
    for n, phase in enumerate(plans.phases):
        graph = phase.memgraph.graph
        others = {name for m, other in enumerate(plans.phases) if m != n for name in states_read(other.memgraph.graph)}
        for i, (name, _) in enumerate(graph.outputs):
            if name in others:
                outputs = graph.outputs[:i] + graph.outputs[i + 1 :]
                found.append(with_phase(plans, n, memgraph=replace(phase.memgraph, graph=replace(graph, outputs=outputs))))
    return one_of(random, found)


def state_too_short(plans: PlanSet, random: Random) -> PlanSet | None:
    """A row less than a phase says it serves is left of a state that grows from phase to phase, and still does."""
    found = []
    shapes = [_shapes_left(phase) for phase in plans.phases]
    for name in shapes[0]:
        n = random.randrange(len(shapes))
        axes = [axis for axis, sizes in enumerate(zip(*(shape[name] for shape in shapes), strict=True)) if len(set(sizes)) > 1]
        if not axes or len({shape[name][axes[0]] - (k == n) for k, shape in enumerate(shapes)}) == 1:
            continue
        memgraph = plans.phases[n].memgraph
        value = dict(memgraph.graph.outputs)[name]
        shape = tuple(size - (axis == axes[0]) for axis, size in enumerate(shapes[n][name]))
        values = tuple(replace(v, shape=shape) if v.name == value else v for v in memgraph.graph.values)
        found.append(with_phase(plans, n, memgraph=replace(memgraph, graph=replace(memgraph.graph, values=values))))
    return one_of(random, found)


def _shapes_left(phase: Phase) -> dict[str, tuple[int, ...]]:
    graph = phase.memgraph.graph
    shape_by_value = {value.name: value.shape for value in graph.values}
    outputs = {name: shape_by_value[value] for name, value in graph.outputs}
    return {name: shape for name, shape in outputs.items() if name not in ("logits", "all_logits")}


def _tiles_carried(plans: PlanSet) -> Iterator[tuple[int, Tensor]]:
    """(phase, tile) of states as loops begin, where a pass writes a tile of the same box."""
    for n in loops_of(plans):
        graph = plans.phases[n].memgraph.graph
        value_by_output = dict(graph.outputs)
        for name in sorted(states_read(graph)):
            written = {(t.box.start, t.box.end) for t in graph.tensors if t.value == value_by_output[name] != name}
            first = [t for t in graph.tensors if t.value == name and t.kind is Kind.INPUT]
            yield from ((n, t) for t in first if (t.box.start, t.box.end) in written)


def state_of_another_box(plans: PlanSet, random: Random) -> PlanSet | None:
    """What a pass begins with is a tile one place further on than the one that it leaves."""
    found = [*_tiles_carried(plans)]
    if not found:
        return None
    n, tile = random.choice(found)
    axis = random.randrange(len(tile.box.start))
    start, end = (tuple(x + (i == axis) for i, x in enumerate(ends)) for ends in (tile.box.start, tile.box.end))
    return with_phase(plans, n, memgraph=with_tensor(plans.phases[n].memgraph, replace(tile, box=Box(start, end))))


def state_as_constant(plans: PlanSet, random: Random) -> PlanSet | None:
    """What every pass writes anew, as if it were the same in all of them."""
    found = [*_tiles_carried(plans)]
    if not found:
        return None
    n, tile = random.choice(found)
    return with_phase(plans, n, memgraph=with_tensor(plans.phases[n].memgraph, replace(tile, kind=Kind.CONSTANT)))


def residents_overlap(plans: PlanSet, random: Random) -> PlanSet | None:
    for n in random.sample(loops_of(plans), len(loops_of(plans))):
        memgraph = plans.phases[n].memgraph
        there = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == DEVICE]
        if len(there) > 1:
            one, other = random.sample(there, 2)
            return with_phase(plans, n, memgraph=moved(memgraph, one, other.extents[0].offset))
    return None


R = SetReason
MUTATIONS: dict[Mutation, frozenset[SetReason]] = {
    no_phases: frozenset({R.EMPTY}),
    residents_overlap: frozenset({R.WRONG_PLAN}),
    other_budget: frozenset({R.OTHER_ARENA}),
    loop_left_out: frozenset({R.POSITION_MISSING}),
    first_read_left_out: frozenset({R.POSITION_MISSING}),
    middle_read_left_out: frozenset({R.POSITION_MISSING}),
    loop_ends_early: frozenset({R.POSITION_MISSING}),
    loop_begins_late: frozenset({R.POSITION_MISSING}),
    prompt_begins_late: frozenset({R.POSITION_MISSING}),
    longer_text: frozenset({R.POSITION_MISSING}),
    wider_spread: frozenset({R.POSITION_MISSING}),
    no_loop: frozenset({R.NO_LOOP}),
    host_weights_swapped: frozenset({R.WEIGHT_ELSEWHERE}),
    resident_weights_swapped: frozenset({R.WEIGHT_LOADED}),
    resident_moved: frozenset({R.WEIGHT_LOADED, R.WRONG_PLAN}),
    resident_not_left: frozenset({R.WEIGHT_LOADED, R.WRONG_PLAN}),
    state_not_left: frozenset({R.STATE_LOST, R.WRONG_PLAN}),
    state_too_short: frozenset({R.STATE_LOST, R.WRONG_PLAN}),
    state_of_another_box: frozenset({R.STATE_STALE, R.WRONG_PLAN}),
    state_as_constant: frozenset({R.STATE_STALE, R.WRONG_PLAN}),
}
"""What the judge of sets says of each, its plans judged first."""
