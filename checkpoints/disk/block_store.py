"""The disk as one arena: files one after the other in a single space of offsets, read and written in whole sectors.

In: files, each at a base that is a multiple of a page, and pieces of memory. Out: the same bytes, and how many the disk moved. Reads
overlap: they are begun in some order, as many transfers at once as the engine takes, and end in any. What is read a second time has to be
what it was the first time; a file that changes while it is in use ends the run.

    0            base[1]        base[2]                scratch
    | weights.gguf | packed.blocks | 2nd shard … |      | spilled activations    |
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.disk.digests import checksum
from einpage.checkpoints.disk.direct_file import PAGE, SECTOR, DirectFile, DiskError, full_or, sector_span
from einpage.checkpoints.disk.engines import TransferOptions
from einpage.checkpoints.disk.transfer import Engine, Transfer, TransferError, run_all


@dataclass(frozen=True, slots=True)
class DiskExtent:
    """Bytes of the disk's arena, and their sectors in memory."""

    offset: int
    nbytes: int
    memory: NDArray[np.uint8]
    """Of the whole sectors that hold them: sector_span says how many bytes."""


@dataclass(slots=True, eq=False)
class DiskRead:
    """Pieces that are read together, made ready to be read as often as wanted, once at a time."""

    pieces: tuple[DiskExtent, ...]
    transfers: tuple[Transfer, ...]
    is_held: bool
    """Whether they have to be what they were when they were read before."""
    left: int = 0
    """Transfers that have not ended."""
    error: Exception | None = None
    """A DiskError, but for bugs of ours."""

    @property
    def nbytes(self) -> int:
        """Of sectors."""
        return sum(len(piece.memory) for piece in self.pieces)


class BlockStore:
    """Open files, an engine, and what was read of them. One thread at a time reads, one writes."""

    def __init__(
        self,
        files: Sequence[tuple[int, DirectFile]],
        scratch: tuple[int, DirectFile] | None,
        reads: Engine,
        writes: Engine,
        choice: TransferOptions,
    ) -> None:
        """`files` and `scratch` with the offsets at which they begin, ascending; two engines, for two threads."""
        self.choice = choice
        self._reads, self._writes = reads, writes
        placed = [*files] if scratch is None else [*files, scratch]
        self._bases, self._files = [base for base, _ in placed], [file for _, file in placed]
        self._scratch = None if scratch is None else scratch[1]
        assert all(base % PAGE == 0 for base in self._bases) and self._bases == sorted(self._bases)
        self.read_bytes = self.written_bytes = 0
        """Of sectors, since the last start."""
        self._checksums: dict[tuple[int, int], int] = {}
        """By (offset, bytes), of what was read before."""
        self._waiting = deque[tuple[DiskRead, Transfer]]()
        self._in_flight: dict[int, DiskRead] = {}
        """By the transfer's number."""
        self._numbers = 0
        self._done: list[DiskRead] = []
        """Ended, and not told yet."""

    @property
    def path(self) -> str:
        """By what reads go, as reports write it."""
        past = "past the page cache" if all(file.is_direct for file in self._files) else "through the page cache"
        return f"{self._reads.name}, {past}"

    def start_counting(self) -> None:
        """Count from here on."""
        self.read_bytes = self.written_bytes = 0

    def expect(self, checksums: Mapping[tuple[int, int], int]) -> None:
        """What pieces have to be when they are first read: (offset, bytes) to checksum."""
        self._checksums |= checksums

    @property
    def depth(self) -> int:
        """How many reads it takes to keep the disk busy."""
        return self._reads.depth

    def prepared(self, pieces: Sequence[DiskExtent], *, once: bool = False) -> DiskRead:
        """A read of all; `once`: they are not pieces that are read again, so that nothing is held against them."""
        transfers = tuple(t for piece in pieces for t in self._transfers(piece, writes=False))
        return DiskRead(tuple(pieces), transfers, not once)

    def begin(self, read: DiskRead) -> None:
        """Begin a read, as soon as there is room for its transfers."""
        assert not read.left, "a read is begun again when it has ended"
        read.left, read.error = len(read.transfers), None
        if not read.left:
            self._done.append(read)
        self._waiting += ((read, t) for t in read.transfers)
        self._fill()

    def ended(self) -> list[DiskRead]:
        """Those that have ended since they were asked for last, each whole or with its error; waits for one where some are under way, or
        until it is woken."""
        while not self._done and self._in_flight:
            answers = self._reads.ended()
            if not answers:
                break
            for number, error in answers:
                read = self._in_flight.pop(number)
                read.left -= 1
                if error is not None:
                    read.error = read.error or self._told(error)
                    read.left -= self._cancel(read)
                if not read.left:
                    self._end(read)
            self._fill()
        done, self._done = self._done, []
        return done

    def wake(self) -> None:
        """End the wait of `ended`: there is more to begin. From any thread."""
        self._reads.wake()

    def drain(self) -> None:
        """Wait for what is in flight, begin nothing more, and forget it: nobody writes to memory afterwards."""
        for read, _ in self._waiting:
            read.left -= 1
        self._waiting.clear()
        while self._in_flight:
            for number, _ in self._reads.ended():
                self._in_flight.pop(number).left -= 1
        self._done = []

    def run(self, read: DiskRead) -> None:
        """Read, and wait for it. Raises DiskError."""
        self.begin(read)
        others: list[DiskRead] = []
        while read not in (found := self.ended()):
            others += found
        self._done = others + [other for other in found if other is not read]
        if read.error is not None:
            raise read.error

    def read(self, pieces: Sequence[DiskExtent], *, once: bool = False) -> None:
        """The same of pieces, as `prepared` has them. Raises DiskError."""
        self.run(self.prepared(pieces, once=once))

    def write(self, pieces: Sequence[DiskExtent]) -> None:
        """Write all into the scratch file. Raises DiskError."""
        for piece in pieces:
            self._checksums[piece.offset, piece.nbytes] = self._checksum(piece)
        try:
            run_all(self._writes, [t for piece in pieces for t in self._transfers(piece, writes=True)])
        except TransferError as error:
            raise self._told(error) from error
        self.written_bytes += sum(len(piece.memory) for piece in pieces)

    def refuse_changed(self) -> None:
        """Raises DiskError where a file is not what it was when it was opened."""
        for file in self._files:
            if file is not self._scratch:
                file.refuse_changed()

    def close(self) -> None:
        """Close the files, and let the engines go."""
        self._reads.close()
        self._writes.close()
        for file in self._files:
            file.close()

    def _transfers(self, piece: DiskExtent, *, writes: bool) -> list[Transfer]:
        number = bisect_right(self._bases, piece.offset) - 1
        file, base = self._files[number], self._bases[number]
        start, end = sector_span(piece.offset - base, piece.nbytes)
        assert len(piece.memory) == end - start, f"{len(piece.memory)} bytes of memory for sectors {start} to {end}"
        assert piece.offset - base + piece.nbytes <= file.nbytes, f"{piece.offset} + {piece.nbytes} is beyond {file.path}"
        assert not writes or file is self._scratch, f"{file.path} is only read"
        address, step = piece.memory.ctypes.data, self.choice.block_bytes
        there = min(end, file.nbytes)
        return [
            Transfer(file.fd, at, address + at - start, min(step, end - at), min(step, there - at), writes)
            for at in range(start, end, step)
        ]

    def _fill(self) -> None:
        """Begin transfers that wait, up to the depth of the engine."""
        while self._waiting and len(self._in_flight) < self._reads.depth:
            read, transfer = self._waiting.popleft()
            self._numbers += 1
            self._in_flight[self._numbers] = read
            self._reads.begin(self._numbers, transfer)

    def _cancel(self, read: DiskRead) -> int:
        """Begin no more of a read; how many of its transfers that are."""
        before = len(self._waiting)
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] is not read)
        return before - len(self._waiting)

    def _end(self, read: DiskRead) -> None:
        """All its bytes are there, or one of its transfers failed."""
        if read.error is None:
            try:
                for piece in read.pieces if read.is_held else ():
                    self._refuse_other(piece)
            except DiskError as error:
                read.error = error
        self.read_bytes += read.nbytes
        self._done.append(read)

    def _told(self, error: Exception) -> Exception:
        """As a person is told of it: a DiskError, but for bugs of ours."""
        if not isinstance(error, TransferError):
            return error
        file = next(file for file in self._files if file.fd == error.transfer.fd)
        try:
            if not error.number:
                file.refuse_changed()  # says more
        except DiskError as more:
            return more
        what = "written" if error.transfer.writes else "read"
        told = f"{file.path}: {error.transfer.nbytes} bytes at {error.transfer.offset} cannot be {what}"
        if error.number:
            return full_or(told, OSError(error.number, error.reason))
        return DiskError(f"{told}: {error.reason}; it was cut off, or is being written: make it whole")

    def _refuse_other(self, piece: DiskExtent) -> None:
        """Raises DiskError where the piece is not what it was when it was read before."""
        found = self._checksum(piece)
        if self._checksums.setdefault((piece.offset, piece.nbytes), found) != found:
            number = bisect_right(self._bases, piece.offset) - 1
            at = piece.offset - self._bases[number]
            raise DiskError(
                f"{self._files[number].path}: changed while it was in use: the {piece.nbytes} bytes at {at} "
                "are not what they were; start again when nobody writes to it"
            )

    def _checksum(self, piece: DiskExtent) -> int:
        lead = piece.offset % SECTOR
        return checksum(piece.memory[lead : lead + piece.nbytes])
