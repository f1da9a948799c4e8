"""The real model's stages one at a time, so that tests share what is slow: one arena for all, weights loaded only where they are not yet.

`open_smollm2` → `planned` → `arena().device` → `arena().run`. Every run's memory is poisoned first, and the bytes its engines counted are
compared with those of the plan's nodes, added up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.program import Source
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.device.arena import HostArena, host_copies, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.dispatch.engine import Measured
from einpage.exec.load.fill import fill, read_weights
from einpage.exec.load.inputs import TokenLists, bind_inputs
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.memgraph import Extent, HostGather, MemGraph, Move, Offset
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.machine.profile import load_machine
from real_bytes import slices
from single_runs import run_serial
from smollm2 import smollm2_path

MIB = 1 << 20
LLAMA = Path(__file__).parents[1] / "specs" / "llama.yaml"
TEXT_FILE = Path(__file__).parent / "data" / "perplexity.txt"
"""93 tokens, no newline at the end."""
FRANCE = (504, 3575, 282, 4649, 314)
"""`The capital of France is`"""
WEIGHT_ELEMENTS = 134_515_008
"""Of all tensors in the file; the embedding, tied to the output, counts once."""
MACHINE = load_machine("cpu")
HOST_BYTES = 640 * MIB
"""Weights in fp32 (513 MiB), outputs, and what any plan here spills. Pages that are never touched cost nothing."""


Dispatch = Callable[[MemGraph, CpuDevice], Measured]


def open_smollm2(tokens: Sequence[Sequence[int]], spec: Path = LLAMA) -> Model:
    return open_model(spec, {}, str(smollm2_path()), TokenLists(tuple(map(tuple, tokens)), "the test's tokens"))


@cache
def text_ids() -> tuple[int, ...]:
    """The tokens of the perplexity text."""
    return tuple(load_tokenizer(str(smollm2_path())).encode(TEXT_FILE.read_text(encoding="utf-8")))


def planned(
    model: Model,
    budget: int,
    outputs: Sequence[str] = ("logits",),
    pieces: Mapping[Letter, int] | None = None,
    dtype: DType = DType.FP32,
) -> Planned:
    """A judged plan; the split is the budget's own unless `pieces` says otherwise."""
    return plan_program(model.program, MACHINE, PlanRequest(budget, dtype, tuple(outputs), pieces or {}))


@cache
def _weights() -> dict[str, torch.Tensor]:
    """Every weight, fp32, read anew from the file: nothing that an arena holds."""
    model = open_smollm2([FRANCE])
    assert model.resolved is not None
    return read_weights(model.resolved, model.program)


def reference(model: Model, output: str) -> torch.Tensor:
    """What the eager reference says in fp64, whatever the model's own tokens."""
    inputs = {name: torch.from_numpy(array) for name, array in bind_inputs(model.program, model.tokens, {}).items()}
    return evaluate(model.program, inputs, _weights(), torch.float64, [output])[output]


def moved(memgraph: MemGraph) -> tuple[int, int]:
    """Bytes (host to device, device to host) of the plan's nodes: whole tiles that move, and the rows that are gathered."""
    tensors = memgraph.graph.tensors
    to_device = to_host = 0
    for node in memgraph.nodes:
        if isinstance(node, Move):
            for target in (memgraph.residencies[target] for _, target in node.copies):
                if target.place == DEVICE:
                    to_device += tensors[target.tensor].nbytes
                else:
                    to_host += tensors[target.tensor].nbytes
        elif isinstance(node, HostGather):
            to_device += tensors[memgraph.residencies[node.creates].tensor].nbytes
    return to_device, to_host


class Loaded:
    """A host arena, and which weights lie where in it."""

    def __init__(self) -> None:
        self._host = HostArena(HOST_BYTES)
        self._layout: dict[str, Extent] = {}
        """Of every weight and input tile."""
        self._held: dict[str, Source] = {}
        """What each weight was read from."""

    def device(self, model: Model, memgraph: MemGraph) -> CpuDevice:
        """A device for `memgraph` with its weights and inputs in place and its own memory poisoned."""
        assert model.resolved is not None and memgraph.host_bytes <= HOST_BYTES
        graph, slots = memgraph.graph, host_copies(memgraph, self._host)
        starts = (memgraph.residencies[r] for r in memgraph.start)
        layout = {graph.tensors[r.tensor].name: r.extents[0] for r in starts if r.place != DEVICE}
        if layout != self._layout:
            self._layout, self._held = layout, {}
        sources = model.resolved.source_by_weight
        missing = [t for t in graph.tensors if t.kind is Kind.WEIGHT and self._held.get(t.value) != sources[t.value]]
        fill(graph, model.resolved, {t.id: slots[t.id] for t in missing})
        self._held |= {t.value: sources[t.value] for t in missing}
        arrays = bind_inputs(model.program, model.tokens, {})
        for tensor in graph.tensors:
            if tensor.kind is Kind.INPUT:
                slots[tensor.id].copy_(torch.from_numpy(arrays[tensor.value][slices(tensor.box)]))
        return CpuDevice(memgraph, CpuMemory(self._host, memgraph.budget_bytes), threads=MACHINE.threads, poison=True)

    def run(self, memgraph: MemGraph, device: CpuDevice, dispatch: Dispatch = run_serial) -> tuple[Measured, dict[str, torch.Tensor]]:
        """What was counted, and the outputs. What earlier runs left is poisoned first, so that none of it can pass for this run's."""
        top = max(extent.end for extent in self._layout.values())
        self._host.poison(Extent(Offset(top), Nbytes(memgraph.host_bytes - top)))
        measured = dispatch(memgraph, device)
        assert device.arena_bytes == memgraph.budget_bytes
        assert tuple(measured.moved_bytes.values()) == moved(memgraph)
        return measured, outputs(memgraph, self._host)


def run_outputs(model: Model, plan: Planned) -> dict[str, torch.Tensor]:
    """The outputs of one serial run of `plan`, a plan of `model`."""
    return arena().run(plan.memgraph, arena().device(model, plan.memgraph))[1]


@cache
def arena() -> Loaded:
    """The one that all tests of a session use, one after the other: its pages are first touched, which is slow, only once."""
    return Loaded()


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest logit expected; infinite where `got` has a NaN."""
    worst = float((got.double() - expected.double()).abs().max() / expected.double().abs().max())
    return worst if worst == worst else float("inf")
