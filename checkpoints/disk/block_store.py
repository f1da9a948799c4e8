"""The disk as one arena: files one after the other in a single space of offsets, read and written in whole sectors.

In: files, each at a base that is a multiple of a page, and pieces of memory. Out: the same bytes, and how many the disk moved. What
is read a second time has to be what it was the first time; a file that changes while it is in use ends the run.

    0            base[1]        base[2]                scratch
    | weights.gguf | packed.blocks | 2nd shard … |      | spilled activations    |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.disk.digests import checksum
from einpage.checkpoints.disk.direct_file import PAGE, SECTOR, DirectFile, DiskError, full_or, sector_span
from einpage.checkpoints.disk.engines import TransferOptions
from einpage.checkpoints.disk.transfer import Engine, Transfer, TransferError


@dataclass(frozen=True, slots=True)
class DiskExtent:
    """Bytes of the disk's arena, and their sectors in memory."""

    offset: int
    nbytes: int
    memory: NDArray[np.uint8]
    """Of the whole sectors that hold them: sector_span says how many bytes."""


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

    def read(self, pieces: Sequence[DiskExtent], *, once: bool = False) -> None:
        """Read all; `once`: they are not pieces that are read again, so that nothing is held against them. Raises DiskError."""
        transfers = [t for piece in pieces for t in self._transfers(piece, writes=False)]
        self._run(self._reads, transfers)
        for piece in () if once else pieces:
            self._refuse_other(piece)
        self.read_bytes += sum(len(piece.memory) for piece in pieces)

    def write(self, pieces: Sequence[DiskExtent]) -> None:
        """Write all into the scratch file. Raises DiskError."""
        for piece in pieces:
            self._checksums[piece.offset, piece.nbytes] = self._checksum(piece)
        transfers = [t for piece in pieces for t in self._transfers(piece, writes=True)]
        self._run(self._writes, transfers)
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

    def _run(self, engine: Engine, transfers: Sequence[Transfer]) -> None:
        try:
            engine.run(transfers)
        except TransferError as error:
            file = next(file for file in self._files if file.fd == error.transfer.fd)
            if not error.number:
                file.refuse_changed()  # says more
            what = "written" if error.transfer.writes else "read"
            told = f"{file.path}: {error.transfer.nbytes} bytes at {error.transfer.offset} cannot be {what}"
            if error.number:
                raise full_or(told, OSError(error.number, error.reason)) from error
            raise DiskError(f"{told}: {error.reason}; it was cut off, or is being written: make it whole") from error

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
