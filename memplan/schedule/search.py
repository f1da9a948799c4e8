"""The offline search: resident intervals are timed, the best allocated, and the simulator chooses; better and better plans, at any time.

In: Slots, the plan to beat, a Pace. Out: a plan whose makespan is never longer than that one's, shorter the longer the search; the same
plan for the same count of steps. Each stage costs ten times the one before, which chooses what it is spent on:

    policies, relaxations ──► timetables ──► first fit ──► plans: offsets, splits, relocation ──► the simulator
    (residency/)              seconds, if    bytes that    under each of a few limits on live ranges
                              offsets cost   have no
                              nothing        offset        how much worse plans are than was expected is learned by limit
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import TypeAlias

from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.packing.place import first_fit_loss
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.pace import Ended, Pace, SearchOver
from einpage.memplan.problem.slots import Slots
from einpage.memplan.residency.candidates import RESERVES, Candidates
from einpage.memplan.residency.policies import ResidentIntervals
from einpage.memplan.residency.ruin_recreate import ruin_and_recreate
from einpage.memplan.schedule.allocate import LESS_EFFORT, LIMITS, Decision, SearchResult, at_full_ranges, at_limited_ranges, reissued
from einpage.memplan.schedule.live_ranges import LiveRanges, RangeLimits, limited, live_ranges
from einpage.memplan.schedule.static_plans import RESIDENT_BY_POLICY, STATIC, StaticRules
from einpage.memplan.schedule.timetable import Timetable, timetable

MOST_SLOTS = 20_000
"""Slots of the largest graph that is searched at all."""
HARDLY_SLOWER = 1.002
"""A plan within this multiple of the fastest is as good; of these the one that moves least is best."""
NEAR = 1.01
"""A plan this near its bounds, of time and of bytes, is not improved."""
PREFETCH_HEADROOMS = (0.02, 0.05)
"""Shares of the arena that loads ahead of need leave free, tried beside 0: in a fuller arena more prefetch leads are denied."""
BYTES_COUNT = 0.1
"""What moving a byte counts beside time, in parts of its time on the link."""
EXACT_RESERVE = 0.005
"""The share of the arena that the candidate for exact search leaves free: in a fuller one it finds offsets too seldom."""
WHOLE_RESERVES = (0.005, 0.02, 0.0)
"""Under which a small graph's resident intervals are found by branch and bound."""
BEFORE_EXACT, BEFORE_LP = 1, 2
"""Attempts before exact search, and between programmes, which take about as long."""
MOST_WHOLE_FIRST = 1_000
"""Intervals of the largest graph of which branch and bound takes as little time as the LP of others."""
FIRST_RESERVES = 3
"""With the candidates of so many RESERVES attempts begin."""
MOST_EXACT_SLOTS = 2_500
"""Slots of the largest graph on which exact search is spent."""
EXACT_LIMIT = RangeLimits(prefetch_lead=1.0, write_back_lag=0.0)
"""Of its live ranges."""
REISSUE_STEPS, REISSUE_SHARE = 5_000, 0.1
"""What re-issuing the best plan may take: steps at least, and this share of those of the search."""
NO_PLAN = 1.1
"""By which factor an attempt that made no plan counts as worse than expected."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds of any plan in this order."""

    seconds: float
    nbytes: int
    """Over both links."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a search begins."""

    slots: Slots
    plan: MemGraph
    """To beat."""
    bound: Bound


def better_plan(slots: Slots, start: MemGraph, bound: Bound, pace: Pace) -> SearchResult:
    """`start`, or a plan that takes no longer, nor longer than any static plan there was a step for; the fastest that is found until `pace`
    ends the search or it is NEAR its bounds, and of those HARDLY_SLOWER the one that moves least."""
    return better_plans([Begun(slots, start, bound)], pace)[0]


def better_plans(begun: Sequence[Begun], pace: Pace) -> list[SearchResult]:
    """The same of several, which make an attempt each in turn until one is NEAR its bounds."""
    searches = [_Search(b.slots, b.plan, b.bound, pace) for b in begun]
    if all(b.slots.accesses.slots > MOST_SLOTS for b in begun):
        pace.ended = Ended.NOT_COVERED
        return [search.front.best for search in searches]
    with suppress(SearchOver):
        _take_turns(searches, pace)
    more = Pace(most_steps=max(REISSUE_STEPS, int(REISSUE_SHARE * pace.steps)))
    return [reissued(search.slots, search.front.best, more) for search in searches]


def _take_turns(searches: list[_Search], pace: Pace) -> None:
    turns = [(search, search.attempts()) for search in searches]
    while turns:
        if any(search.is_near() for search in searches):
            pace.ended = Ended.NEAR_BOUNDS
            return
        if not pace.pays(min(search.front.chosen.seconds - search.bound.seconds for search in searches)):
            pace.ended = Ended.TOOK_AS_LONG
            return
        left = []
        for search, attempts in turns:
            if next(attempts, search) is not search:
                left.append((search, attempts))
            pace.ratio = min(it.front.chosen.seconds / it.bound.seconds if it.bound.seconds else 1.0 for it in searches)
        turns = left
    pace.ended = Ended.NOTHING_LEFT


@dataclass(frozen=True, slots=True)
class _Figures:
    seconds: float
    nbytes: int
    found: SearchResult


class _Front:
    """The plans that none beats in time and in bytes, none slower than `limit_s`."""

    def __init__(self, machine: Machine, start: MemGraph) -> None:
        self.machine = machine
        self.plans: list[_Figures] = []
        self.limit_s = simulate(start, machine).makespan_s
        self.add(SearchResult(start))

    def add(self, found: SearchResult) -> _Figures:
        """Its figures; it is in the front afterwards, if it belongs there."""
        new = _Figures(simulate(found.memgraph, self.machine).makespan_s, all_moved_bytes(found.memgraph), found)
        if new.seconds <= self.limit_s and not any(p.seconds <= new.seconds and p.nbytes <= new.nbytes for p in self.plans):
            self.plans = [p for p in self.plans if p.seconds < new.seconds or p.nbytes < new.nbytes] + [new]
        return new

    @property
    def fastest_s(self) -> float:
        return min(p.seconds for p in self.plans)

    @property
    def most_s(self) -> float:
        """What the plan that is chosen takes at most."""
        return min(self.limit_s, HARDLY_SLOWER * self.fastest_s)

    @property
    def chosen(self) -> _Figures:
        """Of those that take no longer than `most_s`, the one that moves least."""
        return min((p for p in self.plans if p.seconds <= self.most_s), key=lambda p: (p.nbytes, p.seconds))

    @property
    def best(self) -> SearchResult:
        return self.chosen.found

    def may_improve(self, table: Timetable) -> bool:
        """Whether a plan that is as good as its timetable would be chosen."""
        chosen = self.chosen
        if table.seconds > self.most_s:
            return False
        return table.moved_bytes < chosen.nbytes or HARDLY_SLOWER * table.seconds < chosen.seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """Resident intervals with their timetable."""

    reserve: float
    """The share of the arena that it leaves free."""
    prefetch_headroom: int
    resident: ResidentIntervals = field(repr=False)
    table: Timetable = field(repr=False)
    score: float

    @property
    def decision(self) -> Decision:
        return Decision(self.resident, self.prefetch_headroom, self.table.moved_bytes)


Allocation: TypeAlias = tuple[_Candidate, int]
"""And which of LIMITS its live ranges have."""


class _Search:
    def __init__(self, slots: Slots, start: MemGraph, bound: Bound, pace: Pace) -> None:
        self.slots, self.bound, self.pace = slots, bound, pace
        self.front = _Front(slots.problem.machine, start)
        self.candidates = Candidates(slots)
        self.reserves = deque(RESERVES)
        """Under which no candidates were timed yet."""
        self.timed: list[_Candidate] = []
        self.seen: set[tuple[bytes, int]] = set()
        """Resident intervals and prefetch headroom of all candidates."""
        self.tried: set[Allocation] = set()
        self.exchanged: set[_Candidate] = set()
        """From which ruin and recreate has begun."""
        self.unplaced_s: dict[Allocation, float] = {}
        self.limited: dict[Allocation, tuple[Rectangle, ...]] = {}
        self.worse: list[list[float]] = [[] for _ in LIMITS]
        """[limit] by which factor plans were worse than expected."""
        self.ranges: dict[_Candidate, LiveRanges] = {}
        self.full_up_to = -1.0
        """The largest reserve under which full live ranges found no offsets."""

    def is_near(self) -> bool:
        """Whether the best plan is NEAR its bounds, of time and of bytes."""
        it = self.front.chosen
        return it.seconds <= NEAR * self.bound.seconds and it.nbytes <= NEAR * self.bound.nbytes

    def attempts(self) -> Iterator[None]:
        """Each makes a plan, or fails to: static plans and others in turn."""
        turns = deque((self._static(), self._searched()))
        while turns:
            attempts = turns.popleft()
            if next(attempts, turns) is None:
                turns.append(attempts)
                yield

    def _static(self) -> Iterator[None]:
        rules = StaticRules(self.slots, lambda: self.front.most_s, self.pace)
        for static in chain.from_iterable(rules.attempts(RESIDENT_BY_POLICY[policy]) for policy in STATIC):
            if static is not None:
                decision = Decision(static.resident, static.prefetch_headroom, all_moved_bytes(static.memgraph))
                added = self.front.add(SearchResult(static.memgraph, decision))
                self.front.limit_s = min(self.front.limit_s, added.seconds)
            yield

    def _searched(self) -> Iterator[None]:
        self._extend_under(FIRST_RESERVES)
        yield from islice(self._by_expectation(), BEFORE_EXACT)
        yield from self._exactly()
        is_small = len(self.slots.accesses.tensor) <= MOST_WHOLE_FIRST
        if is_small:
            yield from self._whole(BEFORE_LP)
        yield from islice(self._by_expectation(), BEFORE_LP)
        if self.candidates.solve_lp(self.pace):
            for reserve in RESERVES:
                self._extend(reserve, self.candidates.by_lp(reserve))
        yield from self._by_expectation()
        if not is_small:
            yield from self._whole(None)
        yield from self._by_exchanges()

    def _whole(self, attempts: int | None) -> Iterator[None]:
        """Of small graphs what branch and bound finds, with so many attempts after each."""
        for reserve in WHOLE_RESERVES:
            if self._extend(reserve, self.candidates.by_branch_and_bound(reserve, self.pace)):
                yield from islice(self._by_expectation(), attempts)

    def _by_expectation(self) -> Iterator[None]:
        """What is expected to score best next, until nothing is left that may be chosen."""
        while True:
            if self.tried:
                self._extend_under(1)
            left = [(c, k) for c in self.timed for k in range(len(LIMITS)) if (c, k) not in self.tried and self.front.may_improve(c.table)]
            while left and (best := min(left, key=self._expected_score)) not in self.unplaced_s:
                self.unplaced_s[best] = self._unplaced_s(*best)
                left = [attempt for attempt in left if attempt not in self.tried]
            if left:
                self._try(*best)
                yield
            elif self.reserves:
                self._extend_under(1)
            else:
                return

    def _expected_score(self, attempt: Allocation) -> float:
        """That of its timetable, with what first fit leaves out (of others, where that is not known yet), and as much worse as plans under
        this limit were."""
        candidate, k = attempt
        worse, known = self.worse[k], [seconds for (_, other), seconds in self.unplaced_s.items() if other == k]
        unplaced_s = self.unplaced_s.get(attempt, sum(known) / len(known) if known else 0.0)
        return (candidate.score + (1 + BYTES_COUNT) * unplaced_s) * (sum(worse) / len(worse) if worse else 1.0)

    def _unplaced_s(self, candidate: _Candidate, k: int) -> float:
        """Seconds on the link of what first fit leaves out."""
        if candidate not in self.ranges:
            self.ranges[candidate] = live_ranges(self.slots, candidate.table)
        shorter = limited(self.slots, self.ranges[candidate], LIMITS[k])
        if (same := next((n for n in range(k) if self.limited.get((candidate, n)) == shorter.full), None)) is not None:
            self.tried.add((candidate, k))
            return self.unplaced_s[candidate, same]
        self.limited[candidate, k] = shorter.full
        nbytes = first_fit_loss(shorter.full, self.slots.problem.capacity, self.pace)
        return nbytes / self.slots.problem.machine.link(Queue.H2D).bytes_per_s

    def _extend_under(self, more: int) -> None:
        """Candidates of so many more RESERVES."""
        for _ in range(min(more, len(self.reserves))):
            reserve = self.reserves.popleft()
            self._extend(reserve, self.candidates.under(reserve))

    def _extend(self, reserve: float, found: Iterator[ResidentIntervals]) -> bool:
        """Time new candidates of a reserve; the best with prefetch headroom as well, where it makes a difference. Whether there are any."""
        new = [c for resident in found if (c := self._timed(reserve, 0.0, resident)) is not None]
        if not new:
            return False
        best = min(new, key=lambda c: c.score)
        actions = [best.table.actions]
        for headroom in PREFETCH_HEADROOMS:
            other = self._timed(reserve, headroom, best.resident)
            if other is not None and other.table.actions not in actions:
                new.append(other)
                actions.append(other.table.actions)
        self.timed += new
        return True

    def _timed(self, reserve: float, headroom: float, resident: ResidentIntervals) -> _Candidate | None:
        nbytes = int(headroom * self.slots.problem.capacity)
        key = resident.tobytes(), nbytes
        if key in self.seen:
            return None
        self.seen.add(key)
        self.pace.step()
        table = timetable(self.slots, resident, nbytes)
        return _Candidate(reserve, nbytes, resident, table, self._score(table.seconds, table.moved_bytes))

    def _score(self, seconds: float, nbytes: int) -> float:
        """Bytes count for a little: a plan that moves less can wait for more of them."""
        return seconds + BYTES_COUNT * nbytes / self.slots.problem.machine.link(Queue.H2D).bytes_per_s

    def _try(self, candidate: _Candidate, k: int) -> None:
        """Allocate it under a limit; with full live ranges first, unless these found no offsets where as much was free."""
        slots, table, ranges = self.slots, candidate.table, self.ranges[candidate]
        self.tried.add((candidate, k))
        if candidate.reserve > self.full_up_to:
            memgraph = at_full_ranges(slots, table, ranges, LESS_EFFORT, self.pace)
            if memgraph is not None:
                self.tried.update((candidate, n) for n in range(len(LIMITS)))
                self.front.add(SearchResult(memgraph, candidate.decision))
                return
            self.full_up_to = candidate.reserve
        expected = candidate.score + (1 + BYTES_COUNT) * self.unplaced_s[candidate, k]
        memgraph, _ = at_limited_ranges(slots, candidate.resident, table, candidate.prefetch_headroom, ranges, LIMITS[k], pace=self.pace)
        if memgraph is None:
            self.worse[k].append(NO_PLAN)
        else:
            found = self.front.add(SearchResult(memgraph, candidate.decision))
            self.worse[k].append(self._score(found.seconds, found.nbytes) / expected)

    def _exactly(self) -> Iterator[None]:
        """The best so far whose offsets exact search may find."""
        eligible = [c for c in self.timed if c.reserve >= EXACT_RESERVE and self.front.may_improve(c.table)]
        if eligible and self.slots.accesses.slots <= MOST_EXACT_SLOTS:
            self._try_exactly(min(eligible, key=lambda c: c.score))
            yield

    def _try_exactly(self, candidate: _Candidate) -> None:
        """Allocate it by exact search, with short live ranges."""
        slots, table = self.slots, candidate.table
        ranges, headroom = live_ranges(slots, table), candidate.prefetch_headroom
        memgraph, _ = at_limited_ranges(slots, candidate.resident, table, headroom, ranges, EXACT_LIMIT, exact=True, pace=self.pace)
        if memgraph is not None:
            self.front.add(SearchResult(memgraph, replace(candidate.decision, exact=True)))

    def _by_exchanges(self) -> Iterator[None]:
        """Ruin and recreate: from the best timetables, each once, and then from the best plan while that makes better ones."""
        if self.slots.accesses.slots > MOST_EXACT_SLOTS:
            return
        for seed in count():
            eligible = [c for c in self.timed if c not in self.exchanged and self._may_improve_after_exchanges(c)]
            if not eligible:
                return
            begun = min(eligible, key=lambda c: c.score)
            self.exchanged.add(begun)
            improved = self._improved(begun, seed)
            if improved is begun or not self.front.may_improve(improved.table):
                continue
            self.timed.append(improved)
            yield from self._by_expectation()
            self._try_exactly(improved)
            yield

    def _may_improve_after_exchanges(self, c: _Candidate) -> bool:
        """Exchanges move fewer bytes; they seldom make a timetable faster."""
        return c.reserve >= EXACT_RESERVE and c.table.seconds <= self.front.most_s

    def _improved(self, it: _Candidate, seed: int) -> _Candidate:
        """`it` after all exchanges of intervals that move fewer bytes, and take no longer than `it` or the fastest plan."""
        most_s = max(it.table.seconds, self.front.most_s)

        def accepts(resident: ResidentIntervals) -> bool:
            nonlocal it
            self.pace.step()
            table = timetable(self.slots, resident, it.prefetch_headroom)
            if table.seconds > most_s:
                return False
            it = replace(it, resident=resident.copy(), table=table, score=self._score(table.seconds, table.moved_bytes))
            return True

        ruin_and_recreate(self.slots.accesses, self.candidates.headroom(it.reserve), it.resident, accepts, seed, self.pace)
        return it
