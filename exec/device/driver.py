"""What a GPU's runtime offers a device: memory, streams, events. Nothing here knows a plan.

A stream runs its work in the order it was enqueued; an event passes when all work enqueued before it is done; a stream that waits for an
event runs nothing further until the event has passed. Everything but `synchronize` returns at once. Streams are numbered as in ENGINES:
compute, host → device, device → host. `cuda.py` is the real one; tests use one that records. A driver of a real runtime is a DirectDriver
too: work is then bound to a stream once, and no stream is made the current one, node after node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NewType, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

Stream = NewType("Stream", int)
"""Index into ENGINES."""
Event: TypeAlias = object
"""Recorded on a stream by `record`; opaque to everyone but its driver."""


class Driver(Protocol):
    @property
    def name(self) -> str:
        """What the device is, for people: `NVIDIA H100`."""

    def allocate(self, nbytes: int) -> Tensor:
        """`nbytes` of device memory, as uint8 [nbytes]. Raises UsageError where the device has too little."""

    def pin(self, memory: Tensor) -> None:
        """Let the copy engines reach this host memory. Raises UsageError where the system does not allow it."""

    def unpin(self, memory: Tensor) -> None:
        """Undo `pin`, before the memory is freed."""

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        """Copy bytes between host and device, or within one, when the stream comes to it. Both stay alive until then."""

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        """Let `call` enqueue its kernels on the stream."""

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Capture what `calls` enqueue on the stream without running it: a call that enqueues all of it at once (a CUDA graph)."""

    def record(self, stream: Stream) -> Event:
        """An event behind all that is on the stream now."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Work enqueued on the stream from now on runs after `event`."""

    def passed(self, event: Event) -> bool:
        """Whether `event` has passed. Raises RuntimeError where work before it failed."""

    def synchronize(self, event: Event) -> None:
        """Block the host until `event` has passed. Raises RuntimeError where work before it failed."""

    def seconds(self, first: Event, last: Event) -> float:
        """Seconds between two passed events, by the device's clock."""

    def used_bytes(self) -> int:
        """Bytes of device memory in use, by whomever, as the driver counts it."""


@runtime_checkable
class DirectDriver(Protocol):
    """What a driver has beside where work can be enqueued on a stream that is not the current one."""

    @property
    def slow_copies(self) -> str | None:
        """Why copies are not bound to their streams; None where they are."""

    def init_thread(self) -> None:
        """Called on each thread before its first call."""

    def handle(self, stream: Stream) -> int:
        """The runtime's own handle of a stream, for those who launch kernels."""

    def bound_copy(self, stream: Stream, target: Tensor, source: Tensor) -> Callable[[], object]:
        """A call that does what `copy` does with these, as often as wanted. The caller holds both."""

    def recycle(self, events: Iterable[Event]) -> None:
        """Nobody asks about `events` any more, all of which have passed: they may be recorded anew."""
