"""What goes wrong on streams is found and named: a device that fails wherever it is asked, a copy whose chunks do not wait, residents that
are not there yet."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.exec.device import streams
from einpage.exec.device.driver import Event
from einpage.exec.device.stream_judge import Enqueued, HostAction, Recorded, Seen, Waited, unenforced
from einpage.exec.errors import NodeError
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import Free, MemGraph, NodeId
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.residency.resident_sets import Start
from fake_driver import FakeDriver, WatchedDevice
from real_bytes import Data, filled_host
from strategies import a_machine, data, random_graph
from test_exec_cpu import made
from test_exec_streams import DISPATCHERS, run


class Failing(FakeDriver):
    """The device fails in the work of one node; whoever asks about an event behind it is told, as CUDA does."""

    def fail_at(self, device: WatchedDevice, node: NodeId) -> None:
        """Work enqueued on the stream of `node` from `node` on is lost."""
        self.device, self.node = device, node

    def passed(self, event: Event) -> bool:
        behind = False
        for action in self.actions:
            behind = behind or action == Enqueued(self.device.stream(self.node), self.node)  # type: ignore[arg-type]
            if behind and isinstance(action, Recorded) and action.event is event and action.stream == self.device.stream(self.node):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().passed(event)


@given(st.integers(0, 30), st.sampled_from(("static", "dynamic")), st.data())
@settings(max_examples=40, deadline=None)
def test_a_failure_seen_at_an_event_is_that_of_its_node(seed: int, dispatch: str, drawn: st.DataObject) -> None:
    _, memgraph, values = made(seed)
    nodes = [NodeId(i) for i, node in enumerate(memgraph.nodes) if not isinstance(node, Free)]
    node = drawn.draw(st.sampled_from(nodes))
    driver = Failing(seed=seed)
    device = WatchedDevice(memgraph, filled_host(memgraph, values), driver)
    device.preload()
    device.actions.clear()
    driver.fail_at(device, node)
    with pytest.raises(NodeError) as caught:
        DISPATCHERS[dispatch](memgraph, device)  # type: ignore[operator]
    assert caught.value.node == node
    assert describe(memgraph, node) in str(caught.value) and "illegal memory access" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def warm(seed: int) -> tuple[MemGraph, Data] | None:
    """A plan that starts with something on the device."""
    graph = random_graph(seed)
    found = plan(graph, a_machine(), 1 << 22, PlanOptions(start=Start.WARM))
    return (found, data(graph, seed)) if found.resident else None


@pytest.mark.parametrize("seed", range(20))
def test_residents_are_there_when_preloading_returns(seed: int) -> None:
    """However late the copy engine is: the first kernels read them."""
    if (made_warm := warm(seed)) is None:
        return
    memgraph, values = made_warm
    device = WatchedDevice(memgraph, filled_host(memgraph, values), FakeDriver(steps=0))
    device.preload()
    host_copy = {memgraph.residencies[r].tensor: r for r in memgraph.start if memgraph.residencies[r].place != DEVICE}
    for r in memgraph.start:
        residency = memgraph.residencies[r]
        if residency.place == DEVICE:
            there, wanted = device._view(r), device._view(host_copy[residency.tensor])
            assert there.view(-1).tolist() == wanted.view(-1).tolist()


def moved_behind_a_chunk(actions: list[HostAction]) -> list[list[HostAction]]:
    """The actions with a wait that stood directly before the first chunk of several put behind it, once for each such wait."""
    found = []
    for at, (wait, first) in enumerate(pairwise(actions)):
        if isinstance(wait, Waited) and isinstance(first, Enqueued) and wait.stream == first.stream:
            rest = actions[at + 2 :]
            if any(isinstance(a, Enqueued) and a.node == first.node for a in rest):
                found.append([*actions[:at], first, wait, *rest])
    return found


def test_a_copy_whose_first_chunk_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COPY_BYTES", 16)
    tried = 0
    for seed in (0, 3, 6, 14):
        _, memgraph, values = made(seed)
        _, device, _ = run(memgraph, values, "static", FakeDriver())
        issued = [a for a in device.actions if not isinstance(a, Seen)]
        assert unenforced(memgraph, issued) == []
        for changed in moved_behind_a_chunk(issued)[:8]:
            assert unenforced(memgraph, changed), f"seed {seed}"
            tried += 1
    assert tried > 10
