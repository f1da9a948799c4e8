"""Drivers without a GPU that fail or count: for tests of what is given back, and of what the host does for a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.driver import Event, Stream
from fake_driver import FakeDriver


@dataclass(slots=True)
class FailingPins(FakeDriver):
    """Registers so many pieces and refuses the next."""

    pieces: int = 0
    error: type[Exception] = UsageError

    def pin(self, memory: Tensor) -> None:
        if len(self.pinned) == self.pieces:
            raise self.error("no more can be pinned")
        FakeDriver.pin(self, memory)


class CountedEvent:
    """Passes when it is asked about."""


@dataclass(slots=True)
class CountingDriver:
    """Everything is done when it is enqueued; each kind of call is counted. Copies and kernels are bound, as CUDA's are."""

    name: str = "counting"
    slow_copies: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    made: int = 0
    """Events that are not another's again."""
    _free: list[Event] = field(default_factory=list)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def allocate(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def pin(self, memory: Tensor) -> None:
        self._count("pin")

    def unpin(self, memory: Tensor) -> None:
        self._count("unpin")

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        self._count("copy")
        target.copy_(source)

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        """What makes a stream the current one."""
        self._count("launch")
        call()

    def capture(self, stream: Stream, calls: Any) -> Callable[[], object]:
        self._count("capture")
        return lambda: [call() for call in calls]

    def record(self, stream: Stream) -> Event:
        self._count("record")
        if self._free:
            return self._free.pop()
        self.made += 1
        return CountedEvent()

    def wait(self, stream: Stream, event: Event) -> None:
        self._count("wait")

    def passed(self, event: Event) -> bool:
        self._count("passed")
        return True

    def synchronize(self, event: Event) -> None:
        self._count("synchronize")

    def seconds(self, first: Event, last: Event) -> float:
        return 0.0

    def used_bytes(self) -> int:
        return 0

    def init_thread(self) -> None:
        self._count("init_thread")

    def handle(self, stream: Stream) -> int:
        return 1000 + stream

    def bound_copy(self, stream: Stream, target: Tensor, source: Tensor) -> Callable[[], object]:
        self._count("bound_copy")
        return partial(target.copy_, source)

    def recycle(self, events: Iterable[Event]) -> None:
        self._free += {id(event): event for event in events}.values()
