"""Safetensors files (one, or shards under an index) as a Checkpoint, with the config.json beside them as metadata.

A file is 8 bytes of header length, a JSON header, then raw little-endian data. The header is read here, not by the
library: the library maps the file and stops at the first fault, and this must list them all and keep no page. bf16
rows are widened to float32. Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from einpage.checkpoints.files.checkpoint import (
    StoredAt,
    StoredBytes,
    WeightError,
    WeightRows,
    cut_off,
    file_size,
    folded,
    is_name,
    read_bytes,
    refuse_many,
    rows_and_columns,
)
from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.errors import listing
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed
from einpage.einsum_front.base.units import format_bytes, shown

_BEYOND = 2**1023
"""No float holds such a number."""
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
"""The library's own limit."""
_MOST_DIMENSIONS = 64
"""Of a tensor: torch makes none of more."""
_MOST_SHARDS = 2_000
_MOST_KEYS = 10_000
"""Of a config.json, nested ones counted: each is held against all that are known."""
_LONGEST_MAPPING = 1_000
"""Nested mappings of more entries are tables, as of the labels of 21,843 classes: each is one key with one value."""
_MOST_INDEX = 512 << 20
"""Bytes of memory, as parsed: names and shards of more tensors than any checkpoint has."""
_MOST_CONFIG = 256 << 20
"""Bytes of memory, as parsed."""
_NBYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the file."""


@dataclass(frozen=True, slots=True)
class SafetensorsFiles:
    entries: Mapping[str, SafetensorsTensor]
    tensors: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, object]
    damage: tuple[str, ...]

    def config(self) -> Mapping[str, object]:
        return self.metadata

    def fault(self, name: str) -> str | None:
        dtype = self.entries[name].dtype
        return None if dtype in _NBYTES else f"is stored as {dtype}; {', '.join(_NBYTES)} are supported"

    def block_format(self, name: str) -> BlockFormat | None:
        return {"BF16": BlockFormat.BF16, "F16": BlockFormat.FP16}.get(self.entries[name].dtype)

    def file_of(self, name: str) -> Path | None:
        return self.entries[name].path

    def stored_at(self, name: str) -> StoredAt | None:
        entry = self.entries[name]
        type = {"F32": DType.FP32, "BF16": DType.BF16, "F16": DType.FP16}.get(entry.dtype)
        return None if type is None else StoredAt(entry.path, entry.offset, type)

    def read_stored(self, name: str, start: int, end: int) -> StoredBytes:
        entry = self.entries[name]
        rows, columns = rows_and_columns(entry.shape)
        assert 0 <= start <= end <= rows, f"{name}: rows {start}:{end} of {rows}"
        row_bytes = columns * _NBYTES[entry.dtype]
        raw = read_bytes(entry.path, entry.offset + start * row_bytes, (end - start) * row_bytes)
        return raw.reshape(end - start, row_bytes)

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        raw = self.read_stored(name, start, end).reshape(-1)
        shape = (end - start, rows_and_columns(self.tensors[name])[1])
        match self.entries[name].dtype:
            case "BF16":
                return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
            case "F16":
                return raw.view("<f2").reshape(shape)
            case "F32":
                return raw.view("<f4").reshape(shape)
            case "F64":
                return raw.view("<f8").astype(np.float32).reshape(shape)
            case other:
                raise AssertionError(f"{name}: dtype {other} was not refused")


def open_safetensors(paths: tuple[Path, ...]) -> SafetensorsFiles:
    """Read the headers of one or several files. Raises WeightError for a broken header or a name that stands in two files."""
    return _gather(paths, ())


def open_index(path: Path) -> SafetensorsFiles:
    """Read a `*.safetensors.index.json` and the headers of its shards; shards missing, or lacking what it names, are `damage`."""
    index = _read_json(path, _MOST_INDEX)
    shard_by_name = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shard_by_name, dict) or not all(isinstance(s, str) for s in shard_by_name.values()):
        raise WeightError(f"{path}: an index needs `weight_map`, a mapping of tensor names to shard files")
    refuse_many(path, len(shard_by_name))
    if unnamed := [n for n in shard_by_name if not is_name(n)]:
        raise WeightError(f"{path}: a tensor is called {shown(unnamed[0])}")
    names_by_shard: dict[str, list[str]] = {}
    for name, shard in shard_by_name.items():
        names_by_shard.setdefault(shard, []).append(name)
    if len(names_by_shard) > _MOST_SHARDS:
        raise WeightError(f"{path}: {len(names_by_shard):,} shards, more than any checkpoint has: at most {_MOST_SHARDS:,} are read")
    outside = [s for s in names_by_shard if Path(s).name != s or not is_name(s)]
    if outside:
        raise WeightError(f"{path}: shards must lie beside their index; it names {listing(map(shown, outside))}")
    there = {s: path.parent / s for s in names_by_shard if (path.parent / s).is_file()}
    damage = [f"{path}: shard {s} is missing; it holds {', '.join(folded(names))}" for s, names in names_by_shard.items() if s not in there]
    found = _gather(tuple(there.values()), tuple(damage))
    lost = [n for n, s in shard_by_name.items() if s in there and n not in found.entries]
    more = (f"{path}: the shards lack what the index names: {', '.join(folded(lost))}",) if lost else ()
    return SafetensorsFiles(found.entries, found.tensors, found.metadata, found.damage + more)


def _gather(paths: tuple[Path, ...], damage: tuple[str, ...]) -> SafetensorsFiles:
    entries: dict[str, SafetensorsTensor] = {}
    for path in paths:
        size = file_size(path)
        found = _read_header(path, size)
        twice = [f"{name} ({entries[name].path.name})" for name in found if name in entries]
        if twice:
            raise WeightError(f"{path}: also in another file beside it: {', '.join(folded(twice))}")
        entries |= found
        refuse_many(path, len(entries))
        damage += cut_off(path, size, {n: e.offset + prod(e.shape) * _NBYTES.get(e.dtype, 1) for n, e in found.items()})
    shapes = {name: entry.shape for name, entry in entries.items()}
    return SafetensorsFiles(entries, shapes, _config_beside(paths[0]) if paths else {}, damage)


def _read_header(path: Path, size: int) -> dict[str, SafetensorsTensor]:
    if size < _LENGTH_BYTES:
        raise WeightError(f"{path}: not a safetensors file: it has {size} bytes")
    length = int(read_bytes(path, 0, _LENGTH_BYTES).view("<u8")[0])
    if length > _LONGEST_HEADER:
        raise WeightError(f"{path}: not a safetensors file: its header would be {length} bytes long")
    if _LENGTH_BYTES + length > size:
        raise WeightError(f"{path}: truncated: {size} bytes on disk, {_LENGTH_BYTES + length} needed for the header alone")
    try:
        header = parsed(read_bytes(path, _LENGTH_BYTES, length).tobytes())
    except JsonTooLarge as error:
        raise WeightError(f"{path}: the header has {error}") from error
    except JsonError as error:
        raise WeightError(f"{path}: corrupt header: not JSON") from error
    if not isinstance(header, dict):
        raise WeightError(f"{path}: corrupt header: not a mapping")
    header.pop("__metadata__", None)
    refuse_many(path, len(header))
    found = {name: _entry(path, name, entry, _LENGTH_BYTES + length) for name, entry in header.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].offset))


def _entry(path: Path, name: str, entry: object, base: int) -> SafetensorsTensor:
    if not is_name(name):
        raise WeightError(f"{path}: corrupt header: a tensor is called {shown(name)}")
    if isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and not is_name(entry["dtype"]):
        raise WeightError(f"{path}: corrupt header: {name} is stored as {shown(entry['dtype'])}")
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            all(type(n) is int and n >= 0 for n in shape) and 0 <= start <= end
        ):
            if len(shape) > _MOST_DIMENSIONS:
                raise WeightError(f"{path}: corrupt header: {name} has {len(shape)} dimensions, at most {_MOST_DIMENSIONS} are possible")
            wanted = prod(shape) * _NBYTES.get(dtype, 0)
            if dtype in _NBYTES and end - start != wanted:
                raise WeightError(
                    f"{path}: corrupt header: {name} is {dtype} {shown(shape)}, {shown(wanted)} bytes, but is given {end - start}"
                )
            return SafetensorsTensor(path, dtype, tuple(shape), base + start)
    raise WeightError(f"{path}: corrupt header: the entry of {name} is {shown(entry)}")


def _config_beside(path: Path) -> dict[str, object]:
    config = path.parent / "config.json"
    if not config.is_file():
        return {}
    raw = _read_json(config, _MOST_CONFIG)
    if not isinstance(raw, dict):
        raise WeightError(
            f"{config}: {shown(raw)}, expected a mapping of keys to values; correct it, or take it away to run without metadata"
        )
    found = {dotted: value for key, inner in raw.items() for dotted, value in _flat(inner, key)}
    if len(found) > _MOST_KEYS:
        raise WeightError(
            f"{config}: {len(found):,} keys, more than the {_MOST_KEYS:,} that are read; take out what is no setting of the model"
        )
    for key, value in found.items():
        if not is_name(key):
            raise WeightError(f"{config}: a key is {shown(key)}")
        if beyond := next((n for n in _numbers(value) if abs(n) >= _BEYOND), None):
            raise WeightError(f"{config}: `{key}` is {shown(beyond)}, more than a float holds")
    return found


def _numbers(value: object) -> Iterator[int]:
    """The whole numbers of a value, of lists and mappings in it too."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _flat(value: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Nested mappings under dotted keys: `rope_parameters.rope_theta`; tables whole."""
    if isinstance(value, dict) and len(value) <= _LONGEST_MAPPING:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}")
    else:
        yield prefix, value


def _read_json(path: Path, most: int) -> object:
    """A JSON file that takes at most `most` bytes of memory. Raises WeightError, naming the line, where it is none."""
    size = file_size(path)
    if size > most:
        raise WeightError(f"{path}: {size:,} bytes of JSON, more than the {format_bytes(most)} of memory that it may take")
    try:
        return parsed(read_bytes(path, 0, size).tobytes(), most)
    except JsonTooLarge as error:
        raise WeightError(f"{path}: {error}") from error
    except JsonError as error:
        raise WeightError(f"{path}: not JSON: {error}") from error
