"""Traces made up here, of kinds that no planner was tuned on: each plan is judged, writes no byte in vain and is beaten by no static plan.

In: convolutions with skips, three passes over the same weights; a training step that reads its activations backwards; ops of random sizes,
some with several outputs or no duration, over links of unequal rates. At capacities from the largest op's footprint on.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from einpage.einsum_front.graph.taskgraph import HOST_AT_START
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.memplan.graph.memgraph import MemGraph, Move, NodeId
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import links_only
from einpage.memplan.machine.places import Queue
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.problem.footprint import largest_footprint
from einpage.memplan.problem.pace import Pace
from einpage.memplan.problem.problem import problem_of
from einpage.memplan.problem.slots import slots_of
from einpage.memplan.schedule.static_plans import STATIC, static_plans

ROUNDING = 1 + 1e-9


class Made:
    """A trace as it grows."""

    def __init__(self) -> None:
        self.tensors: list[list[Any]] = []
        self.ops: list[list[Any]] = []

    def tensor(self, nbytes: float, on_host: int = 0, must_end: int = 0) -> int:
        self.tensors.append([int(nbytes), on_host, must_end, "w" if on_host else "a"])
        return len(self.tensors) - 1

    def op(self, inputs: list[int], outputs: list[int], micros: float) -> int:
        self.ops.append([f"op{len(self.ops)}", inputs, outputs, micros])
        return outputs[0]


def convolutions(passes: int, blocks: int) -> Made:
    """Activations shrink and weights grow from block to block; each block's input is added to its output."""
    made = Made()
    weights = [[made.tensor(3e4 * 2 ** (b // 2), 1), made.tensor(1e3 * (b + 1), 1)] for b in range(blocks)]
    for _ in range(passes):
        x = made.tensor(6e5, 1)
        for b, (kernel, norm) in enumerate(weights):
            size = 8e5 / (1 + b // 2)
            y = made.op([x, kernel], [made.tensor(size)], 12)
            y = made.op([y, norm], [made.tensor(size)], 6)
            x = made.op([x, y], [made.tensor(size)], 9)
        made.op([x], [made.tensor(4e3, 0, 1)], 3)
    return made


def training(layers: int) -> Made:
    """A step: activations are read again backwards, and each weight's new value ends on the host."""
    made = Made()
    weights = [made.tensor(8e6, 1) for _ in range(layers)]
    acts = [made.tensor(2e6, 1)]
    for w in weights:
        acts.append(made.op([acts[-1], w], [made.tensor(2e6)], 300))
    grad = made.op([acts[-1]], [made.tensor(2e6), made.tensor(4, 0, 1)], 20)
    for w, act in zip(reversed(weights), reversed(acts[:-1]), strict=True):
        new = made.tensor(8e6)
        grad = made.op([grad, act, w], [made.tensor(2e6), new], 600)
        made.op([w, new], [made.tensor(8e6, 0, 1)], 50)
    return made


def anything(seed: int, ops: int) -> Made:
    """Sizes over seven orders of magnitude; one op in ten takes no time, one output in ten ends on the host."""
    draw, made = random.Random(seed), Made()
    weights = [made.tensor(10 ** draw.uniform(0, 8), 1) for _ in range(ops // 2)]
    there = [made.tensor(10 ** draw.uniform(3, 7), 1)]
    for k in range(ops):
        outputs = [made.tensor(10 ** draw.uniform(0, 7), 0, int(draw.random() < 0.1)) for _ in range(draw.choice((1, 1, 2, 3)))]
        inputs = draw.sample(there[-12:], min(len(there), draw.randint(1, 3)))
        made.op([*inputs, weights[k // 2]], outputs, 0 if draw.random() < 0.1 else 10 ** draw.uniform(0, 3))
        there += outputs
    return made


def writes(memgraph: MemGraph) -> Counter[int]:
    """How often each tensor is copied to the host."""
    return Counter(
        memgraph.residencies[node.source].tensor
        for n, node in enumerate(memgraph.nodes)
        if isinstance(node, Move) and memgraph.queue(NodeId(n)) == Queue.D2H
    )


@pytest.mark.slow
@pytest.mark.parametrize("roominess", [1.0, 1.2, 2.0])
@pytest.mark.parametrize(("h2d", "d2h"), [("12GB/s", "12GB/s"), ("20GB/s", "1GB/s")])
@pytest.mark.parametrize(
    "made", [convolutions(3, 12), training(12), anything(1, 80), anything(2, 120)], ids=["cnn", "train", "any1", "any2"]
)
def test_plans_of_made_traces(made: Made, h2d: str, d2h: str, roominess: float, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"tensors": made.tensors, "ops": made.ops}), encoding="utf-8")
    graph = read_trace(path)
    budget = int(roominess * largest_footprint(graph, 1)[1])
    machine = links_only(h2d, d2h, budget)
    plain, better = (plan(graph, machine, budget, PlanOptions(alignment=1), pace) for pace in (None, Pace(100_000)))
    for found in (plain, better):
        assert judge(found) is None
        written = writes(found)
        assert not [t for t in written if graph.tensors[t].kind in HOST_AT_START], "clean bytes are written"
        assert max(written.values()) == 1, "a tensor is written twice"
    slots = slots_of(problem_of(graph, machine, budget, alignment=1))
    assert slots is not None
    others = [plain, *(it.memgraph for it in static_plans(slots, STATIC).values())]
    best_s = min(simulate(other, machine).makespan_s for other in others)
    assert simulate(better, machine).makespan_s <= ROUNDING * best_s
