"""Bytes that a prefill of the real model moves, counted by hand: weights once, of the embedding table for the gather only its rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.taskgraph import Kind, TensorId
from einpage.exec.planning.judged_plan import plan_graph
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.graph.memgraph import MemGraph, Move
from einpage.memplan.machine.places import DEVICE, Queue
from einpage.memplan.plan import PlanOptions
from einpage.memplan.residency.resident_sets import Start
from smollm2_run import FRANCE, LLAMA, MACHINE, MIB, WEIGHT_ELEMENTS, arena, moved, open_smollm2, planned

VOCAB, WIDTH = 49152, 576
LENGTHS = 4
"""Bytes of the one sequence's length."""


@pytest.mark.parametrize(("budget", "dtype"), [(64 * MIB, DType.FP32), (24 * MIB, DType.FP32), (64 * MIB, DType.BF16)])
def test_every_weight_comes_in_once_and_only_the_logits_go_out(budget: int, dtype: DType) -> None:
    model = open_smollm2([FRANCE])
    memgraph = planned(model, budget, dtype=dtype).memgraph
    measured, _ = arena().run(memgraph, arena().device(model, memgraph))
    assert measured.moved_bytes[Queue.H2D] == (WEIGHT_ELEMENTS + len(FRANCE) * WIDTH) * dtype.nbytes + LENGTHS
    assert measured.moved_bytes[Queue.D2H] == VOCAB * dtype.nbytes


def test_a_table_that_is_only_gathered_from_stays_on_the_host(tmp_path: Path) -> None:
    """Without the head, which is tied to the table and does stream it, five rows are all of the table that crosses."""
    text, outputs = LLAMA.read_text(encoding="utf-8"), "outputs: {"
    assert text.count(outputs) == 1
    spec = tmp_path / "llama.yaml"
    spec.write_text(text.replace(outputs, f"{outputs}all_final: {{axes: b s m}}, "), encoding="utf-8")
    model = open_smollm2([FRANCE], spec)
    memgraph = planned(model, 64 * MIB, ["all_final"]).memgraph
    measured, _ = arena().run(memgraph, arena().device(model, memgraph))
    rows = len(FRANCE) * WIDTH
    assert measured.moved_bytes[Queue.H2D] == (WEIGHT_ELEMENTS - VOCAB * WIDTH + rows) * 4
    assert measured.moved_bytes[Queue.D2H] == rows * 4


def weights_loaded(memgraph: MemGraph) -> Counter[TensorId]:
    """How often each weight is copied to the device."""
    moves = (memgraph.residencies[target] for node in memgraph.nodes if isinstance(node, Move) for _, target in node.copies)
    return Counter(r.tensor for r in moves if r.place == DEVICE and memgraph.graph.tensors[r.tensor].kind is Kind.WEIGHT)


def test_ten_steady_passes_of_smollm2_move_the_planned_bytes() -> None:
    model = open_smollm2([FRANCE])
    graph = build_graph(model.program, PlanRequest(64 * MIB, outputs=("logits",))).graph
    cold, memgraph = (plan_graph(graph, MACHINE, 64 * MIB, PlanOptions(start=start)).memgraph for start in (Start.COLD, Start.LOOP))
    _, expected = arena().run(cold, arena().device(model, cold))
    kept = sum(memgraph.graph.tensors[t].nbytes for t in memgraph.resident)
    assert kept > 28 * MIB
    assert weights_loaded(memgraph) == weights_loaded(cold) - Counter(memgraph.resident), "each once a pass, but for what is resident"
    device = arena().device(model, memgraph)
    device.preload()
    for _ in range(10):
        measured, found = arena().run(memgraph, device)
        assert tuple(measured.moved_bytes.values()) == moved(memgraph)
        assert torch.equal(found["logits"], expected["logits"])
