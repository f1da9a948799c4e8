"""Files and stores for tests of the disk: random bytes on a real file system, pieces of memory, engines that fail."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.disk.block_store import BlockStore, DiskExtent
from einpage.checkpoints.disk.direct_file import PAGE, SECTOR, DirectFile, open_direct, open_scratch, sector_span
from einpage.checkpoints.disk.engines import TransferOptions, make_engine
from einpage.checkpoints.disk.transfer import Engine, Transfer, TransferError


def random_file(path: Path, nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    """A file of random bytes, and they."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    path.write_bytes(data.tobytes())
    return data


def memory_for(nbytes: int) -> NDArray[np.uint8]:
    """Memory that begins at a page, full of 0xAA."""
    found = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8, nbytes)
    found[:] = 0xAA
    return found


def piece_of(offset: int, nbytes: int) -> DiskExtent:
    """A piece with memory of its own."""
    start, end = sector_span(offset, nbytes)
    return DiskExtent(offset, nbytes, memory_for(end - start))


def wanted(piece: DiskExtent) -> NDArray[np.uint8]:
    """The piece's own bytes, without the rest of its sectors."""
    return piece.memory[piece.offset % SECTOR :][: piece.nbytes]


class FailingEngine:
    """An engine that answers transfer number `at` of all with an error, once."""

    name = "failing"

    def __init__(self, inner: Engine, at: int, number: int = errno.EIO) -> None:
        self.inner, self.at, self.number, self.seen, self.in_flight = inner, at, number, 0, 0
        self.failed: list[tuple[int, Exception | None]] = []

    @property
    def depth(self) -> int:
        return self.inner.depth

    def begin(self, number: int, transfer: Transfer) -> None:
        if self.seen == self.at:
            self.failed.append((number, TransferError(transfer, self.number)))
        else:
            self.in_flight += 1
            self.inner.begin(number, transfer)
        self.seen += 1

    def ended(self) -> list[tuple[int, Exception | None]]:
        found: list[tuple[int, Exception | None]] = [*self.failed]
        self.failed = []
        if self.in_flight and not found:
            found = self.inner.ended()
            self.in_flight -= len(found)
        return found

    def wake(self) -> None:
        self.inner.wake()

    def close(self) -> None:
        self.inner.close()


class LastFirstEngine:
    """An engine that ends one transfer at a time, of those in flight the one that was begun last, and begins it only then."""

    name = "last first"

    def __init__(self, inner: Engine) -> None:
        self.inner, self.in_flight = inner, list[tuple[int, Transfer]]()
        self.most = 0
        """In flight at once."""

    @property
    def depth(self) -> int:
        return self.inner.depth

    def begin(self, number: int, transfer: Transfer) -> None:
        self.in_flight.append((number, transfer))
        self.most = max(self.most, len(self.in_flight))
        assert self.most <= self.depth

    def ended(self) -> list[tuple[int, Exception | None]]:
        self.inner.begin(*self.in_flight.pop())
        return self.inner.ended()

    def wake(self) -> None:
        """It does not sleep."""

    def close(self) -> None:
        self.inner.close()


class LateEngine:
    """An engine whose transfers end late, unless it is woken: then it has not looked yet."""

    name = "late"

    def __init__(self, inner: Engine, late_s: float) -> None:
        self.inner, self.late_s, self.in_flight, self.bell = inner, late_s, 0, Event()
        self.woken = False
        self.begun_when_woken = 0
        """Transfers that were begun beside others because it was woken."""

    @property
    def depth(self) -> int:
        return self.inner.depth

    def begin(self, number: int, transfer: Transfer) -> None:
        self.begun_when_woken += self.woken and self.in_flight > 0
        self.in_flight += 1
        self.inner.begin(number, transfer)

    def ended(self) -> list[tuple[int, Exception | None]]:
        self.woken = self.bell.wait(self.late_s)
        self.bell.clear()
        found = [] if self.woken else self.inner.ended()
        self.in_flight -= len(found)
        return found

    def wake(self) -> None:
        self.bell.set()

    def close(self) -> None:
        self.inner.close()


class HeldEngine:
    """An engine whose transfers end when `over` is set, and not before; who waits for one by then has to be woken."""

    name = "held"

    def __init__(self, inner: Engine) -> None:
        self.inner, self.over, self.bell = inner, Event(), Event()
        self.begun = 0

    @property
    def depth(self) -> int:
        return self.inner.depth

    def begin(self, number: int, transfer: Transfer) -> None:
        self.begun += 1
        self.inner.begin(number, transfer)

    def ended(self) -> list[tuple[int, Exception | None]]:
        if self.over.is_set():
            return self.inner.ended()
        self.bell.wait(30)
        self.bell.clear()
        return []

    def wake(self) -> None:
        self.bell.set()

    def close(self) -> None:
        self.inner.close()


@contextmanager
def opened(
    paths: Sequence[Path], choice: TransferOptions, scratch_bytes: int = 0, folder: Path | None = None, reads: Engine | None = None
) -> Iterator[tuple[BlockStore, list[int]]]:
    """A store over `paths` one after the other, scratch after them; and where each begins."""
    files: list[tuple[int, DirectFile]] = []
    bases, top = [], 0
    for path in paths:
        bases.append(top)
        files.append((top, open_direct(path)))
        top += -(-os.path.getsize(path) // PAGE) * PAGE
    scratch = None
    if scratch_bytes:
        assert folder is not None
        scratch = top, open_scratch(folder, scratch_bytes)
    store = BlockStore(files, scratch, reads or make_engine(choice), make_engine(choice), choice)
    try:
        yield store, [*bases, top]
    finally:
        store.close()


def read_bytes_counted() -> int:
    """What this process made the disk read, as the kernel counts it."""
    words = Path("/proc/self/io").read_text(encoding="ascii").split()
    return int(words[words.index("read_bytes:") + 1])
