"""A driver without a GPU: memory is ordinary, work on streams is kept until someone asks, then done in any order that streams allow.

Which stream goes on is drawn at random, so that a missing wait lets work overtake; what the host did is written down for the judge of
streams (exec/enforced.py). It never loses a mark, and never lets a stream past one that has not passed.
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
from einpage.exec.device.driver import Mark, Stream
from einpage.exec.device.stream_judge import STREAMS, Act, Put, Recorded, Seen, Waited
from einpage.exec.device.streams import StreamDevice
from einpage.memplan.graph.memgraph import MemGraph, NodeId


@dataclass(slots=True, eq=False)
class FakeMark:
    number: int
    passed: bool = False
    at: int = 0
    """Of the fake clock, which ticks at every step of a stream."""


@dataclass(slots=True)
class FakeDriver:
    """`steps` is how many steps of streams are made whenever the host looks at a mark; 0 makes streams go only when the host waits."""

    seed: int = 0
    steps: int = 3
    acts: list[Act] = field(default_factory=list)
    pinned: dict[int, int] = field(default_factory=dict)
    """Bytes by address."""
    ignore: Callable[[int], bool] = lambda n: False
    """Waits (by number) that are left out: a faulty driver, for tests of tests."""
    name: str = "fake"
    captured: int = 0
    """Stretches recorded so far."""
    acts_at_capture: list[int] = field(default_factory=list)
    """How many acts there were before each recording."""
    _queues: list[deque[Any]] = field(default_factory=lambda: [deque() for _ in range(STREAMS)])
    _random: Random = field(default_factory=Random)
    _clock: int = 0
    _marks: int = 0
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
        self.acts_at_capture.append(len(self.acts))
        return lambda: [call() for call in calls]

    def record(self, stream: Stream) -> Mark:
        self._marks += 1
        mark = FakeMark(self._marks)
        self.acts.append(Recorded(stream, mark))
        self._queues[stream].append(mark)
        return mark

    def wait(self, stream: Stream, mark: Mark) -> None:
        assert isinstance(mark, FakeMark)
        self._waits += 1
        if self.ignore(self._waits - 1):
            self._faulty = True
            return
        self.acts.append(Waited(stream, mark))
        self._queues[stream].append(("wait", mark))

    def passed(self, mark: Mark) -> bool:
        assert isinstance(mark, FakeMark)
        for _ in range(self.steps):
            self._step()
        if not mark.passed and not self.steps:
            self.synchronize(mark)
        if mark.passed:
            self.acts.append(Seen(mark))
        return mark.passed

    def synchronize(self, mark: Mark) -> None:
        assert isinstance(mark, FakeMark)
        while not mark.passed:
            assert self._step(), "the streams wait for each other"
        self.acts.append(Seen(mark))

    def seconds(self, first: Mark, last: Mark) -> float:
        assert isinstance(first, FakeMark)
        assert isinstance(last, FakeMark)
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
            case FakeMark() as mark:
                mark.passed, mark.at = True, self._clock
            case ("wait", _):
                pass
            case call:
                call()
        return True


class WatchedDevice(StreamDevice):
    """A device of streams on a fake driver: poisoned memory, every piece written down."""

    def __init__(self, memgraph: MemGraph, host: HostArena, driver: FakeDriver, backend: str = "torch") -> None:
        super().__init__(memgraph, host, driver, backend=backend, poison=True)
        self.acts = driver.acts
        self.acts.clear()

    def issue(self, node: NodeId, piece: int = 0) -> None:
        stream = self.stream(node)
        assert stream is not None
        self.acts.append(Put(stream, node))
        super().issue(node, piece)

    def replay(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            stream = self.stream(node)
            assert stream is not None
            self.acts.append(Put(stream, node))
        super().replay(nodes)
