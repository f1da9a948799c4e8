"""The per-layer streaming system that plans are held against: its time and the budget it needs, worked out by hand for small LLaMAs."""

from __future__ import annotations

import pytest

from bench.streaming import streaming
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.model import open_model
from einpage.memplan.bounds.bounds import bounds
from einpage.memplan.machine.places import Queue
from specs_small import SMALL, SPECS
from strategies import a_machine


def llama(**sizes: int) -> Program:
    return open_model(SPECS / "llama.yaml", {**SMALL["llama"], **sizes}).program


def weight_bytes(program: Program, repetition: str) -> int:
    graph = split(fuse(program, None), {}, DType.FP16)
    weights = [t for t in graph.tensors if t.kind is Kind.WEIGHT and t.value != "embed"]
    return sum(aligned(t.nbytes) for t in weights if t.value.partition("@")[2] == repetition)


def test_a_slow_link_takes_every_byte_once_and_then_the_last_layers_work() -> None:
    """Nothing but the link counts: each further layer costs its own bytes, and the link never waits."""
    machine = a_machine(h2d_bytes_per_s=1e4, device_bytes_per_s=1e12, copy_latency_s=0.0, launch_latency_s=0.0)
    machine_s = [streaming(llama(layers=n), DType.FP16, machine).seconds for n in (2, 3, 4)]
    layer_s = weight_bytes(llama(), "0") / 1e4
    assert machine_s[1] - machine_s[0] == pytest.approx(layer_s, rel=0.01)
    assert machine_s[2] - machine_s[1] == pytest.approx(layer_s, rel=0.01)


def test_a_slow_device_hides_every_load_but_the_first() -> None:
    machine = a_machine(h2d_bytes_per_s=1e15, d2h_bytes_per_s=1e15, device_bytes_per_s=1e4, copy_latency_s=0.0)
    graph = split(fuse(llama(), None), {}, DType.FP16)
    found = streaming(llama(), DType.FP16, machine).seconds
    assert found == pytest.approx(bounds(graph, machine).busy(Queue.COMPUTE) + machine.launch_latency_s * len(graph.tasks), rel=1e-3)


def test_it_is_never_faster_than_the_bound_and_needs_two_layers_and_the_activations() -> None:
    machine = a_machine()
    for batch in (1, 4):
        program = llama(batch=batch)
        found = streaming(program, DType.FP16, machine)
        assert found.seconds >= bounds(split(fuse(program, None), {}, DType.FP16), machine).bound_s
        two_layers = 2 * max(weight_bytes(program, "0"), weight_bytes(program, ""))
        x_bytes, y_bytes = batch * 130 * 96 * 2, batch * 130 * 160 * 2
        assert two_layers + x_bytes + y_bytes <= found.least_bytes <= two_layers + 6 * x_bytes + 16 * 256
