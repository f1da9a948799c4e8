"""Which weights are on the device before the first task: sets of them, for a warm start and for a loop.

In: a Problem. Out: Residents, a few sets that differ in what they leave to other tensors; whoever plans tries them, for a loop says how
long each plan takes, and takes the fastest. A resident has its bytes until its last use (a warm start) or throughout (a loop). Invariant:
at every step the residents that the task does not read and the task's footprint fit the arena together, so a plan exists. They lie at the
arena's top, the last to be freed topmost, so that what is left of the arena is one piece at all times:

    bytes   warm: the head of the model, then its bytes are free     loop: every so often a weight that streams
     |  [ w3         ]                                                |  [ w1                 ]
     |  [ w2      ][ w5 ]                                             |  [ w3                 ]
     |  [ w1  ][ w4     ]                                             |  [w2]  [w4]  [w5]  [w2
     +--- left to other tensors ---> steps                            +------------------------> steps
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from itertools import chain
from typing import TypeAlias

import numpy as np

from einpage.einsum_front.base.columns import Bools, Int64s
from einpage.einsum_front.graph.taskgraph import Kind, TensorId
from einpage.memplan.machine.machine import all_task_seconds
from einpage.memplan.problem.footprint import footprint, last_use_by_tensor
from einpage.memplan.problem.problem import Problem
from einpage.memplan.residency.share_search import search

ResidentWeights: TypeAlias = Bools
"""[weight] whether it is resident, of those that may be."""

RESERVES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.2)
"""Of a warm start: shares of the arena that residents leave free beyond what tasks need and what is in use between tasks."""
MUCH = 0.25
"""Where more than this share of the arena is in use between tasks, sets that leave no bytes for it are tried too."""
BISECTIONS = 24
"""In search of the most that fits."""
TRIES = 256
"""How many that were left out are tried again one by one."""


class Start(Enum):
    """What is on the device before the first task."""

    COLD = "cold"
    """Nothing."""
    WARM = "warm"
    """Weights, as far as they fit."""
    LOOP = "loop"
    """Weights, which are there at the end again, at the same offsets: such a plan can run again and again."""


class Others(Enum):
    """Which weights of a loop are resident beside those that are named."""

    FASTEST = "fastest"
    """Those of the fastest plan; of plans hardly slower, that which moves fewest bytes."""
    FEWEST = "fewest"
    """Of plans hardly slower than the fastest, the fewest bytes: every loop that runs before has these residents too."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Residents:
    tensors: tuple[TensorId, ...]
    """From the arena's top downwards."""
    for_good: bool
    """They are resident to the end; if not, each is freed after its last use."""


NO_RESIDENTS = Residents((), False)


class LoopSets:
    """Different sets of a loop worth planning with: the seconds of each plan decide what the next sets leave free."""

    def __init__(self, problem: Problem, resident_bytes: int | None = None, even: bool = False) -> None:
        """`resident_bytes`: about so many, where a plan of the same model for other positions says how many are good. `even`: they are
        spread evenly whatever their sizes."""
        self._even = even
        self._weights = weights = _Weights(problem, for_good=True)
        self._good: float | None = None
        """The share of the arena that they leave free."""
        if resident_bytes is not None:
            free = int((weights.capacity - weights.needs - weights.pending).min(initial=weights.capacity))
            self._good = max(0, free - resident_bytes) / max(1, weights.capacity)
        self._seconds_by_set: dict[Residents, float] = {}

    def search(self) -> Generator[Residents, float, None]:
        """No set twice. Each is answered by the seconds of its plan, or infinity where the link alone takes longer than another plan."""
        for pending in _pendings(self._weights):
            yield from search(partial(self._seconds_of, pending), self._good)

    def _seconds_of(self, pending: Int64s, share: float, small_first: bool) -> Generator[Residents, float, float]:
        weights, reserve = self._weights, pending + int(share * self._weights.capacity)
        chosen = _small_first(weights, reserve) if small_first and not self._even else _most(weights, reserve, partial(_evenly, weights))
        found = weights.residents(_filled(weights, chosen, reserve))
        if found not in self._seconds_by_set:
            self._seconds_by_set[found] = yield found
        return self._seconds_by_set[found]


def warm_sets(problem: Problem) -> Iterator[Residents]:
    """Different sets of a warm start worth planning with: what streams is the end of the model, or spread over a pass. Those with the most
    bytes first, about, and none last."""
    weights = _Weights(problem, for_good=False)
    found = (
        weights.residents(_filled(weights, _most(weights, reserve, partial(choose, weights)), reserve))
        for reserve in _reserves(weights)
        for choose in (_head, _evenly)
    )
    yielded = set[Residents]()
    for residents in chain(found, [NO_RESIDENTS]):
        if residents not in yielded:
            yielded.add(residents)
            yield residents


class _Weights:
    """The weights that some task reads and none may overwrite, and what each step needs. One entry a step or a weight."""

    def __init__(self, problem: Problem, for_good: bool) -> None:
        graph, tasks = problem.graph, problem.tasks
        overwritten = {t for task in tasks for one in task.written for t in one.inplace}
        last_use = last_use_by_tensor(graph)
        self.capacity, self.for_good = problem.capacity, for_good
        self.needs = np.array([footprint(graph, task, last_use, problem.alignment) for task in tasks], np.int64)
        self.pending = _pending(problem)
        of_all = all_task_seconds(problem.machine, graph)
        seconds = [0.0 if task.gathers else of_all[task.id] for task in tasks]
        self.elapsed = np.concatenate(([0.0], np.cumsum(seconds)))
        """[step] seconds of all tasks before it."""
        number: dict[TensorId, int] = {}
        uses: list[tuple[int, int]] = []
        for step, task in enumerate(tasks):
            for t in () if task.gathers else task.reads():
                if graph.tensors[t].kind in (Kind.WEIGHT, Kind.CONSTANT) and t not in overwritten:
                    uses.append((step, number.setdefault(t, len(number))))
        self.tensors = list(number)
        """[weight] by first use."""
        self.is_constant = [graph.tensors[t].kind is Kind.CONSTANT for t in number]
        self.size = np.array([problem.sizes[t] for t in number], np.int64)
        self.use_step, self.use_of = np.array(uses, np.int64).reshape(-1, 2).T
        self.first = np.full(len(number), len(tasks), np.int64)
        np.minimum.at(self.first, self.use_of, self.use_step)
        self.last = np.zeros(len(number), np.int64)
        np.maximum.at(self.last, self.use_of, self.use_step)

    @cached_property
    def uses_by_weight(self) -> list[Int64s]:
        """[weight] the steps that read it."""
        by = np.argsort(self.use_of, kind="stable")
        return np.split(self.use_step[by], np.cumsum(np.bincount(self.use_of, minlength=len(self.size)))[:-1])

    def headroom(self, resident: ResidentWeights, reserve: Int64s) -> Int64s:
        """[step] bytes of more residents that the step does not read, with `reserve` [step] left free; where negative, `resident` does not
        fit."""
        size = np.where(resident, self.size, 0)
        steps = len(self.needs)
        if self.for_good:
            alive = np.full(steps, size.sum())
        else:
            alive = np.cumsum(np.bincount(self.last, size, steps)[::-1])[::-1].astype(np.int64)
        read = np.bincount(self.use_step, size[self.use_of], steps).astype(np.int64)
        headroom: Int64s = np.maximum(self.capacity - self.needs - reserve, 0) - (alive - read)
        return headroom

    def fits(self, resident: ResidentWeights, reserve: Int64s) -> bool:
        return bool(self.headroom(resident, reserve).min(initial=0) >= 0)

    def residents(self, resident: ResidentWeights) -> Residents:
        """The last to be freed first; of those that are freed together, the first in graph order. Of a loop constants come after weights:
        plans of the same model for other positions have these too."""
        members = np.flatnonzero(resident).tolist()
        members.sort(key=lambda i: (self.for_good and self.is_constant[i], -self.last[i], self.tensors[i]))
        return Residents(tuple(self.tensors[i] for i in members), self.for_good)


def _pendings(weights: _Weights) -> Iterator[Int64s]:
    """[step] bytes to leave free for what is pending: all of it, and none where that is so much that it had better be evicted."""
    yield weights.pending
    if weights.pending.max(initial=0) > MUCH * weights.capacity:
        yield np.zeros_like(weights.pending)


def _reserves(weights: _Weights) -> Iterator[Int64s]:
    """[step] bytes to leave free beyond what tasks need: for what is pending, and for loads."""
    for pending, shares in zip(_pendings(weights), (RESERVES, RESERVES[::3]), strict=False):
        for share in shares:
            yield pending + int(share * weights.capacity)


def _most(weights: _Weights, reserve: Int64s, choose: Callable[[float], ResidentWeights]) -> ResidentWeights:
    """What `choose` answers for the largest share of all bytes, 0 to 1, that fits."""
    best, fits, fails = choose(0.0), 0.0, 1.0
    if weights.fits(whole := choose(1.0), reserve):
        return whole
    for _ in range(BISECTIONS):
        share = (fits + fails) / 2
        if weights.fits(resident := choose(share), reserve):
            best, fits = resident, share
        else:
            fails = share
    return best


def _head(weights: _Weights, share: float) -> ResidentWeights:
    """The first bytes by first use."""
    resident: ResidentWeights = np.cumsum(weights.size) <= share * weights.size.sum()
    return resident


def _evenly(weights: _Weights, share: float, among: ResidentWeights | None = None) -> ResidentWeights:
    """All but what streams, of all or `among` some: a weight streams when the link, were it to carry the rest of these at an even rate,
    would have loaded it by then."""
    resident = np.ones(len(weights.size), bool)
    some = np.arange(len(resident)) if among is None else np.flatnonzero(among)
    if share >= 1 or not len(some):
        return resident
    total, sizes = float(weights.elapsed[-1]), weights.size[some]
    due = (1 - share) * sizes.sum() * (weights.elapsed[weights.first[some]] / total if total else np.ones(len(some)))
    streamed = 0.0
    for i, due_by_then, size in zip(some.tolist(), due.tolist(), sizes.tolist(), strict=True):
        if share <= 0 or streamed + size / 2 <= due_by_then:
            resident[i] = False
            streamed += size
    return resident


def _small_first(weights: _Weights, reserve: Int64s) -> ResidentWeights:
    """Every size for which all weights up to it fit together; of larger ones evenly what else fits."""
    sizes = np.unique(weights.size)
    fitting = bisect_left(sizes, True, key=lambda size: not weights.fits(weights.size <= size, reserve))
    large = weights.size > sizes[fitting - 1] if fitting else np.ones(len(weights.size), bool)
    return _most(weights, reserve, lambda share: _evenly(weights, share, large))


def _filled(weights: _Weights, resident: ResidentWeights, reserve: Int64s) -> ResidentWeights:
    """`resident`, and of what was left out, the largest first, whatever fits beside it."""
    resident, headroom = resident.copy(), weights.headroom(resident, reserve)
    left_out = [i for i in np.argsort(-weights.size, kind="stable").tolist() if not resident[i]]
    for i in left_out[:TRIES]:
        end = len(headroom) if weights.for_good else int(weights.last[i]) + 1
        after = headroom[:end] - weights.size[i]
        after[weights.uses_by_weight[i]] += weights.size[i]
        if after.min() >= 0:
            headroom[:end] = after
            resident[i] = True
    return resident


def _pending(problem: Problem) -> Int64s:
    """[step] bytes that tasks before it wrote and tasks after it read, and it does not."""
    tasks = problem.tasks
    written: dict[TensorId, int] = {}
    change = np.zeros(len(tasks) + 1, np.int64)
    touched = np.zeros(len(tasks), np.int64)
    last: dict[TensorId, int] = {}
    for step, task in enumerate(tasks):
        written.update(dict.fromkeys(task.results, step))
        for t in () if task.gathers else task.reads():
            last[t] = step
    for t, start in written.items():
        end = last.get(t, start)
        change[start] += problem.sizes[t]
        change[end + 1] -= problem.sizes[t]
    for step, task in enumerate(tasks):
        uses = {*task.results, *(() if task.gathers else task.reads())}
        touched[step] = sum(problem.sizes[t] for t in uses if t in written)
    pending: Int64s = np.cumsum(change)[:-1] - touched
    return pending
