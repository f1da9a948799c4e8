"""Tiles that no checkpoint has as a run wants them, packed once into a cache file; and the disk's arena, opened.

In: a TaskGraph, a checkpoint, where its tiles are to lie. Out: an open BlockStore. Packing takes as much memory as the largest tile and a
few blocks: so many tiles at a time are filled as any run fills them, and written past the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.checkpoints.disk.block_store import BlockStore
from einpage.checkpoints.disk.cache_files import CacheFolder
from einpage.checkpoints.disk.digests import checksum, file_digest
from einpage.checkpoints.disk.direct_file import PAGE, DirectFile, DiskError, open_direct, open_scratch
from einpage.checkpoints.disk.engines import TransferOptions, make_engine
from einpage.checkpoints.match.resolve import Resolved
from einpage.checkpoints.match.tile_places import TilePlaces, files_to_pack, packed_key
from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import TaskGraph, Tensor
from einpage.exec.load.fill import NotFiniteWeight, fill
from einpage.exec.system.cache_folder import blocks_folder
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE

AT_ONCE = 16 << 20
"""Bytes of tiles that are filled together, where no tile has more: a tensor of the checkpoint is read once for all of its tiles in them."""
_CHECKSUMS, _NOT_FINITE = "checksums", "not_finite"


@dataclass(frozen=True, slots=True, eq=False)
class OpenDisk:
    """The disk of runs, and what is known of the weights on it."""

    store: BlockStore
    offset_by_name: Mapping[str, int]
    """Of tiles, in the store."""
    scratch: int
    """Where in the store scratch begins."""
    scratch_bytes: int
    not_finite: tuple[NotFiniteWeight, ...]
    """Of what was packed."""


def open_disk(
    graph: TaskGraph,
    resolved: Resolved,
    places: TilePlaces,
    scratch_bytes: int,
    choice: TransferOptions,
    loading: Callable[[str, int], None] | None = None,
    folder: CacheFolder | None = None,
) -> OpenDisk:
    """Open the files of `places`, that of packed tiles made where it is not there, and scratch of so many bytes.

    `loading(weight, nbytes)` is told what is packed. Raises DiskError, WeightError.
    """
    folder = folder or blocks_folder()
    with ExitStack() as undone:
        files: list[tuple[int, DirectFile]] = []
        for base, path in zip(places.bases, places.files, strict=False):
            files.append((base, open_direct(path)))
            undone.callback(files[-1][1].close)
        not_finite: tuple[NotFiniteWeight, ...] = ()
        expected: dict[tuple[int, int], int] = {}
        if places.packed:
            path, index = _packed(graph, resolved, places, choice, folder, loading)
            packed = open_direct(path)
            undone.callback(packed.close)
            files.append((places.bases[-1], packed))
            not_finite, sums = _read_index(path, index, len(places.packed))
            expected = {(places.offset_by_tensor[t], graph.tensors[t].nbytes): value for t, value in zip(places.packed, sums, strict=True)}
        scratch, scratch_at = None, aligned(places.nbytes, PAGE)
        if scratch_bytes:
            scratch = scratch_at, open_scratch(folder.path, scratch_bytes)
            undone.callback(scratch[1].close)
        store = BlockStore(files, scratch, make_engine(choice), make_engine(choice), choice)
        store.expect(expected)
        undone.pop_all()
    offset_by_name = {graph.tensors[t].name: offset for t, offset in places.offset_by_tensor.items()}
    return OpenDisk(store, offset_by_name, scratch_at, scratch_bytes, not_finite)


def _packed(
    graph: TaskGraph,
    resolved: Resolved,
    places: TilePlaces,
    choice: TransferOptions,
    folder: CacheFolder,
    loading: Callable[[str, int], None] | None,
) -> tuple[Path, Mapping[str, object]]:
    """The file of packed tiles, made where it is not there."""
    digests = {path: file_digest(path, folder.path) for path in files_to_pack(graph, resolved, places)}
    key = packed_key(graph, resolved, places, digests)
    found = folder.find(key)
    if found is not None:
        return found

    def write(fd: int) -> Mapping[str, object]:
        return _pack(graph, resolved, places, fd, loading)

    return folder.make(key, places.packed_bytes, write)


def _pack(
    graph: TaskGraph, resolved: Resolved, places: TilePlaces, fd: int, loading: Callable[[str, int], None] | None
) -> Mapping[str, object]:
    """Write every packed tile; the index."""
    start_of = {t: places.offset_by_tensor[t] - places.bases[-1] for t in places.packed}
    batches = [*_batches([graph.tensors[t] for t in places.packed])]
    ends = [start_of[some[-1].id] + some[-1].nbytes for some in batches]
    memory = np.empty(max(end - start_of[some[0].id] for some, end in zip(batches, ends, strict=True)), np.uint8)
    sums: list[int] = []
    not_finite: dict[NotFiniteWeight, None] = {}
    for some, end in zip(batches, ends, strict=True):
        first = start_of[some[0].id]
        parts = [memory[start_of[t.id] - first :][: t.nbytes] for t in some]
        slots = {t.id: _slot(part, t) for t, part in zip(some, parts, strict=True)}
        not_finite |= dict.fromkeys(fill(graph, resolved, slots, loading))
        sums += map(checksum, parts)
        _write(fd, memory[: end - first], first)
    found = [[w.tensor, w.shape, w.count, w.beyond, w.first, repr(w.value)] for w in not_finite]
    return {_CHECKSUMS: sums, _NOT_FINITE: found}


def _batches(tiles: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of at most AT_ONCE bytes together, or one."""
    some: list[Tensor] = []
    for tile in tiles:
        if some and sum(aligned(t.nbytes, PAGE) for t in some) + tile.nbytes > AT_ONCE:
            yield some
            some = []
        some.append(tile)
    yield some


def _slot(part: NDArray[np.uint8], tile: Tensor) -> torch.Tensor:
    """These bytes as fill wants a tile."""
    flat = torch.from_numpy(part)
    return flat if isinstance(tile.element_type, Stored) else flat.view(TORCH_DTYPE[tile.dtype]).view(tile.shape)


def _write(fd: int, data: NDArray[np.uint8], offset: int) -> None:
    """To the disk, and out of the page cache, which would hold what nobody reads from there. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:].data, offset + done)
    os.fdatasync(fd)
    os.posix_fadvise(fd, offset, len(data), os.POSIX_FADV_DONTNEED)


def _read_index(path: Path, index: Mapping[str, object], count: int) -> tuple[tuple[NotFiniteWeight, ...], Sequence[int]]:
    """What the index of a packed file says. Raises DiskError where it is not one of so many tiles."""
    match index:
        case {"checksums": list(sums), "not_finite": list(lines)} if len(sums) == count:
            found = [NotFiniteWeight(t, tuple(shape), n, beyond, tuple(first), float(value)) for t, shape, n, beyond, first, value in lines]
            return tuple(found), sums
    raise DiskError(f"{path}: its index is not that of {count} tiles; remove it (`einpage cache --clear`)")
