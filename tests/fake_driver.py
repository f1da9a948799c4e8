"""A driver without a GPU: memory is ordinary, work on streams is delayed until someone asks, then done in any order that streams allow.

Which stream goes on is drawn at random, so that a missing wait lets work overtake; what the host did is recorded for the judge of
streams (exec/device/stream_judge.py). It never loses an event, and never lets a stream past one that has not passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from einpage.exec.device.arena import HostArena
from einpage.exec.device.driver import Event, Stream
from einpage.exec.device.stream_judge import STREAMS, Enqueued, HostAction, Recorded, Seen, Waited
from einpage.exec.device.streams import StreamDevice, StreamMemory
from einpage.memplan.graph.memgraph import MemGraph, NodeId


@dataclass(slots=True, eq=False)
class FakeEvent:
    number: int
    passed: bool = False
    at: int = 0
    """Of the fake clock, which ticks at every step of a stream."""


@dataclass(slots=True)
class FakeDriver:
    """`steps` is how many steps of streams are made whenever the host asks about an event; 0 makes streams go only when the host waits."""

    seed: int = 0
    steps: int = 3
    actions: list[HostAction] = field(default_factory=list)
    pinned: dict[int, int] = field(default_factory=dict)
    """Bytes by address."""
    ignore: Callable[[int], bool] = lambda n: False
    """Waits (by number) that are left out: a faulty driver, for tests of tests."""
    name: str = "fake"
    captured: int = 0
    """Groups of computes captured so far."""
    actions_at_capture: list[int] = field(default_factory=list)
    """How many actions there were before each capture."""
    _queues: list[deque[Any]] = field(default_factory=lambda: [deque() for _ in range(STREAMS)])
    _random: Random = field(default_factory=Random)
    _clock: int = 0
    _events: int = 0
    _waits: int = 0
    _faulty: bool = False
    _used: int = 0

    def __post_init__(self) -> None:
        self._random.seed(self.seed)

    def allocate(self, nbytes: int) -> Tensor:
        self._used += nbytes
        return torch.zeros(nbytes, dtype=torch.uint8)

    def pin(self, memory: Tensor) -> None:
        assert memory.data_ptr() not in self.pinned, "pinned twice"
        self.pinned[memory.data_ptr()] = memory.nbytes

    def unpin(self, memory: Tensor) -> None:
        del self.pinned[memory.data_ptr()]

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        assert target.nbytes == source.nbytes
        self._queues[stream].append(lambda: target.copy_(source))

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        self._queues[stream].append(call)

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        self.captured += 1
        self.actions_at_capture.append(len(self.actions))
        return lambda: [call() for call in calls]

    def record(self, stream: Stream) -> Event:
        self._events += 1
        event = FakeEvent(self._events)
        self.actions.append(Recorded(stream, event))
        self._queues[stream].append(event)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        self._waits += 1
        if self.ignore(self._waits - 1):
            self._faulty = True
            return
        self.actions.append(Waited(stream, event))
        self._queues[stream].append(("wait", event))

    def passed(self, event: Event) -> bool:
        assert isinstance(event, FakeEvent)
        for _ in range(self.steps):
            self._step()
        if not event.passed and not self.steps:
            self.synchronize(event)
        if event.passed:
            self.actions.append(Seen(event))
        return event.passed

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        while not event.passed:
            assert self._step(), "the streams wait for each other"
        self.actions.append(Seen(event))

    def seconds(self, first: Event, last: Event) -> float:
        assert isinstance(first, FakeEvent)
        assert isinstance(last, FakeEvent)
        assert first.passed
        assert last.passed or self._faulty
        return (last.at - first.at) * 1e-6

    def used_bytes(self) -> int:
        return self._used + 1000

    def _step(self) -> bool:
        """One thing on one stream, drawn at random; False where no stream can go on."""
        can = [q for q in self._queues if q and not (isinstance(q[0], tuple) and not q[0][1].passed)]
        if not can:
            return False
        self._clock += 1
        match self._random.choice(can).popleft():
            case FakeEvent() as event:
                event.passed, event.at = True, self._clock
            case ("wait", _):
                pass
            case call:
                call()
        return True


class WatchedDevice(StreamDevice):
    """A device of streams on a fake driver: poisoned memory, every chunk recorded."""

    def __init__(self, memgraph: MemGraph, host: HostArena, driver: FakeDriver, backend: str = "torch") -> None:
        memory = StreamMemory(host, driver, memgraph.budget_bytes)
        try:
            super().__init__(memgraph, memory, backend=backend, poison=True)
        except BaseException:
            memory.close()
            raise
        self.actions = driver.actions
        self.actions.clear()

    def close(self) -> None:
        super().close()
        self.memory.close()

    def enqueue(self, node: NodeId, chunk: int = 0) -> None:
        stream = self.stream(node)
        assert stream is not None
        self.actions.append(Enqueued(stream, node))
        super().enqueue(node, chunk)

    def replay(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            stream = self.stream(node)
            assert stream is not None
            self.actions.append(Enqueued(stream, node))
        super().replay(nodes)
