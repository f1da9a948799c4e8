"""The host's memory of plans on streams: backed by several threads, registered piece by piece, given back whatever happens.

In: an arena, a driver, bytes of a device. A copy never crosses two registrations, for CUDA may refuse one that does: copies are cut where
pieces are. 4 GiB of the machine are never pinned; what would need them is refused before anything is touched.

    arena     |-------- piece --------|-------- piece --------|--- piece ---|
    a tensor                   |-----------------|
    copies                     |--32M-|--32M--|..|             the second ends with the piece
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import sched_getaffinity

from torch import Tensor

from einpage.einsum_front.base.errors import EinpageError, UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.device.arena import HostArena
from einpage.exec.device.cpu import CpuMemory
from einpage.exec.device.device import DeviceMemory
from einpage.exec.device.driver import Driver, Stream
from einpage.memplan.machine.places import ENGINES

PIECE_BYTES = 1 << 30
"""Of one registration: a whole number of huge pages."""
UNPINNED_BYTES = 4 << 30
"""Of host memory, for the system and everybody's files: never pinned."""
BACKED_BYTES = 64 << 20
"""Of memory that one thread backs at once."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE: back pages as a write would, whatever they hold (Linux 5.14)."""


class CannotPin(EinpageError):
    """Host memory that copy engines cannot be given: more than the machine has, or more than its system allows."""

    exit_status = 3


def refuse_pinning(nbytes: int, physical_bytes: int | None) -> None:
    """Raises CannotPin for an arena that would leave the machine less than UNPINNED_BYTES; `physical_bytes` is None where nobody knows."""
    if physical_bytes is None or nbytes <= (most := max(0, physical_bytes - UNPINNED_BYTES)):
        return
    host, unpinned = format_bytes(physical_bytes), format_bytes(UNPINNED_BYTES)
    raise CannotPin(
        f"a pinned arena of {format_bytes(nbytes)} is wanted; of the host's {host}, {unpinned} are never pinned, which leaves "
        f"{format_bytes(most)}: a narrower --dtype, a shorter sequence or a smaller model takes less"
    )


def copy_cuts(offset: int, nbytes: int, most: int) -> Iterator[tuple[int, int]]:
    """[start, end) of each copy, of at most `most` bytes, that moves `nbytes` from or to `offset` of a pinned arena."""
    start = 0
    while start < nbytes:
        in_piece = PIECE_BYTES - (offset + start) % PIECE_BYTES
        end = min(start + most, start + in_piece, nbytes)
        yield start, end
        start = end


def backed(memory: Tensor) -> None:
    """Back the pages of `memory`, by several threads: whoever registers it would do so with one. Nothing it holds changes.

    Nothing happens where the system has no such call.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not memory.nbytes:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start, end = memory.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, memory.data_ptr() + memory.nbytes
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as pool:
        for _ in pool.map(lambda at: madvise(at, min(BACKED_BYTES, end - at), _POPULATE_WRITE), range(start, end, BACKED_BYTES)):
            pass


class PinnedMemory:
    """`memory`, registered with `driver` until it is closed."""

    def __init__(self, driver: Driver, memory: Tensor) -> None:
        """Raises CannotPin where the system refuses a piece, and whatever else the driver raises; what was registered is given back."""
        self._driver, self._pieces = driver, list[Tensor]()
        try:
            backed(memory)
            for start in range(0, memory.nbytes, PIECE_BYTES):
                piece = memory[start : start + PIECE_BYTES]
                driver.pin(piece)
                self._pieces.append(piece)
        except UsageError as error:
            done = self.nbytes
            self.close()
            raise CannotPin(f"{format_bytes(done)} of the {format_bytes(memory.nbytes)} to be pinned were: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """How much is registered."""
        return sum(piece.nbytes for piece in self._pieces)

    def close(self) -> None:
        """Give it back; what is in flight has to be done."""
        while self._pieces:
            self._driver.unpin(self._pieces.pop())


class StreamMemory(DeviceMemory):
    """Registered host memory, and one allocation of a driver's."""

    def __init__(self, host: HostArena, driver: Driver, nbytes: int, *, is_pinned: bool = False) -> None:
        """`is_pinned`: `host` is registered, and whoever did so undoes it. Raises what the driver does where either is not to be had."""
        super().__init__(host, nbytes)
        self.driver, self.host_bytes = driver, host.whole()
        self._pinned = None if is_pinned else PinnedMemory(driver, self.host_bytes)
        try:
            self.device: Tensor = driver.allocate(nbytes)
        except BaseException:
            self.close()
            raise

    def wait_for_engines(self) -> None:
        """Wait for the engines that ran in it last, and for what a run that did not end has enqueued. Raises EngineBusy."""
        super().wait_for_engines()
        if self.ran is None:
            for stream in map(Stream, range(len(ENGINES))):
                self.driver.synchronize(self.driver.record(stream))

    def close(self) -> None:
        """Unpin the host's arena where it was pinned here."""
        if self._pinned is not None:
            self._pinned.close()

    def __del__(self) -> None:
        with suppress(AttributeError, RuntimeError):  # one that was not made, or a driver that has gone
            self.close()  # memory that is unmapped while it is registered is of no use to anybody


class KeptMemory:
    """One host arena for runs that come one after the other: mapped, backed and registered once, as long as it is large enough. A larger
    one takes the place of the one before, which is given back first. To be closed, when no run is in it."""

    def __init__(self, driver: Driver | None) -> None:
        """`driver` is that of the runs' devices; None where they are the CPU."""
        self._driver = driver
        self._host: HostArena | None = None
        self._pinned: PinnedMemory | None = None
        self._is_lent = False

    @property
    def nbytes(self) -> int:
        """Of the arena that is there."""
        return 0 if self._host is None else self._host.nbytes

    def lend(self, nbytes: int) -> HostArena:
        """An arena of at least `nbytes`, for one run, to be given back; whatever was there before lies in it. Raises MemoryError."""
        assert not self._is_lent, "two runs at once need two arenas"
        if self._host is None or self._host.nbytes < nbytes:
            self.close()
            self._host = HostArena(nbytes)
        self._is_lent = True
        return self._host

    def memory(self, nbytes: int) -> CpuMemory | StreamMemory:
        """The arena that is lent, registered where copy engines are to reach it, and `nbytes` of a device. Raises what either raises."""
        assert self._host is not None, "an arena is lent first"
        if self._driver is None:
            return CpuMemory(self._host, nbytes)
        if self._pinned is None:
            self._pinned = PinnedMemory(self._driver, self._host.whole())
        return StreamMemory(self._host, self._driver, nbytes, is_pinned=True)

    def give_back(self) -> None:
        """The run is over."""
        self._is_lent = False

    def close(self) -> None:
        """Unpin it and let go of it."""
        if self._pinned is not None:
            self._pinned.close()
        self._pinned, self._host = None, None
