"""A GGUF file (llama.cpp's format, versions 2 and 3, little-endian) as a Checkpoint.

The header is walked once, by hand: the `gguf` package's reader takes 2.3 s and 160 MiB for a vocabulary of 49k
strings, which this skips in 50 ms, remembering where each long array lies. WeightRows are read by offset and dequantised by
`gguf.dequantize`. GGUF writes dimensions innermost first; here, as everywhere, outermost is first. Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from einpage.checkpoints.files.checkpoint import (
    StoredAt,
    StoredBytes,
    WeightError,
    WeightRows,
    cut_off,
    file_size,
    is_name,
    read_bytes,
    refuse_many,
    rows_and_columns,
    unreadable,
)
from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.units import aligned, format_bytes, shown

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_SHORT_ARRAY = 64
"""Arrays up to this length become lists in the metadata; longer ones (vocabularies) are read when asked for."""
_MOST_LAYERS = 1024
"""Arrays of numbers up to this length do as well: they may have a number for each layer."""
_MOST_KEYS = 10_000
_MOST_ELEMENTS = 1 << 22
"""Of all arrays of metadata together: a vocabulary of a million tokens with its scores, types and merges."""
_MOST_TEXT = 64 << 20
"""Bytes of all names and texts that are kept, and of one vocabulary."""
_STRING, _ARRAY = 8, 9
_SCALAR_FORMAT = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

_FORMATS = {
    1: BlockFormat.FP16,
    2: BlockFormat.Q4_0,
    3: BlockFormat.Q4_1,
    8: BlockFormat.Q8_0,
    12: BlockFormat.Q4_K,
    14: BlockFormat.Q6_K,
    30: BlockFormat.BF16,
}
"""By GGUF's number of an element type."""
_TYPES = {0: DType.FP32, 1: DType.FP16, 30: DType.BF16}
"""Those that a run may compute in."""

MetadataValue: TypeAlias = "bool | int | float | str"


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array of metadata left in the file."""

    offset: int
    """Of its first element, in bytes."""
    element: int
    """GGUF's number of the element type."""
    count: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    shape: tuple[int, ...]
    type: int
    offset: int
    """From the start of the file."""


class _Broken(Exception):
    """The header says something impossible; the message says what and where."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: Mapping[str, MetadataValue | list[MetadataValue] | LongArray]
    entries: Mapping[str, GgufTensor]
    tensors: Mapping[str, tuple[int, ...]]
    damage: tuple[str, ...]

    def config(self) -> Mapping[str, object]:
        """The metadata without its long arrays, and `<architecture>.vocab_size` from the tokenizer where the file leaves it out."""
        found: dict[str, object] = {k: v for k, v in self.metadata.items() if not isinstance(v, LongArray)}
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if tokens is not None and not isinstance(tokens, str | int | float):
            count = tokens.count if isinstance(tokens, LongArray) else len(tokens)
            found.setdefault(f"{found.get('general.architecture', 'llama')}.vocab_size", count)
        return found

    def array(self, key: str) -> list[MetadataValue] | None:
        """A whole array of metadata, long or short; None where the file has none under this key."""
        value = self.metadata.get(key)
        if isinstance(value, LongArray):
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(data, value.offset).elements(value.element, value.count)
        return value if isinstance(value, list) else None

    def fault(self, name: str) -> str | None:
        entry = self.entries[name]
        if _block(entry.type) is None:
            return f"is stored as GGUF type {entry.type}, which is not supported"
        return None

    def block_format(self, name: str) -> BlockFormat | None:
        return _FORMATS.get(self.entries[name].type)

    def file_of(self, name: str) -> Path | None:
        return self.path

    def stored_at(self, name: str) -> StoredAt | None:
        entry = self.entries[name]
        type = _TYPES.get(entry.type) or _FORMATS.get(entry.type)
        return None if type is None else StoredAt(self.path, entry.offset, type)

    def read_stored(self, name: str, start: int, end: int) -> StoredBytes:
        entry, format = self.entries[name], self.block_format(name)
        assert format is not None
        rows, columns = rows_and_columns(entry.shape)
        assert 0 <= start <= end <= rows, f"{name}: rows {start}:{end} of {rows}"
        row_bytes = columns // format.elements * format.nbytes
        return read_bytes(self.path, entry.offset + start * row_bytes, (end - start) * row_bytes).reshape(end - start, row_bytes)

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        entry = self.entries[name]
        block = _block(entry.type)
        assert block is not None, f"{name}: {self.fault(name)}"
        elements, nbytes = block
        rows, columns = rows_and_columns(entry.shape)
        assert 0 <= start <= end <= rows, f"{name}: rows {start}:{end} of {rows}"
        row_bytes = columns // elements * nbytes
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        raw = read_bytes(self.path, entry.offset + start * row_bytes, (end - start) * row_bytes)
        if entry.type == GGMLQuantizationType.F16:
            return raw.view("<f2").reshape(end - start, columns)
        if entry.type == GGMLQuantizationType.F64:
            return raw.view("<f8").astype(np.float32).reshape(end - start, columns)
        return dequantize(raw.reshape(end - start, row_bytes), GGMLQuantizationType(entry.type)).reshape(end - start, columns)


def open_gguf(path: Path) -> GgufFile:
    """Read the header. Raises WeightError where it is not GGUF, or is broken; tensors that lie beyond the end become `damage`."""
    size = file_size(path)
    if size < len(_MAGIC):
        raise WeightError(f"{path}: not a GGUF file: it has {size} bytes")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, entries = _read_header(path, data)
    except OSError as error:
        raise unreadable(path, error) from error
    except _Broken as error:
        raise WeightError(f"{path}: {error}; the file has {size} bytes") from error
    if (pieces := metadata.get("split.count", 1)) not in (0, 1):
        raise WeightError(
            f"{path}: one of {pieces} pieces of a split GGUF, which is not supported: merge them with `llama-gguf-split --merge`"
        )
    ends = {name: entry.offset + _nbytes(entry) for name, entry in entries.items()}
    shapes = {name: entry.shape for name, entry in entries.items()}
    return GgufFile(path, metadata, entries, shapes, cut_off(path, size, ends))


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, MetadataValue | list[MetadataValue] | LongArray], dict[str, GgufTensor]]:
    if data[:4] != _MAGIC:
        raise _Broken(f"not a GGUF file: it starts with {data[:4]!r}, not {_MAGIC!r}")
    at = _Cursor(data, len(_MAGIC))
    version = at.scalar("I")
    if version not in _VERSIONS:
        hint = " (a big-endian file?)" if isinstance(version, int) and version & 0xFFFF == 0 else ""
        raise _Broken(f"GGUF version {version}{hint} is not supported: {' and '.join(map(str, _VERSIONS))} are")
    tensor_count, key_count = at.count("Q"), at.count("Q")
    refuse_many(path, tensor_count)
    if key_count > _MOST_KEYS:
        raise _Broken(f"{key_count:,} metadata keys, more than any model has: at most {_MOST_KEYS:,} are read")
    metadata: dict[str, MetadataValue | list[MetadataValue] | LongArray] = {}
    for _ in range(key_count):
        key = at.name()
        if key in metadata:
            raise _Broken(f"corrupt header: metadata key {key!r} stands twice")
        metadata[key] = at.value()
    entries: dict[str, GgufTensor] = {}
    for _ in range(tensor_count):
        name, entry = _read_entry(at)
        if name in entries:
            raise _Broken(f"corrupt header: tensor {name!r} stands twice")
        entries[name] = entry
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _Broken(f"corrupt header: general.alignment is {shown(alignment)}")
    base = aligned(at.offset, alignment)
    placed = sorted(entries.items(), key=lambda item: item[1].offset)
    return metadata, {name: GgufTensor(e.shape, e.type, base + e.offset) for name, e in placed}


def _read_entry(at: _Cursor) -> tuple[str, GgufTensor]:
    name = at.name()
    dimensions = at.count("I")
    if dimensions > _MOST_DIMENSIONS:
        raise _Broken(f"corrupt header: tensor {name!r} has {dimensions} dimensions, at most {_MOST_DIMENSIONS} are possible")
    shape = tuple(at.count("Q") for _ in range(dimensions))[::-1]
    kind, offset = at.count("I"), at.count("Q")
    block = _block(kind)
    if block is not None and rows_and_columns(shape)[1] % block[0]:
        raise _Broken(f"corrupt header: tensor {name!r} has rows of {shape[-1]}, not a multiple of its blocks of {block[0]}")
    return name, GgufTensor(shape, kind, offset)


@cache
def _block(kind: int) -> tuple[int, int] | None:
    """(elements, bytes) of one quantisation block of an element type that can be read as floats; None otherwise."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # not at the top: who reads no GGUF needs no such library
    from gguf.quants import dequantize

    try:
        type_ = GGMLQuantizationType(kind)
        elements, nbytes = GGML_QUANT_SIZES[type_]
        if type_ is not GGMLQuantizationType.F64:
            dequantize(np.zeros((1, nbytes), np.uint8), type_)  # the only way to ask which types it knows
    except (ValueError, KeyError, NotImplementedError):
        return None
    return int(elements), int(nbytes)


def _nbytes(entry: GgufTensor) -> int:
    elements, nbytes = _block(entry.type) or (1, 0)
    return prod(entry.shape) // elements * nbytes


class _Cursor:
    """Reads a header front to back; every step is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self._elements_left = _MOST_ELEMENTS
        self._text_left = _MOST_TEXT
        self.offset = offset

    def scalar(self, format: str) -> MetadataValue:
        packed = "<" + format
        try:
            (value,) = struct.unpack_from(packed, self._data, self.offset)
        except struct.error:
            raise _Broken(f"truncated: the header ends in mid-air at byte {self.offset}") from None
        self.offset += struct.calcsize(packed)
        if format == "f":
            # 1e-5 was rounded to float32 when the file was written; its shortest decimal gives back what the author wrote.
            return float(str(np.float32(value)))
        assert isinstance(value, bool | int | float)
        return value

    def count(self, format: str) -> int:
        value = self.scalar(format)
        assert isinstance(value, int)
        return value

    def string(self) -> str:
        length = self.count("Q")
        start = self._skip(length)
        self._text_left -= length
        if self._text_left < 0:
            raise _Broken(f"more than {format_bytes(_MOST_TEXT)} of names and texts before byte {self.offset}, which no model has")
        try:
            return self._data[start : self.offset].decode("utf-8")
        except UnicodeDecodeError:
            raise _Broken(f"corrupt header: the string at byte {start} is not UTF-8") from None

    def name(self) -> str:
        """A string that can name something."""
        found = self.string()
        if not is_name(found):
            raise _Broken(f"corrupt header: a name before byte {self.offset} is {shown(found)}")
        return found

    def value(self) -> MetadataValue | list[MetadataValue] | LongArray:
        kind = self.count("I")
        if kind != _ARRAY:
            return self._element(kind)
        element, count = self.count("I"), self.count("Q")
        self._elements_left -= count
        if self._elements_left < 0:
            raise _Broken(f"an array of {count:,} before byte {self.offset}; all together may have {_MOST_ELEMENTS:,} elements")
        if count <= (_SHORT_ARRAY if element == _STRING else _MOST_LAYERS):
            return self.elements(element, count)
        found = LongArray(self.offset, element, count)
        if element == _STRING:
            for _ in range(count):
                self._skip(self.count("Q"))
        else:
            self._skip(count * struct.calcsize("<" + self._format(element)))
        return found

    def elements(self, element: int, count: int) -> list[MetadataValue]:
        return [self._element(element) for _ in range(count)]

    def _element(self, kind: int) -> MetadataValue:
        return self.string() if kind == _STRING else self.scalar(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind not in _SCALAR_FORMAT:
            raise _Broken(f"corrupt header: unknown metadata type {kind} before byte {self.offset}")
        return _SCALAR_FORMAT[kind]

    def _skip(self, nbytes: int) -> int:
        """Step over `nbytes`; where they started."""
        start = self.offset
        if nbytes > len(self._data) - start:
            raise _Broken(f"truncated or corrupt: the header wants {nbytes} bytes at byte {start}")
        self.offset = start + nbytes
        return start
