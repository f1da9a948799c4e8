"""Second stage: a Program becomes a TaskGraph whose largest working set fits the budget.

    Program ── fuse ──► OpGraph ── choose a split, coarsest first ──► pieces by letter ── split ──► TaskGraph

In: a Program and a budget in bytes; letters whose pieces are given are not chosen. Out: Built, the fused operations and their tasks. Raises
DoesNotFit where even the finest split needs more than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Letter, Num
from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.einsum_front.base.dtype import Checked, DType, Stored
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.einsum_front.choose.best_first import coarsened, least_of_all, smallest_first
from einpage.einsum_front.choose.coarsest_first import candidates
from einpage.einsum_front.choose.first_iterations import least_of_first_iterations
from einpage.einsum_front.choose.joined_tasks import joined_tasks
from einpage.einsum_front.choose.working_set import Choice, Counted, WorkingSets
from einpage.einsum_front.fuse.fuse import fuse, without_fusions
from einpage.einsum_front.fuse.show import render, summary
from einpage.einsum_front.graph.opgraph import MapOp, OpGraph
from einpage.einsum_front.graph.program import Program, WeightsAs
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.sizes import Setting
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.problem.footprint import largest_footprint

MOST_COUNTED = 8_000
"""Tasks that are counted one by one when a budget is refused, of layers that are alike those of one; some tenths of a second."""
MOST_RANGES = 20_000
"""Ranges of indices that are evaluated to name the smallest budget; of more, seconds and minutes, a refusal says what is proven."""
MOST_TASKS = 1_000_000
"""Of a graph that is made: some GiB, and minutes of planning."""


@dataclass(frozen=True, slots=True)
class Built:
    """The fused operations of a program, and the tasks that a split makes of them."""

    opgraph: OpGraph
    graph: TaskGraph

    @property
    def joined(self) -> TaskGraph:
        """`graph`, in which what works on the same elements is one task, and may need more than the split was chosen for."""
        return joined_tasks(self.graph)

    def facts(self) -> dict[str, object]:
        """What `einpage show --json` prints."""
        task, nbytes = largest_footprint(self.graph)
        return {**summary(self.opgraph, self.graph), "largest_working_set_bytes": nbytes, "largest_task": self.graph.tasks[task].name}

    def text(self) -> str:
        """The same for a person."""
        task, nbytes = largest_footprint(self.graph)
        largest = f"largest working set  {format_bytes(nbytes)} ({nbytes:,} bytes): task {self.graph.tasks[task].name}"
        return f"{render(self.opgraph, self.graph)}\n\n{largest}"


Split: TypeAlias = tuple[tuple[Letter, int], ...]
"""Pieces by letter, sorted; letters in one piece are absent."""
BuiltBySplit: TypeAlias = dict[Split, Built]


def build_graph(program: Program, request: PlanRequest) -> Built:
    """Fuse (all but `no_fuse`), choose a split for the budget (letters in `pieces` are fixed), and split. Raises as both do."""
    return split_for(fused(program, request), program, request)


@garbage_collection_paused()
def fused(program: Program, request: PlanRequest) -> WorkingSets:
    """The operations that outputs need, fused, and what each would take: the same whatever the budget. Raises UsageError for an unknown
    output or fusion, and for a value of numbers that the dtype does not hold."""
    opgraph = fuse(program, request.outputs, without_fusions(request.no_fuse))
    _refuse_beyond(opgraph, request.dtype)
    return WorkingSets(opgraph, request.dtype, request.weights_as)


def _refuse_beyond(opgraph: OpGraph, dtype: DType) -> None:
    """Raises UsageError where a number is stored as it stands in the spec, and would be infinite as `dtype`."""
    for op in opgraph.ops:
        for part in op.parts if isinstance(op, MapOp) else ():
            if isinstance(part.expr, Num) and dtype.is_exceeded_by(part.expr.value):
                place = f"{opgraph.program.path}:{part.expr.span.line}:{part.expr.span.column}"
                cure = "choose another --dtype, or a number that it holds"
                raise UsageError(f"{place}: `{op.base}` is set to {part.expr.value:g}, beyond {dtype.value}; {cure}")


@garbage_collection_paused()
def split_for(working_sets: WorkingSets, program: Program, request: PlanRequest, made: BuiltBySplit | None = None) -> Built:
    """The tasks of a split that fits the budget (letters in `pieces` are fixed). `made` has what was made of `working_sets` for other
    budgets, and is added to.

    Raises DoesNotFit where the smallest working set is larger than the budget, UsageError for an impossible split, or one into more than
    MOST_TASKS.
    """
    budget_bytes, made = request.budget_bytes, {} if made is None else made
    pieces = working_sets.cut(request.pieces)
    may_fit = least_of_all(working_sets, pieces) <= budget_bytes
    for choice in candidates(working_sets, budget_bytes, pieces) if may_fit else ():
        found = _built_once(working_sets, choice, made)
        if largest_footprint(found.graph)[1] <= budget_bytes:
            return found
    if not may_fit and (unsearched := too_many_splits(working_sets, pieces, budget_bytes)) is not None:
        raise DoesNotFit(unsearched)
    least = smallest(working_sets, budget_bytes, pieces)
    if least.counted.nbytes > budget_bytes:
        raise DoesNotFit(too_small(least, budget_bytes))
    return _built_once(working_sets, least.choice, made)


def may_fit(working_sets: WorkingSets, request: PlanRequest) -> bool:
    """False where no split fits, as far as is known without a search."""
    return least_of_all(working_sets, working_sets.cut(request.pieces)) <= request.budget_bytes


def _built_once(working_sets: WorkingSets, choice: Choice, made: BuiltBySplit) -> Built:
    if choice.pieces not in made:
        made[choice.pieces] = _built(working_sets, choice.by_letter)
    return made[choice.pieces]


def fitting_choice(working_sets: WorkingSets, budget_bytes: int, pieces: Mapping[Letter, int]) -> Choice | None:
    """The split that split_for makes tasks of, without making them; None where none fits."""
    if least_of_all(working_sets, pieces) > budget_bytes:
        return None
    for choice in candidates(working_sets, budget_bytes, pieces):
        if _count(working_sets, choice).nbytes <= budget_bytes:
            return choice
    if working_sets.ranges_of_finest(pieces) > MOST_RANGES:
        return None
    least = smallest(working_sets, budget_bytes, pieces)
    return least.choice if least.counted.nbytes <= budget_bytes else None


def too_many_splits(working_sets: WorkingSets, pieces: Mapping[Letter, int], budget_bytes: int) -> Misfit | None:
    """Why a budget is refused in which no split fits, where there are too many to search for the one that needs least."""
    if working_sets.ranges_of_finest(pieces) <= MOST_RANGES:
        return None
    at_least = least_of_all(working_sets, pieces)
    return Misfit("(of every split)", "device", at_least, budget_bytes, budget_bytes, budget_bytes, (), None, at_least)


def refuse_by_first_iterations(document: Document, settings: Mapping[str, Setting], request: PlanRequest) -> None:
    """Raises DoesNotFit where a few iterations of a long repeat need more than the budget already: known before all are elaborated."""
    fusions = without_fusions(request.no_fuse)
    least = None if request.pieces else least_of_first_iterations(document, settings, request.dtype, request.outputs, fusions)
    if least is not None and least[0] > request.budget_bytes:
        (nbytes, task), budget = least, request.budget_bytes
        raise DoesNotFit(Misfit(task, "device", nbytes, budget, budget, budget, (), None, nbytes))


@garbage_collection_paused()
def split_as_told(
    program: Program, dtype: DType, pieces: Mapping[Letter, int], outputs: Sequence[str] = (), no_fuse: Sequence[str] = (),
    weights_as: WeightsAs = WeightsAs.RUN,
) -> Built:  # fmt: skip
    """Fuse, and split the letters of `pieces` as they say and no other. Raises UsageError as build_graph."""
    working_sets = WorkingSets(fuse(program, outputs, without_fusions(no_fuse)), dtype, weights_as)
    working_sets.check(pieces)
    return _built(working_sets, pieces)


def _built(working_sets: WorkingSets, pieces: Mapping[Letter, int]) -> Built:
    """The graph in so many pieces. Raises UsageError where these are too many."""
    tasks = working_sets.tasks_at_most(pieces)
    if tasks > MOST_TASKS:
        told = ", ".join(f"{letter}={n}" for letter, n in sorted(pieces.items()) if n > 1)
        raise UsageError(
            f"{tasks:,} tasks in the split {told}, and at most {MOST_TASKS:,} are planned; give a larger --budget, or fewer pieces"
        )
    return Built(
        working_sets.opgraph, split(working_sets.opgraph, pieces, working_sets.dtype, working_sets.templates, working_sets.weights_as)
    )


@dataclass(frozen=True, slots=True)
class Smallest:
    """The split with the smallest working set that was found."""

    choice: Choice
    counted: Counted
    at_least: int
    """Bytes that every split needs; less than what `choice` needs only where the search was too long to end."""


def smallest(working_sets: WorkingSets, enough: int, pieces: Mapping[Letter, int] | None = None) -> Smallest:
    """A split whose largest working set is as small as any split allows (letters in `pieces` are fixed), or no more than `enough` bytes.

    A choice states its working set from a sample of tasks, so all tasks are counted while a later one may still be smaller.
    """
    best: Smallest | None = None
    for choice, at_least in smallest_first(working_sets, pieces):
        if best is not None and at_least >= best.counted.nbytes:
            break
        limit = max(choice.largest_bytes, enough)
        for tried in (coarsened(working_sets, choice, limit, pieces), choice):
            counted = _count(working_sets, tried)
            if best is None or counted.nbytes < best.counted.nbytes:
                best = Smallest(tried, counted, min(at_least, counted.nbytes))
            if counted.nbytes <= limit:
                return Smallest(tried, counted, min(at_least, counted.nbytes))
    assert best is not None, "there is always a split to try"
    return replace(best, at_least=best.counted.nbytes)


def _count(working_sets: WorkingSets, choice: Choice) -> Counted:
    """The largest working set of `choice`: of the graph itself, where outputs need a part of a value and the split says which."""
    counted = working_sets.count(choice.by_letter, MOST_COUNTED)
    whole = all(pattern.is_whole for pattern in working_sets.patterns)
    if counted.exact or whole or working_sets.tasks_at_most(choice.by_letter) > MOST_COUNTED:
        return counted
    graph = split(working_sets.opgraph, choice.by_letter, working_sets.dtype, working_sets.templates, working_sets.weights_as)
    task, nbytes = largest_footprint(graph)
    return Counted(nbytes, graph.tasks[task].name, True)


def too_small(least: Smallest, budget_bytes: int) -> Misfit:
    """Why a budget is refused that is less than `least` needs."""
    nbytes = least.counted.nbytes
    return Misfit(
        task=least.counted.task,
        place="device",
        wanted=nbytes,
        free=budget_bytes,
        largest_hole=budget_bytes,
        budget=budget_bytes,
        pinned=(),
        smallest_budget=nbytes if least.counted.exact else None,
        at_least=least.at_least,
    )


def difference(found: TaskGraph, wanted: TaskGraph) -> str | None:
    """The first thing in which `found` (of a file: it has no jobs) is another graph than `wanted`; None where they are the same."""
    for name in ("name", "dtype", "split", "outputs"):
        has, should = getattr(found, name), getattr(wanted, name)
        if has != should:
            return f"the graph's {name} is {_told(has)}, and should be {_told(should)}"
    plain = replace(wanted, tasks=tuple(replace(task, job=None) for task in wanted.tasks))
    for name in ("values", "ops", "tensors", "tasks"):
        has, should = getattr(found, name), getattr(plain, name)
        if len(has) != len(should):
            return f"the graph has {len(has)} {name}, and should have {len(should)}"
        for i, (one, other) in enumerate(zip(has, should, strict=True)):
            for field in fields(one):
                a, b = getattr(one, field.name), getattr(other, field.name)
                if a != b:
                    return f"{name} {i}: {other.name}: {field.name} is {_told(a)}, and should be {_told(b)}"
    return None


def _told(value: object) -> str:
    """For messages: words without their class."""
    return str(value.value) if isinstance(value, Enum | Stored | Checked) else repr(value)
