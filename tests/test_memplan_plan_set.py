"""The judge of plan sets: what it passes, and a mutant for each of its reasons; a saved set is the same, and a damaged one is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.plan_set import plan_texts
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset, PlanSet, Residency
from einpage.memplan.graph.planfile import load_plan, load_plan_set, save_plan, save_plan_set
from einpage.memplan.judge.plan_set import SetReason, judge_sequence, judge_set
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, HOST, Place
from einpage.memplan.machine.profile import load_machine
from specs_small import SPECS

SIZES = {"vocab": 160, "model": 48, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128}


def model_at(sizes: Mapping[str, int]) -> Model:
    return open_model(SPECS / "llama.yaml", {**SIZES, **sizes})


@cache
def made() -> PlanSet:
    """Of prompts of 4 tokens and three buckets, with a part of the weights resident."""
    with patch.object(text_lengths, "LEAST_POSITIONS", 6):
        return plan_texts(model_at, load_machine("cpu"), PlanRequest(100 << 10), TextLengths(2, 4, 3, 14)).plan_set


def changed(plans: PlanSet, n: int, **fields: object) -> PlanSet:
    """With other fields of the n-th phase."""
    phases = [replace(phase, **fields) if i == n else phase for i, phase in enumerate(plans.phases)]
    return replace(plans, phases=tuple(phases))


def weights_swapped(memgraph: MemGraph, place: Place) -> MemGraph:
    """Two weights of one size that are at `place` from the start change places there; alone, the plan is as right as before."""
    tensors = memgraph.graph.tensors
    there = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == place and tensors[r.tensor].kind is Kind.WEIGHT]
    one, other = next((a, b) for a in there for b in there if a.id < b.id and a.extents[0].nbytes == b.extents[0].nbytes)
    moved = {one.id: other.extents, other.id: one.extents}
    residencies = tuple(replace(r, extents=moved.get(r.id, r.extents)) for r in memgraph.residencies)
    found = replace(memgraph, residencies=residencies)
    assert judge(found) is None
    return found


def without_state(memgraph: MemGraph) -> MemGraph:
    """One output less."""
    return replace(memgraph, graph=replace(memgraph.graph, outputs=memgraph.graph.outputs[:-1]))


def with_constant_state(memgraph: MemGraph) -> MemGraph:
    """The tile of a state that every pass writes, as if it were the same in all of them."""
    graph = memgraph.graph
    first = next(t for t in graph.tensors if t.value == "ck@1" and t.kind is Kind.INPUT)
    tensors = tuple(replace(t, kind=Kind.CONSTANT) if t.id == first.id else t for t in graph.tensors)
    return replace(memgraph, graph=replace(graph, tensors=tensors))


def overlapping(memgraph: MemGraph) -> MemGraph:
    """A resident on another's bytes."""
    there = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == DEVICE]
    first, second = there[:2]
    on_top = replace(second, extents=(Extent(Offset(first.extents[0].offset), second.extents[0].nbytes),))
    residencies: tuple[Residency, ...] = tuple(on_top if r.id == second.id else r for r in memgraph.residencies)
    return replace(memgraph, residencies=residencies)


def memgraph_of(n: int, change: Callable[[MemGraph], MemGraph]) -> Callable[[PlanSet], PlanSet]:
    return lambda plans: changed(plans, n, memgraph=change(plans.phases[n].memgraph))


MUTANTS: list[tuple[SetReason, int, Callable[[PlanSet], PlanSet]]] = [
    (SetReason.EMPTY, 0, lambda plans: replace(plans, phases=())),
    (SetReason.WRONG_PLAN, 2, memgraph_of(2, overlapping)),
    (SetReason.OTHER_ARENA, 2, memgraph_of(2, lambda m: m.with_arena(DEVICE, m.budget_bytes + 4096))),
    (SetReason.POSITION_MISSING, 1, lambda plans: replace(plans, phases=(*plans.phases[:2], *plans.phases[3:]))),
    (SetReason.POSITION_MISSING, 1, lambda plans: replace(plans, phases=(plans.phases[0], *plans.phases[2:]))),
    (SetReason.POSITION_MISSING, 1, lambda plans: changed(plans, 1, extra=plans.phases[1].extra - 1)),
    (SetReason.POSITION_MISSING, 1, lambda plans: changed(plans, 2, past=plans.phases[2].past + 1)),
    (SetReason.POSITION_MISSING, 1, lambda plans: replace(plans, spread=plans.spread + 1)),
    (SetReason.POSITION_MISSING, 1, lambda plans: replace(plans, phases=plans.phases[:1])),
    (SetReason.POSITION_MISSING, 2, lambda plans: replace(plans, phases=plans.phases[:3])),
    (SetReason.POSITION_MISSING, 0, lambda plans: changed(plans, 0, past=1)),
    (SetReason.NO_LOOP, 3, memgraph_of(3, lambda m: replace(m, loops=False))),
    (SetReason.WEIGHT_ELSEWHERE, 2, memgraph_of(2, lambda m: weights_swapped(m, HOST))),
    (SetReason.WEIGHT_ELSEWHERE, 1, memgraph_of(0, lambda m: weights_swapped(m, HOST))),
    (SetReason.WEIGHT_LOADED, 3, memgraph_of(3, lambda m: weights_swapped(m, DEVICE))),
    (SetReason.STATE_LOST, 1, memgraph_of(0, without_state)),
    (SetReason.STATE_LOST, 2, memgraph_of(1, without_state)),
    (SetReason.STATE_LOST, 0, lambda plans: replace(changed(plans, 0, tokens=9), longest=9)),
    (SetReason.STATE_LOST, 1, lambda plans: replace(plans, phases=(plans.phases[0], replace(plans.phases[1], extra=plans.positions - 1)))),
    (SetReason.POSITION_MISSING, 0, lambda plans: replace(plans, phases=plans.phases[1:])),
    (SetReason.POSITION_MISSING, 0, lambda plans: replace(plans, shortest=plans.longest + 1)),
    (SetReason.POSITION_MISSING, 1, lambda plans: replace(changed(plans, 1, past=2), longest=plans.longest - 1)),
    (SetReason.STATE_STALE, 3, memgraph_of(3, with_constant_state)),
]


@pytest.mark.parametrize("mutant", range(len(MUTANTS)), ids=lambda n: f"{MUTANTS[n][0].name}-{n}")
def test_each_reason_is_found_where_it_is(mutant: int) -> None:
    reason, phase, mutate = MUTANTS[mutant]
    violation = (judge_set if reason is SetReason.WRONG_PLAN else judge_sequence)(mutate(made()))
    assert violation is not None
    assert (violation.reason, violation.phase) == (reason, phase)
    assert reason.value in violation.message


def test_every_reason_has_a_mutant() -> None:
    assert {reason for reason, _, _ in MUTANTS} == set(SetReason)


def test_a_set_as_planned_is_right() -> None:
    plans = made()
    assert len(plans.phases) >= 4 and plans.spread == 1
    assert judge_set(plans) is None


def test_a_saved_set_is_the_same(tmp_path: Path) -> None:
    plans = made()
    save_plan_set(tmp_path / "set.json", plans, {"any": 1})
    saved = load_plan_set(tmp_path / "set.json")
    assert saved.recipe == {"any": 1}
    assert (saved.plans.shortest, saved.plans.spread) == (plans.shortest, plans.spread)
    assert judge_set(saved.plans) is None
    save_plan_set(tmp_path / "again.json", saved.plans, {"any": 1})
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "set.json").read_bytes()
    with pytest.raises(UsageError, match="a plan set, of 4 plans, where one plan is wanted"):
        load_plan(tmp_path / "set.json")
    save_plan(tmp_path / "one.json", plans.phases[0].memgraph, {})
    with pytest.raises(UsageError, match="one plan, where a plan set is wanted"):
        load_plan_set(tmp_path / "one.json")


@given(st.integers(1, 9), st.integers(1, 700), st.integers(0, 300), st.integers(1, 3000))
def test_every_pass_of_every_sequence_has_a_bucket(batch: int, shortest: int, spread: int, max_new: int) -> None:
    texts = TextLengths(batch, shortest + spread, shortest, max_new)
    buckets = texts.buckets()
    assert bool(buckets) == (max_new > 1)
    for step in range(max_new - 1):
        first = (texts.longest - texts.spread if batch > 1 else shortest) + step
        bucket = next(b for b in reversed(buckets) if b.past <= first)
        assert first + texts.spread <= bucket.past + bucket.extra
    assert all(b.past + b.extra < texts.positions for b in buckets), "no position is planned for that nobody reaches"
    borders = [b.past for b in buckets]
    assert borders == sorted(set(borders))
    if buckets:
        last = buckets[-1]
        assert last.extra + 1 - texts.spread >= min(text_lengths.LEAST_POSITIONS, last.past // text_lengths.POSITIONS_SHARE or 1) // 2
