"""What static and dynamic dispatch on streams share: enqueueing with errors named by node, the device's clock, the table of times.

Both run on one thread; the streams do the work. Times are the device's own, read from events.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event
from einpage.exec.device.errors import NodeError
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Run, Stopped
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.machine.places import ENGINES

PAUSE_S = 50e-6
"""How long the host sleeps where no event has passed."""


def on_streams(device: Device) -> StreamDevice:
    """`device`, which is one with streams."""
    assert isinstance(device, StreamDevice), f"{device.name} has no streams"
    return device


class DeviceClock:
    """The device's time, as seconds of the run."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self._driver = device.driver
        self._first = device.driver.record(COMPUTE)
        device.driver.synchronize(self._first)
        self._offset = perf_counter() - run.origin

    def at(self, event: Event) -> float:
        """When `event`, which has passed, did so: seconds since the start of the run."""
        return self._offset + self._driver.seconds(self._first, event)


class StreamRun:
    """One run in progress: enqueues nodes, asks whether they are done, records when they ran."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self.run, self.device = run, device
        self.ended = [0.0] * len(ENGINES)
        """Per stream: when the last node known to be done ended."""

    def enqueue(self, node: NodeId, chunk: int) -> Event:
        """Enqueue a chunk of `node`; the event recorded after it. Raises NodeError; Stopped where the run was."""
        if self.run.stopped:
            raise Stopped
        stream = self.device.stream(node)
        assert stream is not None, "a Free has no stream"
        try:
            self.device.enqueue(node, chunk)
            return self.device.driver.record(stream)
        except BaseException as error:
            raise self._named(node, error) from error

    def replay(self, nodes: Sequence[NodeId]) -> Event:
        """Enqueue computes that were captured together; the event recorded after the last. All their time is recorded for the first."""
        if self.run.stopped:
            raise Stopped
        try:
            self.device.replay(nodes)
            return self.device.driver.record(COMPUTE)
        except BaseException as error:
            raise self._named(nodes[0], error) from error

    def passed(self, node: NodeId, event: Event) -> bool:
        """Whether `event`, recorded after a chunk of `node`, has passed. Raises NodeError where the device failed, or Stopped."""
        if self.run.stopped:
            raise Stopped
        try:
            return self.device.driver.passed(event)
        except RuntimeError as error:
            raise self._named(node, error) from error

    def record_times(self, stream: int, node: NodeId, after_s: float, end_s: float) -> None:
        """`node` ended at `end_s`; it started when its stream was free and what it waited for (`after_s`) had passed."""
        self.run.started[node] = min(end_s, max(after_s, self.ended[stream]))
        self.run.finished[node] = self.ended[stream] = end_s

    def _named(self, node: NodeId, error: BaseException) -> NodeError:
        memgraph = self.run.memgraph
        return NodeError(node, describe(memgraph, node), memgraph.queue(node), error)
