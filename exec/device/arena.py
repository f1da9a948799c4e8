"""Arenas: one anonymous mapping each, in which tensors are views at planned offsets.

In: a size in bytes. Out: torch tensors that share the mapping's memory. The host arena holds weights, inputs, spill slots and outputs at
the offsets of the MemGraph; the CPU device's memory is another arena of exactly the budget. Pages are backed when first touched, so a
spill slot that is never used costs nothing.

    POISON repeated:  fp32 NaN, bf16 NaN, fp16 NaN, int32 2143387585, int64 9205779632577183681 -- wrong as a number and as an index
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import Checked, DType, Stored
from einpage.einsum_front.base.units import Nbytes, format_bytes
from einpage.einsum_front.graph.taskgraph import Kind, Tensor, TensorId
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.memplan.graph.memgraph import Extent, MemGraph, Offset, Residency, ResidencyId
from einpage.memplan.graph.packed import Nodes, Residencies
from einpage.memplan.machine.places import DEVICE, HOST, PlaceKind

POISON = 0x7FC1
"""Two bytes, little-endian, written over memory whose contents have ended."""
HUGE_PAGE = 2 << 20
"""Bytes."""


class MappedArena:
    """`nbytes` of zeroed anonymous memory, its base aligned to a page, or to a huge one."""

    def __init__(self, nbytes: int, *, touch: bool = False, huge: bool = True) -> None:
        """`touch` backs every page now: the first write to a fresh page is 20 times slower than the second. `huge` asks for huge pages:
        the first write costs a tenth of that, and copies are up to half as fast again. A huge page is backed whole; where the system has
        none, others serve.

        Raises MemoryError, with how much was wanted.
        """
        self.nbytes = nbytes
        huge = huge and nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
        try:
            self._map = mmap.mmap(-1, max(nbytes, 1) + huge * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"an arena of {format_bytes(nbytes)} is wanted") from error
        self._start = 0
        """Where in the mapping the arena begins: the first huge page, or the first page."""
        if huge:
            self._start = -torch.frombuffer(self._map, dtype=torch.uint8).data_ptr() % HUGE_PAGE
            with suppress(OSError):  # a system without them
                self._map.madvise(mmap.MADV_HUGEPAGE, self._start, nbytes)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, count=nbytes, offset=self._start)
        whole = torch.frombuffer(self._map, dtype=torch.uint8, count=max(nbytes, 1), offset=self._start)
        self._storage = whole.untyped_storage()
        if touch:
            self.touch(np.arange(-(-nbytes // mmap.PAGESIZE)))

    def view(self, extent: Extent, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        """The bytes of `extent` as a packed row-major tensor; no copy. `shape` must fill the extent exactly."""
        count = prod(shape)
        assert count * dtype.nbytes == extent.nbytes, f"{shape} of {dtype.value} does not fill {extent}"
        assert extent.end <= self.nbytes, f"{extent} ends beyond the arena of {self.nbytes} bytes"
        assert extent.offset % dtype.nbytes == 0, f"{extent} is not aligned for {dtype.value}"
        strides = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()
        # All share one storage, and none is a view of another: each costs a third of what `frombuffer(...).view(...)` does.
        return torch.empty(0, dtype=TORCH_DTYPE[dtype]).set_(self._storage, extent.offset // dtype.nbytes, shape, strides)

    def bytes(self, extent: Extent) -> NDArray[np.uint8]:
        """The bytes of `extent`, flat; no copy."""
        assert extent.end <= self.nbytes, f"{extent} ends beyond the arena of {self.nbytes} bytes"
        return self._bytes[extent.offset : extent.end]

    def whole(self) -> torch.Tensor:
        """All bytes, as one flat tensor; no copy."""
        return torch.empty(0, dtype=torch.uint8).set_(self._storage, 0, (self.nbytes,), (1,))

    def touch(self, pages: NDArray[np.intp]) -> None:
        """Back `pages`, whose bytes nobody needs: some are 0 from here on."""
        self._bytes[pages * mmap.PAGESIZE] = 0

    def drop(self, extent: Extent) -> None:
        """Give the pages that lie wholly in `extent` back to the system: its bytes are 0 from here on."""
        start, end = -(-extent.offset // mmap.PAGESIZE), extent.end // mmap.PAGESIZE
        if start < end and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, self._start + start * mmap.PAGESIZE, (end - start) * mmap.PAGESIZE)

    def drop_around(self, extent: Extent) -> None:
        """The same for every page that `extent` touches."""
        start, end = extent.offset // mmap.PAGESIZE, -(-extent.end // mmap.PAGESIZE)
        pages = Extent(Offset(start * mmap.PAGESIZE), Nbytes((end - start) * mmap.PAGESIZE))
        self.drop(pages)

    def poison(self, extent: Extent | None = None) -> None:
        """Overwrite `extent` (or everything) with POISON."""
        target = self._bytes if extent is None else self.bytes(extent)
        even = len(target) // 2 * 2
        target[:even].view("<u2")[:] = POISON
        target[even:] = POISON & 0xFF


class HostArena(MappedArena):
    """The host's memory: host copies of weights and inputs, spill slots and outputs at the MemGraph's planned offsets."""


def used_extents(memgraph: MemGraph) -> Iterator[Extent]:
    """The bytes of the device's arena in which something ever lies, from the bottom up; of a budget larger than it takes, a part."""
    nodes, residencies = Nodes.of(memgraph.nodes), Residencies.of(memgraph.residencies)
    there = np.repeat(residencies.at(DEVICE), np.diff(residencies.extent_row))
    starts = np.concatenate((residencies.offset[there], nodes.scratch_offset))
    ends = np.concatenate((residencies.offset[there] + residencies.nbytes[there], nodes.scratch_offset + nodes.scratch_nbytes))
    by_start = np.argsort(starts, kind="stable")
    starts, reached = starts[by_start], np.maximum.accumulate(ends[by_start])
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > reached[:-1]))[: len(starts)])
    last = np.append(first[1:], len(starts))[: len(first)] - 1
    for start, end in zip(starts[first].tolist(), reached[last].tolist(), strict=True):
        yield Extent(Offset(start), Nbytes(end - start))


def residency_view(memgraph: MemGraph, residency: Residency, arena: MappedArena) -> torch.Tensor:
    """The tensor of `residency`, shaped as its tile (or its bytes, where it is kept as it is stored), in the arena of its place."""
    tensor = memgraph.graph.tensors[residency.tensor]
    (extent,) = residency.extents
    if isinstance(tensor.element_type, Stored):
        return arena.view(extent, (extent.nbytes,), DType.BYTE)
    if isinstance(tensor.element_type, Checked):
        extent = Extent(extent.offset, Nbytes(tensor.dtype.bytes_of(tensor.box.size)))  # the flag behind it is flag_of(tile)
    return arena.view(extent, tensor.shape, tensor.dtype)


class _HostViews(Mapping[TensorId, torch.Tensor]):
    """Views of residencies on the host by tensor, each made when it is asked for: of a hundred thousand few are in use at once."""

    def __init__(self, memgraph: MemGraph, arena: HostArena, residencies: Iterable[ResidencyId]) -> None:
        self._memgraph, self._arena = memgraph, arena
        found = Residencies.of(memgraph.residencies)
        on_host, tensor = found.at(HOST), found.tensor
        self._residency_by_tensor = {TensorId(int(tensor[r])): r for r in residencies if on_host[r]}

    def __getitem__(self, tensor: TensorId) -> torch.Tensor:
        return residency_view(self._memgraph, self._memgraph.residencies[self._residency_by_tensor[tensor]], self._arena)

    def __iter__(self) -> Iterator[TensorId]:
        return iter(self._residency_by_tensor)

    def __len__(self) -> int:
        return len(self._residency_by_tensor)


def host_copies(memgraph: MemGraph, arena: HostArena) -> Mapping[TensorId, torch.Tensor]:
    """Every weight, input and constant tile on the host, by tensor, in its own shape and dtype: to be filled before a run, but for what
    comes from a disk."""
    return _HostViews(memgraph, arena, memgraph.start)


def host_results(memgraph: MemGraph, arena: HostArena) -> Mapping[TensorId, torch.Tensor]:
    """Every tile of an output on the host, by tensor, in its own shape and dtype: filled by a run."""
    return _HostViews(memgraph, arena, memgraph.end)


def bytes_before_outputs(memgraph: MemGraph) -> Extent:
    """The host bytes below the first output: weights and inputs, of no use after a run. Nothing of a host that is a tier."""
    if memgraph.has_disk:
        return Extent(Offset(0), Nbytes(0))
    results = (memgraph.residencies[r] for r in set(memgraph.end) - set(memgraph.start))
    offsets = [r.extents[0].offset for r in results if r.place.kind is PlaceKind.HOST]
    return Extent(Offset(0), Nbytes(min(offsets, default=0)))


def outputs(memgraph: MemGraph, arena: HostArena, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Every output (those of `names`), put together from its tiles in the host arena after a run: new tensors by output name, in the
    values' shapes. Of a state, rows that no task writes are those of the input of its name."""
    wanted = [name for name, _ in memgraph.graph.outputs if names is None or name in names]
    return {name: reader() for name, reader in output_readers(memgraph, arena, wanted).items()}


def output_readers(memgraph: MemGraph, arena: HostArena, names: Collection[str]) -> dict[str, Callable[[], torch.Tensor]]:
    """By name, what puts an output together as `outputs` does: to be called after every pass, its tiles looked up once."""
    graph = memgraph.graph
    tile_by_tensor = _HostViews(memgraph, arena, (*memgraph.start, *memgraph.end))
    shape_by_value = {v.name: v.shape for v in graph.values}
    name_by_value = {value: name for name, value in graph.outputs if name in names}
    tiles_by_name: dict[str, list[Tensor]] = {name: [] for name in name_by_value.values()}
    for tile in graph.tensors:
        if tile.value in name_by_value:
            tiles_by_name[name_by_value[tile.value]].append(tile)
        elif tile.kind is Kind.CONSTANT and tile.value in tiles_by_name:
            tiles_by_name[tile.value].append(tile)
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for name, value in graph.outputs:
        if name not in names:
            continue
        tiles = tiles_by_name[name_by_value[value]]
        for tile in tiles:
            assert tile.id in tile_by_tensor, f"output {tile.name} is not on the host at the end"
        parts = [(tile.box.slices, tile_by_tensor[tile.id]) for tile in tiles]
        readers[name] = partial(_assembled, shape_by_value[value], parts)
    return readers


def _assembled(shape: tuple[int, ...], parts: Sequence[tuple[tuple[slice, ...], torch.Tensor]]) -> torch.Tensor:
    whole = torch.empty(shape, dtype=parts[0][1].dtype)
    for slices, part in parts:
        whole[slices] = part
    return whole
