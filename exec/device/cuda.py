"""CUDA's runtime behind the Driver protocol, through torch: streams, timed events, registered host memory, one big allocation.

Copies are asynchronous, between device memory and host memory registered beforehand (registering pins exactly the bytes that are there;
torch's own pinned allocator rounds to powers of two). They and kernels go on a stream by its handle; where copies cannot (`slow_copies`
says why), torch's are used, on its current stream. Events are made once and recorded again in later runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.device.driver import Event, Stream
from einpage.kernels.prepare import why_not_triton
from einpage.memplan.machine.places import ENGINES

LIBRARY = "libcuda.so.1"
"""What every CUDA program has loaded."""
_TYPES = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
"""Of cuMemcpyAsync: target, source, bytes, stream."""
OLDEST = (8, 0)
"""Compute capability from which on Triton's kernels use tensor cores."""


class DirectCopies:
    """Copies by the driver's own call, with kept arguments: no stream is made the current one, nothing is looked up for each. Addresses are
    the same for both sides of a copy (unified addressing), which says in which direction it is."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Raises OSError where there is no such library, AttributeError where it has no such call."""
        self._memcpy: Any = ctypes.CDLL(library).cuMemcpyAsync  # lets go of the interpreter's lock
        self._memcpy.argtypes, self._memcpy.restype = _TYPES, _refuse

    def bound(self, handle: int, target: Tensor, source: Tensor) -> Callable[[], object]:
        """A call that enqueues this copy, of memory that the caller holds. It raises RuntimeError where the driver refuses."""
        assert target.nbytes == source.nbytes, f"a copy of {source.nbytes} bytes to {target.nbytes}"
        assert target.is_contiguous(), "a copy is of flat bytes"
        assert source.is_contiguous(), "a copy is of flat bytes"
        return partial(self._memcpy, target.data_ptr(), source.data_ptr(), target.nbytes, handle)


def _refuse(status: int) -> None:
    """What ctypes calls with the result."""
    if status:
        raise RuntimeError(f"CUDA error {status} (cuMemcpyAsync)")


class CudaDriver:
    def __init__(self, index: int = 0) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._streams = [torch.cuda.Stream(self._device) for _ in ENGINES]  # type: ignore[no-untyped-call]
        self._handles: list[int] = [stream.cuda_stream for stream in self._streams]
        self._events: list[torch.cuda.Event] = []
        """Those that nobody asks about any more."""
        self.name: str = torch.cuda.get_device_name(self._device)
        self._direct: DirectCopies | None = None
        self.slow_copies: str | None = None
        """Why copies are not bound to their streams; None where they are."""
        try:
            self._direct = self._tried(DirectCopies())
        except (OSError, AttributeError, RuntimeError) as error:
            self.slow_copies = f"{type(error).__name__}: {error}"

    def init_thread(self) -> None:
        torch.cuda.set_device(self._device)  # CUDA's own calls need a context of the thread, which torch's would make

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
        self.bound_copy(stream, target, source)()

    def bound_copy(self, stream: Stream, target: Tensor, source: Tensor) -> Callable[[], object]:
        if self._direct is None:
            return partial(self._copy_by_torch, stream, target, source)
        return self._direct.bound(self._handles[stream], target, source)

    def _copy_by_torch(self, stream: Stream, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._streams[stream]):
            target.copy_(source, non_blocking=True)

    def _tried(self, direct: DirectCopies) -> DirectCopies:
        """`direct`, which has copied a few bytes there and back. Raises RuntimeError where they are not the same."""
        sent, back = torch.arange(256, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
        there = torch.zeros(256, dtype=torch.uint8, device=self._device)
        torch.cuda.synchronize(self._device)
        for target, source in ((there, sent), (back, there)):
            direct.bound(self._handles[0], target, source)()
            self._streams[0].synchronize()
        if not torch.equal(sent, back):
            raise RuntimeError("what was copied there and back is not the same")
        return direct

    def handle(self, stream: Stream) -> int:
        return self._handles[stream]

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
        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[stream])
        return event

    def recycle(self, events: Iterable[Event]) -> None:
        self._events += {id(event): _cuda_event(event) for event in events}.values()

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
