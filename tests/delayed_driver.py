"""A driver without a GPU whose work takes time, and which fails where it is told to, as CUDA does.

Each stream is a thread that does its work in order, later than the host enqueued it: a copy takes a latency and its bytes at a rate, a
launch a moment. A failure in memory or of an event is raised at once. One in a kernel or a copy is seen later, by whoever asks about the
stream, and the device is lost to the process from then on, whatever it asks for; giving memory back still works.

Memory given out and registered is counted, so that what is not given back is seen.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import perf_counter, sleep

import numpy as np
import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.driver import Event, Stream
from einpage.memplan.machine.places import ENGINES

COPY_S, LAUNCH_S, BYTES_PER_S = 20e-6, 10e-6, 2e9
CALLS = ("allocate", "pin", "launch", "record", "copy")
"""That can fail."""


class DelayedEvent:
    """Knows when its stream came to it."""

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.at = 0.0


@dataclass(slots=True)
class Held:
    """Bytes that a process has now, and how often it asked for each call."""

    allocated: int = 0
    pinned: int = 0
    lost: bool = False
    streams: list[SimpleQueue[Callable[[], None]]] = field(default_factory=list)
    """Of every driver: what is queued holds the memory that it is to touch."""

    def drain(self) -> None:
        """Until every stream has done all that was enqueued."""
        for queue in self.streams:
            done = threading.Event()
            queue.put(done.set)
            assert done.wait(60), "a stream waits for what does not come"


class DelayedDriver:
    """`fails(call)` is asked before each call of CALLS, and answers whether this one fails."""

    name = "a rehearsal's"
    slow_copies = None

    def __init__(self, fails: Callable[[str], bool] = lambda call: False, held: Held | None = None) -> None:
        self._fails, self.held = fails, held or Held()
        self._pinned: dict[int, int] = {}
        self._queues: list[SimpleQueue[Callable[[], None]]] = [SimpleQueue() for _ in ENGINES]
        self.held.streams += self._queues
        for queue in self._queues:
            threading.Thread(target=_work, args=(queue,), daemon=True).start()

    def allocate(self, nbytes: int) -> Tensor:
        self._ask()
        if self._fails("allocate"):
            raise UsageError(f"{self.name} device has 0 B of 1 GiB free, too little for an arena of {nbytes} B")
        memory = np.zeros(nbytes, np.uint8)
        self.held.allocated += nbytes
        weakref.finalize(memory, self._given_back, nbytes)
        return torch.from_numpy(memory)

    def _given_back(self, nbytes: int) -> None:
        self.held.allocated -= nbytes

    def pin(self, memory: Tensor) -> None:
        self._ask()
        if self._fails("pin"):
            raise UsageError(f"{memory.nbytes} B of host memory cannot be pinned (CUDA error 2)")
        assert memory.data_ptr() not in self._pinned, "pinned twice"
        self._pinned[memory.data_ptr()] = memory.nbytes
        self.held.pinned += memory.nbytes

    def unpin(self, memory: Tensor) -> None:
        self.held.pinned -= self._pinned.pop(memory.data_ptr())

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        self._ask()
        if self._fails("copy"):
            self._lose(stream)
            return

        def work() -> None:
            sleep(COPY_S + source.nbytes / BYTES_PER_S)
            if not self.held.lost:
                target.copy_(source)

        self._queues[stream].put(work)

    def bound_copy(self, stream: Stream, target: Tensor, source: Tensor) -> Callable[[], object]:
        return partial(self.copy, stream, target, source)

    def init_thread(self) -> None:
        """No thread has settings of its own."""

    def handle(self, stream: Stream) -> int:
        return 1 + stream

    def recycle(self, events: Iterable[Event]) -> None:
        """Events are made anew."""

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        self._ask()
        if self._fails("launch"):
            self._lose(stream)
            return

        def work() -> None:
            sleep(LAUNCH_S)
            if not self.held.lost:
                call()

        self._queues[stream].put(work)

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        self._ask()
        return lambda: [call() for call in calls]

    def record(self, stream: Stream) -> Event:
        self._ask()
        if self._fails("record"):
            raise RuntimeError("CUDA error: out of memory")
        event = DelayedEvent()

        def work() -> None:
            event.at = perf_counter()
            event.passed.set()

        self._queues[stream].put(work)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        self._ask()
        assert isinstance(event, DelayedEvent)
        self._queues[stream].put(lambda: _wait(event))

    def passed(self, event: Event) -> bool:
        self._ask()
        assert isinstance(event, DelayedEvent)
        return event.passed.is_set()

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, DelayedEvent)
        self._ask()
        assert event.passed.wait(60), "the streams wait for each other"
        self._ask()

    def seconds(self, first: Event, last: Event) -> float:
        self._ask()
        assert isinstance(first, DelayedEvent)
        assert isinstance(last, DelayedEvent)
        assert first.passed.is_set()
        assert last.passed.is_set()
        return last.at - first.at

    def used_bytes(self) -> int:
        return self.held.allocated + 1000

    def _ask(self) -> None:
        if self.held.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def _lose(self, stream: Stream) -> None:
        """When the stream comes to it, the device is lost."""

        def work() -> None:
            sleep(LAUNCH_S)
            self.held.lost = True

        self._queues[stream].put(work)


def _wait(event: DelayedEvent) -> None:
    event.passed.wait(60)


def _work(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()
