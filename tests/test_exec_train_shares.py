"""Planning a training step, in which states and weights fill several shares of the budget: what these have in common is made once."""

from __future__ import annotations

from unittest.mock import patch

from einpage.exec.planning import task_graph
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.train_step import open_step
from einpage.exec.train.planned_step import plan_step
from einpage.memplan.machine.profile import load_machine

SIZES = {"vocab": 90, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "seq": 8}


def test_shares_of_the_budget_have_their_splits_in_common() -> None:
    """Of five shares, two splits are made, and none is searched for where states fill the budget."""
    step = open_step("llama", SIZES, "random:3")
    with (
        patch.object(task_graph, "split", side_effect=task_graph.split) as made,
        patch.object(task_graph, "joined_tasks", side_effect=task_graph.joined_tasks) as joined,
        patch.object(task_graph, "smallest", side_effect=task_graph.smallest) as searched,
    ):
        plan_step(step, load_machine("cpu"), PlanRequest(64 << 10))
    splits = [tuple(call.args[1].items()) for call in made.call_args_list]
    assert len(splits) == len(set(splits)) == joined.call_count == 2 and not searched.called
