"""What it costs a plan of a generation to have the residents and the pieces of those after it: about nothing beside a plan made alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from einpage.einsum_front.algebra.expr import Letter
from einpage.exec.planning import judged_plan, plan_set
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.model import asked, open_model
from einpage.exec.planning.plan_set import plan_texts
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.memplan.machine.profile import load_machine
from specs_small import SPECS

MIB = 2**20
COSTS = 1.02
GPT2_512 = TextLengths(1, 128, 1, 385)
"""`plan gpt2 --generate 512`."""
CASES = [
    pytest.param("gpt2", 64 * MIB, (0, 64), id="gpt2"),
    pytest.param("gpt2", 64 * MIB, (128, 192, 256, 320), id="gpt2-later", marks=[pytest.mark.slow]),
    pytest.param("gpt2", 256 * MIB, (0, 64, 128, 192, 256, 320), id="gpt2-256MiB", marks=[pytest.mark.slow]),
]


@pytest.mark.parametrize(("spec", "budget", "pasts"), CASES)
def test_a_bucket_bound_to_those_after_it_is_as_fast_as_one_planned_alone(spec: str, budget: int, pasts: tuple[int, ...]) -> None:
    request, machine = PlanRequest(budget), load_machine("cpu")
    planned = plan_texts(lambda at: open_model(SPECS / f"{spec}.yaml", at), machine, request, GPT2_512)
    phases = [planned.phase(n) for n in range(len(planned.plan_set.phases))]
    bound = {phase.bucket.past: phase for phase in phases if not phase.bucket.is_read}
    for past in pasts:
        phase = bound[past]
        program, alone = asked(phase.model, phase.output, replace(request, passes=phase.bucket.extra + 1))
        assert phase.seconds <= COSTS * plan_program(program, machine, alone).report.predicted_s, f"positions from {past} on"


def test_every_phase_is_opened_once_and_split_once_into_the_same_pieces() -> None:
    """Prompts are planned before all buckets, and after them beside what stays."""
    opened, split = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()

    def counted(function: Callable[..., Any], counter: Counter[tuple[object, ...]], key: Callable[..., tuple[object, ...]]) -> Any:
        def call(*given: Any) -> Any:
            found = function(*given)
            counter[key(found, *given)] += 1
            return found

        return call

    of_bucket = counted(plan_set.opened, opened, lambda found, model_at, texts, bucket: (bucket,))
    of_pieces = counted(
        judged_plan.split_for, split, lambda found, sets, program, request: (tuple(program.sizes.items()), found.graph.split)
    )
    with patch.object(plan_set, "opened", of_bucket), patch.object(judged_plan, "split_for", of_pieces):
        planned = plan_texts(
            lambda at: open_model(SPECS / "gpt2.yaml", {"layers": 2, **at}), load_machine("cpu"), PlanRequest(64 * MIB), GPT2_512
        )
    assert len(opened) == len(planned.plan_set.phases) and set(opened.values()) == {1}
    assert set(split.values()) == {1}


def test_tasks_at_hand_serve_in_the_pieces_asked_for_and_no_others() -> None:
    program, machine = open_model(SPECS / "mlp.yaml").program, load_machine("cpu")
    whole = PlanRequest(4 * MIB, pieces=dict.fromkeys(program.extents, 1))
    made = plan_program(program, machine, whole).graph
    letter = Letter("h")
    assert plan_program(program, machine, whole, made=made).graph is made
    assert dict(plan_program(program, machine, whole.in_pieces({letter: 2}), made=made).graph.split) == {letter: 2}
    small = PlanRequest(MIB // 2)
    assert plan_program(program, machine, small, made=made).graph.split == plan_program(program, machine, small).graph.split != made.split
