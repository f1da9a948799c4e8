"""How little memory a plan of LLaMA needs: the largest task's working set to the byte, and 512 MiB for 65B once tasks are split.

What the published planner needs, measured on its own code, stands beside it.
"""

from __future__ import annotations

import pytest

from bench.plan_quality import MODELS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.fuse.fuse import fuse, without_fusions
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.judged_plan import plan_graph, plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.pace import pace_in_steps
from specs_small import SPECS

PUBLISHED = {1024: 1.14, 4096: 1.28}
"""By sequence: the smallest memory in which the published planner has a plan of 8 layers of 7B, as a multiple of its largest task's
working set (0.308 of 0.269 GB, 5.49 of 4.295 GB)."""


def unsplit(seq: int, no_fuse: tuple[str, ...]) -> TaskGraph:
    """8 layers of 7B, each op one task."""
    program = open_model(SPECS / "llama.yaml", {**MODELS["7B"], "layers": 8, "seq": seq}).program
    return split(fuse(program, None, without_fusions(no_fuse)), {}, DType.FP16)


@pytest.mark.parametrize("seq", PUBLISHED)
@pytest.mark.parametrize("no_fuse", [(), ("attention",)], ids=["fused", "attention in parts"])
@pytest.mark.parametrize("steps", [0, 3000])
def test_the_largest_task_is_all_the_memory_a_plan_needs(seq: int, no_fuse: tuple[str, ...], steps: int) -> None:
    graph, machine = unsplit(seq, no_fuse), load_machine("a100")
    task, least = largest_footprint(graph)
    planned = plan_graph(graph, machine, least, pace=pace_in_steps(steps))
    assert planned.report.verified is True
    peak = planned.report.peak_bytes
    assert isinstance(peak, int)
    assert peak / least == 1.0 < PUBLISHED[seq]
    with pytest.raises(DoesNotFit) as refused:
        plan_graph(graph, machine, least - 1, pace=pace_in_steps(steps))
    misfit = refused.value.misfit
    assert (misfit.task, misfit.budget, misfit.smallest_budget) == (graph.tasks[task].name, least - 1, least)
    assert misfit.free + sum(nbytes for _, nbytes in misfit.pinned) == least - ALIGNMENT


def test_65b_is_planned_in_512_mib() -> None:
    """Unsplit its largest task wants more; the split is chosen by the budget alone."""
    budget = 512 << 20
    program = open_model(SPECS / "llama.yaml", {**MODELS["65B"], "seq": 2048}).program
    assert largest_footprint(split(fuse(program), {}, DType.FP16))[1] > budget
    planned = plan_program(program, load_machine("a100"), PlanRequest(budget, DType.FP16))
    assert any(pieces > 1 for _, pieces in planned.graph.split)
    assert planned.report.verified is True
    used = planned.report.peak_bytes
    assert largest_footprint(planned.graph)[1] <= used <= budget
