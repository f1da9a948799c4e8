"""Host slots: what the host cannot hold is refused, and spill slots are used again."""

from __future__ import annotations

import pytest

from einpage.einsum_front.base.units import ALIGNMENT, aligned
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskGraph
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.host_slots import HostSlots
from einpage.memplan.graph.memgraph import EdgeKind
from einpage.memplan.graph.recorder import AT_START, Recorder
from einpage.memplan.machine.places import HOST
from einpage.memplan.problem.problem import problem_of
from strategies import a_machine, random_graph


def _host(host_bytes: int, unit: int = ALIGNMENT) -> tuple[HostSlots, Recorder, TaskGraph]:
    graph = random_graph(3, most_ops=6)
    recorder = Recorder(graph)
    return HostSlots(problem_of(graph, a_machine(host_bytes=host_bytes), 0, alignment=unit), recorder), recorder, graph


def _permanent_bytes(graph: TaskGraph, unit: int = ALIGNMENT) -> int:
    return sum(aligned(t.nbytes, unit) for t in graph.tensors if t.kind in HOST_AT_START or t.kind is Kind.OUTPUT)


def test_the_host_refuses_what_it_cannot_hold_at_the_start() -> None:
    graph = random_graph(3, most_ops=6)
    permanent = _permanent_bytes(graph)
    host, *_ = _host(permanent)
    assert host.nbytes == permanent
    with pytest.raises(DoesNotFit) as refused:
        _host(permanent - 1)
    misfit = refused.value.misfit
    assert (misfit.place, misfit.budget, misfit.smallest_budget) == ("host", permanent - 1, None)
    assert misfit.wanted > misfit.free


@pytest.mark.parametrize("unit", [ALIGNMENT, 1])
def test_a_spill_slot_is_used_again_and_a_full_host_names_what_fills_it(unit: int) -> None:
    graph = random_graph(3, most_ops=6)
    a, b = [t.id for t in graph.tensors if t.kind is Kind.ACTIVATION][:2]
    largest = max(aligned(graph.tensors[t].nbytes, unit) for t in (a, b))
    host, recorder, graph = _host(_permanent_bytes(graph, unit) + largest, unit)
    from_a, from_b = (recorder.residency(t, HOST, 0, AT_START) for t in (a, b))
    host.spill(a, from_a, "t")
    host.spill(a, from_a, "t")
    assert len(recorder.nodes) == 1, "a second spill of the same tensor copies nothing"
    with pytest.raises(DoesNotFit) as refused:
        host.spill(b, from_b, "some task")
    misfit = refused.value.misfit
    assert (misfit.task, misfit.place, misfit.smallest_budget) == ("some task", "host", None)
    assert (graph.tensors[a].name, aligned(graph.tensors[a].nbytes, unit)) in misfit.pinned
    slot = recorder.residencies.finish()[host.copy[a]].extents[0].offset
    host.drop(a)
    host.spill(b, from_b, "t")
    assert recorder.residencies.finish()[host.copy[b]].extents[0].offset == slot
    after = recorder.edges.finish()
    assert (after.source[-1], after.target[-1], after.kind[-1]) == (1, 2, EdgeKind.MEMORY), "the slot's Free comes before its next use"
