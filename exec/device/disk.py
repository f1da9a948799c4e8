"""The disk of a device: residencies there, read into the host's arena and written from it, and rows gathered from tables there.

In: an open store, the plan. Out: what nodes call. The plan says at which byte of a sector a tensor begins; in which file it lies, the
store's places do; what is spilled lies in its scratch. A gather reads the rows' sectors into a table of its own that is mapped and, but
for these rows, never backed; so the kernel is that of a table on the host, and a block of rows at a time is in memory.

    table on disk    ...|row 3|...........|row 9|....        the same in memory: two pages are there, dropped after the block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.checkpoints.disk.block_store import BlockStore, DiskExtent, DiskRead
from einpage.checkpoints.disk.direct_file import SECTOR, sector_span
from einpage.einsum_front.base.dtype import DType, Stored, as_run
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import GatherJob
from einpage.einsum_front.graph.taskgraph import Tensor
from einpage.exec.device.arena import HostArena, MappedArena
from einpage.exec.errors import CountMismatch
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.kernels.on_torch.host_gather import GatherKernel
from einpage.kernels.prepare import prepare_gathers
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset, Residency
from einpage.memplan.graph.simulate import sector_bytes
from einpage.memplan.machine import places
from einpage.memplan.machine.places import DISK, Queue

assert places.SECTOR == SECTOR, "plans and files have the same sectors"

GATHERED_BYTES = 128 << 10
"""Of a block of rows: as they are when they are read, with the rest of their sectors and pages, they are a few times that."""


class PlanDisk:
    """The disk of one plan."""

    def __init__(self, memgraph: MemGraph, space: OpenDisk, host: HostArena) -> None:
        self._memgraph, self._space, self._host = memgraph, space, host
        self._stored = memgraph.stored_bytes
        self._planned = sector_bytes(memgraph, Queue.READ), sector_bytes(memgraph, Queue.WRITE)
        self.gathered_bytes = 0
        """Of sectors, for rows of tables, in the last run."""

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Read and written in the last run, in whole sectors."""
        return self._space.store.read_bytes, self._space.store.written_bytes

    def start_run(self) -> None:
        """Count anew. Raises DiskError where a file has changed."""
        self._space.store.refuse_changed()
        self._space.store.start_counting()
        self.gathered_bytes = 0

    def end_run(self) -> None:
        """Raises DiskError where a file has changed, CountMismatch where other sectors were moved than planned."""
        self._space.store.refuse_changed()
        read, written = self.moved_bytes
        if (moved := (read - self.gathered_bytes, written)) != self._planned:
            raise CountMismatch(f"the disk read and wrote {moved} bytes of sectors, gathered rows left out; the plan says {self._planned}")

    @property
    def store(self) -> BlockStore:
        """What reads and writes."""
        return self._space.store

    def prepared(self, copies: Sequence[tuple[Residency, Residency]]) -> DiskRead:
        """A read of copies from the disk to the host."""
        return self._space.store.prepared([self._piece(source, target) for source, target in copies])

    def write(self, copies: Sequence[tuple[Residency, Residency]]) -> None:
        """Copies from the host to the disk. Raises DiskError."""
        self._space.store.write([self._piece(target, source) for source, target in copies])

    def gather(
        self,
        job: GatherJob,
        operands: Sequence[Sequence[Residency]],
        view: Callable[[Residency], torch.Tensor],
        result: torch.Tensor,
    ) -> Callable[[], None]:
        """What fills `result` with rows of a table that is on the disk, in whole or in part; `view` is of what is on the host."""
        tensors = self._memgraph.graph.tensors
        tables = [_SparseTable(tensors[r.tensor], self._offset(r)) if r.place == DISK else None for r in operands[0]]
        whole = tuple(view(r) if table is None else table.whole for r, table in zip(operands[0], tables, strict=True))
        tiles = (whole, *(tuple(map(view, operand)) for operand in operands[1:]))
        flat, start = result.view(-1), 0
        blocks: list[tuple[GatherKernel, torch.Tensor]] = []
        for part, kernel in prepare_gathers(job, GATHERED_BYTES):
            assert isinstance(kernel, GatherKernel), "rows are gathered on the host"
            box = part.result.boxes[0]
            blocks.append((kernel, flat[start : start + box.size].view(box.shape)))
            start += box.size
        assert start == result.numel(), "the parts of a gather lie one after the other in its result"

        def call() -> None:
            for kernel, target in blocks:
                self._gather_block(kernel, tiles, tables, target)

        return call

    def _gather_block(
        self,
        kernel: GatherKernel,
        tiles: tuple[tuple[torch.Tensor, ...], ...],
        tables: Sequence[_SparseTable | None],
        target: torch.Tensor,
    ) -> None:
        wanted = [(table, rows) for number, rows in kernel.rows_wanted(tiles) if (table := tables[number]) is not None]
        spans = [(table, *span) for table, rows in wanted for span in table.spans(kernel.at, rows)]
        pieces = [table.piece(start, end) for table, start, end in spans]
        self._space.store.read(pieces, once=True)
        self.gathered_bytes += sum(len(piece.memory) for piece in pieces)
        kernel(tiles, target)
        for table, start, end in spans:
            table.drop(start, end)

    def _piece(self, on_disk: Residency, on_host: Residency) -> DiskExtent:
        """A tensor of the disk, and its sectors on the host."""
        (extent,) = on_host.extents
        start, end = sector_span(extent.offset, extent.nbytes)
        offset = self._offset(on_disk)
        assert offset % SECTOR == extent.offset % SECTOR, f"{on_host} begins at another byte of a sector than {on_disk}"
        return DiskExtent(offset, extent.nbytes, self._host.bytes(Extent(Offset(start), Nbytes(end - start))))

    def _offset(self, residency: Residency) -> int:
        """Where it lies in the store."""
        (extent,) = residency.extents
        if extent.offset >= self._stored:
            return self._space.scratch + extent.offset - self._stored
        return self._space.offset_by_name[self._memgraph.graph.tensors[residency.tensor].name]


class _SparseTable:
    """Memory for a tile of a table, of which only rows that are looked up are ever backed."""

    def __init__(self, tensor: Tensor, offset: int) -> None:
        """`offset` is where the tile lies in the store."""
        self._shape, self._nbytes, self._offset = tensor.shape, int(tensor.nbytes), offset
        self._skew = offset % SECTOR
        self._memory = MappedArena(sector_span(self._skew, self._nbytes)[1])
        is_stored = isinstance(tensor.element_type, Stored)
        shape, dtype = ((self._nbytes,), DType.BYTE) if is_stored else (tensor.shape, as_run(tensor.element_type))
        self.whole = self._memory.view(Extent(Offset(self._skew), tensor.nbytes), shape, dtype)

    def spans(self, at: int, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """[start, end) of the bytes of the tile that these rows of dimension `at` have, in runs that share no sector."""
        outer = prod(self._shape[:at])
        row_bytes = self._nbytes // (outer * self._shape[at])
        starts = ((np.arange(outer)[:, None] * self._shape[at] + rows) * row_bytes).reshape(-1)
        first = (starts + self._skew) // SECTOR
        last = -(-(starts + row_bytes + self._skew) // SECTOR)
        new = np.flatnonzero(np.concatenate(([True], first[1:] >= last[:-1])))
        ends = np.append(starts[new[1:] - 1], starts[-1]) + row_bytes
        return [*zip(starts[new].tolist(), ends.tolist(), strict=True)]

    def piece(self, start: int, end: int) -> DiskExtent:
        """These bytes, in the store and here."""
        low, high = sector_span(self._skew + start, end - start)
        return DiskExtent(self._offset + start, end - start, self._memory.bytes(Extent(Offset(low), Nbytes(high - low))))

    def drop(self, start: int, end: int) -> None:
        """Give their pages back."""
        self._memory.drop_around(Extent(Offset(self._skew + start), Nbytes(end - start)))
