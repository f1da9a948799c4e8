"""LLaMA 7B and 65B over machines, budgets, lengths and batches: every plan is judged, soon made, and writes no clean byte.

A few cells always, all of them with `make test-all`.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from time import perf_counter

import pytest

from bench.plan_quality import MODELS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import parse_bytes
from einpage.einsum_front.graph.taskgraph import HOST_AT_START
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.memgraph import Move, NodeId
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine

LLAMA = Path(__file__).parents[1] / "specs" / "llama.yaml"
BUDGETS = {"p100": ("8GiB", "15GiB"), "v100": ("8GiB", "15GiB"), "a100": ("8GiB", "16GiB", "38GiB"), "h100": ("8GiB", "16GiB", "38GiB")}
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 4, 16)
SAMPLE = (
    ("7B", "p100", "8GiB", 1024, 1),
    ("7B", "a100", "8GiB", 4096, 1),
    ("7B", "h100", "16GiB", 16384, 4),
    ("65B", "h100", "38GiB", 4096, 1),
)
LONGEST_S = 10.0
"""Seconds, from opening the spec to a judged plan."""


def check(model: str, machine: str, budget: str, seq: int, batch: int) -> None:
    """One cell. `plan_program` raises where the judge rejects."""
    began = perf_counter()
    nbytes = parse_bytes(budget)
    program = open_model(LLAMA, {**MODELS[model], "seq": seq, "batch": batch}).program
    memgraph = plan_program(program, load_machine(machine), PlanRequest(nbytes, DType.FP16)).memgraph
    took = perf_counter() - began
    written = Counter(
        memgraph.residencies[node.source].tensor
        for n, node in enumerate(memgraph.nodes)
        if isinstance(node, Move) and memgraph.queue(NodeId(n)) == Queue.D2H
    )
    tensors = memgraph.graph.tensors
    assert written, "not even the logits reach the host"
    assert not [tensors[t].name for t in written if tensors[t].kind in HOST_AT_START], "clean bytes are offloaded"
    assert max(written.values()) == 1, "a tensor is offloaded twice"
    assert took < LONGEST_S


@pytest.mark.parametrize(("model", "machine", "budget", "seq", "batch"), SAMPLE)
def test_a_sample_of_the_grid(model: str, machine: str, budget: str, seq: int, batch: int) -> None:
    check(model, machine, budget, seq, batch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["7B", "65B"])
@pytest.mark.parametrize("machine", BUDGETS)
def test_the_whole_grid(model: str, machine: str) -> None:
    for budget, seq, batch in product(BUDGETS[machine], SEQUENCES, BATCHES):
        check(model, machine, budget, seq, batch)
