"""What static, dynamic and serial dispatch on streams share: enqueueing with errors named by node, the device's clock, how the host waits.

Each runs on one thread; the streams do the work. Times are the device's own, read from events.
"""

from __future__ import annotations

from time import perf_counter, sleep

from einpage.exec.device.device import Device
from einpage.exec.device.driver import Event
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Run, Stopped
from einpage.exec.errors import NodeError
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.machine.places import ENGINES

SPIN_S = 200e-6
"""How long the host asks again and again before it sleeps between two questions: most events pass sooner."""
PAUSE_S = 50e-6
"""How long it then sleeps; the system makes some 110 µs of it."""


def on_streams(device: Device) -> StreamDevice:
    """`device`, which is one with streams."""
    assert isinstance(device, StreamDevice), f"{device.name} has no streams"
    return device


class Polling:
    """How the host waits for events: it asks without a pause for SPIN_S, and then with one."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def found(self) -> None:
        """There was something to do: the next wait begins anew."""
        self._since = None

    def pause(self) -> None:
        """There was nothing to do."""
        now = perf_counter()
        if self._since is None:
            self._since = now
        elif now - self._since >= SPIN_S:
            sleep(PAUSE_S)


class DeviceClock:
    """The device's time, as seconds of the run."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self._driver = device.driver
        self.first = device.driver.record(COMPUTE)
        device.driver.synchronize(self.first)
        self._offset = perf_counter() - run.origin

    def at(self, event: Event) -> float:
        """When `event`, which has passed, did so: seconds since the start of the run."""
        return self._offset + self._driver.seconds(self.first, event)


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
            raise self.named(node, error) from error

    def passed(self, node: NodeId, event: Event) -> bool:
        """Whether `event`, recorded after a chunk of `node`, has passed. Raises NodeError where the device failed, or Stopped."""
        if self.run.stopped:
            raise Stopped
        try:
            return self.device.driver.passed(event)
        except RuntimeError as error:
            raise self.named(node, error) from error

    def record_times(self, stream: int, node: NodeId, after_s: float, end_s: float) -> None:
        """`node` ended at `end_s`; it started when its stream was free and what it waited for (`after_s`) had passed."""
        self.run.started[node] = min(end_s, max(after_s, self.ended[stream]))
        self.run.finished[node] = self.ended[stream] = end_s

    def named(self, node: NodeId, error: BaseException) -> NodeError:
        """`error`, which is that of `node`."""
        memgraph = self.run.memgraph
        return NodeError(node, describe(memgraph, node), memgraph.queue(node), error)
