"""What a GPU's runtime offers a device: memory, streams, events. Nothing here knows a plan.

A stream runs what is put on it in order; a mark (an event) stands behind what was put on a stream before it; a stream that waits for a
mark runs nothing further until the mark has passed. Everything but `synchronize` returns at once. Streams are numbered as in ENGINES:
compute, host → device, device → host. `exec/cuda_driver.py` is the real one; tests bring one that records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NewType, Protocol, TypeAlias

from torch import Tensor

Stream = NewType("Stream", int)
"""Index into ENGINES."""
Mark: TypeAlias = object
"""A point of a stream, given by `record`; opaque to everyone but its driver."""


class Driver(Protocol):
    @property
    def name(self) -> str:
        """What the device is, for people: `NVIDIA H100`."""

    def allocate(self, nbytes: int) -> Tensor:
        """Device memory, as uint8. Raises UsageError where the device has too little."""

    def pin(self, memory: Tensor) -> None:
        """Let the copy engines reach this host memory. Raises UsageError where the system does not allow it."""

    def unpin(self, memory: Tensor) -> None:
        """Take `pin` back, before the memory goes."""

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        """Copy bytes between host and device, or within one, when the stream comes to it. Both stay alive until then."""

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        """Let `call` put its kernels on the stream."""

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """What `calls` would put on the stream, recorded and not run: a call that puts it there at once."""

    def record(self, stream: Stream) -> Mark:
        """A mark behind all that is on the stream now."""

    def wait(self, stream: Stream, mark: Mark) -> None:
        """What is put on the stream from now on runs after `mark`."""

    def passed(self, mark: Mark) -> bool:
        """Whether the device has come to `mark`. Raises RuntimeError where work before it failed."""

    def synchronize(self, mark: Mark) -> None:
        """Wait here until `mark` has passed. Raises RuntimeError where work before it failed."""

    def seconds(self, first: Mark, last: Mark) -> float:
        """From one passed mark to another, by the device's clock."""

    def used_bytes(self) -> int:
        """Device memory in use, by whomever, as the driver counts it."""
