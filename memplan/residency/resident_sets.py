"""Who is on the device before the first task: sets of weights, for a warm start and for a loop.

In: a Problem. Out: Residents, a few that differ in what they leave for tensors that come
and go; whoever plans tries them and keeps the fastest plan. A resident keeps its bytes until its last use (a warm start) or for good
(a loop). Invariant: at every step the residents that the task does not read and the task's footprint fit the arena together, so a plan
exists. They lie at the arena's top, the last to go topmost, so that what is left of the arena is one piece at all times:

    bytes   warm: the head first, and its room goes to the tail      loop: every so often one that streams
     |  [ w3         ]                                                |  [ w1                 ]
     |  [ w2      ][ w5 ]                                             |  [ w3                 ]
     |  [ w1  ][ w4     ]                                             |  [w2]  [w4]  [w5]  [w2
     +--- room for what comes and goes ---> steps                     +------------------------> steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.graph.taskgraph import Kind, TensorId
from einpage.memplan.problem.footprint import footprint, last_use_by_tensor
from einpage.memplan.problem.machine import task_seconds
from einpage.memplan.problem.problem import Problem

Ints = NDArray[np.int64]
Chosen = NDArray[np.bool_]
"""[candidate] whether it is resident."""

RESERVES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.2)
"""Shares of the arena that residents leave free besides what tasks need and what waits for later tasks."""
MUCH = 0.25
"""Where more than this share of the arena waits for later tasks, sets that leave no room for it are tried too."""
ROUNDS = 24
"""Halvings in search of the most that fits."""
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


@dataclass(frozen=True, slots=True)
class Residents:
    tensors: tuple[TensorId, ...]
    """From the arena's top downwards."""
    for_good: bool
    """They stay to the end; if not, each goes after its last use."""


NOBODY = Residents((), False)


def resident_sets(problem: Problem, start: Start) -> Iterator[Residents]:
    """Different sets worth planning with, at least one; those with the most bytes first, about."""
    scene = _Scene(problem, start is Start.LOOP)
    seen: set[bytes] = set()
    for chosen in _choices(scene):
        if chosen.tobytes() not in seen:
            seen.add(chosen.tobytes())
            yield scene.residents(chosen)


class _Scene:
    """Candidates (weights that some task reads and none may overwrite) and what each step needs. One entry a step or a candidate."""

    def __init__(self, problem: Problem, for_good: bool) -> None:
        graph, tasks = problem.graph, problem.tasks
        overwritten = {t for task in tasks for t in task.inplace}
        last_use = last_use_by_tensor(graph)
        self.capacity, self.for_good = problem.capacity, for_good
        self.needs = np.array([footprint(graph, task, last_use, problem.alignment) for task in tasks], np.int64)
        self.waiting = _waiting(problem)
        seconds = [0.0 if task.gathers else task_seconds(problem.machine, graph, task) for task in tasks]
        self.elapsed = np.concatenate(([0.0], np.cumsum(seconds)))
        """[step] seconds of all tasks before it."""
        number: dict[TensorId, int] = {}
        uses: list[tuple[int, int]] = []
        for step, task in enumerate(tasks):
            for t in () if task.gathers else task.reads():
                if graph.tensors[t].kind in (Kind.WEIGHT, Kind.CONSTANT) and t not in overwritten:
                    uses.append((step, number.setdefault(t, len(number))))
        self.tensors = list(number)
        """[candidate] by first use."""
        self.size = np.array([problem.sizes[t] for t in number], np.int64)
        self.use_step, self.use_of = np.array(uses, np.int64).reshape(-1, 2).T
        self.first = np.full(len(number), len(tasks), np.int64)
        np.minimum.at(self.first, self.use_of, self.use_step)
        self.last = np.zeros(len(number), np.int64)
        np.maximum.at(self.last, self.use_of, self.use_step)

    @cached_property
    def uses_by_candidate(self) -> list[Ints]:
        """[candidate] the steps that read it."""
        by = np.argsort(self.use_of, kind="stable")
        return np.split(self.use_step[by], np.cumsum(np.bincount(self.use_of, minlength=len(self.size)))[:-1])

    def room(self, chosen: Chosen, leave: Ints) -> Ints:
        """[step] what more may be resident, unread by the step; where negative, `chosen` does not fit."""
        size = np.where(chosen, self.size, 0)
        steps = len(self.needs)
        if self.for_good:
            alive = np.full(steps, size.sum())
        else:
            alive = np.cumsum(np.bincount(self.last, size, steps)[::-1])[::-1].astype(np.int64)
        read = np.bincount(self.use_step, size[self.use_of], steps).astype(np.int64)
        room: Ints = np.maximum(self.capacity - self.needs - leave, 0) - (alive - read)
        return room

    def fits(self, chosen: Chosen, leave: Ints) -> bool:
        return bool(self.room(chosen, leave).min(initial=0) >= 0)

    def residents(self, chosen: Chosen) -> Residents:
        """The last to go first; of those that go together, the first in graph order."""
        members = sorted(np.flatnonzero(chosen).tolist(), key=lambda i: (-self.last[i], self.tensors[i]))
        return Residents(tuple(self.tensors[i] for i in members), self.for_good)


def _choices(scene: _Scene) -> Iterator[Chosen]:
    for leave in _leaves(scene):
        if not scene.for_good:
            yield _filled(scene, _most(scene, leave, lambda part: _head(scene, part)), leave)
        yield _filled(scene, _most(scene, leave, lambda part: _evenly(scene, part)), leave)
    yield np.zeros(len(scene.size), bool)


def _leaves(scene: _Scene) -> Iterator[Ints]:
    """[step] bytes to leave free besides what tasks need: for what waits, unless that is so much that it had better go, and for loads."""
    for share in RESERVES:
        yield scene.waiting + int(share * scene.capacity)
    if scene.waiting.max(initial=0) > MUCH * scene.capacity:
        for share in RESERVES[::3]:
            yield np.full(len(scene.needs), int(share * scene.capacity))


def _most(scene: _Scene, leave: Ints, choose: Callable[[float], Chosen]) -> Chosen:
    """What `choose` answers for the largest part of all bytes, 0 to 1, that fits."""
    best, fits, fails = choose(0.0), 0.0, 1.0
    if scene.fits(whole := choose(1.0), leave):
        return whole
    for _ in range(ROUNDS):
        part = (fits + fails) / 2
        if scene.fits(chosen := choose(part), leave):
            best, fits = chosen, part
        else:
            fails = part
    return best


def _head(scene: _Scene, part: float) -> Chosen:
    """The first bytes by first use."""
    chosen: Chosen = np.cumsum(scene.size) <= part * scene.size.sum()
    return chosen


def _evenly(scene: _Scene, part: float) -> Chosen:
    """All but what streams: a tensor streams when the link, were it to carry its share at an even rate, would have brought it by then."""
    chosen = np.ones(len(scene.size), bool)
    if part >= 1 or not len(chosen):
        return chosen
    total = float(scene.elapsed[-1])
    due = (1 - part) * scene.size.sum() * (scene.elapsed[scene.first] / total if total else np.ones(len(chosen)))
    came = 0.0
    for i, (wanted, size) in enumerate(zip(due.tolist(), scene.size.tolist(), strict=True)):
        if part <= 0 or came + size / 2 <= wanted:
            chosen[i] = False
            came += size
    return chosen


def _filled(scene: _Scene, chosen: Chosen, leave: Ints) -> Chosen:
    """`chosen`, and of what was left out, the largest first, whatever fits beside it."""
    chosen, room = chosen.copy(), scene.room(chosen, leave)
    left = [i for i in np.argsort(-scene.size, kind="stable").tolist() if not chosen[i]]
    for i in left[:TRIES]:
        stop = len(room) if scene.for_good else int(scene.last[i]) + 1
        after = room[:stop] - scene.size[i]
        after[scene.uses_by_candidate[i]] += scene.size[i]
        if after.min() >= 0:
            room[:stop] = after
            chosen[i] = True
    return chosen


def _waiting(problem: Problem) -> Ints:
    """[step] bytes that tasks before it made and tasks after it read, and it does not."""
    tasks = problem.tasks
    made: dict[TensorId, int] = {}
    change = np.zeros(len(tasks) + 1, np.int64)
    touched = np.zeros(len(tasks), np.int64)
    last: dict[TensorId, int] = {}
    for step, task in enumerate(tasks):
        made[task.result] = step
        for t in () if task.gathers else task.reads():
            last[t] = step
    for t, begin in made.items():
        end = last.get(t, begin)
        change[begin] += problem.sizes[t]
        change[end + 1] -= problem.sizes[t]
    for step, task in enumerate(tasks):
        mine = {task.result, *(() if task.gathers else task.reads())}
        touched[step] = sum(problem.sizes[t] for t in mine if t in made)
    waits: Ints = np.cumsum(change)[:-1] - touched
    return waits
