"""Where on disk each tile of a weight lies, or is to lie: in the checkpoint itself where its bytes stand there as a run wants them, one
after the other; in a file of packed tiles where they do not.

In: a TaskGraph, and which tensor of the checkpoint each weight is. Out: TilePlaces, offsets in one space, for every plan of a model in the
same pieces the same. Nothing is read. A tile is read where it is if its elements are stored in its own type, in its own order:

    tensor [8, 64] in the file     ........|--------tile [2:6, :]--------|........        contiguous: read there
                                   ..|tile [:, 0:32] ..|tile ..|tile ..|tile ..|..        not: packed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

from einpage.checkpoints.disk.direct_file import PAGE
from einpage.checkpoints.files.checkpoint import StoredAt, file_size
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.resolve import Resolved
from einpage.einsum_front.base.dtype import BlockFormat, DType, ElementType, Stored, as_run
from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId


@dataclass(frozen=True, slots=True)
class TilePlaces:
    """The files of a checkpoint that tiles are read from, at multiples of a page, then the file of packed tiles."""

    files: tuple[Path, ...]
    bases: tuple[int, ...]
    """[file] where it begins; then where the packed file does."""
    offset_by_tensor: Mapping[TensorId, int]
    packed: tuple[TensorId, ...]
    """In the order of the packed file."""
    packed_bytes: int

    @property
    def nbytes(self) -> int:
        """Of all: what else is on the disk lies after them."""
        return self.bases[-1] + self.packed_bytes


def tile_places(graph: TaskGraph, resolved: Resolved) -> TilePlaces:
    """Places of all weight tiles of `graph`. Raises WeightError for a file that is not there."""
    shape_by_value = {value.name: value.shape for value in graph.values}
    order = {name: i for i, name in enumerate(resolved.checkpoint.tensors)}
    tiles = [t for t in graph.tensors if t.kind is Kind.WEIGHT]
    tiles.sort(key=lambda t: (order[resolved.source_by_weight[t.value].name], t.value, t.box.start))
    direct: dict[TensorId, StoredAt] = {}
    packed: list[TensorId] = []
    for tile in tiles:
        source = resolved.source_by_weight[tile.value]
        stored = resolved.checkpoint.stored_at(source.name)
        start = None if stored is None else start_in(stored, source, shape_by_value[tile.value], tile.box, tile.element_type)
        if stored is None or start is None:
            packed.append(tile.id)
        else:
            direct[tile.id] = StoredAt(stored.path, start, stored.type)
    files = tuple(sorted({at.path for at in direct.values()}))
    bases = tuple(accumulate((aligned(file_size(path), PAGE) for path in files), initial=0))
    base_by_path = dict(zip(files, bases, strict=False))
    offsets = {tile: base_by_path[at.path] + at.offset for tile, at in direct.items()}
    top = bases[-1]
    for number in packed:
        offsets[number] = top
        top += aligned(graph.tensors[number].nbytes, PAGE)
    return TilePlaces(files, bases, offsets, tuple(packed), top - bases[-1])


def start_in(stored: StoredAt, source: Source, shape: tuple[int, ...], box: Box, type: ElementType) -> int | None:
    """Where in its file a tile of a weight of `shape` begins, whose bytes are there as they are wanted; None where they are not."""
    if source.plus or not _same_type(stored.type, type):
        return None
    order = [d for group in source.groups for d in group]
    long = [d for d in order if box.shape[d] > 1]
    if long != sorted(long):  # its elements stand in another order
        return None
    after_first = order[order.index(long[0]) + 1 :] if long else []
    if any(box.shape[d] != shape[d] for d in after_first):  # they do not stand one after the other
        return None
    first = 0
    for d in order:
        first = first * shape[d] + box.start[d]
    match stored.type:
        case BlockFormat():
            if first % stored.type.elements:
                return None
            start = stored.offset + first // stored.type.elements * stored.type.nbytes
            return start if start % 2 == 0 else None
        case DType():
            start = stored.offset + stored.type.bytes_of(first)
            return start if start % stored.type.nbytes == 0 else None


def _same_type(stored: DType | BlockFormat, type: ElementType) -> bool:
    """Whether bytes of the one are bytes of the other."""
    if isinstance(type, Stored):
        return str(stored.value) == str(type.format.value)
    return stored == type


def packed_key(graph: TaskGraph, resolved: Resolved, places: TilePlaces, digest_by_file: Mapping[Path, str]) -> str:
    """A digest of all that the bytes of the packed file follow from; files are told by their contents."""
    checkpoint = resolved.checkpoint
    shape_by_value = {value.name: value.shape for value in graph.values}
    found = sha256(b"1\n")
    if isinstance(checkpoint, RandomWeights):
        found.update(f"random {checkpoint.seed}\n".encode())
    for path in sorted(digest_by_file):
        found.update(f"{digest_by_file[path]}\n".encode())
    for number in places.packed:
        tile = graph.tensors[number]
        source = resolved.source_by_weight[tile.value]
        said = (source.name, source.groups, source.plus, shape_by_value[tile.value], tile.box.start, tile.box.end, _name(tile.element_type))
        found.update(f"{said}\n".encode())
    return found.hexdigest()[:32]


def files_to_pack(graph: TaskGraph, resolved: Resolved, places: TilePlaces) -> Sequence[Path]:
    """The files that packed tiles are made from."""
    names = {resolved.source_by_weight[graph.tensors[number].value].name for number in places.packed}
    return sorted({path for name in names if (path := resolved.checkpoint.file_of(name)) is not None})


def _name(type: ElementType) -> str:
    return type.value if isinstance(type, DType) else f"{type.value} {as_run(type).value}"
