"""What static and dynamic dispatch on streams share: putting nodes with their errors named, the device's clock, noting when a node ran.

Both go on one thread; the streams do the work. Times are the device's own, read from marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from einpage.exec.device.driver import Mark
from einpage.exec.device.errors import NodeError
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Run, Stopped
from einpage.memplan.graph.dump import describe
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.problem.places import ENGINES

PAUSE_S = 50e-6
"""How long the host rests where no mark has passed."""


class Clock:
    """The device's time, as seconds of the run."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self._driver = device.driver
        self._first = device.driver.record(COMPUTE)
        device.driver.synchronize(self._first)
        self._offset = perf_counter() - run.origin

    def at(self, mark: Mark) -> float:
        return self._offset + self._driver.seconds(self._first, mark)


class StreamRun:
    """One run in progress: what is put, what has passed, when each stream was last seen to end something."""

    def __init__(self, run: Run, device: StreamDevice) -> None:
        self.run, self.device = run, device
        self.ended = [0.0] * len(ENGINES)
        """Per stream: when the last node seen to pass did."""

    def put(self, node: NodeId, piece: int) -> Mark:
        """A piece of `node` on its stream, and a mark behind it. Raises NodeError; Stopped where the run was."""
        if self.run.stopped:
            raise Stopped
        stream = self.device.stream(node)
        assert stream is not None, "a Free goes on no stream"
        try:
            self.device.issue(node, piece)
            return self.device.driver.record(stream)
        except BaseException as error:
            raise self._named(node, error) from error

    def replay(self, nodes: Sequence[NodeId]) -> Mark:
        """Computes that were recorded together, put at once, and a mark behind the last; the first is said to take all the time."""
        if self.run.stopped:
            raise Stopped
        try:
            self.device.replay(nodes)
            return self.device.driver.record(COMPUTE)
        except BaseException as error:
            raise self._named(nodes[0], error) from error

    def passed(self, node: NodeId, mark: Mark) -> bool:
        """Whether `mark`, behind a piece of `node`, has passed. Raises NodeError where the device failed; Stopped where the run was."""
        if self.run.stopped:
            raise Stopped
        try:
            return self.device.driver.passed(mark)
        except RuntimeError as error:
            raise self._named(node, error) from error

    def note(self, stream: int, node: NodeId, after_s: float, end_s: float) -> None:
        """`node` ended then, and began when its stream was free and what it waited for (`after_s`) had passed."""
        self.run.started[node] = min(end_s, max(after_s, self.ended[stream]))
        self.run.finished[node] = self.ended[stream] = end_s

    def _named(self, node: NodeId, error: BaseException) -> NodeError:
        memgraph = self.run.memgraph
        return NodeError(node, describe(memgraph, node), memgraph.queue(node), error)
