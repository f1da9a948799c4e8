"""A safetensors file written tensor by tensor, so that no more than one is in memory beside what it comes from; and whole, or not at all.

In: names, element types, shapes, and what gives the bytes of each. Out: a file that is on the disk when the call returns: whoever is killed
meanwhile leaves the file that was there before. Its metadata are texts by name, which `metadata_of` reads. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.files.checkpoint import WeightError, file_size, read_bytes
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.files import write_through
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed

_WORD = {DType.FP32: "F32", DType.FP16: "F16", DType.BF16: "BF16"}
_ALIGNED = 8
"""What the length of the header is a multiple of."""
_LONGEST_HEADER = 100_000_000
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Callable[[], NDArray[np.uint8]]
    """Gives its bytes, row-major."""

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return prod(self.shape) * self.dtype.nbytes


def write_safetensors(path: Path, tensors: Sequence[WrittenTensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors`, in their order. Raises UsageError where the place cannot be written."""
    header: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": _WORD[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)

    def write(part: Path) -> None:
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in tensors:
                data = tensor.data()
                assert data.nbytes == tensor.nbytes, f"{tensor.name}: {data.nbytes} bytes for {tensor.nbytes}"
                file.write(data.data)
            file.flush()
            os.fsync(file.fileno())

    write_through(path, write)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    try:
        opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # a system that opens no folders
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; none where it has none. Raises WeightError for a file that is no such file."""
    size = file_size(path)
    length = int.from_bytes(read_bytes(path, 0, min(size, 8)).tobytes(), "little")
    if size < 8 or length > min(_LONGEST_HEADER, size - 8):
        raise WeightError(f"{path}: not a safetensors file, or cut off: it has {size} bytes")
    try:
        header = parsed(read_bytes(path, 8, length).tobytes())
    except (JsonError, JsonTooLarge) as error:
        raise WeightError(f"{path}: corrupt header: not JSON") from error
    found = header.get(_METADATA, {}) if isinstance(header, dict) else {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
