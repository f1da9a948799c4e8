"""Plans from decisions: policies of what stays, timetables, assembly, and the search over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, TaskGraph
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.simulate import moved_bytes, queue_numbers, simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.packing.place import place
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.accesses import Accesses
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.places import ENGINES, Queue
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import Slots, slots_of
from einpage.memplan.residency.policies import (
    Headroom,
    ResidentIntervals,
    evened,
    nearest,
    pin_evenly,
    pin_first,
    resident_bytes,
    rounded,
    stream_all,
)
from einpage.memplan.schedule import relocate as wish
from einpage.memplan.schedule import search as decide
from einpage.memplan.schedule.allocate import WISHES, settled
from einpage.memplan.schedule.emit import Blocks, Stays, assemble, blocks_of
from einpage.memplan.schedule.relocate import modest, seated
from einpage.memplan.schedule.search import SLOWER, Decided, Way, better_plan, steadied
from einpage.memplan.schedule.split_ranges import cut, within
from einpage.memplan.schedule.static_plans import Policy, static_plans
from einpage.memplan.schedule.timetable import Timetable, timetable
from plan_problems import in_arena
from strategies import a_machine, changed, machines, random_graph, task_graphs

IntervalPolicy: TypeAlias = Callable[[Accesses, Headroom], ResidentIntervals]
POLICIES: tuple[IntervalPolicy, ...] = (
    nearest, stream_all, pin_first, pin_evenly, lambda a, room: rounded(a, room, np.linspace(0, 1, len(a.tensor))),
    lambda a, room: evened(a, room, np.linspace(0, 1, len(a.tensor))),
)  # fmt: skip


def slots_for(graph: TaskGraph, machine: Machine, alignment: int = 256) -> Slots:
    slots = slots_of(problem_of(graph, machine, 0, alignment=alignment))
    assume(slots is not None)
    assert slots is not None
    return slots


def budget_of(graph: TaskGraph, extra: int, alignment: int = 256) -> int:
    return (largest_footprint(graph, alignment)[1] + extra) // alignment * alignment


def moved(memgraph: MemGraph) -> int:
    return moved_bytes(memgraph, Queue.H2D) + moved_bytes(memgraph, Queue.D2H)


@given(task_graphs(), st.integers(0, 20_000), st.sampled_from(POLICIES))
def test_what_stays_fits(graph: TaskGraph, extra: int, policy: IntervalPolicy) -> None:
    a = slots_for(graph, a_machine()).accesses
    room = budget_of(graph, extra) - a.footprint
    assert bool((resident_bytes(a, policy(a, room)) <= room).all())


@given(task_graphs(), st.integers(0, 20_000))
def test_stream_all_keeps_nothing_the_host_has(graph: TaskGraph, extra: int) -> None:
    a = slots_for(graph, a_machine()).accesses
    assert not stream_all(a, budget_of(graph, extra) - a.footprint)[a.clean[a.tensor]].any()


@pytest.mark.parametrize("policy", [pin_first, pin_evenly])
def test_a_pin_is_for_good(policy: IntervalPolicy) -> None:
    """Of a tensor of the host all intervals stay or none; and with room for everything all do."""
    some = 0
    for seed in range(200):
        slots = slots_of(problem_of(random_graph(seed), a_machine(), 0))
        if slots is None:
            continue
        a = slots.accesses
        resident = policy(a, budget_of(slots.problem.graph, 4096) - a.footprint)
        for t in set(a.tensor[a.clean[a.tensor]].tolist()):
            mine = resident[a.tensor == t]
            assert mine.all() or not mine.any()
            some += bool(mine.any())
        assert policy(a, np.full(a.slots, 1 << 40)).all()
    assert some > 20


def everywhere(blocks: Blocks) -> Stays:
    """Every block on bytes of its own."""
    *offsets, _ = accumulate((b.nbytes for b in blocks.blocks), initial=0)
    return Stays(tuple(offsets), tuple(b.start for b in blocks.blocks), tuple(b.end for b in blocks.blocks))


@given(task_graphs(), machines(), st.integers(0, 20_000), st.sampled_from(POLICIES), st.sampled_from([1, 256]), st.integers(0, 4096))
def test_every_timetable_becomes_a_right_plan(
    graph: TaskGraph, machine: Machine, extra: int, policy: IntervalPolicy, alignment: int, slack: int
) -> None:
    """In an arena with places for all; its bytes are the timetable's."""
    slots = slots_for(graph, machine, alignment)
    capacity = budget_of(graph, extra, alignment)
    table = timetable(slots, capacity, policy(slots.accesses, capacity - slots.accesses.footprint), slack)
    blocks = blocks_of(slots, table)
    alive = sum(b.nbytes for b in blocks.blocks)
    memgraph = assemble(in_arena(slots, alive), table, blocks, everywhere(blocks))
    assert judge(memgraph) is None
    assert moved(memgraph) == table.moved_bytes
    busiest = max((sum(b.nbytes for b in blocks.blocks if b.start <= p < b.end) for p in range(3 * len(slots.tasks))), default=0)
    assert busiest <= capacity


@given(
    task_graphs(), machines(), st.integers(0, 20_000), st.sampled_from(POLICIES), st.sampled_from([1, 256]), st.booleans(), st.booleans()
)
def test_every_cut_becomes_a_right_plan(
    graph: TaskGraph,
    machine: Machine,
    extra: int,
    policy: IntervalPolicy,
    alignment: int,
    placed: bool,
    drives: bool,
) -> None:
    """In the arena itself, from the places that `place` finds or from none at all. Nothing stays that did not."""
    slots = slots_for(graph, machine, alignment)
    capacity = budget_of(graph, extra, alignment)
    resident = policy(slots.accesses, capacity - slots.accesses.footprint)
    blocks = blocks_of(slots, timetable(slots, capacity, resident))
    offsets = place(blocks.blocks, capacity, effort=0.02) if placed else (None,) * len(blocks.blocks)
    found = cut(slots, blocks, offsets, resident, capacity, drives)
    if found is None:
        assert placed is False or None in offsets
        return
    assert not (found.resident & ~resident).any()
    table = timetable(slots, capacity, found.resident)
    blocks = blocks_of(slots, table)
    memgraph = assemble(in_arena(slots, capacity), table, blocks, seated(slots, blocks, within(blocks, found.offset_by_key), capacity))
    assert judge(memgraph) is None
    assert moved(memgraph) == table.moved_bytes


def test_a_timetable_tells_the_time() -> None:
    """Where places do not matter, the simulator's makespan is the timetable's; both are seen to differ between policies."""
    told = []
    for seed in range(120):
        graph = random_graph(seed)
        slots = slots_of(problem_of(graph, a_machine(), 0))
        if slots is None:
            continue
        capacity = budget_of(graph, 2048)
        for policy in (nearest, stream_all):
            table = timetable(slots, capacity, policy(slots.accesses, capacity - slots.accesses.footprint))
            blocks = blocks_of(slots, table)
            memgraph = assemble(in_arena(slots, sum(b.nbytes for b in blocks.blocks)), table, blocks, everywhere(blocks))
            seconds = simulate(memgraph, a_machine()).makespan_s
            assert seconds <= table.seconds * (1 + 1e-9), "without memory edges nothing can be slower"
            told.append(seconds / table.seconds)
    assert np.median(told) > 0.9


@settings(max_examples=15)
@given(task_graphs(most_ops=5), machines(), st.integers(0, 8192), st.sampled_from([1, 2]), st.sampled_from([1, 256]))
def test_effort_is_never_worse_and_always_right(graph: TaskGraph, machine: Machine, extra: int, effort: int, alignment: int) -> None:
    budget = budget_of(graph, extra, alignment)
    plain, better = (plan(graph, machine, budget, PlanOptions(alignment=alignment, effort=e)) for e in (0, effort))
    assert judge(better) is None
    assert simulate(better, machine).makespan_s <= simulate(plain, machine).makespan_s
    assert memgraph_text(plan(graph, machine, budget, PlanOptions(alignment=alignment, effort=effort))) == memgraph_text(better)
    assert all(graph.tensors[better.residencies[r].tensor].kind in HOST_AT_START for r in better.start)


def test_effort_pays() -> None:
    """Over many graphs a good share of plans becomes faster."""
    faster = tried = 0
    for seed in range(40):
        graph, machine = random_graph(seed, most_ops=10), a_machine()
        slots = slots_of(problem_of(graph, machine, 0))
        if slots is None:
            continue
        start = plan(graph, machine, budget_of(graph, 1024))
        found = better_plan(in_arena(slots, budget_of(graph, 1024)), 1, start, 0.0).memgraph
        tried += 1
        faster += simulate(found, machine).makespan_s < 0.99 * simulate(start, machine).makespan_s
    assert tried >= 20
    assert faster >= tried // 5, f"{faster} of {tried}"


def test_a_plan_at_its_bound_of_time_still_moves_less() -> None:
    """Where nothing can be faster, a plan that takes no longer is searched for that moves less; of some graphs there is one."""
    less = 0
    for seed in range(60):
        graph, machine = random_graph(seed, most_ops=10), a_machine()
        slots, budget = slots_of(problem_of(graph, machine, 0)), budget_of(graph, 2048)
        if slots is None or not static_plans(in_arena(slots, budget), (Policy.STREAM_ALL,)):
            continue
        start = plan(graph, machine, budget, PlanOptions(policy=Policy.STREAM_ALL))
        start_s = simulate(start, machine).makespan_s
        found = better_plan(in_arena(slots, budget), 1, start, start_s).memgraph
        assert simulate(found, machine).makespan_s <= start_s
        less += moved(found) < moved(start)
    assert less >= 5, less


def test_nothing_is_placed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ways with the same timetable one is placed; slack that changes none is no other way."""
    placed: list[tuple[bytes, Timetable]] = []

    def seen(slots: Slots, resident: ResidentIntervals, table: Timetable, *more: Any, exact: bool = False) -> Iterator[MemGraph]:
        if not exact:
            assert not [t for k, t in placed if k == resident.tobytes() and t.steps == table.steps]
            placed.append((resident.tobytes(), table))
        return settled(slots, resident, table, *more, exact=exact)

    monkeypatch.setattr(decide, "settled", seen)
    monkeypatch.setattr(decide, "steadied", lambda slots, best: best)
    most = 0
    for seed in range(40):
        graph = random_graph(seed, most_ops=10)
        slots = slots_of(problem_of(graph, a_machine(), 0))
        if slots is None:
            continue
        better_plan(in_arena(slots, budget_of(graph, 1024)), 1, plan(graph, a_machine(), budget_of(graph, 1024)), 0.0)
        most = max(most, len(placed))
        placed.clear()
    assert most > 1


def test_the_same_wish_makes_one_plan() -> None:
    """Wishing what has been wished makes no other plan; of some graphs in the smallest arena there are plans only by cutting stays."""
    cuts = 0
    for seed in range(60):
        graph = random_graph(seed, most_ops=30)
        slots, capacity = slots_of(problem_of(graph, a_machine(), 0, alignment=1)), budget_of(graph, 0, 1)
        if slots is None:
            continue
        resident = nearest(slots.accesses, capacity - slots.accesses.footprint)
        table = timetable(slots, capacity, resident)
        once, twice = (list(settled(in_arena(slots, capacity), resident, table, 0, WISHES[:1] * n)) for n in (1, 2))
        assert len(once) == len(twice)
        cuts += any(moved(it) > table.moved_bytes for it in once)
    assert cuts >= 3, cuts


def late_s(memgraph: MemGraph) -> float:
    """The makespan when tasks are slow, and when copies are."""
    on = [q == ENGINES.index(Queue.COMPUTE) for q in queue_numbers(memgraph).tolist()]
    factors = [np.array([SLOWER if slow is late else 1.0 for slow in on]) for late in (True, False)]
    return sum(simulate(memgraph, a_machine(), f).makespan_s for f in factors)


def test_a_steadied_plan_costs_nothing_and_loses_less() -> None:
    """It takes no longer, moves no more, and minds slow tasks and copies less, or it is the plan that was there; some are others."""
    changed = 0
    for seed in range(60):
        graph = random_graph(seed, most_ops=10)
        slots, capacity = slots_of(problem_of(graph, a_machine(), 0)), budget_of(graph, 1024)
        if slots is None:
            continue
        resident = stream_all(slots.accesses, capacity - slots.accesses.footprint)
        table = timetable(slots, capacity, resident)
        for before in settled(in_arena(slots, capacity), resident, table, 0):
            after = steadied(in_arena(slots, capacity), Decided(before, Way(0, table.moved_bytes, resident))).memgraph
            assert judge(after) is None
            assert simulate(after, a_machine()).makespan_s <= simulate(before, a_machine()).makespan_s
            assert moved(after) <= moved(before)
            assert after is before or late_s(after) < late_s(before)
            changed += after is not before
    assert changed >= 5, changed


def test_the_host_gets_first_what_leaves_first() -> None:
    """Over a slow link no copy to the host is issued before that of a tensor that is there by then and leaves sooner, nor after its
    tensor has left; some are issued before those of tensors that were there sooner."""
    overtaken = 0
    for seed in range(60):
        graph, machine = random_graph(seed, most_ops=12), changed(a_machine(), d2h_bytes_per_s=1e6)
        slots = slots_of(problem_of(graph, machine, 0))
        if slots is None:
            continue
        a, capacity = slots.accesses, budget_of(graph, 0)
        resident = nearest(a, capacity - a.footprint)
        leaves = a.last_at.tolist()
        for j in reversed(np.flatnonzero(~resident).tolist()):
            leaves[a.tensor[j]] = int(a.start[j])
        there = np.maximum(a.made_at, 0).tolist()
        issued = [(k, t) for k, step in enumerate(timetable(slots, capacity, resident).steps) for t in step.stores]
        for i, (k, t) in enumerate(issued):
            later = [u for _, u in issued[i + 1 :] if there[u] <= k]
            assert there[t] <= k <= leaves[t]
            assert not [u for u in later if leaves[u] < leaves[t]]
            overtaken += any(there[u] < there[t] for u in later)
    assert overtaken >= 5, overtaken


def unmet(slots: Slots, blocks: Blocks, stays: Stays) -> float:
    """Seconds of tasks between what blocks wish and when they come and go."""
    passed = np.concatenate(((0.0,), slots.accesses.seconds.cumsum()))
    births = sum(passed[-(-at // 3)] - passed[-(-b.start // 3)] for at, b in zip(stays.births, blocks.blocks, strict=True))
    return float(births + sum(passed[-(-b.end // 3)] - passed[-(-at // 3)] for at, b in zip(stays.deaths, blocks.blocks, strict=True)))


def overlaps(blocks: Blocks, stays: Stays) -> bool:
    """Whether two that stay at once share a byte."""
    all_ = list(zip(stays.offsets, stays.births, stays.deaths, (b.nbytes for b in blocks.blocks), strict=True))
    return any(
        max(b, d) < min(e, f) and max(at, other) < min(at + n, other + m)
        for i, (at, b, e, n) in enumerate(all_)
        for other, d, f, m in all_[:i]
    )


def test_seats_take_nothing_needed_and_grant_more_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From places for what blocks need, and for modest wishes: moves leave no more unmet than before, nor pushes than moves."""
    unmet_s = np.zeros(3)
    for seed in range(40):
        slots = slots_of(problem_of(random_graph(seed, most_ops=40), a_machine(), 0))
        if slots is None:
            continue
        capacity = budget_of(slots.problem.graph, 1024)
        table = timetable(slots, capacity, nearest(slots.accesses, capacity - slots.accesses.footprint))
        blocks = blocks_of(slots, table)
        offsets = place(modest(slots, blocks, seed % 3, seed % 2).blocks, capacity)
        if None in offsets:
            continue
        found = [within(blocks, {key: at for key, at in zip(blocks.keys, offsets, strict=True) if at is not None})]
        for pushes in (0, 2):
            monkeypatch.setattr(wish, "PUSHES", pushes)
            found.append(seated(slots, blocks, found[0], capacity))
        for after in found:
            assert not overlaps(blocks, after)
            assert all(0 <= at <= capacity - b.nbytes for at, b in zip(after.offsets, blocks.blocks, strict=True))
            for b, (_, need), upper, birth, death in zip(
                blocks.blocks, blocks.keys, blocks.uppers, after.births, after.deaths, strict=True
            ):
                assert b.start <= birth <= need < upper <= death <= b.end
        unmet_here = [unmet(slots, blocks, after) for after in found]
        assert unmet_here[2] <= unmet_here[1] + 1e-12 <= unmet_here[0] + 2e-12, seed
        unmet_s += unmet_here
    assert unmet_s[1] < 0.6 * unmet_s[0]
    assert unmet_s[2] < 0.9 * unmet_s[1], unmet_s


def test_modest_wishes_lie_between_what_is_needed_and_all_wishes() -> None:
    shorter = 0
    for seed in range(40):
        slots = slots_of(problem_of(random_graph(seed, most_ops=10), a_machine(), 0))
        if slots is None:
            continue
        capacity = budget_of(slots.problem.graph, 2048)
        blocks = blocks_of(slots, timetable(slots, capacity, nearest(slots.accesses, capacity - slots.accesses.footprint)))
        for lead, linger in ((0.0, 0.0), (1.0, 1.0), (1e9, 1e9)):
            less = modest(slots, blocks, lead, linger)
            for b, m, (_, need), upper in zip(blocks.blocks, less.blocks, blocks.keys, blocks.uppers, strict=True):
                assert b.start <= m.start <= need < upper <= m.end <= b.end
                assert lead or (m.start, m.end) == (need, upper)
                assert lead < 2 or m == b
            shorter += less != blocks
    assert shorter >= 10, shorter
