"""CUDA's runtime behind the Driver protocol, through torch: streams, timed events, registered host memory, one big allocation.

Copies are `cudaMemcpyAsync` between device memory and host memory registered beforehand (registering pins exactly the bytes that are
there; torch's own pinned allocator rounds to powers of two). Kernels go on whatever stream is torch's current one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.device.driver import Event, Stream
from einpage.kernels.prepare import why_not_triton
from einpage.memplan.machine.places import ENGINES

OLDEST = (8, 0)
"""Compute capability from which on Triton's kernels use tensor cores."""


class CudaDriver:
    def __init__(self, index: int = 0) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._streams = [torch.cuda.Stream(self._device) for _ in ENGINES]  # type: ignore[no-untyped-call]
        self.name: str = torch.cuda.get_device_name(self._device)

    def allocate(self, nbytes: int) -> Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self._device)
            raise UsageError(
                f"{self.name} has {format_bytes(free)} of {format_bytes(total)} free, too little for an arena of {format_bytes(nbytes)}"
            ) from error

    def pin(self, memory: Tensor) -> None:
        status = int(_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if status:
            cure = "is `ulimit -l` or the container's limit too low?"
            raise UsageError(f"{format_bytes(memory.nbytes)} of host memory cannot be pinned (CUDA error {status}); {cure}")

    def unpin(self, memory: Tensor) -> None:
        _runtime().cudaHostUnregister(memory.data_ptr())

    def copy(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._streams[stream]):
            target.copy_(source, non_blocking=True)

    def launch(self, stream: Stream, call: Callable[[], object]) -> None:
        with torch.cuda.stream(self._streams[stream]):
            call()

    def capture(self, stream: Stream, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=self._streams[stream], capture_error_mode="thread_local"):
            for call in calls:
                call()
        return recorded.replay

    def record(self, stream: Stream) -> Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[stream])
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        self._streams[stream].wait_event(_cuda_event(event))

    def passed(self, event: Event) -> bool:
        return bool(_cuda_event(event).query())  # type: ignore[no-untyped-call]

    def synchronize(self, event: Event) -> None:
        _cuda_event(event).synchronize()

    def seconds(self, first: Event, last: Event) -> float:
        return float(_cuda_event(first).elapsed_time(_cuda_event(last))) / 1000

    def free_bytes(self) -> int:
        """Bytes of the device that nobody has."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _cuda_event(event: Event) -> torch.cuda.Event:
    assert isinstance(event, torch.cuda.Event)
    return event


def why_not_cuda() -> str | None:
    """Why this machine has no GPU that plans can run on; None where it has one."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device" if torch.version.cuda else "this torch was built without CUDA"
    capability = torch.cuda.get_device_capability(0)
    if capability < OLDEST:
        return f"{torch.cuda.get_device_name(0)} is sm_{capability[0]}{capability[1]}; Triton's kernels need sm_80 or later"
    return why_not_triton()
