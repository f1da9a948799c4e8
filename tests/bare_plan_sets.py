"""Plan sets of nothing but what the judge of sequences looks at: positions, states, weights and arenas, without a task or a node.

In: draws. Out: a BareSet, which that judge passes and whose numbers can each be moved by one. Its phases are those of drawn TextLengths;
a state has the rows that a program would give it. It never makes a set in which what reads prompts follows a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor, TensorId, Value, tile_name
from einpage.exec.planning import text_lengths
from einpage.exec.planning.text_lengths import TextLengths
from einpage.memplan.graph.memgraph import Edges, Extent, MemGraph, Offset, Phase, PlanSet, Residency, ResidencyId
from einpage.memplan.machine.places import DEVICE, HOST

NO_EDGES = Edges(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8))
Shape = tuple[int, ...]
WIDTH = 1000
"""Of a state that grows, along the axis that does not."""


@dataclass(frozen=True, slots=True)
class BareWeight:
    """One tile of a weight, and where it is."""

    name: str
    box: Box
    offset: int

    def nearby(self) -> Iterator[BareWeight]:
        """Each number of it moved by one."""
        yield from (replace(self, offset=self.offset + by) for by in (-1, 1))
        yield from (replace(self, box=box) for box in boxes_nearby(self.box))


@dataclass(frozen=True, slots=True)
class BareState:
    """What a pass has of a state."""

    name: str
    left: Shape
    read: Shape | None
    """None: it begins without."""
    begun: tuple[Box, ...] = ()
    """Tiles that are read and written anew."""
    standing: tuple[Box, ...] = ()
    """Tiles that are read, and stay as they are."""
    written: tuple[Box, ...] = ()
    is_copied: bool = True
    """Whether what is left is a value other than the one that is read."""

    def with_rows(self, left: int, read: int) -> BareState:
        """With so many rows, of a state that grows."""
        axis = 1 - self.left.index(WIDTH)
        shapes = [tuple(rows if i == axis else WIDTH for i in range(2)) for rows in (left, read)]
        return replace(self, left=shapes[0], read=shapes[1] if self.read else None)


@dataclass(frozen=True, slots=True)
class BarePhase:
    past: int
    extra: int
    tokens: int
    reads: bool
    loops: bool
    states: tuple[BareState, ...] = ()
    resident: tuple[BareWeight, ...] = ()
    on_host: tuple[BareWeight, ...] = ()
    budget_bytes: int = 4096

    @property
    def reach(self) -> int:
        """Positions of which it may write rows."""
        return self.past + self.extra + self.tokens


@dataclass(frozen=True, slots=True)
class BareSet:
    phases: tuple[BarePhase, ...]
    shortest: int
    longest: int
    positions: int
    spread: int

    @property
    def plan_set(self) -> PlanSet:
        """As the judge has it."""
        phases = tuple(map(_phase, self.phases))
        return PlanSet(phases, self.shortest, self.longest, self.positions, self.spread)

    @property
    def reads(self) -> list[BarePhase]:
        return [phase for phase in self.phases if phase.reads]

    @property
    def loops(self) -> list[BarePhase]:
        return [phase for phase in self.phases if not phase.reads]

    def with_phase(self, n: int, phase: BarePhase) -> BareSet:
        """Another n-th phase."""
        return replace(self, phases=(*self.phases[:n], phase, *self.phases[n + 1 :]))

    def with_state(self, n: int, state: BareState) -> BareSet:
        """Another state of that name in the n-th phase."""
        states = tuple(state if old.name == state.name else old for old in self.phases[n].states)
        return self.with_phase(n, replace(self.phases[n], states=states))

    def positions_nearby(self) -> list[BareSet]:
        """Each number of positions moved by one; one phase left out, or begun where the one before is; one more for the last positions.
        States stay as they are."""
        found = [replace(self, phases=self.phases[:n] + self.phases[n + 1 :]) for n in range(len(self.phases)) if len(self.phases) > 1]
        for n, (before, phase) in enumerate(pairwise(self.phases), 1):
            longer = replace(phase, past=before.past, extra=phase.extra + phase.past - before.past)
            if before.reads == phase.reads:
                found.append(self.with_phase(n, longer))
        for last in self.loops[-1:]:
            for past in (self.positions - self.spread - 1, self.positions - self.spread):
                found.append(replace(self, phases=(*self.phases, replace(last, past=past, extra=self.positions - 1 - past))))
        for by in (-1, 1):
            for n, phase in enumerate(self.phases):
                found += [
                    self.with_phase(n, replace(phase, past=phase.past + by)),
                    self.with_phase(n, replace(phase, extra=phase.extra + by)),
                    self.with_phase(n, replace(phase, tokens=phase.tokens + by)),
                ]
            found += [
                replace(self, shortest=self.shortest + by),
                replace(self, longest=self.longest + by),
                replace(self, positions=self.positions + by),
                replace(self, spread=self.spread + by),
            ]
        return [plans for plans in found if plans.spread >= 0 and all(min(p.past, p.extra, p.tokens - 1) >= 0 for p in plans.phases)]


def boxes_nearby(box: Box) -> Iterator[Box]:
    """Each end of it moved by one."""
    for axis in range(len(box.start)):
        for by in (-1, 1):
            yield Box(moved(box.start, axis, by), box.end)
            yield Box(box.start, moved(box.end, axis, by))


def moved(numbers: Sequence[int], axis: int, by: int) -> Shape:
    """One of them, by so much."""
    return tuple(number + by * (i == axis) for i, number in enumerate(numbers))


@lru_cache(maxsize=1000)
def _phase(bare: BarePhase) -> Phase:
    """As the judge has it."""
    values: list[Value] = []
    tensors: list[Tensor] = []
    outputs: list[tuple[str, str]] = []
    for state in bare.states:
        left = f"{state.name}.out" if state.is_copied else state.name
        outputs.append((state.name, left))
        if state.is_copied:
            values.append(_value(left, state.left, Kind.OUTPUT))
        if state.read is not None:
            values.append(_value(state.name, state.read, Kind.INPUT))
        for value, kind, boxes in (
            (state.name, Kind.INPUT, state.begun),
            (state.name, Kind.CONSTANT, state.standing),
            (left, Kind.OUTPUT, state.written),
        ):
            tensors += [_tensor(len(tensors) + n, value, box, kind) for n, box in enumerate(boxes)]
    residencies: list[Residency] = []
    for place, weights in ((HOST, bare.on_host), (DEVICE, bare.resident)):
        for weight in weights:
            tensor = replace(_tensor(len(tensors), weight.name, weight.box, Kind.WEIGHT), name=weight.name)
            tensors.append(tensor)
            extent = Extent(Offset(weight.offset), Nbytes(256))
            residencies.append(Residency(ResidencyId(len(residencies)), tensor.id, place, (extent,)))
    graph = TaskGraph("bare", DType.FP32, (), tuple(values), tuple(tensors), (), (), tuple(outputs))
    arenas = (DEVICE, Nbytes(bare.budget_bytes)), (HOST, Nbytes(4096))
    there = tuple(r.id for r in residencies)
    memgraph = MemGraph(graph, arenas, tuple(residencies), (), NO_EDGES, there, there, loops=bare.loops)
    return Phase(bare.past, bare.extra, bare.tokens, bare.reads, memgraph)


def _value(name: str, shape: Shape, kind: Kind) -> Value:
    return Value(name, name, shape, DType.FP32, kind)


def _tensor(n: int, value: str, box: Box, kind: Kind) -> Tensor:
    return Tensor(TensorId(n), tile_name(value, box), value, box, DType.FP32, kind)


@st.composite
def bare_sets(draw: st.DrawFn) -> BareSet:
    """One state that grows, one written whole, and one that no pass writes; weights that leave from loop to loop."""
    shortest, apart, max_new = draw(st.integers(1, 8)), draw(st.integers(0, 5)), draw(st.integers(1, 20))
    texts = TextLengths(draw(st.integers(1, 2)), shortest + apart, shortest, max_new)
    if not texts.spread and draw(st.booleans()):
        texts = replace(texts, chunk=draw(st.integers(1, 9)), max_new=max(2, max_new))
    if texts.batch == 1:
        texts = replace(texts, lookup=draw(st.integers(0, 2)))
    with (
        patch.object(text_lengths, "LEAST_POSITIONS", draw(st.integers(1, 6))),
        patch.object(text_lengths, "READ_POSITIONS", draw(st.integers(1, 6))),
    ):
        buckets = (*texts.reads(), *texts.buckets())
    on_host = draw(weights())
    resident = [*draw(weights())]
    axis = draw(st.integers(0, 1))
    phases = []
    for bucket in buckets:
        is_whole = bucket.is_read and not texts.chunk
        rows = bucket.past + bucket.extra + bucket.tokens
        states = grown(rows, axis, None if is_whole else bucket.past), whole_state(is_whole), STANDING
        loops = not bucket.is_read or draw(st.booleans())
        phase = BarePhase(bucket.past, bucket.extra, bucket.tokens, bucket.is_read, loops, states, on_host=on_host)
        if loops:
            phase = replace(phase, resident=tuple(resident))
            resident = resident[: draw(st.integers(0, len(resident)))]
        phases.append(phase)
    return BareSet(tuple(phases), texts.shortest, texts.longest, texts.positions, texts.spread)


@st.composite
def weights(draw: st.DrawFn) -> tuple[BareWeight, ...]:
    """Of other names, anywhere."""
    starts = draw(st.lists(st.integers(0, 3), max_size=3))
    return tuple(BareWeight(f"w{n}", Box((start, 2), (start + 2, 5)), 256 * n) for n, start in enumerate(starts))


def grown(rows: int, axis: int, past: int | None) -> BareState:
    """A state of so many rows: those of `past` stand where there are any, and the others are written anew. None: it begins without."""

    def box(start: int, end: int) -> Box:
        return Box(((start, 0), (0, start))[axis], ((end, WIDTH), (WIDTH, end))[axis])

    shape = box(0, rows).end
    if past is None:
        return BareState("grown", shape, None, written=(box(0, rows),))
    anew = (box(past, rows),)
    return BareState("grown", shape, shape, anew, (box(0, past),) if past else (), anew)


def whole_state(is_first: bool) -> BareState:
    """Two tiles, written anew in each pass."""
    boxes = Box((0,), (2,)), Box((2,), (4,))
    return BareState("whole", (4,), None if is_first else (4,), () if is_first else boxes, (), boxes)


STANDING = BareState("standing", (5,), (5,), standing=(Box((0,), (5,)),), is_copied=False)
"""What a pass leaves of it is what it has read."""
