"""The smallest budget of the real model: refused by one alignment unit less, exactly the largest task's needs, and it works."""

from __future__ import annotations

from math import ceil

import pytest

from einpage.einsum_front.base.units import ALIGNMENT
from einpage.einsum_front.graph.taskgraph import Task
from einpage.exec.cli import main
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.model import Model
from smollm2 import smollm2_path
from smollm2_run import FRANCE, LLAMA, arena, open_smollm2, planned

SMALLEST = 5 * 576 * 4 + 2 * (64 * 64 * 4) + 2 * (5 * 64 * 4) + 5 * 64 * 4
"""Bytes at 5 tokens: the rows of `n`, a tile of `w1` and one of `w3`, the two accumulators carried, the tile of `y` they give."""
TASK = "y.0[0:1,0:5,0:64]+8"


@pytest.fixture(scope="module")
def smallest() -> tuple[Model, Planned]:
    model = open_smollm2([FRANCE])
    return model, planned(model, SMALLEST)


def test_less_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    budget = SMALLEST - ALIGNMENT
    words = ["plan", str(LLAMA), "--weights", str(smollm2_path()), "--set", f"seq={len(FRANCE)}", "--budget", str(budget)]
    words += ["--weights-as", "run"]
    assert main(words) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"task {TASK} wants {SMALLEST} bytes on the device; budget {budget}, " in err
    assert f"smallest budget that works: {SMALLEST} bytes" in err


def test_it_is_what_the_largest_task_needs_at_the_finest_split(smallest: tuple[Model, Planned]) -> None:
    _, plan = smallest
    graph = plan.graph

    def need(task: Task) -> int:
        """Where a result may take over an operand's bytes, this counts that it does."""
        tiles = set() if task.gathers else {t for operand in task.operands for t in operand}
        sizes = [graph.tensors[t].nbytes for t in (tiles if task.inplace else tiles | {task.result})]
        return sum(ceil(size / ALIGNMENT) * ALIGNMENT for size in (*sizes, task.workspace_bytes))

    assert max(map(need, graph.tasks)) == SMALLEST == plan.memgraph.budget_bytes
    assert {need(task) for task in graph.tasks if task.name == TASK} == {SMALLEST}
    split = dict(plan.graph.split)
    assert 1536 // split["f"] == 64 and 576 // split["m"] == 64, "its product is a tile of 64 by 64: none is finer"
    assert plan.report.verified is True and plan.report.peak_bytes == SMALLEST


@pytest.mark.slow
def test_it_works(smallest: tuple[Model, Planned]) -> None:
    model, plan = smallest
    memgraph = plan.memgraph
    _, found = arena().run(memgraph, arena().device(model, memgraph))
    top = found["logits"][0].topk(5)
    assert top.indices.tolist() == [7042, 260, 4528, 2250, 1315]
    assert top.values.tolist() == pytest.approx([17.371, 14.889, 13.245, 13.010, 12.952], abs=0.02)
