"""A whole generation planned before it begins: one plan for the prompts and one for each bucket of positions after them.

In: a model that can be opened at other sizes, a Machine, a PlanRequest, how long the texts are and may become. Out: a PlannedSet that the
judge of sets has passed. The last bucket is planned first. The pieces of its weights are those of all plans, which so have them at the
same host offsets; and its resident weights are resident in the bucket before, which may add others below them, and so on towards
the first: where a bucket ends, weights leave and none comes.

    positions   0 ....... prompt ][          |           |          ]       borders of buckets are the same for all prompts
    arena top        (prompts)    | w1 w3 w6 | w1 w3 w6  | w1 w3 w6 |
                                  | w5 w2 k0 | w5 k0     | k0 k1    |       k: rows that stand, of states
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import takewhile
from time import perf_counter
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.exec.planning.common_pieces import Fitting, PhaseOps, all_pieces, fitted, weight_letters, weight_pieces
from einpage.exec.planning.judged_plan import MachineSource, Planned, compacted, judged, machine_now, plan_program
from einpage.exec.planning.model import Model, ModelAt, asked, opened, whole_states
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import difference, fused, split_as_told
from einpage.exec.planning.text_lengths import Bucket, TextLengths
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Phase, PlanSet
from einpage.memplan.judge.plan_set import SetViolation, judge_sequence, judge_set
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import DEVICE, HOST, Place, Queue
from einpage.memplan.residency.loading import loading
from einpage.memplan.residency.resident_sets import Others

LATER_FIRST_TOKEN = 1.1
"""Prompts are read beside the residents of the tokens after them where the first token comes, at worst, this much later for it."""

Planning = Callable[[int, int], None]
"""Told, before a plan is made, which it is and how many there are."""


class RejectedPlanSet(AssertionError):
    """The judge found a violation in a plan set: our bug, never the user's."""

    def __init__(self, violation: SetViolation) -> None:
        super().__init__(f"the judge rejects this plan set: {violation.reason.name}: {violation.message}")


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPhase:
    """A plan for passes at some positions."""

    model: Model
    planned: Planned
    bucket: Bucket
    output: str
    """The logits of the next token: after each sequence [b, v], or after each token [b, s, v]."""
    first: PlannedPhase | None = None
    """Of a loop that reads prompts: its first pass, before which nothing is on the device and after which all that it begins with is."""

    @property
    def seconds(self) -> float:
        """What a pass takes, by the plan."""
        return self.planned.report.predicted_s

    @property
    def phase(self) -> Phase:
        """The plan among them."""
        return Phase(self.bucket.past, self.bucket.extra, self.bucket.tokens, self.bucket.is_read, self.planned.memgraph)

    def beginning(self, missing_bytes: int) -> PlannedPhase:
        """The plan of a pass before which so much of what this begins with is not on the device: the faster of its first pass and of this
        after loading what is missing."""
        load_s = missing_bytes / self.planned.machine.usual_link(Queue.H2D).bytes_per_s
        return self if self.first is None or load_s + self.seconds <= self.first.seconds else self.first


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSet:
    """The plans for some texts; those of a file are made ready to run when they are first asked for."""

    texts: TextLengths
    plan_set: PlanSet
    """The plans, as the judge has passed them."""
    phase: Callable[[int], PlannedPhase]
    """By number: 0 is the prompts'."""

    @property
    def first(self) -> PlannedPhase:
        """The one with which prompts begin to be read."""
        return self.phase(0)

    @property
    def reads(self) -> tuple[PlannedPhase, ...]:
        """Those that read prompts, by position."""
        return tuple(map(self.phase, range(self._first_loop)))

    @property
    def buckets(self) -> tuple[PlannedPhase, ...]:
        """Those that take a token a pass, by position; none where one token is generated."""
        return tuple(map(self.phase, range(self._first_loop, len(self.plan_set.phases))))

    @property
    def _first_loop(self) -> int:
        phases = self.plan_set.phases
        return next((n for n, phase in enumerate(phases) if not phase.reads), len(phases))

    @property
    def machine(self) -> Machine:
        """What they are planned for."""
        return self.first.planned.machine

    @property
    def budget_bytes(self) -> int:
        """Of the arena on the device, which is the same in all."""
        return self.plan_set.phases[0].memgraph.budget_bytes

    @property
    def host_bytes(self) -> int:
        """Of the arena on the host that every phase fits."""
        return max(phase.memgraph.host_bytes for phase in self.plan_set.phases)

    def read_at(self, position: int) -> PlannedPhase | None:
        """The one for tokens from `position` on; None where a chunk has no positions any more."""
        phases = self.plan_set.phases
        n = max(n for n in range(self._first_loop) if phases[n].past <= position)
        return self.phase(n) if position <= phases[n].past + phases[n].extra else None

    def bucket_at(self, position: int) -> PlannedPhase:
        """The one for a pass in which the shortest sequence has `position` tokens before it."""
        phases = self.plan_set.phases
        return self.phase(max(n for n in range(self._first_loop, len(phases)) if phases[n].past <= position))


@garbage_collection_paused()
def plan_texts(
    model_at: ModelAt,
    machine: Machine | MachineSource,
    request: PlanRequest,
    texts: TextLengths,
    planning: Planning | None = None,
) -> PlannedSet:
    """Plan all of a generation: prompts in chunks where they do not fit the budget at once. The seconds or steps of the search, where there
    are any, are shared by the plans. A function for a machine is called when all is refused that needs none.
    Raises UsageError for a spec that does not generate, DoesNotFit, RejectedPlanSet, and the errors of open_model.
    """
    texts.refuse_none()

    @lru_cache(maxsize=2)
    def opened_at(bucket: Bucket) -> _Opened:
        model, output = opened(model_at, texts, bucket)
        return _Opened(model, output, request)

    fixed, limits = frozenset(request.pieces), dict[Letter, int]()
    while True:
        limited = request.in_pieces(limits)
        may_chunk = not whole_states(opened_at(texts.reads()[-1]).model)  # such a state would take in the padding of the last chunk
        phase_at = lru_cache(maxsize=2)(partial(_phase_ops, opened_at, limited))
        fitting = fitted(texts, phase_at, may_chunk)
        machine = machine_now(machine)
        try:
            phases = _Phases(opened_at, machine, limited, fixed, fitting, planning or (lambda n, count: None)).all()
        except _TooFine as error:  # all have weights in the same pieces, so none has more than that one can have
            limits |= error.most
        else:
            break
    texts = fitting.texts
    found = PlanSet(tuple(phase.phase for phase in phases), texts.shortest, texts.longest, texts.positions, texts.spread)
    violation = judge_sequence(found)
    if violation is not None:
        raise RejectedPlanSet(violation)
    return PlannedSet(texts, found, phases.__getitem__)


def replayed(plans: PlanSet, texts: TextLengths, model_at: ModelAt, machine: Machine, request: PlanRequest) -> PlannedSet:
    """A plan set that was saved. The graph of a phase is made anew of the spec, and has to be that of the file: of the first two now, of
    others when they are asked for.

    Raises UsageError where it is not, where the judge rejects the set, where `texts` or `request` are not its own, and for a spec that
    does not generate.
    """
    violation = judge_set(plans)
    if violation is not None:
        raise UsageError(f"this plan set is wrong: {violation.reason.name}: {violation.message}")
    texts.refuse_none()
    told = plans.shortest, plans.longest, plans.positions, plans.spread, plans.phases[0].memgraph.budget_bytes
    same = told == (texts.shortest, texts.longest, texts.positions, texts.spread, request.budget_bytes)
    served = tuple({phase.tokens for phase in plans.phases if phase.reads is reads} for reads in (True, False))
    if not same or served != ({texts.chunk or texts.longest}, {1 + texts.lookup} if texts.max_new > 1 else set()):
        raise UsageError("damaged plan file: its recipe speaks of other texts, or another budget, than its plans")

    @cache
    def phase(n: int) -> PlannedPhase:
        began, saved = perf_counter(), plans.phases[n]
        bucket = Bucket(saved.past, saved.extra, saved.tokens, saved.reads)
        model, output = opened(model_at, texts, bucket)
        try:
            graph = graph_of(model, saved, request)
            other = difference(saved.memgraph.graph, graph)
        except UsageError as error:
            other = str(error)
        if other is not None:
            raise UsageError(f"--plan: it is of another spec, or of other weights: {other} (phase {n}); make it with `plan --generate`")
        planned = compacted(judged(replace(saved.memgraph, graph=graph), machine, began))
        found = PlannedPhase(model, planned, bucket, output)
        return replace(found, first=_first_pass(found)) if bucket.is_read and saved.memgraph.loops else found

    for n in range(min(2, len(plans.phases))):
        phase(n)
    return PlannedSet(texts, plans, phase)


def graph_of(model: Model, phase: Phase, request: PlanRequest) -> TaskGraph:
    """That of `model` in the pieces of a phase."""
    graph = phase.memgraph.graph
    outputs = [name for name, _ in graph.outputs]
    return split_as_told(
        model.program.with_states_as_outputs(), request.dtype, dict(graph.split), outputs, request.no_fuse, request.weights_as
    ).graph


@dataclass(eq=False)
class _Opened:
    """A phase before it is planned, and while it is."""

    model: Model
    output: str
    request: PlanRequest
    graph: TaskGraph | None = None
    """That of the plan made last: another is often wanted of the same."""

    @cached_property
    def working_sets(self) -> WorkingSets:
        """Of its operations."""
        return fused(*asked(self.model, self.output, self.request))


OpenedAt: TypeAlias = Callable[[Bucket], _Opened]


class _Phases:
    """Plans them, the last bucket first."""

    def __init__(
        self, opened_at: OpenedAt, machine: Machine, request: PlanRequest, fixed: Collection[Letter], fitting: Fitting, planning: Planning
    ) -> None:
        """`fixed`: letters of which the user has said how many pieces there are."""
        texts = fitting.texts
        self._opened_at, self._machine, self._fitting, self._texts, self._planning = opened_at, machine, fitting, texts, planning
        self._buckets, self._fixed = texts.buckets(), fixed
        self._count = len(self._buckets) + len(texts.reads()) * (2 if self._buckets else 1)
        steps = None if request.plan_steps is None else request.plan_steps // self._count
        self._request = replace(request, plan_seconds=request.plan_seconds / self._count, plan_steps=steps, others=Others.FEWEST)
        self._n = 0
        self._last_read = opened_at(texts.reads()[-1])

    def all(self) -> tuple[PlannedPhase, ...]:
        """Those that read prompts, then the buckets, by position. What fits least comes first, so that little is planned in vain. Raises
        DoesNotFit, _TooFine."""
        if not self._buckets:
            return self._reads(self._read({}))  # nothing comes after them that could stay
        last_bucket = self._buckets[-1]
        common = {**dict.fromkeys(weight_letters(self._opened_at(last_bucket).model.program), 1), **self._fitting.pieces}
        last = self._bucket(last_bucket, self._request.in_pieces({} if self._fitting.is_free else common))
        try:
            read = self._read(weight_pieces(last.model.program, last.planned.graph))
        except DoesNotFit:  # the prompts' tasks do not fit in the pieces that are best for the last bucket
            read = self._read(common)
            last = self._bucket(last_bucket, self._request.in_pieces(common))
        reads, chain = self._reads(read), self._chain(last)
        return *(self._with_residents(phase, resident_weights(chain[0])) for phase in reads), *chain

    def _read(self, pieces: Mapping[Letter, int], bucket: Bucket | None = None) -> PlannedPhase:
        bucket = bucket or self._texts.reads()[-1]
        return self._planned(bucket, replace(self._request.in_pieces(pieces), passes=None))

    def _reads(self, last: PlannedPhase) -> tuple[PlannedPhase, ...]:
        """By position, the last of them planned already; all in its pieces."""
        pieces = weight_pieces(last.model.program, last.planned.graph)
        return *(self._read(pieces, bucket) for bucket in self._texts.reads()[:-1]), last

    def _with_residents(self, phase: PlannedPhase, resident: tuple[str, ...]) -> PlannedPhase:
        """`phase`, which reads prompts, or a loop in its place that has the residents of the bucket after it: where a prompt that finds
        them takes no longer than `phase` and loading them, and one that finds an empty device hardly longer than `phase`. One that it has
        no such tile of ends the list, since those after it would lie elsewhere."""
        names = {t.name for t in phase.planned.graph.tensors if t.kind is Kind.WEIGHT}
        resident = tuple(takewhile(names.__contains__, resident))
        if not resident or self._request.host_budget_bytes is not None:
            return phase  # a loop over a disk has no first pass of its own
        request = self._request.in_pieces(all_pieces(phase.model.program, phase.planned.graph))
        try:
            loop = self._bucket(phase.bucket, replace(request, resident=resident, others=Others.NONE))
        except DoesNotFit:
            return phase
        first = _first_pass(loop)
        load_s = first.planned.timeline.busy(Queue.H2D) - loop.planned.timeline.busy(Queue.H2D)
        is_good = loop.seconds <= phase.seconds + load_s and first.seconds <= LATER_FIRST_TOKEN * phase.seconds
        return replace(loop, first=first) if is_good else phase

    def _chain(self, last: PlannedPhase) -> tuple[PlannedPhase, ...]:
        """The buckets, by position; each but the last is bound to what the one after it has."""
        while True:
            found, bucket = [last], self._buckets[-1]
            try:
                for bucket in reversed(self._buckets[:-1]):
                    found.append(self._before(bucket, found[-1]))
            except DoesNotFit:  # one before the last wants more bytes than it: leave it some
                resident = resident_weights(last)
                if not resident:
                    raise
                request = self._request.in_pieces(all_pieces(last.model.program, last.planned.graph))
                last = self._bucket(self._buckets[-1], replace(request, resident=resident[: len(resident) // 2], others=Others.NONE))
            else:
                return tuple(reversed(found))

    def _before(self, bucket: Bucket, following: PlannedPhase) -> PlannedPhase:
        """The bucket before `following`, beside its residents: at first with about as many bytes of others. It has less to do, so where it
        takes longer, these are not enough or too many, and all are tried."""
        request = _beside(following, self._request.in_pieces(all_pieces(following.model.program, following.planned.graph)))
        found = [self._bucket(bucket, request)]
        if found[0].seconds > following.seconds:
            found.append(self._bucket(bucket, replace(request, resident_bytes=None, others=Others.FASTEST)))
        return min(found, key=lambda phase: phase.seconds)

    def _bucket(self, bucket: Bucket, request: PlanRequest) -> PlannedPhase:
        return self._planned(bucket, replace(request, passes=bucket.extra + 1))

    def _planned(self, bucket: Bucket, request: PlanRequest) -> PlannedPhase:
        self._n += 1
        self._planning(min(self._n, self._count), self._count)
        at = self._at(bucket)
        program, request = asked(at.model, at.output, self._possible(at, request))
        try:
            planned = plan_program(program, self._machine, request, working_sets=at.working_sets, made=at.graph)
            at.graph = planned.graph
            return PlannedPhase(at.model, compacted(planned), bucket, at.output)
        except DoesNotFit as error:
            raise DoesNotFit(error.misfit.of_task(_where(bucket))) from error

    def _at(self, bucket: Bucket) -> _Opened:
        """The last that reads prompts is planned before all buckets and after: it is opened once."""
        if bucket == self._texts.reads()[-1]:
            return self._last_read
        return self._opened_at(bucket)

    def _possible(self, at: _Opened, request: PlanRequest) -> PlanRequest:
        """`request` with letters that no weight has in no more pieces than tasks of `at` can be cut into. Raises _TooFine for others, but
        those that the user has fixed, which are refused as such."""
        most, pieces = at.working_sets.most, {x: n for x, n in request.pieces.items() if x not in self._fixed}
        too_fine = {letter: most.get(letter, 1) for letter, n in pieces.items() if n > most.get(letter, 1)}
        if of_weights := too_fine.keys() & weight_letters(at.model.program):
            raise _TooFine({letter: too_fine[letter] for letter in of_weights})
        return request.in_pieces(too_fine)


class _TooFine(Exception):
    """A phase cannot be cut as finely as another was."""

    def __init__(self, most: Mapping[Letter, int]) -> None:
        super().__init__()
        self.most = most


def _phase_ops(opened_at: OpenedAt, request: PlanRequest, bucket: Bucket) -> PhaseOps:
    at = opened_at(bucket)
    return PhaseOps(at.working_sets, *asked(at.model, at.output, request), _where(bucket))


def _where(bucket: Bucket) -> str:
    position = bucket.past + bucket.extra
    return f" at position {position} (a smaller --max-new ends before it)" if position else ""


def _first_pass(loop: PlannedPhase) -> PlannedPhase:
    planned = loop.planned
    return replace(loop, planned=compacted(judged(loading(planned.memgraph), planned.machine, perf_counter())))


def resident_weights(phase: PlannedPhase, place: Place = DEVICE) -> tuple[str, ...]:
    """By name, from the arena's top downwards: what a loop begins with on the device, or with a disk behind it, on the host."""
    memgraph = phase.planned.memgraph
    there = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == place]
    there.sort(key=lambda r: -r.extents[0].offset)
    tensors = [memgraph.graph.tensors[r.tensor] for r in there]
    return tuple(t.name for t in tensors if t.kind is Kind.WEIGHT)


def _beside(following: PlannedPhase, request: PlanRequest) -> PlanRequest:
    """`request` for a plan that has the residents of the one after it: in all about as many bytes, which were good there."""
    memgraph = following.planned.memgraph
    nbytes = sum(aligned(memgraph.graph.tensors[t].nbytes) for t in memgraph.resident)
    on_host = resident_weights(following, HOST) if memgraph.has_disk else ()
    return replace(request, resident=resident_weights(following), resident_bytes=nbytes, host_resident=on_host)
