"""What it costs a plan of a generation to have the residents and the pieces of those after it: about nothing beside a plan made alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
